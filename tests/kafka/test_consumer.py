"""The consumer on real Kafka, against what librdkafka produced."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from ingestd.client.client import Client
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import (
    AtTime,
    ConsumerSettings,
    Edge,
    Isolation,
    OutOfRange,
    TopicPartition,
)
from ingestd.errors import Closed, ErrorCode, IngestdError, KafkaError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from harness.cluster import KafkaCluster

    from ingestd.consumer.partition_consumer import PartitionConsumer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def produce(servers: str, topic: str, values: Iterable[bytes | None], *, partition: int = 0, **settings: Any) -> None:
    producer = Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 2, "linger.ms": 5, **settings}
    )
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=partition, key=b"k%d" % number, headers=[("n", b"%d" % number)])
    assert producer.flush(30) == 0


@asynccontextmanager
async def consumer(servers: str, **settings: Any) -> AsyncIterator[Consumer]:
    async with Client(servers.split(",")) as client, Consumer(client, ConsumerSettings(**settings)) as made:
        yield made


async def values_of(partition: PartitionConsumer) -> list[bytes | None]:
    return [record.value async for record in partition]


async def take(partition: PartitionConsumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(30):
        async for record in partition:
            found.append(record.value)
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("codec", CODECS)
async def test_every_codec_is_read_record_for_record(
    kafka: KafkaCluster, topic: Callable[..., str], codec: str
) -> None:
    name = topic()
    values = [b"%d " % number * 20 if number % 7 else None for number in range(2_000)]
    produce(kafka.servers, name, values, **{"compression.type": codec})
    async with consumer(kafka.servers) as reader:
        partition = await reader.consume_partition(name, 0, Edge.earliest, Edge.latest)
        records = [record async for record in partition]
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(2_000))
    assert [record.key for record in records] == [b"k%d" % number for number in range(2_000)]
    assert [record.headers for record in records] == [(("n", b"%d" % number),) for number in range(2_000)]
    assert partition.next_offset == 2_000


async def test_reading_starts_at_the_literal_offset_and_stops_before_the_end(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    produce(kafka.servers, name, [b"%d" % number for number in range(100)])
    async with consumer(kafka.servers) as reader:
        partition = await reader.consume_partition(name, 0, 37, 53)
        assert await values_of(partition) == [b"%d" % number for number in range(37, 53)]
        assert partition.next_offset == 53


async def test_newest_sees_only_what_comes_after(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic()
    produce(kafka.servers, name, [b"before"])
    async with consumer(kafka.servers) as reader:
        partition = await reader.consume_partition(name, 0, Edge.latest)
        await asyncio.to_thread(produce, kafka.servers, name, [b"after"])
        assert await take(partition, 1) == [b"after"]
        assert partition.high_watermark == 2


async def test_a_timestamp_starts_at_the_first_record_at_or_after_it(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(retention_ms="-1")  # the records are old
    producer = Producer({"bootstrap.servers": kafka.servers, "log_level": 2})
    for number in range(10):
        producer.produce(name, b"%d" % number, partition=0, timestamp=1_700_000_000_000 + 1000 * number)
    assert producer.flush(30) == 0
    async with consumer(kafka.servers) as reader:
        partition = await reader.consume_partition(name, 0, AtTime(1_700_000_004_001), Edge.latest)
        assert await values_of(partition) == [b"%d" % number for number in range(5, 10)]
        late = {TopicPartition(name, 0): AtTime(1_800_000_000_000)}
        assert await reader.offsets(late) == {TopicPartition(name, 0): 10}


async def test_an_empty_partition_read_up_to_its_end_ends_at_once(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    async with consumer(kafka.servers) as reader:
        partition = await reader.consume_partition(topic(), 0, Edge.earliest, Edge.latest)
        assert await asyncio.wait_for(values_of(partition), 30) == []


async def test_many_partitions_are_read_by_one_loop_each_in_order(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=8)
    for number in range(8):
        produce(kafka.servers, name, [b"%d/%d" % (number, index) for index in range(500)], partition=number)
    # Small limits: several answers for each partition, and batches larger than what a partition may have.
    async with consumer(kafka.servers, partition_max_bytes=2_000, fetch_max_bytes=5_000) as reader:
        partitions = await asyncio.gather(
            *(reader.consume_partition(name, number, Edge.earliest, Edge.latest) for number in range(8))
        )
        found = await asyncio.wait_for(asyncio.gather(*map(values_of, partitions)), 60)
        (broker,) = reader._choice._brokers.values()
        assert broker._session.established
    assert found == [[b"%d/%d" % (number, index) for index in range(500)] for number in range(8)]


async def test_columns_and_batches_hold_the_same_records(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic()
    produce(kafka.servers, name, [b"v%d" % number for number in range(3_000)], **{"compression.type": "lz4"})
    async with consumer(kafka.servers) as reader:
        partition = await reader.consume_partition(name, 0, 10, 2_990)
        offsets: list[int] = []
        async for columns in partition.columns():
            offsets += memoryview(columns.offsets).cast("B").cast("q").tolist()
        assert offsets == list(range(10, 2_990))
        partition = await reader.consume_partition(name, 0, Edge.earliest, Edge.latest)
        assert sum([batch.header.records async for batch in partition.batches()]) == 3_000


async def test_committed_readers_see_no_aborted_record_and_stop_at_the_last_stable_offset(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": name, "log_level": 2})
    producer.init_transactions(30)
    for number, end in enumerate([producer.commit_transaction, producer.abort_transaction] * 3):
        producer.begin_transaction()
        for index in range(50):
            producer.produce(name, b"%d/%d" % (number, index), partition=0)
        producer.flush(30)
        end(30)
    producer.begin_transaction()
    producer.produce(name, b"open", partition=0)
    producer.flush(30)
    committed = [b"%d/%d" % (number, index) for number in (0, 2, 4) for index in range(50)]
    everything = [b"%d/%d" % (number, index) for number in range(6) for index in range(50)]
    async with consumer(kafka.servers, isolation=Isolation.read_committed) as reader:
        # The last records before the end are aborted ones and a control record.
        partition = await reader.consume_partition(name, 0, Edge.earliest, Edge.latest)
        assert await asyncio.wait_for(values_of(partition), 30) == committed
        assert partition.next_offset == 306
        middle = await reader.consume_partition(name, 0, 60, Edge.latest)
        assert await asyncio.wait_for(values_of(middle), 30) == committed[50:]
    async with consumer(kafka.servers) as reader:
        partition = await reader.consume_partition(name, 0, Edge.earliest, Edge.latest)
        assert await asyncio.wait_for(values_of(partition), 30) == [*everything, b"open"]
    producer.abort_transaction(30)


async def test_an_offset_out_of_range_is_an_error_or_a_move_as_the_policy_says(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    produce(kafka.servers, name, [b"a", b"b"])
    async with consumer(kafka.servers) as reader:
        partition = await reader.consume_partition(name, 0, 17)
        with pytest.raises(KafkaError) as caught:
            await take(partition, 1)
        assert caught.value.code is ErrorCode.offset_out_of_range
        assert f"{name}-0" in str(caught.value)
    async with consumer(kafka.servers, out_of_range=OutOfRange.earliest) as reader:
        assert await take(await reader.consume_partition(name, 0, 17), 2) == [b"a", b"b"]
    async with consumer(kafka.servers, out_of_range=OutOfRange.latest) as reader:
        partition = await reader.consume_partition(name, 0, 17)
        reading = asyncio.create_task(take(partition, 1))
        while partition.high_watermark < 0:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(produce, kafka.servers, name, [b"c"])
        assert await reading == [b"c"]


async def test_a_topic_or_partition_that_does_not_exist_is_refused(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    async with consumer(kafka.servers) as reader:
        for wanted in ((name, 1), ("never-made", 0)):
            with pytest.raises(KafkaError) as caught:
                await reader.consume_partition(*wanted, Edge.earliest)
            assert caught.value.code is ErrorCode.unknown_topic_or_partition


async def test_a_partition_has_one_partition_consumer_at_a_time(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic()
    async with consumer(kafka.servers) as reader:
        first = await reader.consume_partition(name, 0, Edge.earliest)
        with pytest.raises(IngestdError, match="already read"):
            await reader.consume_partition(name, 0, Edge.earliest)
        first.close()
        await reader.consume_partition(name, 0, Edge.earliest)
    with pytest.raises(Closed):
        await reader.consume_partition(name, 0, Edge.earliest)


async def test_a_paused_partition_fetches_nothing_until_resumed(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(partitions=2)
    async with consumer(kafka.servers, fetch_max_wait=0.05) as reader:
        paused = await reader.consume_partition(name, 0, Edge.earliest)
        running = await reader.consume_partition(name, 1, Edge.earliest)
        paused.pause()
        await asyncio.to_thread(produce, kafka.servers, name, [b"p"], partition=0)
        await asyncio.to_thread(produce, kafka.servers, name, [b"r"], partition=1)
        assert await take(running, 1) == [b"r"]
        assert paused.position == 0
        paused.resume()
        assert await take(paused, 1) == [b"p"]


async def test_closing_ends_an_iteration_after_what_is_fetched(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic()
    produce(kafka.servers, name, [b"%d" % number for number in range(10)])
    async with consumer(kafka.servers) as reader:
        partition = await reader.consume_partition(name, 0, Edge.earliest)
        while partition.position < 10:
            await asyncio.sleep(0.01)
        partition.close()
        assert len(await asyncio.wait_for(values_of(partition), 30)) == 10


async def test_a_slow_reader_bounds_what_is_fetched(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic()
    produce(kafka.servers, name, [b"x" * 10_000] * 600, **{"batch.size": 50_000})
    limit = 1_000_000
    async with consumer(kafka.servers, prefetch_bytes=limit) as reader:
        partition = await reader.consume_partition(name, 0, Edge.earliest, Edge.latest)
        seen = 0
        async for _record in partition:
            seen += 1
            assert partition.fetched_bytes <= limit
        assert seen == 600


async def test_an_iteration_goes_on_where_the_one_before_was_left(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    produce(kafka.servers, name, [b"%d" % number for number in range(20)])
    async with consumer(kafka.servers) as reader:
        partition = await reader.consume_partition(name, 0, Edge.earliest, Edge.latest)
        assert await take(partition, 3) == [b"0", b"1", b"2"]
        assert partition.next_offset == 3
        assert await take(partition, 2) == [b"3", b"4"]
        offsets: list[int] = []
        async for columns in partition.columns():
            offsets += memoryview(columns.offsets).cast("B").cast("q").tolist()
        assert offsets == list(range(5, 20))


async def test_pausing_and_resuming_all_is_one_call(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(partitions=2)
    async with consumer(kafka.servers, fetch_max_wait=0.05) as reader:
        partitions = [await reader.consume_partition(name, number, Edge.earliest) for number in (0, 1)]
        reader.pause_all()
        for number in (0, 1):
            await asyncio.to_thread(produce, kafka.servers, name, [b"x"], partition=number)
        assert [partition.position for partition in partitions] == [0, 0]
        assert all(partition.paused for partition in partitions)
        reader.resume_all()
        assert await asyncio.gather(*(take(partition, 1) for partition in partitions)) == [[b"x"], [b"x"]]


async def test_the_clients_status_shows_what_its_consumers_do(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic()
    produce(kafka.servers, name, [b"%d" % number for number in range(10)])
    async with Client(kafka.bootstrap) as client:
        async with Consumer(client) as reader:
            partition = await reader.consume_partition(name, 0, Edge.earliest)
            await take(partition, 4)
            shown = json.dumps(client.status(), default=asdict)
            assert f'"{name}-0": {{"next_offset": 4, "position": 10' in shown
            assert '"lag": 6' in shown
        assert name not in json.dumps(client.status(), default=asdict).partition('"consumer"')[2]
