"""`send` has a short way and a long one: whichever a record goes, the same batches come out, in the same order."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_clock import simulate
from simulated_cluster import SimulatedCluster

from ingestd.errors import BufferFull, Closed, ErrorCode, KafkaError
from ingestd.producer.partitioners import PARTITIONERS
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.records.decode import decode_records

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTITIONS = 3


class Run:
    """One producer that does what it is told, with the short way or without it."""

    def __init__(self, *, short: bool, known: bool, partitioner: str, actions: Sequence[Any]) -> None:
        self.cluster = SimulatedCluster(PARTITIONS)
        self.settings = ProducerSettings(
            batch_bytes=311, batch_records=9, linger=0.005, buffer_bytes=2000, partitioner=PARTITIONERS[partitioner]
        )
        self.short = short
        self.known = known
        self.actions = actions
        self.ends: list[tuple[int, int, int]] = []
        self.refused: list[int] = []
        self.batches: list[tuple[int, list[Any]]] = []

    async def work(self) -> None:
        append = [log.append for log in self.cluster.logs]
        for partition, log in enumerate(self.cluster.logs):
            log.append = lambda data, partition=partition: self.appended(append[partition], partition, data)  # type: ignore[method-assign]
        if self.known:
            self.cluster.metadata.learn()
        async with AsyncProducer(self.cluster, self.settings) as producer:  # type: ignore[arg-type]
            for number, action in enumerate(self.actions):
                if not self.short:
                    producer._ledger.shut()
                await self.act(producer, number, action)
            await producer.flush(60)
            assert producer.buffered_bytes == 0
            assert producer.outstanding == 0

    def appended(self, append: Any, partition: int, data: bytes) -> Any:
        records = decode_records(data)
        self.batches.append((partition, [(r.key, r.value, tuple(r.headers), r.timestamp_ms) for r in records]))
        return append(data)

    async def act(self, producer: AsyncProducer, number: int, action: Any) -> None:
        if isinstance(action, float):
            await asyncio.sleep(action)
            return
        if action is None:
            await producer.flush(60)
            return
        key, partition, headers, called_back = action
        done = (lambda end: self.ends.append((number, end.partition, end.base_offset))) if called_back else None
        try:
            producer.send(
                "events",
                b"value %d" % number,
                key=key,
                partition=partition,
                headers=headers,
                timestamp_ms=1000 + number,
                done=done,
            )
        except BufferFull:
            self.refused.append(number)


SENDS = st.tuples(
    st.none() | st.sampled_from([b"", b"a", b"b", b"c", b"d"]),
    st.none() | st.integers(0, PARTITIONS - 1),
    st.sampled_from([(), [("h", b"x")]]),
    st.booleans(),
)
PLAIN_SENDS = st.just((None, None, (), False))
ACTIONS = st.lists(SENDS | PLAIN_SENDS | st.sampled_from([0.0, 0.002, 0.02, None]), max_size=80)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.booleans(), st.sampled_from(sorted({*PARTITIONERS} - {"manual"})), st.integers(0, 9))
def test_the_short_way_and_the_long_way_make_the_same_batches(
    actions: list[Any], known: bool, partitioner: str, seed: int
) -> None:
    runs = []
    for short in (True, False):
        random.seed(seed)
        run = Run(short=short, known=known, partitioner=partitioner, actions=actions)
        simulate(run.work)
        runs.append(run)
    one, other = runs
    assert one.batches == other.batches
    assert one.ends == other.ends
    assert one.refused == other.refused
    sent = sum(isinstance(action, tuple) for action in actions) - len(one.refused)
    assert sum(len(records) for _, records in one.batches) == sent


async def short_ways(producer: AsyncProducer, **given: Any) -> int:
    """How many of ten records go the short way."""
    long = 0
    take = producer._dispatcher.topic

    def count(topic: str) -> Any:
        nonlocal long
        long += 1
        return take(topic)

    producer._dispatcher.topic = count  # type: ignore[method-assign]
    for _ in range(10):
        producer.send("events", b"value", **given)
    del producer._dispatcher.topic
    return 10 - long


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({}, True),
        ({}, False),
        ({"key": b"key"}, True),
        ({"partition": 1}, True),
        ({"headers": [("name", b"value")], "done": lambda _: None, "timestamp_ms": 5}, True),
    ],
    ids=str,
)
def test_all_records_but_the_first_of_a_batch_go_the_short_way(given: dict[str, Any], known: bool) -> None:
    async def work() -> None:
        cluster = SimulatedCluster(PARTITIONS)
        if known:
            cluster.metadata.learn()
        async with AsyncProducer(cluster) as producer:  # type: ignore[arg-type]
            assert await short_ways(producer, **given) == 9
            await producer.flush(10)
            assert await short_ways(producer, **given) == 9

    simulate(work)


def test_a_producer_that_ended_refuses_records_for_batches_that_are_still_open() -> None:
    """Between a fatal error and the end of everything, which comes when the callback is through."""

    async def work() -> None:
        cluster = SimulatedCluster(PARTITIONS)
        cluster.metadata.learn()
        async with AsyncProducer(cluster) as producer:  # type: ignore[arg-type]
            producer.send("events", b"first", partition=0, done=lambda _: None)
            fatal = KafkaError(ErrorCode.cluster_authorization_failed)
            producer._dispatcher.fatal(fatal)
            with pytest.raises(KafkaError) as raised:
                producer.send("events", b"second", partition=0)
            assert raised.value is fatal
        with pytest.raises(Closed):
            producer.send("events", b"third", partition=0)

    simulate(work)


def test_records_without_key_wait_for_metadata_in_one_batch_and_not_one_by_one() -> None:
    async def work() -> None:
        cluster = SimulatedCluster(PARTITIONS)
        async with AsyncProducer(cluster) as producer:  # type: ignore[arg-type]
            for number in range(1000):
                producer.send("events", b"%d" % number)
            assert producer.outstanding == 1
            await producer.flush(10)
        written = [value for log in cluster.logs for value in log.values]
        assert written == [b"%d" % number for number in range(1000)]

    simulate(work)


def test_records_with_and_without_key_that_wait_for_metadata_stay_in_order_within_their_partition() -> None:
    async def work() -> None:
        cluster = SimulatedCluster(1)
        async with AsyncProducer(cluster) as producer:  # type: ignore[arg-type]
            for number in range(50):
                producer.send("events", b"%d" % number, key=b"key" if number % 7 == 3 else None)
            await producer.flush(10)
        assert cluster.logs[0].values == [b"%d" % number for number in range(50)]

    simulate(work)


def test_a_sticky_partitioner_leaves_no_single_record_behind_when_a_batch_is_full() -> None:
    async def work() -> None:
        cluster = SimulatedCluster(PARTITIONS)
        cluster.metadata.learn()
        batches: list[int] = []
        for log in cluster.logs:
            append = log.append
            log.append = lambda data, append=append: (batches.append(len(decode_records(data))), append(data))[1]  # type: ignore[method-assign]
        async with AsyncProducer(cluster, ProducerSettings(batch_bytes=1061)) as producer:  # type: ignore[arg-type]
            for _ in range(1000):
                producer.send("events", b"x" * 20)
            await producer.flush(10)
        assert sum(batches) == 1000
        assert sorted(batches)[1] == max(batches)

    simulate(work)


WITHOUT_COMPILED = """
import sys
sys.modules["ingestd.records._intake_compiled"] = None
sys.path[:0] = sys.argv[1:]
from simulated_clock import simulate
from simulated_cluster import SimulatedCluster
from ingestd.producer.producer import AsyncProducer
from ingestd.records import loops
assert not loops.COMPILED

async def work():
    cluster = SimulatedCluster(2)
    ends = []
    async with AsyncProducer(cluster) as producer:
        for number in range(1000):
            producer.send("events", b"%d" % number, key=b"%d" % (number % 7), done=ends.append)
        await producer.flush(10)
    assert sorted(int(value) for log in cluster.logs for value in log.values) == list(range(1000))
    assert [end.error for end in ends] == [None] * 1000

simulate(work)
"""


def test_without_the_compiled_module_a_producer_works() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILED, str(Path(__file__).parent)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "plain Python" in ran.stderr
