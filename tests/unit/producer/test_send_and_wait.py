"""A record with a future of its own."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from simulated_clock import simulate
from simulated_cluster import Fault, SimulatedCluster

from ingestd.errors import Closed, ErrorCode, KafkaError
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def in_simulation(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        simulate(test)

    run.__name__ = test.__name__
    return run


def producing(cluster: SimulatedCluster, **settings: Any) -> AsyncProducer:
    return AsyncProducer(cluster, ProducerSettings(**settings))  # type: ignore[arg-type]


@in_simulation
async def test_each_waits_for_its_own_record_and_they_share_batches() -> None:
    cluster = SimulatedCluster(1)
    async with producing(cluster) as producer:
        await producer.send_and_wait("events", b"first", partition=0)
        cluster.requests = 0
        sent = await asyncio.gather(
            *(producer.send_and_wait("events", b"%d" % number, partition=0) for number in range(50))
        )
    assert [each.offset for each in sent] == list(range(1, 51))
    assert cluster.requests == 1


@in_simulation
async def test_it_raises_what_the_record_failed_with_and_what_send_refuses_it_with() -> None:
    cluster = SimulatedCluster(1)
    cluster.faults.script.append(Fault(ErrorCode.invalid_record, appended=False))
    async with producing(cluster) as producer:
        with pytest.raises(KafkaError, match="INVALID_RECORD"):
            await producer.send_and_wait("events", b"bad", partition=0)
        with pytest.raises(KafkaError, match="invalid partition"):
            await producer.send_and_wait("events", b"nowhere", partition=-1)
    with pytest.raises(Closed):
        await producer.send_and_wait("events", b"late")


@in_simulation
async def test_more_than_the_buffer_holds_wait_their_turn() -> None:
    cluster = SimulatedCluster(1)
    async with producing(cluster, buffer_bytes=500) as producer:
        sent = await asyncio.gather(*(producer.send_and_wait("events", bytes(100), partition=0) for _ in range(40)))
    assert sorted(each.offset for each in sent) == list(range(40))


@in_simulation
async def test_one_that_is_cancelled_leaves_its_record_on_its_way_and_the_others_alone() -> None:
    cluster = SimulatedCluster(1)
    async with producing(cluster) as producer:
        waiting = [asyncio.create_task(producer.send_and_wait("events", b"%d" % n, partition=0)) for n in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        assert (await waiting[2]).offset == 2
        await waiting[0]
        await producer.flush(5.0)
    assert cluster.logs[0].values == [b"0", b"1", b"2"]


@in_simulation
async def test_it_says_where_the_record_is_and_when() -> None:
    cluster = SimulatedCluster(1)
    async with producing(cluster) as producer:
        assert await producer.send_and_wait("events", b"a", timestamp_ms=5) == ("events", 0, 0, 5)
        before = time.time_ns() // 1_000_000
        sent = await producer.send_and_wait("events", b"b")
        assert (sent.topic, sent.partition, sent.offset) == ("events", 0, 1)
        assert before <= sent.timestamp_ms <= time.time_ns() // 1_000_000
        cluster.appended_at_ms = 77
        assert (await producer.send_and_wait("events", b"c")).timestamp_ms == 77


@in_simulation
async def test_a_future_for_one_record_among_others() -> None:
    cluster = SimulatedCluster(1)
    async with producing(cluster) as producer:
        producer.send("events", b"a", partition=0)
        sending = producer.send_future("events", b"b", partition=0)
        dropped = producer.send_future("events", b"c", partition=0)
        dropped.cancel()
        assert cluster.requests == 0
        assert (await sending).offset == 1
        cluster.logs[0].error = ErrorCode.invalid_record
        failing = producer.send_future("events", b"d", partition=0)
        await producer.flush()  # who has the future is told
        with pytest.raises(KafkaError, match="INVALID_RECORD"):
            await failing
    assert cluster.logs[0].values == [b"a", b"b", b"c"]
