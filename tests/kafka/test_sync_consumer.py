"""The blocking consumer, from plain threads and from a thread whose own loop runs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from ingestd.consumer.settings import ConsumerSettings, Edge, TopicPartition
from ingestd.consumer.sync import SyncConsumer, read_range
from ingestd.errors import Closed, DeadlineExceeded, ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import KafkaCluster

    from ingestd.records.columns import Columns


@pytest.fixture
def filled(kafka: KafkaCluster, topic: Callable[..., str]) -> str:
    """A topic with 2,000 records in each of 3 partitions."""
    name = topic(partitions=3)
    producer = Producer({"bootstrap.servers": kafka.servers, "enable.idempotence": True, "log_level": 2})
    for number in range(6_000):
        producer.produce(name, b"%d" % number, partition=number % 3)
    assert producer.flush(30) == 0
    return name


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "ingestd consumer"]


def offsets(columns: Columns) -> list[int]:
    return memoryview(columns.offsets).cast("B").cast("q").tolist()


def test_a_range_is_read_from_a_plain_thread(kafka: KafkaCluster, filled: str) -> None:
    found = [offset for columns in read_range(kafka.bootstrap, filled, 1, 100, 1_900) for offset in offsets(columns)]
    assert found == list(range(100, 1_900))


async def test_a_range_is_read_although_the_threads_own_loop_runs(kafka: KafkaCluster, filled: str) -> None:
    found = [
        one
        for columns in read_range(kafka.bootstrap, filled, 0, Edge.earliest, Edge.latest)
        for one in offsets(columns)
    ]
    assert found == list(range(2_000))


def test_several_threads_share_one_consumer(kafka: KafkaCluster, filled: str) -> None:
    with SyncConsumer(kafka.bootstrap) as consumer, ThreadPoolExecutor(3) as threads:
        assert filled in consumer.topics()
        assert consumer.partitions(filled) == [0, 1, 2]
        ends = consumer.offsets({TopicPartition(filled, number): Edge.latest for number in range(3)})
        assert set(ends.values()) == {2_000}

        def count(partition: int) -> int:
            return sum(columns.count for columns in consumer.columns(filled, partition, 0, 2_000))

        assert list(threads.map(count, range(3))) == [2_000] * 3


def test_an_iteration_that_is_left_can_be_begun_again(kafka: KafkaCluster, filled: str) -> None:
    with SyncConsumer(kafka.bootstrap) as consumer:
        first = consumer.batches(filled, 0, Edge.earliest, Edge.latest)
        next(first)
        first.close()  # type: ignore[attr-defined]
        assert sum(columns.count for columns in consumer.columns(filled, 0, Edge.earliest, Edge.latest)) == 2_000


def test_errors_come_to_the_calling_thread(kafka: KafkaCluster, filled: str) -> None:
    with SyncConsumer(kafka.bootstrap) as consumer:
        with pytest.raises(KafkaError) as caught:
            list(consumer.columns("never-made", 0, Edge.earliest, Edge.latest))
        assert caught.value.code is ErrorCode.unknown_topic_or_partition
    with pytest.raises(Closed):
        consumer.topics()


def test_waiting_has_an_end_where_nothing_is_produced(kafka: KafkaCluster, filled: str) -> None:
    with (
        SyncConsumer(kafka.bootstrap, patience=5.0) as consumer,
        pytest.raises(DeadlineExceeded, match=f"reading {filled}-0"),
    ):
        list(consumer.columns(filled, 0, Edge.latest, None))


def test_waiting_and_closing_have_an_end_where_nobody_answers() -> None:
    begun = time.monotonic()
    settings = ConsumerSettings(metadata_timeout=1.0)
    with SyncConsumer(["127.0.0.1:9"], settings) as consumer, pytest.raises(DeadlineExceeded):
        list(consumer.columns("any", 0, Edge.earliest, Edge.latest))
    assert time.monotonic() - begun < 20  # unless told otherwise it waits for 30 s


def test_records_are_read_by_a_plain_loop_from_and_to_anywhere(kafka: KafkaCluster, filled: str) -> None:
    with SyncConsumer(kafka.bootstrap) as consumer:
        with consumer.consume_partition(filled, 2, 5, 2_000) as partition:
            first = next(iter(partition))
            assert (first.topic, first.partition, first.offset) == (filled, 2, 5)
            assert (partition.next_offset, partition.high_watermark, partition.lag) == (6, 2_000, 1_994)
            records = partition.records()
            assert [next(records).offset, next(records).offset] == [6, 7]
            assert partition.seek(1_000) == 1_000
            assert next(records).offset == 1_000
            assert [offset for columns in partition.columns() for offset in offsets(columns)] == list(
                range(1_001, 2_000)
            )
            assert list(records) == []
            assert partition.next_offset == 2_000
        with consumer.consume_partition(filled, 2, Edge.latest) as partition:
            assert partition.seek(Edge.earliest) == 0
            assert next(partition.records()).offset == 0


def test_a_partition_that_one_thread_reads_is_paused_and_closed_by_another(kafka: KafkaCluster, filled: str) -> None:
    """One reads for ever, the other pauses, looks, resumes; then closes, and the reader's loop ends."""
    producer = Producer({"bootstrap.servers": kafka.servers, "log_level": 2})
    seen: list[int] = []
    arrived = threading.Event()

    def read() -> None:
        for record in partition:
            seen.append(record.offset)
            if record.offset == 2_000:
                arrived.set()

    with SyncConsumer(kafka.bootstrap) as consumer, ThreadPoolExecutor(1) as threads:
        partition = consumer.consume_partition(filled, 0, Edge.earliest)
        reading = threads.submit(read)
        consumer.pause([TopicPartition(filled, 0)])
        consumer.resume([TopicPartition(filled, 0)])
        for _ in range(20):
            partition.pause()
            assert consumer.status()["partitions"][f"{filled}-0"]["paused"]
            partition.resume()
        producer.produce(filled, b"last", partition=0)
        assert producer.flush(30) == 0
        assert arrived.wait(30)
        partition.close()
        reading.result(30)
        consumer.pause_all()
        consumer.resume_all()
    assert seen == list(range(2_001))
    partition.close()
    with pytest.raises(Closed):
        partition.pause()


def test_closing_ends_the_wait_of_a_reader_in_another_thread(kafka: KafkaCluster, filled: str) -> None:
    consumer = SyncConsumer(kafka.bootstrap)
    partition = consumer.consume_partition(filled, 0, 2_000)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(list, partition.records())
        consumer.status()
        consumer.close()
        # Ended in order, or told that the consumer is closed: as the close met it.
        error = reading.exception(30)
        assert error is None or isinstance(error, Closed)
