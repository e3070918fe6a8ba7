"""Transactional producers of other clients behind one interface: librdkafka's, and Java's in a JVM of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition

if TYPE_CHECKING:
    from harness.java_programs import JavaProgram

__all__ = ["JavaFailureError", "JavaProducer", "LibrdkafkaProducer"]

SECONDS = 30


class LibrdkafkaProducer:
    """librdkafka's transactional producer."""

    def __init__(self, servers: str, transactional_id: str, **settings: Any) -> None:
        config = {
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "log_level": 0,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "retry.backoff.max.ms": 50,
            **settings,
        }
        self._servers = servers
        self._producer = Producer(config)
        self._producer.init_transactions(SECONDS)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: str) -> None:
        self._producer.produce(topic, value.encode(), partition=partition)
        assert self._producer.flush(SECONDS) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(SECONDS)

    def abort(self) -> None:
        self._producer.abort_transaction(SECONDS)

    def add_offset(self, group: str, topic: str, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": group, "log_level": 0})
        try:
            metadata = consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], metadata, SECONDS)
        finally:
            consumer.close()


class JavaProducer:
    """Java's transactional producer."""

    def __init__(self, java: JavaProgram, servers: str, transactional_id: str, **settings: Any) -> None:
        self._java = java
        self._name = f"{transactional_id}-{id(self)}"
        config = {"bootstrap.servers": servers, "transactional.id": transactional_id, **settings}
        self.ask(open=self._name, settings=config)

    def ask(self, **message: Any) -> None:
        failure = self._java.ask(message).get("failure")
        if failure is not None:
            raise JavaFailureError(failure)

    def begin(self) -> None:
        self.ask(begin=self._name)

    def send(self, topic: str, partition: int, value: str) -> None:
        self.ask(send=self._name, topic=topic, partition=partition, value=value)

    def commit(self) -> None:
        self.ask(commit=self._name)

    def abort(self) -> None:
        self.ask(abort=self._name)

    def add_offset(self, group: str, topic: str, offset: int) -> None:
        self.ask(offset=self._name, group=group, topic=topic, partition=0, at=offset)


class JavaFailureError(Exception):
    """The class of what Java's client has thrown."""
