"""The cleaner: compacts one log of the broker after the other, the one with the largest dirty part first.

A child process reads and writes the segments. A thread waits for it and for the disk. The event loop only puts new
segments in the place of old ones.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary

from ingestd.broker.cleaner.cleaning_process import CleaningFailed, CleaningProcess
from ingestd.broker.cleaner.dirt import dirt_of, grouped
from ingestd.broker.cleaner.job import Cleaning, Group, Source
from ingestd.broker.log.swaps import (
    CLEANED_SUFFIX,
    end_swap,
    expect_gaps,
    prepare_swap,
    swap_path,
    write_cleaned_offset,
)
from ingestd.errors import CorruptBatch
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from ingestd.broker.cleaner.dirt import Dirt
    from ingestd.broker.cleaner.job import Cleaned
    from ingestd.broker.clock import Clock
    from ingestd.broker.log.partition_log import PartitionLog
    from ingestd.broker.log.segment import Segment

    T = TypeVar("T")

__all__ = ["Cleaner"]

_RETRY: Final = 300.0
"""Seconds that a log is left alone after its cleaning has failed."""
_log = get_logger(__name__)


class Cleaner:
    """Cleans logs of `logs`, those of compacted topics. `interval` in seconds, `map_bytes` for the keys of one log.

    Invariants
        One log is cleaned at a time, by one child process. None outlives `run`.
        Groups of a log take their places in the order of offsets. So a tombstone goes after what it deletes.
        A log counts as clean up to an offset when all new segments up to there are on the disk.
        Nothing from the last stable offset on is touched, nor what may not be on the disk yet.
    """

    def __init__(
        self, logs: Callable[[], Iterable[PartitionLog]], interval: float, map_bytes: int, clock: Clock
    ) -> None:
        self._logs = logs
        self._interval = interval
        self._map_bytes = map_bytes
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-cleaner")
        self._failed: WeakKeyDictionary[PartitionLog, float] = WeakKeyDictionary()

    async def run(self) -> None:
        """Clean what is dirty enough, and look again after each interval. Ends when it is cancelled."""
        while True:
            await self._clock.sleep(self._interval)
            await self.clean()

    async def clean(self) -> None:
        """Clean logs until none is dirty enough."""
        while (chosen := await self._dirtiest()) is not None:
            await self._clean_log(*chosen)

    def close(self) -> None:
        """End the thread. `run` has ended before."""
        self._thread.shutdown()

    async def _dirtiest(self) -> tuple[PartitionLog, Dirt] | None:
        found: tuple[PartitionLog, Dirt] | None = None
        for log in self._logs():
            if not log.config.compacts or self._clock.monotonic() < self._failed.get(log, 0.0):
                continue
            try:
                dirt = dirt_of(log, int(self._clock.wall() * 1000))
            except (OSError, CorruptBatch) as error:
                self._leave_alone(log, error)
                continue
            if dirt is not None and (found is None or dirt.ratio > found[1].ratio):
                found = log, dirt
            # There may be thousands. Heartbeats are answered meanwhile.
            await asyncio.sleep(0)
        return found

    def _leave_alone(self, log: PartitionLog, error: Exception) -> None:
        self._failed[log] = self._clock.monotonic() + _RETRY
        if not log.closed:
            _log.error("log not compacted", partition=log.directory.name, error=str(error), retry_seconds=_RETRY)

    async def _clean_log(self, log: PartitionLog, dirt: Dirt) -> None:
        groups = grouped(dirt.segments, log.config.segment_bytes)
        cleaning = self._cleaning(log, dirt, groups)
        process = CleaningProcess(cleaning)
        started = self._clock.monotonic()
        results: list[Cleaned] = []
        try:
            await self._blocking(process.start)
            while (cleaned := await self._blocking(process.receive)) is not None:
                await self._take(log, groups[cleaned.group], cleaning.groups[cleaned.group])
                results.append(cleaned)
            await self._advance(log, results[-1].end)
        except (OSError, CleaningFailed) as error:
            self._leave_alone(log, error)
            return
        finally:
            process.kill()
            await self._blocking(process.end)
        _log.info(
            "log compacted",
            partition=log.directory.name,
            clean_until=log.cleaned_offset,
            records_before=sum(one.records_before for one in results),
            records_after=sum(one.records_after for one in results),
            bytes_before=sum(one.bytes_before for one in results),
            bytes_after=sum(one.bytes_after for one in results),
            seconds=round(self._clock.monotonic() - started, 3),
        )

    def _cleaning(self, log: PartitionLog, dirt: Dirt, groups: Iterable[Sequence[Segment]]) -> Cleaning:
        # Another process's files never have these names: a broker that was killed may leave a child that still writes.
        token = uuid.uuid4().hex
        first, end = dirt.segments[0].base_offset, dirt.segments[-1].next_offset
        producers = tuple(log.producers)
        return Cleaning(
            groups=tuple(_group(log, group, token) for group in groups),
            first_dirty=dirt.first_dirty,
            aborted=tuple(log.aborted(first, end)),
            last_batches={one.producer_id: one.last_batch for one in producers if one.last_batch >= 0},
            last_markers={one.producer_id: one.epoch for one in producers if one.last_batch < 0},
            now_ms=int(self._clock.wall() * 1000),
            delete_retention_ms=log.config.delete_retention_ms,
            index_interval=log.config.index_interval,
            map_bytes=self._map_bytes,
        )

    async def _take(self, log: PartitionLog, old: Sequence[Segment], group: Group) -> None:
        """Put a cleaned group in its place. Raises `OSError`, `CleaningFailed`."""
        swap = swap_path(log.directory, group.first, group.end)
        # The old files' bytes are freed when these are closed, in the thread: that takes long for large files.
        descriptors = [os.dup(segment.descriptor) for segment in old]
        try:
            await self._in_directory(log, lambda: _prepare(log, group, swap))
            if not log.replace(old, swap, group.index):
                await self._in_directory(log, lambda: end_swap(swap))
                raise CleaningFailed("segments were removed meanwhile")
            await self._in_directory(log, lambda: end_swap(swap))
        finally:
            await self._blocking(lambda: _close(descriptors))

    async def _advance(self, log: PartitionLog, end: int) -> None:
        await self._in_directory(log, lambda: write_cleaned_offset(log.directory, end))
        log.cleaned_offset = end

    async def _in_directory(self, log: PartitionLog, work: Callable[[], object]) -> None:
        if not await self._blocking(lambda: log.in_directory(work)):
            raise CleaningFailed("the log was deleted, or takes no more batches")

    async def _blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _group(log: PartitionLog, segments: Sequence[Segment], token: str) -> Group:
    first, last = segments[0], segments[-1]
    name = f"{first.base_offset:020d}.{token}"
    return Group(
        tuple(Source(segment.path, segment.base_offset, segment.size) for segment in segments),
        first.base_offset,
        last.next_offset,
        log.directory / f"{name}{CLEANED_SUFFIX}",
        log.directory / f"{name}.index{CLEANED_SUFFIX}",
        last.created,
    )


def _prepare(log: PartitionLog, group: Group, swap: Path) -> None:
    # From the swap on the log may have gaps. Its next start must know where.
    expect_gaps(log.directory, group.end)
    prepare_swap(group.cleaned, swap)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
