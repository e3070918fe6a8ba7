"""A read up to an end before which compaction left nothing, beside a partition that has records in every answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ingestd.client.client import Client
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import ConsumerSettings, Edge, Isolation

if TYPE_CHECKING:
    from harness.cluster import KafkaCluster

    from ingestd.consumer.partition_consumer import PartitionConsumer

COUNT = 100


def fill(cluster: KafkaCluster, topic: str, values: int, size: int) -> None:
    """Records without keys, one batch each, of a producer without an id: compaction leaves nothing of them."""
    producer = Producer({"bootstrap.servers": cluster.servers, "batch.num.messages": 1, "log_level": 2})
    for _ in range(values):
        producer.produce(topic, bytes(size), partition=0)
    assert producer.flush(30) == 0


def compact(cluster: KafkaCluster, topic: str) -> None:
    """From now on the topic is compacted."""
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    cluster.admin.incremental_alter_configs([resource])[resource].result(timeout=60)


def begin_transaction(cluster: KafkaCluster, topic: str) -> Producer:
    """With one record: what is before it, and no more, is stable. It lasts longer than compaction may take."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.servers,
            "transactional.id": topic,
            "transaction.timeout.ms": 300_000,
            "log_level": 2,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"undecided", key=b"k", partition=0)
    assert producer.flush(30) == 0
    return producer


async def first_offset(client: Client, topic: str) -> int:
    """Of what is left in the log."""
    async with Consumer(client) as consumer:
        async for record in await consumer.consume_partition(topic, 0, 0, Edge.latest):
            return record.offset
    raise AssertionError("nothing is left, not even the record that is not stable")


async def read_round_and_round(partition: PartitionConsumer, count: int) -> None:
    """There is always more to fetch. Closed, it may still have something at hand, and seeks no more."""
    async for batch in partition.batches():
        if batch.next_offset >= count // 2 and not partition.closed:
            await partition.seek(0)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kafka_of_release", ["current", "3.9", "2.8"], indirect=True)
async def test_a_tail_that_compaction_took_ends_beside_a_partition_that_always_has_records(
    kafka_of_release: KafkaCluster,
) -> None:
    # From 4.0 on the last batch is left, empty (KAFKA-17076). Before 3.5 no first local offset is told.
    cluster = kafka_of_release
    ending = cluster.create_topic(segment_ms="200", min_cleanable_dirty_ratio="0.01")
    endless = cluster.create_topic()
    await asyncio.to_thread(fill, cluster, ending, COUNT, 10)
    await asyncio.to_thread(fill, cluster, endless, COUNT, 50_000)
    compact(cluster, ending)
    await asyncio.sleep(0.3)  # the next append closes the segment before, which can be cleaned then
    undecided = await asyncio.to_thread(begin_transaction, cluster, ending)
    # One batch in an answer, so that the other partition always has another.
    settings = ConsumerSettings(isolation=Isolation.read_committed, partition_max_bytes=60_000)
    async with Client(cluster.bootstrap) as client:
        async with asyncio.timeout(120):
            while await first_offset(client, ending) != COUNT:
                await asyncio.sleep(0.3)
        async with Consumer(client, settings) as consumer:
            busy = await consumer.consume_partition(endless, 0, 0)
            reading = asyncio.create_task(read_round_and_round(busy, COUNT))
            partition = await consumer.consume_partition(ending, 0, 0, Edge.latest)
            async with asyncio.timeout(30):
                assert [record.offset async for record in partition] == []
            assert (partition.next_offset, partition.last_stable_offset) == (COUNT, COUNT)
            busy.close()
            await reading
    undecided.abort_transaction(60)
