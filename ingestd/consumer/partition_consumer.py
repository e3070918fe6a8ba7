"""Partition consumer: one per topic partition. Holds what was fetched until its reader takes it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from ingestd.consumer.decoding import columns_of, records_of
from ingestd.errors import IngestdError
from ingestd.records.batch import check_crc
from ingestd.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ingestd.consumer.fetched import Fetched, FetchedBatch
    from ingestd.consumer.settings import TopicPartition
    from ingestd.records.columns import Columns
    from ingestd.records.decode import Record

__all__ = ["PartitionConsumer"]


class PartitionConsumer:
    """Reads one partition in order of offset. Made by `Consumer.consume_partition`; iterate it from one task.

    `async for record in partition_consumer` yields records; `batches()` and `columns()` yield the same in bulk. An
    iteration ends at the given end offset or after `close`; it raises what ended it otherwise, after what came before.

    Invariants
        What is handed out is in order of offset, each record at most once, none before the start or from the end on.
        Fetched and not yet taken: at most its share of the memory, or one batch where that is larger.
        `position` only grows, but where the out-of-range policy goes back.
    """

    def __init__(
        self,
        key: TopicPartition,
        position: int,
        end: int | None,
        *,
        check_crcs: bool,
        share: Callable[[], int],
        wake: Callable[[PartitionConsumer], None],
        released: Callable[[PartitionConsumer], None],
    ) -> None:
        self.key = key
        self.end = end
        self.backoff = Backoff()
        self.failing_since: float | None = None
        self.empty_answers = 0
        self.refused_by: tuple[int, int] | None = None
        self._position = position
        self._next_offset = position
        self._check_crcs = check_crcs
        self._share = share
        self._wake = wake
        self._released = released
        self._fetched: deque[Fetched] = deque()
        self._taken: deque[FetchedBatch] = deque()
        self._head_first: int | None = None
        self._fetched_bytes = 0
        self._high_watermark = -1
        self._last_stable_offset = -1
        self._log_start_offset = -1
        self._paused = False
        self._closed = False
        self._error: IngestdError | None = None
        self._reader: asyncio.Future[None] | None = None

    # What a reader sees

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.key.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.key.partition

    @property
    def high_watermark(self) -> int:
        """The offset after the last fully replicated record, as of the last answer; -1 before the first."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset before which every transaction is decided, as of the last answer; -1 before the first."""
        return self._last_stable_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset in the log, as of the last answer; -1 where it is not known."""
        return self._log_start_offset

    @property
    def next_offset(self) -> int:
        """The offset after what was handed out last: where a later reader goes on."""
        return self._next_offset

    @property
    def paused(self) -> bool:
        """Whether fetching is paused."""
        return self._paused

    def pause(self) -> None:
        """Fetch no more until `resume`. What is already fetched can still be read."""
        self._paused = True

    def resume(self) -> None:
        """Fetch again."""
        self._paused = False
        self._wake(self)

    def close(self) -> None:
        """Fetch no more. Iteration goes on to the end of what is fetched, then ends. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._released(self)
        self._notify()

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Records, one by one; a later iteration goes on behind the last one handed out. Raises what `take` raises."""
        while (batch := await self._head()) is not None:
            for record in records_of(batch, check_crc=self._check_crcs):
                self._next_offset = self._head_first = record.offset + 1
                yield record
            self._pop_head()

    async def batches(self) -> AsyncIterator[FetchedBatch]:
        """Whole record batches as the broker keeps them, not decoded. Raises what `take` raises."""
        while (batch := await self._head()) is not None:
            if self._check_crcs:
                check_crc(batch.data)
            self._pop_head()
            yield batch

    async def columns(self) -> AsyncIterator[Columns]:
        """Records as columns, one value for each record batch. Raises what `take` raises."""
        while (batch := await self._head()) is not None:
            columns = columns_of(batch, check_crc=self._check_crcs)
            self._pop_head()
            yield columns

    async def take(self) -> Fetched | None:
        """Wait for what one answer brought; None at the end offset or after `close`. Not to be mixed with iteration.

        Raises `KafkaError` (offset out of range, authorization, unknown topic), `CorruptBatch`, `UnsupportedVersion`.
        """
        while not self._fetched:
            if self._error is not None:
                raise self._error
            if self._closed or self.finished:
                self._next_offset = self._position if self.end is None else min(self._position, self.end)
                self.close()
                return None
            if self._reader is not None:
                raise IngestdError(f"{self.key} is read by two tasks at once; expected one")
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        fetched = self._fetched.popleft()
        self._fetched_bytes -= fetched.size
        self._wake(self)
        return fetched

    async def _head(self) -> FetchedBatch | None:
        """The batch to hand out next, without what was handed out of it before."""
        while not self._taken:
            fetched = await self.take()
            if fetched is None:
                return None
            self._taken.extend(fetched.batches)
        batch = self._taken[0]
        return batch if self._head_first is None else replace(batch, first=self._head_first)

    def _pop_head(self) -> None:
        self._next_offset = self._taken.popleft().next_offset
        self._head_first = None

    # What the broker consumer and the consumer do with it

    @property
    def position(self) -> int:
        """The offset to fetch next."""
        return self._position

    @property
    def finished(self) -> bool:
        """Whether everything up to the end offset is fetched."""
        return self.end is not None and self._position >= self.end

    @property
    def live(self) -> bool:
        """Whether it may want fetching now or later."""
        return not self._closed and self._error is None and not self.finished

    @property
    def fetchable(self) -> bool:
        """Whether there is something to fetch and room for it now."""
        return self.live and not self._paused and self._fetched_bytes * 2 < self._share()

    @property
    def room(self) -> int:
        """Most bytes of one answer, so that two answers fit into its share of the memory."""
        return self._share() // 2

    def offer(self, fetched: Fetched) -> None:
        """Queue what an answer brought for `position`, and move on."""
        self._position = fetched.next_offset
        self.empty_answers = 0
        if fetched.batches:
            self._fetched.append(fetched)
            self._fetched_bytes += fetched.size
        self._notify()

    def served(self) -> None:
        """A broker answered without an error for this partition."""
        self.failing_since = None
        self.refused_by = None
        self.backoff.reset()

    def learned(self, high_watermark: int, last_stable_offset: int, log_start_offset: int) -> None:
        """Take over what an answer says of the log."""
        self._high_watermark = high_watermark
        self._last_stable_offset = last_stable_offset
        self._log_start_offset = log_start_offset

    def move(self, offset: int) -> None:
        """Fetch from another offset: the out-of-range policy's, or the end where nothing is left before it."""
        self._position = offset
        self._notify()

    def fail(self, error: IngestdError) -> None:
        """End the iteration with `error`, after what is already fetched. The first error stays."""
        if self._error is None:
            self._error = error
            self._notify()

    def _notify(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
