"""Whatever happens on the way, each record accepted ends once, and is in its log once and in order."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import TYPE_CHECKING
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_clock import simulate
from simulated_cluster import RandomFaults, SimulatedCluster, ready_batch

from ingestd.errors import DeadlineExceeded, ErrorCode, KafkaError
from ingestd.producer.delivery import SplitEnds
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.producer.delivery import Delivery

PARTITIONS = 2


class Run:
    """One producer against one cluster whose faults come from a random source."""

    def __init__(
        self,
        seed: int,
        rate: float,
        delivery_timeout: float,
        refusals: tuple[ErrorCode, ...] = (),
        largest: int = 1 << 30,
    ) -> None:
        self.source = random.Random(seed)
        self.faults = RandomFaults(self.source, rate, refusals)
        self.cluster = SimulatedCluster(PARTITIONS, self.faults, self.source.choice((12, 13)))
        self.settings = ProducerSettings(
            delivery_timeout=delivery_timeout,
            request_timeout=3.0,
            linger=self.source.choice((0.0, 0.005)),
            batch_bytes=self.source.choice((121, 1061)),
            request_bytes=self.source.choice((200, 100_000)),
        )
        for log in self.cluster.logs:
            log.largest = largest
        self.numbers = [0] * PARTITIONS
        self.ends: dict[tuple[int, int], list[Delivery]] = {}

    def accept_batch(self, producer: AsyncProducer) -> None:
        """A ready batch of one to four records, whose memory is wiped as soon as it is given back."""
        partition = self.source.randrange(PARTITIONS)
        count = self.source.randint(1, 4)
        numbers = [self._number(partition) for _ in range(count)]
        memory = ready_batch([b"%d" % number for number in numbers])

        def done(delivery: Delivery) -> None:
            memory[:] = bytes(len(memory))
            for index, number in enumerate(numbers):
                self._ended(partition, number, delivery, index)

        producer.send_batch(self.cluster.topic, partition, memoryview(memory), count, done)

    def accept_record(self, producer: AsyncProducer) -> None:
        """A record by `send`."""
        partition = self.source.randrange(PARTITIONS)
        number = self._number(partition)
        done: Callable[[Delivery], None] = lambda delivery: self._ended(partition, number, delivery, 0)  # noqa: E731
        producer.send(self.cluster.topic, b"%d" % number, partition=partition, done=done)

    def _number(self, partition: int) -> int:
        self.numbers[partition] += 1
        return self.numbers[partition] - 1

    def _ended(self, partition: int, number: int, delivery: Delivery, index: int) -> None:
        assert (delivery.topic, delivery.partition) == (self.cluster.topic, partition)
        self.ends.setdefault((partition, number), []).append(delivery)
        if delivery.error is None and delivery.base_offset >= 0:
            assert self.cluster.logs[partition].values[delivery.base_offset + index] == b"%d" % number

    def disturb(self) -> None:
        """Something happens to the cluster."""
        source, cluster = self.source, self.cluster
        event = source.random()
        if event < 0.3:
            cluster.move(source.randrange(PARTITIONS), source.choice(cluster.nodes))
        elif event < 0.5:
            for log in cluster.logs:
                log.restart()
        elif event < 0.7 and not cluster.down:
            cluster.kill(source.choice(cluster.nodes))
        else:
            cluster.down.clear()

    async def work(self) -> None:
        """Accept, disturb, wait; then let the cluster heal, and drain."""
        producer = AsyncProducer(self.cluster, self.settings)  # type: ignore[arg-type]
        for _ in range(self.source.randint(1, 120)):
            step = self.source.random()
            if step < 0.5:
                self.accept_batch(producer)
            elif step < 0.75:
                self.accept_record(producer)
            elif step < 0.80:
                self.disturb()
            else:
                await asyncio.sleep(self.source.choice((0.0, 0.001, 0.01, 0.3)))
        await asyncio.sleep(self.source.choice((0.0, 1.0, 10.0)))
        self.faults.rate = 0.0
        self.cluster.down.clear()
        await producer.flush(600.0)
        await producer.close(1.0)

    def check(self, *allowed: ErrorCode) -> None:
        """Each record ended once; what succeeded is in the log once, what failed at most once; all in order."""
        for partition, log in enumerate(self.cluster.logs):
            numbers = [int(value) for value in log.values]
            assert all(first < second for first, second in pairwise(numbers)), numbers
            present = set(numbers)
            for number in range(self.numbers[partition]):
                ends = self.ends[partition, number]
                assert len(ends) == 1
                if ends[0].error is None:
                    assert number in present
                else:
                    error = ends[0].error
                    assert isinstance(error, DeadlineExceeded) or (
                        isinstance(error, KafkaError) and error.code in allowed
                    )


@given(seed=st.integers(0, 2**32), rate=st.sampled_from((0.0, 0.05, 0.2, 0.5, 0.8)))
@settings(max_examples=150, deadline=None)
def test_with_no_delivery_timeout_every_record_is_in_its_log_once_and_in_order(seed: int, rate: float) -> None:
    run = Run(seed, rate, float("inf"))
    simulate(run.work)
    run.check()
    for partition, log in enumerate(run.cluster.logs):
        assert [int(value) for value in log.values] == list(range(run.numbers[partition]))


@given(
    seed=st.integers(0, 2**32), rate=st.sampled_from((0.05, 0.2, 0.5, 0.8)), timeout=st.sampled_from((0.05, 0.5, 4.0))
)
@settings(max_examples=150, deadline=None)
def test_with_a_delivery_timeout_what_fails_blocks_nothing_and_nothing_is_reordered_or_doubled(
    seed: int, rate: float, timeout: float
) -> None:
    run = Run(seed, rate, timeout)
    simulate(run.work)
    run.check()


@given(
    seed=st.integers(0, 2**32),
    rate=st.sampled_from((0.05, 0.3, 0.8)),
    timeout=st.sampled_from((1.0, float("inf"))),
    largest=st.sampled_from((75, 95, 1 << 30)),
    alone=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_what_is_refused_for_good_or_split_leaves_the_others_in_order_and_once(
    seed: int, rate: float, timeout: float, largest: int, *, alone: bool
) -> None:
    run = Run(seed, rate, timeout, (ErrorCode.invalid_record,), largest)
    with patch.object(SplitEnds, "alone", new=alone):
        simulate(run.work)
    run.check(ErrorCode.invalid_record, ErrorCode.message_too_large)
