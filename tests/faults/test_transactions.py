"""Transactions while coordinators and leaders die, freeze and come back: each record exactly once for its readers."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer as TheirConsumer
from confluent_kafka import KafkaException
from confluent_kafka import Producer as TheirProducer
from confluent_kafka import TopicPartition as TheirPartition
from harness.reading import end_offsets

from ingestd.client.client import Client, CoordinatorKind
from ingestd.client.group import GroupMember, OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import ConsumerSettings
from ingestd.errors import CommitOutcomeUnknown, IngestdError, TransactionFailed
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.producer.transaction_state import TransactionState

if TYPE_CHECKING:
    from harness.cluster import KafkaCluster

    from ingestd.consumer.partition_consumer import PartitionConsumer

pytestmark = pytest.mark.timeout(300)

PARTITIONS = 3
RECORDS = 400
"""In each partition of the source."""


async def coordinator_of(cluster: KafkaCluster, key: str, kind: CoordinatorKind) -> int:
    """The node that coordinates a transactional id, or a group."""
    async with Client(cluster.bootstrap) as client:
        return (await client.coordinator(key, kind, 30)).node.id


def fill(cluster: KafkaCluster, topic: str) -> None:
    """Numbered records, written by librdkafka."""
    producer = TheirProducer({"bootstrap.servers": cluster.servers, "linger.ms": 20, "log_level": 2})
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(30) == 0


def positions(cluster: KafkaCluster, group: str, topic: str) -> list[int]:
    """Where the group goes on, as librdkafka is told; it waits while a transaction with its offsets is open."""
    reader = TheirConsumer({"bootstrap.servers": cluster.servers, "group.id": group, "log_level": 2})
    deadline = time.monotonic() + 60
    try:
        while True:
            try:
                found = reader.committed([TheirPartition(topic, number) for number in range(PARTITIONS)], timeout=60)
            except KafkaException:  # the coordinator is another one just now
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return [max(0, each.offset) for each in found]
    finally:
        reader.close()


async def committed(cluster: KafkaCluster, topic: str) -> dict[int, list[bytes]]:
    """What librdkafka reads as committed, once no transaction is open."""
    async with asyncio.timeout(60):
        while await asyncio.to_thread(
            end_offsets, cluster.servers, topic, isolation="read_committed"
        ) != await asyncio.to_thread(end_offsets, cluster.servers, topic):
            await asyncio.sleep(0.1)
    return await asyncio.to_thread(cluster.read_back, topic, isolation="read_committed")


class Transformer:
    """Reads a topic, writes what it read to another, and commits both in transactions; begins anew after any error.

    An incarnation goes on from the committed offsets. One that crashes leaves its transaction open and its producer
    alive, as a frozen process would: its successor fences it.
    """

    def __init__(self, cluster: KafkaCluster, source: str, target: str, crashes: random.Random | None = None) -> None:
        self.cluster = cluster
        self.source = source
        self.target = target
        self.group = f"group-{target}"
        self.transactional_id = f"tx-{target}"
        self.crashes = crashes
        self.incarnations = 0
        self.transactions = 0
        self.unknown = 0
        self.troubles: list[str] = []
        self.zombies: list[tuple[Client, AsyncProducer]] = []
        self.allowed = RECORDS
        self._more = asyncio.Event()
        self._idle = asyncio.Event()

    async def up_to(self, offset: int) -> None:
        """Go on to this offset in each partition; returns when everything before it is committed."""
        self.allowed = offset
        self._idle.clear()
        self._more.set()
        await self._idle.wait()

    async def run(self) -> None:
        """Until every record of the source is committed."""
        settings = ProducerSettings(transactional_id=self.transactional_id, linger=0.0, transaction_timeout=30.0)
        while True:
            self.incarnations += 1
            client = Client(self.cluster.bootstrap)
            producer = AsyncProducer(client, settings)
            try:
                if await self._incarnate(client, producer):
                    await producer.close(10.0)
                    await client.close()
                    break
            except (IngestdError, OSError) as error:
                self.troubles.append(repr(error))
            self.zombies.append((client, producer))
        for client, producer in self.zombies:
            await producer.close(1.0)
            await client.close()

    async def _incarnate(self, client: Client, producer: AsyncProducer) -> bool:
        """Take over, and transform to the end; False: crashed on the way."""
        await producer.init_transactions()
        found = await asyncio.to_thread(positions, self.cluster, self.group, self.source)
        async with Consumer(client, ConsumerSettings()) as consumer:
            readers = {
                number: await consumer.consume_partition(self.source, number, start, RECORDS)
                for number, start in enumerate(found)
                if start < RECORDS
            }
            while readers:
                left = [number for number, reader in readers.items() if reader.next_offset < self.allowed]
                if not left:
                    self._more.clear()
                    self._idle.set()
                    await self._more.wait()
                    continue
                number = random.choice(left)
                if not await self._transform(producer, number, readers[number]):
                    return False
                if readers[number].next_offset >= RECORDS:
                    del readers[number]
        self._idle.set()
        return True

    async def _transform(self, producer: AsyncProducer, number: int, reader: PartitionConsumer) -> bool:
        values: list[bytes] = []
        async for record in reader:
            assert record.value is not None
            values.append(record.value)
            position = record.offset + 1
            if len(values) == 10:
                break
        if not values:
            return True
        try:
            async with producer.transaction() as transaction:
                for value in values:
                    producer.send(self.target, value, partition=number)
                await transaction.add_offsets(
                    {TopicPartition(self.source, number): OffsetAndMetadata(position)}, GroupMember(self.group)
                )
                await producer.flush(30)
                self._maybe_crash()
        except _CrashedError:
            return False
        except CommitOutcomeUnknown:
            self.unknown += 1
            while producer.transaction_state is TransactionState.COMMITTING:
                await producer.commit()
        self.transactions += 1
        await asyncio.sleep(0.02)
        return True

    def _maybe_crash(self) -> None:
        if self.crashes is not None and self.crashes.random() < 0.03:
            raise _CrashedError


class _CrashedError(BaseException):
    """The incarnation is gone."""


async def check(transformer: Transformer) -> None:
    """The target has every record of the source once and in order."""
    seen = await committed(transformer.cluster, transformer.target)
    expected = [b"%d" % number for number in range(RECORDS)]
    assert seen == dict.fromkeys(range(PARTITIONS), expected), (transformer.incarnations, transformer.troubles)
    left = await asyncio.to_thread(positions, transformer.cluster, transformer.group, transformer.source)
    assert left == [RECORDS] * PARTITIONS


async def topics(cluster: KafkaCluster) -> tuple[str, str]:
    """A filled source, and a target."""
    source = await asyncio.to_thread(cluster.create_topic, partitions=PARTITIONS)
    target = await asyncio.to_thread(cluster.create_topic, partitions=PARTITIONS)
    await asyncio.to_thread(fill, cluster, source)
    return source, target


async def test_what_is_consumed_transformed_and_produced_is_there_once_though_coordinators_and_leaders_are_killed(
    kafka3: KafkaCluster,
) -> None:
    transformer = Transformer(kafka3, *await topics(kafka3))
    transformer.allowed = 0
    running = asyncio.create_task(transformer.run())
    async with asyncio.timeout(60):
        await transformer.up_to(10)
    for part, kind in enumerate((CoordinatorKind.transaction, CoordinatorKind.group, None), 1):
        if kind is None:
            victim = await asyncio.to_thread(kafka3.leader, transformer.target, 0)
        else:
            key = transformer.group if kind is CoordinatorKind.group else transformer.transactional_id
            victim = await coordinator_of(kafka3, key, kind)
        done = transformer.transactions
        going_on = asyncio.create_task(transformer.up_to(RECORDS * part // 3))
        async with asyncio.timeout(60):
            while transformer.transactions < done + 10:
                await asyncio.sleep(0.001)
        assert not going_on.done(), "the node dies amid transactions"
        await asyncio.to_thread(kafka3.kill, victim)
        async with asyncio.timeout(60):
            await going_on
        await asyncio.to_thread(kafka3.start, victim)
        await asyncio.to_thread(kafka3.wait_in_sync)
    await asyncio.wait_for(running, 60)
    await check(transformer)


async def test_incarnations_that_crash_leave_nothing_and_their_zombies_commit_nothing(kafka3: KafkaCluster) -> None:
    transformer = Transformer(kafka3, *await topics(kafka3), crashes=random.Random(7))
    await asyncio.wait_for(transformer.run(), 120)
    assert transformer.incarnations > 1
    await check(transformer)


async def test_a_commit_that_meets_a_frozen_coordinator_is_known_in_the_end_and_never_mistaken(
    kafka3: KafkaCluster,
) -> None:
    target = await asyncio.to_thread(kafka3.create_topic, partitions=1)
    settings = ProducerSettings(transactional_id=f"tx-{target}", request_timeout=120.0, transaction_timeout=120.0)
    expected: list[bytes] = []
    async with Client(kafka3.bootstrap) as client, AsyncProducer(client, settings) as producer:
        await producer.init_transactions()
        for number in range(2):
            values = [b"%d-%d" % (number, index) for index in range(20)]
            await producer.begin()
            for value in values:
                producer.send(target, value, partition=0)
            await producer.flush(30)
            frozen = await coordinator_of(kafka3, settings.transactional_id or "", CoordinatorKind.transaction)
            kafka3.freeze(frozen)
            try:
                await producer.commit(1.0)
            except CommitOutcomeUnknown:
                assert producer.transaction_state is TransactionState.COMMITTING
                await producer.commit(60.0)
                expected += values
            except TransactionFailed:
                await producer.abort(60.0)
            else:
                expected += values
            kafka3.thaw(frozen)
            await asyncio.to_thread(kafka3.wait_in_sync)
    assert await committed(kafka3, target) == {0: expected}


async def test_closing_within_a_transaction_ends_by_its_deadline_with_every_broker_dead(kafka3: KafkaCluster) -> None:
    target = await asyncio.to_thread(kafka3.create_topic, partitions=1)
    client = Client(kafka3.bootstrap)
    producer = AsyncProducer(client, ProducerSettings(transactional_id=f"tx-{target}", linger=0.0))
    await producer.init_transactions()
    await producer.begin()
    producer.send(target, b"open", partition=0)
    await producer.flush(30)
    for node_id in kafka3.nodes:
        await asyncio.to_thread(kafka3.kill, node_id)
    producer.send(target, b"never sent", partition=0)
    started = time.monotonic()
    await producer.close(2.0)
    await client.close()
    assert time.monotonic() - started < 20
    await asyncio.to_thread(kafka3.heal)
    async with Client(kafka3.bootstrap) as again:
        successor = AsyncProducer(again, ProducerSettings(transactional_id=f"tx-{target}"))
        await successor.init_transactions()
        await successor.close()
    assert await committed(kafka3, target) == {0: []}
