"""Unread: the batches of one partition that are fetched and not handed out, in order, and their memory."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from ingestd.consumer.fetched import Fetched
from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ingestd.consumer.fetched import FetchedBatch

__all__ = ["MetErrors", "Unread"]

_KEPT_ERRORS: Final = 100
"""The oldest make room."""


class Unread:
    """Batches of several answers, oldest first. An answer's memory counts until its last batch is handed out."""

    def __init__(self) -> None:
        self._answers: deque[Fetched] = deque()
        self._begun: deque[FetchedBatch] = deque()
        self._begun_bytes = 0
        self._waiting_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._begun or self._answers)

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return self._begun_bytes + self._waiting_bytes

    def put(self, fetched: Fetched) -> None:
        """Add what an answer brought, if anything."""
        if fetched.batches:
            self._answers.append(fetched)
            self._waiting_bytes += fetched.size

    def put_back(self, batch: FetchedBatch) -> None:
        """Have this batch handed out next."""
        self._begun.appendleft(batch)
        self._begun_bytes += len(batch.data)

    def head(self) -> FetchedBatch:
        """The next batch. There must be one."""
        if not self._begun:
            fetched = self._answers.popleft()
            self._waiting_bytes -= fetched.size
            self._begun.extend(fetched.batches)
            self._begun_bytes = fetched.size
        return self._begun[0]

    def pop(self) -> None:
        """The batch that `head` gave is handed out."""
        self._begun.popleft()
        if not self._begun:
            self._begun_bytes = 0

    def take(self) -> Fetched:
        """The rest of the oldest answer, handed out at once. There must be one."""
        if self._begun:
            batches, self._begun = list(self._begun), deque()
            size, self._begun_bytes = self._begun_bytes, 0
            return Fetched(batches, size, batches[-1].next_offset)
        fetched = self._answers.popleft()
        self._waiting_bytes -= fetched.size
        return fetched

    def forget_from(self, offset: int) -> None:
        """Drop the batches that begin at `offset` or after it."""
        batches = [*self._begun, *(batch for fetched in self._answers for batch in fetched.batches)]
        self.clear()
        self._begun.extend(batch for batch in batches if batch.header.base_offset < offset)
        self._begun_bytes = sum(len(batch.data) for batch in self._begun)

    def clear(self) -> None:
        """Drop everything."""
        self._answers.clear()
        self._begun.clear()
        self._begun_bytes = self._waiting_bytes = 0


class MetErrors:
    """Errors when they are met, for a program that wants to see them. Nobody has to."""

    def __init__(self) -> None:
        self._errors: deque[IngestdError] = deque(maxlen=_KEPT_ERRORS)
        self._reader: asyncio.Future[None] | None = None
        self._ended = False

    def put(self, error: IngestdError) -> None:
        """Add one."""
        self._errors.append(error)
        self._notify()

    def end(self) -> None:
        """No more will come. Safe to call twice."""
        self._ended = True
        self._notify()

    async def __aiter__(self) -> AsyncIterator[IngestdError]:
        while True:
            while self._errors:
                yield self._errors.popleft()
            if self._ended:
                return
            if self._reader is not None:
                raise IngestdError("errors are read by two tasks at once; expected one")
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def _notify(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
