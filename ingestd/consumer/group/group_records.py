"""Group records: the records of a group's member as one stream, marked as the reader goes on."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

from ingestd.consumer.group.handler import ConsumerGroupHandler
from ingestd.consumer.group.session import EndReason
from ingestd.tasks import TaskOwner, end_task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from ingestd.consumer.group.claim import Claim
    from ingestd.consumer.group.consumer_group import ConsumerGroup
    from ingestd.consumer.group.consumer_group_session import ConsumerGroupSession
    from ingestd.consumer.group.session import Topics
    from ingestd.records.decode import Record

__all__ = ["GroupRecords"]


class _Chunk:
    """Records of one claim, in line for the reader."""

    __slots__ = ("begun", "claim", "done", "records")

    def __init__(self, claim: Claim, records: list[Record]) -> None:
        self.claim = claim
        self.records: Iterator[Record] = iter(records)
        self.begun = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class GroupRecords(ConsumerGroupHandler):
    """Made by `ConsumerGroup.subscribe`; async context manager and async iterator over records, for one task.

    A record is marked when the next one is asked for, so that one that was not processed to the end is read again;
    the last one when the block is left without an exception. Partitions take turns, a batch each.

    Invariants
        A rebalance waits for the record that the reader is at, within the rebalance timeout; what is behind it is
        dropped where its partition goes to another member.
        In line for the reader: at most one batch for each partition.
    """

    def __init__(self, group: ConsumerGroup, topics: Topics) -> None:
        self._group = group
        self._topics = topics
        self._tasks = TaskOwner(lambda _: None)  # the reader is told
        self._line: deque[_Chunk] = deque()
        self._news = asyncio.Event()
        self._chunk: _Chunk | None = None
        self._last: Record | None = None
        self._consuming: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._consuming = self._tasks.start(self._consume(), "consume for a subscription")
        self._consuming.add_done_callback(lambda _: self._news.set())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._mark_last()
        self._end_chunk()
        try:
            await self._group.close()
        finally:
            await self._tasks.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record. Raises what ended consuming: `KafkaError`, `PollIntervalExceeded`, `CorruptBatch`."""
        self._mark_last()
        while True:
            if self._chunk is not None:
                record = None if self._chunk.claim.ended else next(self._chunk.records, None)
                if record is not None:
                    self._last = record
                    return record
                self._end_chunk()
            await self._next_chunk()

    async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:  # noqa: ARG002 - a handler's
        """See `ConsumerGroupHandler`: brings each batch before the reader."""
        ended = asyncio.ensure_future(claim.wait_ended())
        try:
            async for records in claim.chunks():
                chunk = _Chunk(claim, records)
                # Nobody works on it until it is its turn; the first in line waits for the reader alone.
                claim.idle = self._chunk is not None or bool(self._line)
                self._line.append(chunk)
                self._news.set()
                await asyncio.wait({chunk.done, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not chunk.begun:
                    return
                await chunk.done
        finally:
            await end_task(ended)

    async def _consume(self) -> None:
        while (await self._group.consume(self._topics, self)).reason is not EndReason.closed:
            pass

    async def _next_chunk(self) -> None:
        while not self._line:
            assert self._consuming is not None
            if self._consuming.done():
                self._consuming.result()
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        chunk = self._line.popleft()
        if not chunk.claim.ended:
            chunk.begun = True
            chunk.claim.idle = False
            self._chunk = chunk

    def _mark_last(self) -> None:
        if self._last is not None and self._chunk is not None:
            self._chunk.claim.mark(self._last)
        self._last = None

    def _end_chunk(self) -> None:
        if self._chunk is not None:
            if not self._chunk.done.done():
                self._chunk.done.set_result(None)
            self._chunk = None
