"""Partition consumer: one per topic partition. Holds what was fetched until its reader takes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingestd.client.group import OffsetAndMetadata
from ingestd.consumer.decoding import columns_of, records_of
from ingestd.consumer.position import UNKNOWN_EPOCH, Position
from ingestd.consumer.standing import Standing
from ingestd.consumer.unread import MetErrors, Unread
from ingestd.errors import Closed, IngestdError
from ingestd.records.batch import check_crc
from ingestd.records.loops import RecordStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any
    from uuid import UUID

    from ingestd.consumer.feeder import Feeder
    from ingestd.consumer.fetched import Fetched, FetchedBatch
    from ingestd.consumer.settings import Start, TopicPartition
    from ingestd.records.columns import Columns
    from ingestd.records.decode import Record

__all__ = ["PartitionConsumer"]

_FAIR_BYTES: Final = 1024 * 1024
"""Bytes after which a reader that never has to wait lets other tasks run."""


class PartitionConsumer:
    """Reads one partition in order of offset. Made by `Consumer.consume_partition`.

    `async for record in partition_consumer` yields records, and awaits nothing while there are any at hand. `chunks()`
    yields lists of them, `columns()` and `batches()` the same in bulk. Each goes on where the last one stopped. An
    iteration ends at the given end offset, or after `close`. If an error ended fetching, it is raised after the records
    that were fetched before.

    Belongs to the event loop of its consumer, and is not thread-safe. One task at a time may read it. For threads there
    is `SyncConsumer`.

    Invariants
        Records are handed out in order of offset, each at most once, none before the start, none from the end on.
        Only `seek` or a policy goes back.
        In memory are at most its share, or one batch if that is larger, and the records of one batch.
    """

    def __init__(
        self,
        key: TopicPartition,
        position: Position,
        end: int | None,
        feeder: Feeder,
        *,
        topic_id: UUID | None = None,
        committed: bool = False,
        check_crcs: bool = True,
    ) -> None:
        self.key = key
        self.end = end
        self.standing = Standing(topic_id)
        self.errors = MetErrors()
        """Every error when it is met, also those after which fetching is tried again. Ends when this is closed.

        For `async for`, by one task. An error that ends fetching is raised by iteration too. The newest 100 are kept.
        """
        self._position = position
        self._feeder = feeder
        self._committed = committed
        self._check_crcs = check_crcs
        self._next_offset = position.offset
        self._next_epoch = position.leader_epoch
        self._unread = Unread()
        self._open: FetchedBatch | None = None
        self._stream = RecordStream(self._more)
        self._holder = self._stream
        self._handed_out_bytes = 0
        self._high_watermark = -1
        self._last_stable_offset = -1
        self._log_start_offset = -1
        self._paused = False
        self._closed = False
        self._error: IngestdError | None = None
        self._trouble: IngestdError | None = None
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
        """The first offset in the log, as of the last answer; -1 if it is not known."""
        return self._log_start_offset

    @property
    def log_end(self) -> int:
        """The offset after the last record that this consumer's isolation lets it see; -1 before the first answer."""
        return self._last_stable_offset if self._committed else self._high_watermark

    @property
    def lag(self) -> int | None:
        """How many offsets lie from `next_offset` to `log_end`. None before the first answer.

        It is 0 if there is no record among them: transactions leave markers at the log's end, which nobody gets.
        """
        return None if self.log_end < 0 else max(0, self.log_end - self.reached)

    @property
    def reached(self) -> int:
        """`next_offset`; if nothing is left to hand out, the offset after markers and hidden batches that follow."""
        left = bool(self._unread) or (self._open is not None and self._holder.left > 0)
        return self.next_offset if left or self._error is not None else max(self.next_offset, self.position)

    @property
    def next_offset(self) -> int:
        """The offset after the last record handed out. A later reader goes on there."""
        if self._open is None:
            return self._next_offset
        return self._holder.next_offset if self._holder.left else self._open.next_offset

    @property
    def committable(self) -> OffsetAndMetadata:
        """`next_offset` and the leader epoch of the record before it (-1: not known), as a group commits them."""
        epoch = self._next_epoch if self._open is None else self._open.header.leader_epoch
        return OffsetAndMetadata(self.next_offset, epoch)

    @property
    def paused(self) -> bool:
        """Whether fetching is paused."""
        return self._paused

    @property
    def closed(self) -> bool:
        """Whether it was closed, or its end was reached and handed out."""
        return self._closed

    @property
    def error(self) -> IngestdError | None:
        """The error that ended fetching. Iteration raises it after the records that were fetched before."""
        return self._error

    @property
    def awaits(self) -> str:
        """What it waits for while it has nothing to hand out, for people."""
        if self._trouble is not None:
            return str(self._trouble)
        if self._paused:
            return "it is paused"
        if 0 <= self.log_end <= self.position:
            return f"there is no record at offset {self.position} yet"
        return "its broker has not answered yet"

    def pause(self) -> None:
        """Fetch no more until `resume`. What is already fetched can still be read."""
        self._paused = True
        self._feeder.wake(self)

    def resume(self) -> None:
        """Fetch again."""
        self._paused = False
        self._feeder.wake(self)

    async def seek(self, start: Start) -> int:
        """Go on from another start, forwards or backwards. What was fetched is dropped. Returns the offset.

        An error that ended fetching is forgotten. Raises `Closed`. If the start is not a literal offset, raises what
        `Consumer.offsets` raises. A literal offset is not checked here: the out-of-range policy decides.
        """
        offset = start if isinstance(start, int) else await self._feeder.locate(self.key, start)
        if self._closed:
            raise Closed(f"{self.key}: the partition consumer is closed")
        epoch = start.leader_epoch if isinstance(start, OffsetAndMetadata) else UNKNOWN_EPOCH
        self._reclaim_open()
        self._unread.clear()
        self._error = None
        self._position = Position(offset, epoch)
        self._next_offset, self._next_epoch = offset, epoch
        self.standing.checked_epoch = UNKNOWN_EPOCH
        self.standing.empty_answers = 0
        self._feeder.repositioned(self)
        self._notify()
        return offset

    def close(self) -> None:
        """Fetch no more. Iteration still gives what is fetched, then it ends. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._feeder.release(self)
        self.errors.end()
        self._notify()

    def abandon(self) -> None:
        """Close, and drop what is fetched. Iteration ends at once; `next_offset` is after the last record given."""
        self._reclaim_open()
        self._unread.clear()
        self._position = Position(self._next_offset, self._next_epoch)
        self.close()

    def __aiter__(self) -> AsyncIterator[Record]:
        """Records, one by one. Raises what `take` raises."""
        return self._stream

    async def chunks(self) -> AsyncIterator[list[Record]]:
        """Lists of records, none of them empty, to process many at once. Raises what `take` raises."""
        while (records := self._stream.rest() or await self._more()) is not None:
            self._finish_open()
            if records:
                yield records

    async def columns(self) -> AsyncIterator[Columns]:
        """Records as columns, one value for each record batch. Raises what `take` raises."""
        while (batch := await self._head()) is not None:
            columns = columns_of(batch, check_crc=self._check_crcs)
            self._pop_head()
            self._handed_out(batch)
            yield columns

    async def batches(self) -> AsyncIterator[FetchedBatch]:
        """Whole record batches as the broker keeps them, not decoded. Raises what `take` raises."""
        while (batch := await self._head()) is not None:
            if self._check_crcs:
                check_crc(batch.data, batch.header)
            self._pop_head()
            self._handed_out(batch)
            yield batch

    async def take(self) -> Fetched | None:
        """Wait for the batches of one answer. None at the end offset or after `close`. Not to be mixed with iteration.

        Raises `KafkaError` (offset out of range, authorization, unknown topic), `LogTruncated`, `TopicRecreated`,
        `CorruptBatch`, `UnsupportedVersion`.
        """
        if not await self._some():
            return None
        fetched = self._unread.take()
        self._handed_out(fetched.batches[-1])
        self._feeder.wake(self)
        return fetched

    @property
    def awaited(self) -> bool:
        """Whether its reader waits for something to be handed out."""
        return self._reader is not None

    @property
    def readable(self) -> bool:
        """Whether a reader need not wait: there are records, an error or an end."""
        return bool(self._unread) or self._error is not None or self._closed or self.finished

    async def lend(self, stream: RecordStream) -> list[Record] | None:
        """The records of the next batch. `stream` hands them out now. None at the end. Raises what `take` raises.

        `stream` must be empty. It hands out nothing of another partition before `returned`.
        """
        batch = await self._head()
        if batch is None:
            return None
        try:
            records = records_of(batch, self.key, check_crc=self._check_crcs)
        except IngestdError as error:
            self.fail(error)
            raise
        self._pop_head()
        self._open, self._holder = batch, stream
        return records

    def returned(self, stream: RecordStream) -> None:
        """Everything that was lent to `stream` is handed out. Nothing happens if nothing is lent."""
        if self._holder is stream:
            self._finish_open()

    async def let_others_run(self) -> None:
        """Let other tasks run, once after every `_FAIR_BYTES` that were handed out."""
        if self._handed_out_bytes >= _FAIR_BYTES:
            self._handed_out_bytes = 0
            await asyncio.sleep(0)

    def status(self) -> dict[str, Any]:
        """What it does now, for bug reports, in values that JSON can hold."""
        return {
            "next_offset": self.next_offset,
            "position": self.position,
            "leader_epoch": self._position.leader_epoch,
            "high_watermark": self._high_watermark,
            "last_stable_offset": self._last_stable_offset,
            "lag": self.lag,
            "end": self.end,
            "waits_for_remote_storage": self.live and (self.standing.remote or (-1, -1))[0] == self.position,
            "fetched_bytes": self.fetched_bytes,
            "paused": self._paused,
            "error": None if self._error is None else str(self._error),
        }

    # How it hands out

    async def _more(self) -> list[Record] | None:
        return await self.lend(self._stream)

    async def _some(self) -> bool:
        """Wait until something can be handed out; False at the end."""
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self._closed or self.finished:
                self._next_offset = self.position if self.end is None else min(self.position, self.end)
                self.close()
                return False
            if self._reader is not None:
                raise IngestdError(f"{self.key} is read by two tasks at once; expected one")
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return True

    async def _head(self) -> FetchedBatch | None:
        """The next batch to hand out, without its records that were handed out before."""
        self._reclaim_open()
        await self.let_others_run()
        return self._unread.head() if await self._some() else None

    def _pop_head(self) -> None:
        self._handed_out_bytes += len(self._unread.head().data)
        self._unread.pop()
        self._feeder.wake(self)

    def _handed_out(self, batch: FetchedBatch) -> None:
        self._next_offset, self._next_epoch = batch.next_offset, batch.header.leader_epoch

    def _finish_open(self) -> None:
        """All records of the open batch are handed out."""
        if self._open is not None:
            self._handed_out(self._open)
            self._open = None

    def _reclaim_open(self) -> None:
        """Put the rest of the open batch back, to be handed out in another form."""
        if self._open is not None and self._holder.left:
            committable = self.committable
            self._next_offset, self._next_epoch = committable.offset, committable.leader_epoch
            self._unread.put_back(self._open._replace(first=self._next_offset))
            self._holder.clear()
            self._open = None
        self._finish_open()

    # What the broker consumer and the consumer do with it

    @property
    def position(self) -> int:
        """The offset to fetch next."""
        return self._position.offset

    @property
    def fetch_position(self) -> Position:
        """`position`, with what is known of the log before it."""
        return self._position

    @property
    def finished(self) -> bool:
        """Whether everything up to the end offset is fetched."""
        return self.end is not None and self.position >= self.end

    @property
    def live(self) -> bool:
        """Whether it may want fetching now or later."""
        return not self._closed and self._error is None and not self.finished

    @property
    def fetched_bytes(self) -> int:
        """Bytes fetched and not yet handed out."""
        return self._unread.size

    @property
    def fetchable(self) -> bool:
        """Whether there is something to fetch and room for it now."""
        return self.live and not self._paused and self.fetched_bytes * 2 < self._feeder.share()

    @property
    def room(self) -> int:
        """Most bytes of one answer, so that two answers fit into its share of the memory."""
        return self._feeder.share() // 2

    def unchecked(self, leader_epoch: int) -> bool:
        """Whether a leader of this epoch must first be asked if its log is the one that was read (KIP-320)."""
        known = UNKNOWN_EPOCH not in (self._position.leader_epoch, leader_epoch)
        return known and self.standing.checked_epoch != leader_epoch

    def offer(self, fetched: Fetched) -> None:
        """Queue the part of an answer for `position`, and move `position` on."""
        self._position = self._position.after(fetched)
        self.standing.empty_answers = 0
        self._unread.put(fetched)
        self._notify()

    def learned(self, high_watermark: int, last_stable_offset: int, log_start_offset: int) -> None:
        """Note what an answer says about the log."""
        self._trouble = None
        self._high_watermark = high_watermark
        self._last_stable_offset = last_stable_offset
        self._log_start_offset = log_start_offset

    def begin_anew(self, topic_id: UUID | None) -> None:
        """The name belongs to another topic now. Nothing that was known of the old log counts."""
        self.standing = Standing(topic_id)
        self._position = Position(self.position)

    def move(self, offset: int) -> None:
        """Fetch from another offset: the one of the out-of-range policy, or the end if nothing is left before it."""
        self._position = Position(offset)
        self._feeder.wake(self)
        self._notify()

    def forget_from(self, offset: int) -> None:
        """The log lost everything from `offset` on, fetched or handed out: forget it."""
        self._reclaim_open()
        self._unread.forget_from(offset)
        if self._next_offset > offset:
            self._next_offset, self._next_epoch = offset, UNKNOWN_EPOCH

    def report(self, error: IngestdError) -> None:
        """An error was met; fetching is tried again."""
        self._trouble = error
        self.errors.put(error)

    def fail(self, error: IngestdError) -> None:
        """End the iteration with `error`, after what is already fetched. The first error stays."""
        if self._error is None:
            self._error = error
            self._feeder.wake(self)
            self.report(error)
            self._notify()

    def _notify(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        self._feeder.told(self)
