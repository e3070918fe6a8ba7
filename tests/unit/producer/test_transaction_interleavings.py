"""Whatever happens on the way, a transaction is seen as a whole or not at all, and what is said of it is true."""

from __future__ import annotations

import asyncio
import random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated_clock import simulate
from simulated_cluster import RandomFaults
from simulated_transactions import TransactionalCluster, random_coordinator

from ingestd.client.group import GroupMember, OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.errors import (
    CommitOutcomeUnknown,
    DeadlineExceeded,
    ErrorCode,
    IngestdError,
    ProducerFenced,
    TransactionFailed,
)
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.producer.transaction_state import TransactionState

PARTITIONS = 3
SOURCE = TopicPartition("source", 0)


class ChangedMindError(Exception):
    """The block that made the transaction raises."""


class Run:
    """One producer, transaction after transaction, on a cluster whose faults come from a random source."""

    def __init__(self, seed: int, rate: float, level: int, delivery_timeout: float, *, usurped: bool = False) -> None:
        self.source = random.Random(seed)
        refusals = (ErrorCode.invalid_record,) if self.source.random() < 0.3 else ()
        self.faults = RandomFaults(self.source, rate, refusals)
        version = self.source.choice((12, 13))
        self.cluster = TransactionalCluster(PARTITIONS, self.faults, version, level=level)
        self.cluster.random = random_coordinator(self.faults)
        self.settings = ProducerSettings(
            transactional_id="tx",
            delivery_timeout=delivery_timeout,
            request_timeout=3.0,
            linger=self.source.choice((0.0, 0.005)),
            batch_bytes=self.source.choice((121, 1061)),
        )
        self.usurped = usurped
        self.committed: list[int] = []
        self.unknown: list[int] = []
        self.accepted: dict[int, list[tuple[int, bytes]]] = {}
        self.number = 0

    async def transact(self, producer: AsyncProducer) -> None:
        """One transaction, which may change its mind, fail, or be disturbed."""
        source = self.source
        self.number += 1
        number = self.number
        records = self.accepted[number] = []
        try:
            async with producer.transaction(timeout=source.choice((0.05, 5.0, 60.0))) as transaction:
                for _ in range(source.randint(0, 12)):
                    partition = source.randrange(PARTITIONS)
                    value = b"%d-%d" % (number, len(records))
                    producer.send(self.cluster.topic, value, partition=partition)
                    records.append((partition, value))
                    if source.random() < 0.3:
                        await asyncio.sleep(source.choice((0.0, 0.001, 0.01, 0.3)))
                    if source.random() < 0.05:
                        self.disturb()
                if source.random() < 0.5:
                    await transaction.add_offsets({SOURCE: OffsetAndMetadata(number)}, GroupMember("group"))
                    records.append((-1, b""))
                self.maybe_change_mind()
        except CommitOutcomeUnknown:
            self.unknown.append(number)
            await self.resolve(producer, number)
        except (ChangedMindError, TransactionFailed):
            pass
        except (DeadlineExceeded, IngestdError):
            assert self.faults.rate > 0 or self.usurped
        else:
            self.committed.append(number)

    def maybe_change_mind(self) -> None:
        """Now and then the block raises."""
        if self.source.random() < 0.2:
            raise ChangedMindError

    async def resolve(self, producer: AsyncProducer, number: int) -> None:
        """Ask again what became of a commit, as the error says."""
        while producer.transaction_state is TransactionState.COMMITTING:
            try:
                await producer.commit(self.source.choice((0.5, 30.0)))
            except CommitOutcomeUnknown:
                continue
            self.unknown.remove(number)
            self.committed.append(number)

    def disturb(self) -> None:
        """Something happens to the cluster."""
        source, cluster = self.source, self.cluster
        event = source.random()
        if event < 0.5:
            cluster.move(source.randrange(PARTITIONS), source.choice(cluster.nodes))
        elif event < 0.7 and not cluster.down:
            cluster.kill(source.choice(cluster.nodes))
        else:
            cluster.down.clear()

    async def initialize(self, producer: AsyncProducer) -> None:
        """Until it succeeds, or the producer is fenced."""
        while producer.transaction_state is TransactionState.UNINITIALIZED:
            try:
                await producer.init_transactions(self.source.choice((0.5, 30.0)))
            except DeadlineExceeded:
                continue
            except ProducerFenced:
                return

    async def work(self) -> None:
        """Transactions, then a successor, which ends what is open."""
        producer = AsyncProducer(self.cluster, self.settings)  # type: ignore[arg-type]
        await self.initialize(producer)
        usurper = AsyncProducer(self.cluster, self.settings) if self.usurped else None  # type: ignore[arg-type]
        taken_over = False
        for _ in range(self.source.randint(1, 12)):
            if usurper is not None and not taken_over and self.source.random() < 0.3:
                await self.initialize(usurper)
                taken_over = True
            if producer.transaction_state is TransactionState.UNINITIALIZED:
                await self.initialize(producer)
            if producer.transaction_state is TransactionState.FATAL_ERROR:
                break
            await self.transact(producer)
        # A late question of the old protocol can open a transaction again after its end; then Kafka fences the one who
        # asks for the next epoch. That is safe, and all that can be had there.
        fenced_by_itself = self.cluster.coordinator_state.level < 2 and self.cluster.late_copies
        if not self.usurped and not fenced_by_itself:
            assert producer.transaction_state is not TransactionState.FATAL_ERROR
        if taken_over and usurper is not None:
            before = list(self.committed)
            await self.transact(producer)
            assert self.committed == before or not self.accepted[self.number], "a zombie committed"
            await usurper.close(30.0)
        self.faults.rate = 0.0
        self.cluster.down.clear()
        await producer.close(30.0)
        await asyncio.sleep(5.0)
        async with AsyncProducer(self.cluster, self.settings) as successor:  # type: ignore[arg-type]
            await successor.init_transactions()
        await asyncio.sleep(5.0)

    def check(self) -> None:
        """What readers of committed records see is what commits said, each once and in order, whole or not at all."""
        seen = self.cluster.committed
        whole: list[int] = []
        for number, records in self.accepted.items():
            there = [value in seen[partition] for partition, value in records if partition >= 0]
            if number in self.committed:
                assert all(there), f"transaction {number} was committed and is not there"
                whole.append(number)
            elif number in self.unknown:
                assert all(there) or not any(there), f"half of transaction {number} is there"
                whole += [number] if any(there) else []
            else:
                assert not any(there), f"transaction {number} was not committed and is there"
        for partition, values in enumerate(seen):
            expected = [value for number in sorted(whole) for at, value in self.accepted[number] if at == partition]
            assert values == expected
        with_offsets = [number for number in self.committed if (-1, b"") in self.accepted[number]]
        unknown = [number for number in self.unknown if (-1, b"") in self.accepted[number]]
        position = self.cluster.offsets.get(("group", *SOURCE), 0)
        assert position in {max(with_offsets, default=0), *unknown}


