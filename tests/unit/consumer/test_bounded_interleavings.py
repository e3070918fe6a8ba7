"""Reads up to an end, however answers are filled, whatever compaction took and however slow remote storage is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_cluster import OUTSIDE_SESSION, Asked, Cluster, part
from simulated_clock import simulate

from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api
from ingestd.wire.versions import ApiVersions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.wire.requests import Build

PER_BATCH = 4
END = 24
BUSY = 3
"""The partition that is read for ever and has a new batch for each fetch, where it has any."""


@dataclass(frozen=True)
class Log:
    """One partition's: the batches that compaction left, and from where on they are on the leader's disk."""

    bases: tuple[int, ...]
    first_local: int


@dataclass(frozen=True)
class Answer:
    """How the broker answers one fetch: in which order, with room for how many batches, after how long."""

    order: tuple[int, ...]
    room: int
    slow_storage: bool
    seconds: float


def logs() -> st.SearchStrategy[Log]:
    bases = st.sets(st.sampled_from(range(0, END, PER_BATCH))).map(lambda found: tuple(sorted(found)))
    # Where nothing is left, it is known to be so only on the leader's own disk.
    return bases.flatmap(
        lambda left: st.integers(0, (left[-1] + PER_BATCH) if left else 0).map(lambda first: Log(left, first))
    )


ANSWERS = st.builds(
    Answer, st.permutations(range(BUSY + 1)).map(tuple), st.integers(0, 3), st.booleans(), st.sampled_from((0.001, 0.1))
)
PROMPT = Answer(tuple(range(BUSY + 1)), 1, slow_storage=False, seconds=0.02)


class Broker:
    """Fills answers as Kafka does: the first batch whatever its size, then while there is room."""

    def __init__(self, make_batch: Any, found: Sequence[Log], *, busy: bool) -> None:
        self.cluster = Cluster([1] * (BUSY + 1))
        self._make_batch = make_batch
        self._logs = found
        self._busy = busy
        self._cached: dict[int, int] = {}
        self.cluster._brokers[1].request = self._first_local_offsets  # type: ignore[method-assign]

    def answer(self, asked: Asked, how: Answer) -> None:
        if asked.session == OUTSIDE_SESSION:
            wanted = asked.offsets
        else:
            if asked.session[1] == 0:
                self._cached = {}
            for number in asked.forgotten:
                del self._cached[number]
            self._cached.update(asked.offsets)
            wanted = self._cached
        room = how.room
        parts, filled = [], False
        for number in sorted(wanted, key=how.order.index):
            found = self._found(number, wanted[number], how)[: max(room, 0 if filled else 1)]
            room -= len(found)
            filled = filled or bool(found)
            records = b"".join(self._make_batch(base, self.values(number, base)) for base in found)
            parts.append(part(number, records or None, high_watermark=2**40 if number == BUSY else END))
        asked.answer(*parts, session_id=0 if asked.session == OUTSIDE_SESSION else 5)

    @staticmethod
    def values(number: int, base: int) -> list[bytes]:
        return [b"%d/%d" % (number, base + index) for index in range(PER_BATCH)]

    def expected(self, number: int) -> list[bytes]:
        return [value for base in self._logs[number].bases for value in self.values(number, base)]

    def _found(self, number: int, offset: int, how: Answer) -> list[int]:
        if number == BUSY:
            return [offset] if self._busy else []
        log = self._logs[number]
        if how.slow_storage and offset < log.first_local:
            return []
        return [base for base in log.bases if base + PER_BATCH > offset]

    async def _first_local_offsets(self, build: Build, timeout: float) -> Any:
        assert timeout > 0
        request: Any = build(ApiVersions({Api.list_offsets: (1, 10)}))
        await asyncio.sleep(0.01)
        parts = [
            SimpleNamespace(
                partition_index=one.partition_index,
                error_code=ErrorCode.none,
                offset=self._logs[one.partition_index].first_local,
            )
            for topic in request.topics
            for one in topic.partitions
        ]
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=parts)])


async def run(broker: Broker, answers: Sequence[Answer]) -> list[list[bytes | None]]:
    async def read(partition: PartitionConsumer) -> list[bytes | None]:
        return [record.value async for record in partition]

    async with broker.cluster.consumer() as consumer:
        partitions = [await consumer.consume_partition("t", number, 0, END) for number in range(BUSY)]
        endless = await consumer.consume_partition("t", BUSY, 0)
        readings = asyncio.gather(*map(read, partitions))
        busy = asyncio.create_task(read(endless))
        coming = iter(answers)
        async with asyncio.timeout(60):
            while not readings.done():
                if (asked := await broker.cluster.asked_within(0.1)) is not None:
                    how = next(coming, PROMPT)
                    await asyncio.sleep(how.seconds)
                    broker.answer(asked, how)
        assert [partition.next_offset for partition in partitions] == [END] * BUSY
        endless.close()
        await busy
        return await readings


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=st.lists(logs(), min_size=BUSY, max_size=BUSY), busy=st.booleans(), answers=st.lists(ANSWERS, max_size=40))
def test_each_partition_is_read_to_its_end_and_no_further_than_what_is_there(
    make_batch: Any, found: list[Log], busy: bool, answers: list[Answer]
) -> None:
    broker = Broker(make_batch, found, busy=busy)
    assert simulate(lambda: run(broker, answers)) == [broker.expected(number) for number in range(BUSY)]
