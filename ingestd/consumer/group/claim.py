"""Claim: one partition that one handler processes. Hands out its records, and keeps the handler's marks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ingestd.client.group import OffsetAndMetadata

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.consumer.settings import Start
    from ingestd.records.columns import Columns
    from ingestd.records.decode import Record

__all__ = ["Claim"]


class Claim:
    """Made by a `ConsumerGroupSession`. Iterate it from one task: records one by one, `chunks`, `batches`, `columns`.

    Invariants
        Records are handed out in order of offset. Once the claim has ended there are no more, and iteration ends.
        Marks only grow, except by `reset_offset` and if reading goes back (a cut log, a topic that was created again).
        They count until the handler has ended, or is not waited for any more.
    """

    __slots__ = (
        "_committed",
        "_consumer",
        "_end",
        "_leader_epoch",
        "_marked",
        "_metadata",
        "_released",
        "_run_callbacks",
        "_seen",
        "_stopped",
        "idle",
        "initial_offset",
        "key",
    )

    def __init__(self, consumer: PartitionConsumer, run_callbacks: Callable[[], None]) -> None:
        self.key: TopicPartition = consumer.key
        self.initial_offset = consumer.next_offset
        """The offset that the claim began at."""
        self._consumer = consumer
        self.idle = False
        """A handler sets this while it waits for something else than records. Then it does not count as stuck."""
        self._run_callbacks = run_callbacks
        self._stopped = False
        self._end: asyncio.Event | None = None
        self._released = False
        self._seen = (-1, -1)
        self._marked = -1
        self._metadata = ""
        self._leader_epoch = -1
        self._committed: OffsetAndMetadata | None = None

    def __repr__(self) -> str:
        return f"<Claim {self.key} at {self.next_offset}{' ended' if self._stopped else ''}>"

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
        return self._consumer.high_watermark

    @property
    def next_offset(self) -> int:
        """The offset after the last record handed out."""
        return self._consumer.next_offset

    @property
    def lag(self) -> int | None:
        """Offsets from the last record handed out to the end of the log, at the last answer; None before the first."""
        return self._consumer.lag

    @property
    def ended(self) -> bool:
        """Whether the partition goes to another member, or the session ends. Then nothing more is handed out."""
        return self._stopped

    async def wait_ended(self) -> None:
        """Wait until it has ended. For handlers that wait for something else than records."""
        if not self._stopped:
            self._end = self._end or asyncio.Event()
            await self._end.wait()

    @property
    def paused(self) -> bool:
        """Whether fetching is paused."""
        return self._consumer.paused

    def pause(self) -> None:
        """Fetch no more until `resume`. What is fetched is still handed out. Causes no rebalance."""
        self._consumer.pause()

    def resume(self) -> None:
        """Fetch again."""
        self._consumer.resume()

    # Reading: see `PartitionConsumer`, also for the errors raised

    def __aiter__(self) -> AsyncIterator[Record]:
        """Records, one by one."""
        return aiter(self._consumer)

    def chunks(self) -> AsyncIterator[list[Record]]:
        """Lists of records, none of them empty. The cheapest way to read many."""
        return self._consumer.chunks()

    def batches(self) -> AsyncIterator[FetchedBatch]:
        """Whole record batches as the broker keeps them, not decoded."""
        return self._consumer.batches()

    def columns(self) -> AsyncIterator[Columns]:
        """Records as columns, one value for each record batch."""
        return self._consumer.columns()

    async def take(self) -> Sequence[FetchedBatch] | None:
        """Wait for the batches of one answer, not decoded. None at the end. Not to be mixed with iteration.

        If reading went back (see above), marks begin anew, with the records handed out from now on.
        """
        fetched = await self._consumer.take()
        if fetched is None:
            return None
        if fetched.batches[0].first < self._marked:
            self._marked = -1
        return fetched.batches

    async def seek(self, start: Start) -> int:
        """Go on from another start. Returns the offset. Marks stay: see `reset_offset`, `PartitionConsumer.seek`."""
        return await self._consumer.seek(start)

    # How far the handler is

    def mark(self, record: Record, metadata: str = "") -> None:
        """Say that `record` and all before it are processed. The next commit commits them.

        This, and every other way to mark, first calls the callbacks of finished commits.
        """
        self._mark(record.offset + 1, record.leader_epoch, metadata)

    def mark_all(self, metadata: str = "") -> None:
        """Say that everything handed out is processed: after a chunk, a batch, columns."""
        handed_out = self._consumer.committable
        self._mark(handed_out.offset, handed_out.leader_epoch, metadata)

    def mark_offset(self, offset: int, metadata: str = "", *, leader_epoch: int | None = None) -> None:
        """Say that everything before `offset` is processed. `leader_epoch`: of the record before it, if known."""
        if leader_epoch is None:
            handed_out = self._consumer.committable
            leader_epoch = handed_out.leader_epoch if handed_out.offset == offset else -1
        self._mark(offset, leader_epoch, metadata)

    def reset_offset(self, offset: int, metadata: str = "") -> None:
        """Mark `offset`, which may be an earlier one. The next session begins there. This one reads on where it is."""
        self._run_callbacks()
        if not self._released:
            self._marked, self._leader_epoch, self._metadata = offset, -1, metadata

    def _mark(self, offset: int, leader_epoch: int, metadata: str) -> None:
        self._run_callbacks()
        if self._released:
            return
        if offset > self._marked or self._consumer.next_offset < self._marked:
            self._marked, self._leader_epoch, self._metadata = offset, leader_epoch, metadata

    # What the session does with it

    @property
    def released(self) -> bool:
        """Whether the partition was given up. Then marks do not count any more."""
        return self._released

    @property
    def uncommitted(self) -> OffsetAndMetadata | None:
        """The offset that is marked and not committed. None: there is none."""
        marked = OffsetAndMetadata(self._marked, self._leader_epoch, self._metadata)
        return None if self._marked < 0 or marked == self._committed else marked

    def committed(self, offset: OffsetAndMetadata) -> None:
        """This much is committed."""
        self._committed = offset

    def committed_by_hand(self, offset: OffsetAndMetadata) -> None:
        """This offset is committed, whatever was marked. Marks go on from here."""
        self._committed = offset
        self._marked, self._leader_epoch, self._metadata = offset.offset, offset.leader_epoch, offset.metadata

    @property
    def stuck(self) -> bool:
        """Whether the handler has neither marked nor asked for anything since the last call, and is not idle."""
        now = (self._consumer.next_offset, self._marked)
        same, self._seen = now == self._seen, now
        return same and not self._consumer.awaited and not self.idle

    def stop(self) -> None:
        """Fetch and hand out nothing more. Marks still count, until `release`."""
        self._stopped = True
        if self._end is not None:
            self._end.set()
        self._consumer.abandon()

    def release(self) -> None:
        """The partition is not ours any more: marks do not count."""
        self.stop()
        self._released = True
