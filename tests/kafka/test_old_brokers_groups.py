"""Consumer groups and transactions against each release of the test matrix."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import confluent_kafka as librdkafka
import pytest

from ingestd.client.client import Client
from ingestd.client.group import GroupMember, OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.group.consumer_group import ConsumerGroup
from ingestd.consumer.group.settings import GroupSettings, NoOffset
from ingestd.consumer.settings import ConsumerSettings, Edge, Isolation
from ingestd.errors import UnsupportedVersion
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from harness.cluster import KafkaCluster

PARTITIONS = 3
RECORDS = 60


async def write(cluster: KafkaCluster, topic: str, first: int) -> None:
    settings = ProducerSettings(idempotent=cluster.release != "0.10")
    async with Client(cluster.bootstrap) as client, AsyncProducer(client, settings) as producer:
        for number in range(first, first + RECORDS):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        await producer.flush(20)


async def read_as_member(cluster: KafkaCluster, group_id: str, topic: str, count: int) -> set[int]:
    """The next `count` records of a group with one member, which then leaves."""
    read: set[int] = set()
    settings = GroupSettings(no_offset=NoOffset.earliest)
    async with (
        Client(cluster.bootstrap) as client,
        asyncio.timeout(30),
        ConsumerGroup(client, group_id, settings) as group,
        group.subscribe([topic]) as records,
    ):
        async for record in records:
            assert record.value is not None
            read.add(int(record.value))
            if len(read) == count:
                break
    return read


async def test_a_member_that_comes_later_goes_on_where_the_last_one_left(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic(partitions=PARTITIONS)
    await write(kafka_of_release, topic, 0)
    assert await read_as_member(kafka_of_release, f"group-{topic}", topic, RECORDS) == set(range(RECORDS))
    await write(kafka_of_release, topic, RECORDS)
    later = await read_as_member(kafka_of_release, f"group-{topic}", topic, RECORDS)
    assert later == set(range(RECORDS, 2 * RECORDS))


async def test_transactions_are_all_or_nothing_with_the_offsets_of_a_group(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic(partitions=PARTITIONS)
    settings = ProducerSettings(transactional_id=f"transactional-{topic}")
    async with Client(kafka_of_release.bootstrap) as client, AsyncProducer(client, settings) as producer:
        if kafka_of_release.release == "0.10":
            with pytest.raises(UnsupportedVersion, match="this broker"):
                await producer.init_transactions()
            return
        await producer.init_transactions()
        for number, kept in enumerate((True, False, True)):
            await producer.begin()
            for partition in range(PARTITIONS):
                producer.send(topic, b"%d" % number, partition=partition)
            offsets = {TopicPartition(topic, 0): OffsetAndMetadata(number + 1)}
            await producer.add_offsets(offsets, GroupMember(f"group-{topic}"))
            await (producer.commit() if kept else producer.abort())
        async with Consumer(client, ConsumerSettings(isolation=Isolation.read_committed)) as consumer:
            for partition in range(PARTITIONS):
                reading = await consumer.consume_partition(topic, partition, Edge.earliest)
                values = []
                async with asyncio.timeout(30):
                    async for record in reading:
                        values.append(record.value)
                        if len(values) == 2:
                            break
                assert values == [b"0", b"2"]
    # A commit is answered before its markers are written: a reader waits for those, an administrator is told of before.
    reader = librdkafka.Consumer({"bootstrap.servers": kafka_of_release.servers, "group.id": f"group-{topic}"})
    committed = reader.committed([librdkafka.TopicPartition(topic, 0)], timeout=20)
    reader.close()
    assert [each.offset for each in committed] == [3]
