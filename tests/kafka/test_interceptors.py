"""Interceptors on a real broker: what they made of records is what librdkafka reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from ingestd.producer.interceptors import Interceptor
from ingestd.producer.message import OutgoingMessage
from ingestd.producer.settings import ProducerSettings
from ingestd.producer.sync import SyncProducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster

    from ingestd.producer.delivery import Delivery


class Signed(Interceptor):
    """Adds a header, and sends what asks for it to another topic."""

    def __init__(self, other: str) -> None:
        self.other = other
        self.ends: list[tuple[bytes | None, str, int]] = []

    def on_send(self, message: OutgoingMessage) -> OutgoingMessage:
        topic = self.other if message.value == b"elsewhere" else message.topic
        return message._replace(topic=topic, headers=[*message.headers, ("signed", b"yes")])

    def on_acknowledgement(self, message: OutgoingMessage, delivery: Delivery) -> None:
        self.ends.append((message.value, delivery.topic, delivery.base_offset))


class Broken(Interceptor):
    """Always raises."""

    def on_send(self, message: OutgoingMessage) -> OutgoingMessage:
        raise RuntimeError("broken")


def test_records_arrive_as_interceptors_made_them_and_a_broken_one_costs_nothing(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    first, second = topic(), topic()
    signed = Signed(second)
    settings = ProducerSettings(interceptors=(Broken(), signed))
    with SyncProducer(kafka.bootstrap, settings) as producer:
        values = [b"here", b"elsewhere", b"here again"]
        producer.send_many([OutgoingMessage(first, value, headers=[("mine", None)]) for value in values])
    reader = Consumer({"bootstrap.servers": kafka.servers, "group.id": "reader"})
    reader.assign([TopicPartition(name, 0, OFFSET_BEGINNING) for name in (first, second)])
    read = {(message.topic(), message.value()): message.headers() for message in reader.consume(3, timeout=20)}
    reader.close()
    headers = [("mine", None), ("signed", b"yes")]
    assert read == {(first, b"here"): headers, (second, b"elsewhere"): headers, (first, b"here again"): headers}
    assert sorted(signed.ends) == [(b"elsewhere", second, 0), (b"here", first, 0), (b"here again", first, 1)]
