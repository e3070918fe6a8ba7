"""What a record costs does not grow with how many others there are: counted in lines executed, not in time."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from simulated_clock import simulate
from simulated_cluster import SimulatedCluster

from ingestd.errors import BufferFull
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType

    Work = Callable[[int], Coroutine[Any, Any, None]]

PACKAGE = f"{os.sep}ingestd{os.sep}producer{os.sep}"
FEW, MANY = 100, 1000


def lines(work: Work, number: int) -> int:
    """Lines of the package that are executed while `work(number)` runs; a turn of a loop counts."""
    count = 0

    def seen(_frame: object, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return seen

    def called(frame: FrameType, _event: str, _argument: object) -> Any:
        return seen if PACKAGE in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        simulate(lambda: work(number))
    finally:
        sys.settrace(before)
    return count


async def many_senders_wait_for_room(number: int) -> None:
    """Every waiter woken for every batch that is acknowledged: n squared."""
    cluster = SimulatedCluster(2)

    async def sender(producer: AsyncProducer, value: bytes) -> None:
        while True:
            try:
                producer.send("events", value)
            except BufferFull:
                await producer.room()
            else:
                return

    async with AsyncProducer(cluster, ProducerSettings(buffer_bytes=500, batch_bytes=161)) as producer:  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as tasks:
            for index in range(number):
                tasks.create_task(sender(producer, b"value %d" % index))
        await producer.flush(60)
    assert sum(len(log.values) for log in cluster.logs) == number


async def many_tasks_flush_what_they_send(number: int) -> None:
    """Every flush looked at for every batch that is acknowledged: n squared."""
    cluster = SimulatedCluster(2)

    async def sender(producer: AsyncProducer, value: bytes) -> None:
        producer.send("events", value)
        await producer.flush(600)

    async with AsyncProducer(cluster) as producer, asyncio.TaskGroup() as tasks:  # type: ignore[arg-type]
        for index in range(number):
            tasks.create_task(sender(producer, b"value %d" % index))
    assert sum(len(log.values) for log in cluster.logs) == number


async def many_partitions_get_a_record_each(number: int) -> None:
    """Every partition looked at for every request: n squared."""
    cluster = SimulatedCluster(number)
    cluster.metadata.learn()
    async with AsyncProducer(cluster) as producer:  # type: ignore[arg-type]
        for partition in range(number):
            producer.send("events", b"value", partition=partition)
        await producer.flush(60)
    assert all(len(log.values) == 1 for log in cluster.logs)


async def many_records_of_a_batch_are_called_back(number: int) -> None:
    """Every callback of a batch looked at for each of its records: n squared."""
    cluster = SimulatedCluster(1)
    offsets: list[int] = []
    async with AsyncProducer(cluster) as producer:  # type: ignore[arg-type]
        for _ in range(number):
            producer.send("events", b"value", done=lambda end: offsets.append(end.base_offset))
        await producer.flush(60)
    assert offsets == list(range(number))


async def many_records_wait_for_a_topic_that_comes_late(number: int) -> None:
    """Every record that waits looked at for each refresh: n squared with enough refreshes."""
    cluster = SimulatedCluster(2)
    cluster.exists = False
    async with AsyncProducer(cluster) as producer:  # type: ignore[arg-type]
        for _ in range(number):
            producer.send("events", b"value", key=b"key")
        await asyncio.sleep(5)
        cluster.exists = True
        await producer.flush(60)
    assert sum(len(log.values) for log in cluster.logs) == number


@pytest.mark.parametrize(
    "work",
    [
        many_senders_wait_for_room,
        many_tasks_flush_what_they_send,
        many_partitions_get_a_record_each,
        many_records_of_a_batch_are_called_back,
        many_records_wait_for_a_topic_that_comes_late,
    ],
    ids=lambda work: work.__name__,
)
def test_ten_times_as_many_cost_ten_times_as_much_and_not_a_hundred_times(work: Work) -> None:
    lines(work, FEW)  # imports and caches
    few, many = lines(work, FEW), lines(work, MANY)
    assert many < few * (MANY // FEW) * 1.3, (few, many)
