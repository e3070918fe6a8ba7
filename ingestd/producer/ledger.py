"""Ledger: counts what the producer accepted and did not end yet. It bounds memory, and ends flushes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from ingestd.producer.failures import Failures
from ingestd.records.loops import Allowance

if TYPE_CHECKING:
    from ingestd.retry import Deadline

__all__ = ["Ledger"]


class Ledger:
    """Counts entries (batches, and records that wait for their topic) by generation, and the bytes they hold.

    Invariants
        Every `enter` is followed by exactly one `leave` with the generation that it gave.
        `full` becomes false again: whoever reserved bytes gives them back.
        Each waiter for room wakes the next one. So n waiters cost n wake-ups, and not n squared.
        `_entries` has every generation from the oldest with entries to the current one. So the end of an entry costs
        the same, however many flushes wait.
    """

    def __init__(self, limit: int) -> None:
        self.allowance = Allowance(limit)
        """The bytes. Records that go the short way reserve theirs here directly, without this class."""
        self.failures = Failures()
        """What ended badly, and nobody was told."""
        self._oldest = self._generation = 0
        self._entries: dict[int, int] = {0: 0}
        self._rooms: deque[asyncio.Future[None]] = deque()
        self._flushes: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        """The flushes that wait, in the order of the generations that they wait for."""

    @property
    def full(self) -> bool:
        """Whether the bytes reserved have reached the limit."""
        return self.allowance.used >= self.allowance.limit

    @property
    def bytes(self) -> int:
        """Bytes reserved now."""
        return self.allowance.used

    def shut(self) -> None:
        """Let no record go the short way any more. From now on the producer accepts or refuses each one."""
        self.allowance.shut = True

    def reopen(self) -> None:
        """Let records go the short way again: a transaction is open."""
        self.allowance.shut = False

    @property
    def entries(self) -> int:
        """Entries not yet left."""
        return sum(self._entries.values())

    def enter(self) -> int:
        """Count one entry; its generation."""
        self._entries[self._generation] += 1
        return self._generation

    def enter_again(self, generation: int) -> None:
        """A batch of this generation became two: count one entry more."""
        self._entries[generation] += 1

    def leave(self, generation: int) -> None:
        """An entry ended."""
        left = self._entries[generation] - 1
        self._entries[generation] = left
        if not left and generation == self._oldest:
            self._drained()

    def reserve(self, size: int) -> None:
        """Hold `size` bytes more."""
        self.allowance.used += size

    def release(self, size: int) -> None:
        """Give `size` bytes back."""
        self.allowance.used -= size
        if self._rooms and not self.full:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._rooms:
            waiter = self._rooms.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def room(self) -> None:
        """Return when there is room; first come, first served."""
        while self.full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._rooms.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # Its turn may have come already: pass it on.
                self._wake_if_room()
                raise
        if self._rooms:
            # The next one runs after us: it checks again once we have sent.
            asyncio.get_running_loop().call_soon(self._wake_if_room)

    def _wake_if_room(self) -> None:
        if not self.full:
            self._wake_one()

    def wake_all(self) -> None:
        """Wake all who wait for room: there will be none."""
        self.allowance.limit = max(self.allowance.limit, self.allowance.used + 1)
        while self._rooms:
            self._wake_one()

    async def drained(self, deadline: Deadline, doing: str) -> None:
        """Return when all entries made before this call have ended. Raises `DeadlineExceeded`."""
        if self._entries[self._generation]:
            self._generation += 1
            self._entries[self._generation] = 0
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes[waiter] = self._generation - 1
        self._drained()
        try:
            await deadline.wait_for(waiter, doing)
        finally:
            self._flushes.pop(waiter, None)

    def _drained(self) -> None:
        while self._oldest < self._generation and not self._entries[self._oldest]:
            del self._entries[self._oldest]
            self._oldest += 1
        while self._flushes:
            waiter, generation = next(iter(self._flushes.items()))
            if generation >= self._oldest:
                return
            del self._flushes[waiter]
            if not waiter.done():
                waiter.set_result(None)
