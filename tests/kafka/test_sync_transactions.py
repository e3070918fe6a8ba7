"""The synchronous producer's transactions against real Apache Kafka, from plain threads."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition
from harness.reading import end_offsets

from ingestd.client.group import GroupMember, OffsetAndMetadata
from ingestd.client.metadata import TopicPartition as Partition
from ingestd.errors import ProducerFenced
from ingestd.producer.settings import ProducerSettings
from ingestd.producer.sync import OutgoingMessage, SyncProducer
from ingestd.producer.transaction_state import TransactionState
from ingestd.records.decode import Record, TimestampType

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster

EVERY_PROTOCOL = pytest.mark.parametrize("kafka_of_release", ["current", "3.9", "2.8"], indirect=True, scope="session")


class ChangedMindError(Exception):
    """What a block that makes a transaction raises."""


def settings(topic: str) -> ProducerSettings:
    """A transactional id of the topic's own; nothing lingers."""
    return ProducerSettings(transactional_id=f"tx-{topic}", linger=0.0)


def committed(cluster: KafkaCluster, topic: str) -> dict[int, list[bytes]]:
    """What librdkafka reads as committed, once no transaction is open."""
    deadline = time.monotonic() + 30
    while end_offsets(cluster.servers, topic, isolation="read_committed") != end_offsets(cluster.servers, topic):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return cluster.read_back(topic, isolation="read_committed")


@EVERY_PROTOCOL
def test_transactions_as_sarama_has_them(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic(partitions=2)
    with SyncProducer(kafka_of_release.bootstrap, settings(topic)) as producer:
        assert producer.is_transactional
        assert producer.transaction_state is TransactionState.UNINITIALIZED
        producer.init_transactions()
        producer.begin()
        assert producer.transaction_state is TransactionState.IN_TRANSACTION
        assert producer.send(topic, b"a", partition=0).offset == 0
        producer.send_many([OutgoingMessage(topic, b"%d" % number, partition=1) for number in range(50)])
        producer.commit()
        assert producer.transaction_state is TransactionState.READY
        producer.begin()
        producer.send(topic, b"aborted", partition=0)
        producer.abort()
        with pytest.raises(ChangedMindError):
            change_mind(producer, topic)
        with producer.transaction():
            producer.send(topic, b"b", partition=0)
    assert committed(kafka_of_release, topic) == {0: [b"a", b"b"], 1: [b"%d" % number for number in range(50)]}


def change_mind(producer: SyncProducer, topic: str) -> None:
    """A transaction that raises when its record is in the log."""
    with producer.transaction():
        producer.send(topic, b"aborted too", partition=0)
        raise ChangedMindError


@EVERY_PROTOCOL
def test_offsets_and_consumed_messages_are_committed_with_the_records(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic(partitions=2)
    member = GroupMember(f"group-{topic}")
    with SyncProducer(kafka_of_release.bootstrap, settings(topic)) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"a", partition=0)
            producer.add_offsets({Partition(topic, 0): OffsetAndMetadata(7)}, member)
            record = Record(11, 0, TimestampType.create_time, None, b"consumed")
            producer.add_message(Partition(topic, 1), record, member)
    reader = Consumer({"bootstrap.servers": kafka_of_release.servers, "group.id": member.group_id, "log_level": 2})
    found = reader.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=20)
    reader.close()
    assert [each.offset for each in found] == [7, 12]


def test_threads_write_into_one_transaction(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(partitions=2)

    def work(thread: int) -> None:
        for number in range(20):
            producer.send(name, b"%d-%d" % (thread, number), partition=thread % 2)

    with SyncProducer(kafka.bootstrap, settings(name)) as producer:
        producer.init_transactions()
        with producer.transaction():
            threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert kafka.read_back(name, isolation="read_committed") == {0: [], 1: []}
    assert {partition: len(values) for partition, values in committed(kafka, name).items()} == {0: 40, 1: 40}


def test_one_that_was_taken_over_is_fenced(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic()
    with (
        SyncProducer(kafka.bootstrap, settings(name)) as first,
        SyncProducer(kafka.bootstrap, settings(name)) as second,
    ):
        first.init_transactions()
        first.begin()
        first.send(name, b"zombie", partition=0)
        second.init_transactions()
        with second.transaction():
            second.send(name, b"successor", partition=0)
        with pytest.raises(ProducerFenced):
            first.commit()
        assert first.transaction_state is TransactionState.FATAL_ERROR
    assert committed(kafka, name) == {0: [b"successor"]}
