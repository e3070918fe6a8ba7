"""What a synchronous reader hands out where a policy goes back, and how it counts what nobody is handed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from scripted_cluster import Cluster, part
from simulated_clock import SimulatedClockLoop

from ingestd.consumer.settings import Isolation, OutOfRange
from ingestd.consumer.sync import SyncPartition
from ingestd.errors import DeadlineExceeded, ErrorCode
from ingestd.tasks import end_task

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from ingestd.consumer.consumer import Consumer
    from ingestd.consumer.settings import End

T = TypeVar("T")
PATIENCE = 1.0


class Blocking:
    """A blocking reader without its thread: the loop runs while a call waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.cluster: Cluster
        self.consumer: Consumer
        self.answering: asyncio.Task[None] | None = None

    def open(self, start: int, end: End = None, **settings: Any) -> SyncPartition:
        async def opened() -> SyncPartition:
            self.cluster = Cluster([1])
            self.consumer = self.cluster.consumer(**settings)
            partition = await self.consumer.consume_partition("t", 0, start, end)
            return SyncPartition(partition, self.call, check_crcs=True)

        return self.loop.run_until_complete(opened())

    def call(self, work: Coroutine[Any, Any, T], doing: str, why: Any = None) -> T:
        try:
            return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE))
        except TimeoutError as error:
            raise DeadlineExceeded(doing) from error

    def answer(self, *parts: Any) -> None:
        async def answered() -> None:
            (await self.cluster.asked()).answer(*parts)

        self.loop.run_until_complete(answered())

    async def close(self) -> None:
        """Close the consumer, and end what would answer it."""
        await self.consumer.close()
        if self.answering is not None:
            await end_task(self.answering)

    def after(self, seconds: float, *parts: Any) -> None:
        """Answer the next fetch so many seconds after it came, and those that follow it likewise."""

        async def answering() -> None:
            for one in parts:
                asked = await self.cluster.asked()
                await asyncio.sleep(seconds)
                asked.answer(one)

        self.answering = self.loop.create_task(answering())


@pytest.fixture
def blocking(simulated_loop: asyncio.AbstractEventLoop) -> Iterator[Blocking]:
    blocking = Blocking(simulated_loop)
    yield blocking
    simulated_loop.run_until_complete(blocking.close())


@pytest.fixture
def simulated_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = SimulatedClockLoop()
    yield loop
    loop.close()


@pytest.mark.parametrize(
    "read",
    [
        lambda partition: [record.value for record in partition.records()],
        lambda partition: [one for columns in partition.columns() for one in range(columns.count)],
        lambda partition: [batch.first for batch in partition.batches()],
    ],
    ids=["records", "columns", "batches"],
)
def test_a_policy_that_goes_back_hides_none_of_what_comes_then(
    blocking: Blocking, make_batch: Any, read: Callable[[SyncPartition], list[Any]]
) -> None:
    # The log was cut below what was read: the out-of-range policy goes back to its beginning.
    partition = blocking.open(5, 7, out_of_range=OutOfRange.earliest)
    blocking.answer(part(0, make_batch(5, [b"a"]), high_watermark=6))
    assert next(partition.columns()).count == 1
    assert partition.next_offset == 6
    blocking.answer(part(0, error=ErrorCode.offset_out_of_range))
    blocking.after(0.0, part(0, make_batch(0, [b"A"] * 2) + make_batch(2, [b"B"] * 5), high_watermark=7))
    found = read(partition)
    assert found in ([b"A"] * 2 + [b"B"] * 5, [0, 1, 0, 1, 2, 3, 4], [0, 0])
    assert partition.next_offset == 7


def test_a_reader_is_patient_while_batches_come_that_it_is_not_handed(blocking: Blocking, make_batch: Any) -> None:
    # Aborted transactions without an end in sight: nothing is handed out for longer than the patience.
    partition = blocking.open(0, 4, isolation=Isolation.read_committed)
    hidden = [
        part(
            0,
            make_batch(offset, [b"aborted"], producer_id=8, transactional=True),
            last_stable_offset=100,
            aborted=[(8, 0)],
        )
        for offset in range(3)
    ]
    blocking.after(0.6 * PATIENCE, *hidden, part(0, make_batch(3, [b"a"]), last_stable_offset=100))
    assert [record.offset for record in partition.records()] == [3]


def test_a_reader_whose_position_stands_still_is_not_patient_for_longer(blocking: Blocking) -> None:
    partition = blocking.open(0)
    blocking.after(0.6 * PATIENCE, *[part(0, high_watermark=0)] * 4)
    with pytest.raises(DeadlineExceeded, match="reading t-0"):
        list(partition.records())


def test_what_a_blocking_reader_took_counts_as_handed_out_in_a_report(blocking: Blocking, make_batch: Any) -> None:
    partition = blocking.open(0)
    blocking.answer(part(0, make_batch(0, [b"a"] * 3), high_watermark=10))
    assert next(partition.columns()).count == 3
    status = blocking.consumer.status()["partitions"]["t-0"]
    assert (status["next_offset"], status["lag"]) == (3, 7)
