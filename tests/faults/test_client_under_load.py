"""A producer and a consumer at work while their cluster changes under them: each record once, in order, for both."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from ingestd.client.admin import ClusterAdmin
from ingestd.client.client import Client
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import ConsumerSettings, Edge, OutOfRange, Recreation
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.wire.requests import NewPartitions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from harness.cluster import KafkaCluster

    from ingestd.producer.delivery import Delivery

PARTITIONS = 3
BEFORE = AFTER = 1500
"""Records acknowledged before and after a change; more are sent while it happens."""

pytestmark = pytest.mark.timeout(300)


class Load:
    """Sends numbered records to every partition at a steady rate and reads them as they come.

    Invariants
        `sent` and `read` hold the values of each partition in order.
    """

    def __init__(self, producer: AsyncProducer, consumer: Consumer, topic: str) -> None:
        self.producer = producer
        self.topic = topic
        self.sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.read: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        self.ends: list[Delivery] = []
        self._consumer = consumer

    async def send(self) -> None:
        """Send until cancelled."""
        while True:
            await self.producer.room()
            for partition, sent in enumerate(self.sent):
                value = b"%d-%07d" % (partition, len(sent))
                sent.append(value)
                self.producer.send(self.topic, value, partition=partition, done=self.ends.append)
            await asyncio.sleep(0.001)

    async def follow(self, partition: int) -> None:
        """Read a partition until cancelled."""
        consumer = await self._consumer.consume_partition(self.topic, partition, Edge.earliest)
        async for record in consumer:
            self.read[partition].append(record.value)

    async def acknowledged(self, count: int) -> None:
        """Wait until so many records more have ended."""
        wanted = len(self.ends) + count
        async with asyncio.timeout(90):
            while len(self.ends) < wanted:
                await asyncio.sleep(0.05)

    async def all_read(self) -> None:
        """Wait until as much is read as was sent."""
        async with asyncio.timeout(90):
            while sum(map(len, self.read)) < sum(map(len, self.sent)):
                await asyncio.sleep(0.05)


@asynccontextmanager
async def at_work(cluster: KafkaCluster, topic: str) -> AsyncIterator[Load]:
    """A load that runs in the block; afterwards everything sent is acknowledged and read, once and in order."""
    async with (
        Client(cluster.bootstrap) as client,
        Consumer(client) as consumer,
        AsyncProducer(client, ProducerSettings(linger=0.002)) as producer,
    ):
        load = Load(producer, consumer, topic)
        readers = [asyncio.create_task(load.follow(partition)) for partition in range(PARTITIONS)]
        sender = asyncio.create_task(load.send())
        try:
            await load.acknowledged(BEFORE)
            yield load
            await load.acknowledged(AFTER)
            sender.cancel()
            await asyncio.wait([sender])
            await producer.flush(90)
            await load.all_read()
        finally:
            for task in (sender, *readers):
                task.cancel()
            ended = await asyncio.gather(sender, *readers, return_exceptions=True)
        assert [error for error in ended if not isinstance(error, asyncio.CancelledError)] == []
    assert [end for end in load.ends if end.error is not None] == []
    assert len(load.ends) == sum(map(len, load.sent))
    assert load.read == load.sent
    cluster.wait_in_sync(topic)  # a node that was frozen would say that the log ends where it ended
    there = cluster.read_back(topic)
    assert [there[partition] for partition in range(PARTITIONS)] == load.sent


async def leaders_are_reassigned(cluster: KafkaCluster, topic: str) -> None:
    """Every partition moves from node to node, and at last has replicas on all of them again.

    With one replica left it would not survive the next test that kills that node: min.insync.replicas is 2.
    """
    async with Client(cluster.bootstrap) as client:
        admin = ClusterAdmin(client)
        nodes = list(cluster.nodes)
        for turn, copies in enumerate((1, 1, 1, len(nodes))):
            replicas = {
                (topic, partition): [nodes[(partition + turn + copy) % len(nodes)] for copy in range(copies)]
                for partition in range(PARTITIONS)
            }
            assert [outcome.error for outcome in await admin.alter_partition_reassignments(replicas)] == [None] * 3
            async with asyncio.timeout(60):
                while await admin.list_partition_reassignments():
                    await asyncio.sleep(0.05)


async def a_leader_is_killed(cluster: KafkaCluster, topic: str) -> None:
    leader = await asyncio.to_thread(cluster.leader, topic)
    await asyncio.to_thread(cluster.kill, leader)
    await asyncio.sleep(4)
    await asyncio.to_thread(cluster.start, leader)


async def a_leader_freezes(cluster: KafkaCluster, topic: str) -> None:
    leader = await asyncio.to_thread(cluster.leader, topic)
    cluster.freeze(leader)
    await asyncio.sleep(6)
    cluster.thaw(leader)


async def the_controller_is_killed(cluster: KafkaCluster, topic: str) -> None:
    async with Client(cluster.bootstrap) as client:
        controller = (await ClusterAdmin(client).describe_quorum()).leader_id
    await asyncio.to_thread(cluster.kill, controller)
    await asyncio.sleep(4)
    await asyncio.to_thread(cluster.start, controller)


async def nodes_are_restarted_in_turn(cluster: KafkaCluster, topic: str) -> None:
    for node in list(cluster.nodes):
        await asyncio.to_thread(cluster.stop, node)
        await asyncio.to_thread(cluster.start, node)
        await asyncio.to_thread(cluster.wait_in_sync, topic)


async def partitions_are_added(cluster: KafkaCluster, topic: str) -> None:
    async with Client(cluster.bootstrap) as client:
        outcomes = await ClusterAdmin(client).create_partitions([NewPartitions(topic, PARTITIONS + 3)])
    assert [outcome.error for outcome in outcomes] == [None]


@pytest.mark.parametrize(
    "change",
    [
        leaders_are_reassigned,
        a_leader_is_killed,
        a_leader_freezes,
        the_controller_is_killed,
        nodes_are_restarted_in_turn,
        partitions_are_added,
    ],
)
async def test_each_record_is_written_and_read_once_and_in_order_while(
    kafka3: KafkaCluster, change: Callable[[KafkaCluster, str], Awaitable[None]]
) -> None:
    topic = await asyncio.to_thread(kafka3.create_topic, partitions=PARTITIONS)
    async with at_work(kafka3, topic):
        await change(kafka3, topic)


async def test_a_topic_that_is_deleted_and_made_anew_is_written_and_read_from_its_beginning(
    kafka3: KafkaCluster,
) -> None:
    topic = await asyncio.to_thread(kafka3.create_topic, partitions=1)
    settings = ConsumerSettings(recreation=Recreation.earliest, out_of_range=OutOfRange.earliest)
    read: list[bytes | None] = []
    ends: list[Delivery] = []

    async with (
        Client(kafka3.bootstrap) as client,
        Consumer(client, settings) as consumer,
        AsyncProducer(client, ProducerSettings(linger=0.002)) as producer,
    ):
        reading = await consumer.consume_partition(topic, 0, Edge.earliest)

        async def follow() -> None:
            async for record in reading:
                read.append(record.value)  # noqa: PERF401 - a comprehension would show nothing before its end

        async def until_read(count: int) -> None:
            async with asyncio.timeout(60):
                while len(read) < count:
                    await asyncio.sleep(0.05)

        task = asyncio.create_task(follow())
        try:
            for life in (b"first", b"second"):
                for number in range(500):
                    producer.send(topic, b"%s-%03d" % (life, number), partition=0, done=ends.append)
                await producer.flush(60)
                await until_read(len(ends))
                if life == b"first":
                    await asyncio.to_thread(kafka3.delete_topic, topic)
                    await asyncio.to_thread(kafka3.create_topic, topic, partitions=1)
        finally:
            task.cancel()
            await asyncio.wait([task])
    assert [end.error for end in ends] == [None] * 1000
    assert read == [b"%s-%03d" % (life, number) for life in (b"first", b"second") for number in range(500)]
    assert kafka3.read_back(topic)[0] == [b"second-%03d" % number for number in range(500)]