RATES = st.sampled_from((0.0, 0.05, 0.2, 0.5))


@given(seed=st.integers(0, 2**32), rate=RATES, level=st.sampled_from((1, 2)), timeout=st.sampled_from((0.5, 8.0)))
@settings(max_examples=150, deadline=None)
def test_what_a_transaction_is_said_to_be_is_what_readers_of_committed_records_see(
    seed: int, rate: float, level: int, timeout: float
) -> None:
    run = Run(seed, rate, level, timeout)
    simulate(run.work, 36000.0)
    run.check()


@given(seed=st.integers(0, 2**32), rate=RATES, level=st.sampled_from((1, 2)))
@settings(max_examples=100, deadline=None)
@example(seed=133294, rate=0.2, level=1)  # the coordinator's connection ends in the moment in which the caller gives up
def test_a_producer_that_was_taken_over_commits_nothing_more_and_both_histories_are_whole(
    seed: int, rate: float, level: int
) -> None:
    run = Run(seed, rate, level, 8.0, usurped=True)
    simulate(run.work, 36000.0)
    run.check()


@given(seed=st.integers(0, 2**32), level=st.sampled_from((1, 2)))
@settings(max_examples=30, deadline=None)
def test_without_faults_every_transaction_that_did_not_change_its_mind_is_committed(seed: int, level: int) -> None:
    run = Run(seed, 0.0, level, 60.0)
    run.disturb = lambda: None  # type: ignore[method-assign]
    simulate(run.work, 36000.0)
    run.check()
    assert not run.unknown
