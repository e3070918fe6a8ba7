"""Handover: passes what finders say about sources to the owners. It is stored first, then the owners are told."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ingestd.daemon.control import Assign, Conclude, Revoke

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ingestd.daemon.checkpoint import Checkpoint
    from ingestd.daemon.shards import Shard, Shards
    from ingestd.daemon.source import Assignment, Found, StoredPosition

__all__ = ["Handover"]

ASSIGNMENTS: Final = 100
"""Most sources in one message."""

TOLD_AT_ONCE: Final = 200
"""Most sources that owners are told of in one turn of the loop. This many are pickled in a few milliseconds."""


class _Withdrawal(NamedTuple):
    """An owner's answer that is waited for."""

    slot: int
    done: asyncio.Future[None]


class Handover:
    """Gives sources their owners, and tells the owners. Owned by the supervisor.

    Invariants
        An owner is told of a source only after it was stored, or could not be stored.
        An owner is told the newest state: a source that was concluded meanwhile is assigned as concluded.
        Of a dropped route nothing is stored, and nobody is told.
    """

    def __init__(self, shards: Shards, checkpoint: Checkpoint, tell: Callable[[int, Any], bool]) -> None:
        """`tell(slot, message)` reaches a slot's worker, or nobody while the slot has no process: it says which."""
        self._shards = shards
        self._checkpoint = checkpoint
        self._tell = tell
        self._dropped: set[str] = set()
        self._said: dict[tuple[str, str], None] = {}
        """Sources to assign to their owners once the checkpoint was tried, in order."""
        self._concluded: dict[tuple[str, str], None] = {}
        """The same for sources that an owner has, and that it must conclude."""
        self._assignable: dict[tuple[str, str], None] = {}
        """Sources to assign to their owners now."""
        self._withdrawals: dict[int, _Withdrawal] = {}
        self._tickets = itertools.count(1)
        self._waiting = False
        self._done = asyncio.Event()
        self._done.set()

    # What finders say.

    def appeared(self, route: str, found: Found, *, stored: bool) -> None:
        """A source is to be read. `stored`: its position and detail are in the file already."""
        if route in self._dropped:
            return
        shard = self._shards.place(route, found)
        if shard is None:
            return
        if not stored:
            self._checkpoint.remember(route, shard.stored)
        self._assign(shard)

    def conclude(self, route: str, source: str) -> None:
        """Nothing more is expected of a source."""
        name = route, source
        if self._shards.conclude(route, source) is None or name in self._said or name in self._assignable:
            return
        self._concluded[name] = None
        self._wait()

    def store(self, route: str, stored: StoredPosition) -> None:
        """Keep this of a source that is not read."""
        if route not in self._dropped:
            self._checkpoint.remember(route, stored)

    def found_all(self, route: str, until: float) -> None:
        """All that came before this Unix time is found."""
        if route not in self._dropped:
            self._checkpoint.note_found(route, until)

    def forget(self, route: str, source: str) -> None:
        """Drop what is stored of a source that is not read."""
        if route not in self._dropped:
            self._checkpoint.forget(route, source)

    def latest(self, route: str, source: str) -> Found | None:
        """A source that is read, as its owner last reported it."""
        shard = self._shards.get(route, source)
        return None if shard is None else shard.found

    # What becomes of workers and routes.

    def worker_started(self, slot: int) -> None:
        """Tell a slot's new worker of all that it owns, also of what waits to be told, in the order of ranks."""
        owned = [shard for shard in self._shards if shard.slot == slot]
        for shard in sorted(owned, key=lambda each: each.found.rank):
            name = shard.route, shard.found.source
            self._said.pop(name, None)
            self._assignable.pop(name, None)
            self._assign(shard)

    def drop_route(self, route: str) -> None:
        """Stop reading all sources of a route."""
        self._dropped.add(route)
        revoked: dict[int, list[str]] = {}
        for shard in self._shards.drop_route(route):
            revoked.setdefault(shard.slot, []).append(shard.found.source)
        for slot, sources in revoked.items():
            self._tell(slot, Revoke(route, sources))

    async def withdraw(self, route: str, sources: Collection[str]) -> None:
        """Take sources from their owners. Returns when nothing of them is sent any more, and their positions are known.

        A dead owner sends nothing. One that hangs is killed sooner or later.
        """
        owners: dict[int, list[str]] = {}
        for source in sources:
            shard = self._shards.withdraw(route, source)
            if shard is not None:
                owners.setdefault(shard.slot, []).append(source)
        await asyncio.gather(*(self._ask_back(slot, route, names) for slot, names in owners.items()))
        for source in sources:
            self._shards.forget(route, source)

    async def _ask_back(self, slot: int, route: str, sources: Sequence[str]) -> None:
        """Take sources from one owner, and wait for its answer."""
        ticket = next(self._tickets)
        answer = self._withdrawals[ticket] = _Withdrawal(slot, asyncio.get_running_loop().create_future())
        if not self._tell(slot, Revoke(route, sources, ticket)):
            answer.done.set_result(None)
        try:
            await answer.done
        finally:
            del self._withdrawals[ticket]

    def withdrawn(self, ticket: int) -> None:
        """An owner has answered."""
        waiting = self._withdrawals.get(ticket)
        if waiting is not None and not waiting.done.done():
            waiting.done.set_result(None)

    def worker_died(self, slot: int) -> None:
        """The worker of a slot is gone, and sends nothing more."""
        for ticket, waiting in self._withdrawals.items():
            if waiting.slot == slot:
                self.withdrawn(ticket)

    async def done(self) -> None:
        """Wait until everything that was said is stored, or could not be, and the owners are told."""
        await self._done.wait()

    # Telling.

    def _assign(self, shard: Shard) -> None:
        self._said[shard.route, shard.found.source] = None
        self._wait()

    def _wait(self) -> None:
        self._done.clear()
        if not self._waiting:
            self._waiting = True
            self._checkpoint.then(self._stored)

    def _stored(self) -> None:
        self._waiting = False
        idle = not self._assignable
        self._assignable |= self._said
        self._said.clear()
        self._tell_concluded()
        if idle:
            self._tell_assigned()

    def _tell_concluded(self) -> None:
        concluded: dict[tuple[int, str], list[str]] = {}
        for route, source in self._concluded:
            shard = self._shards.get(route, source)
            if shard is not None and shard.found.last:
                concluded.setdefault((shard.slot, route), []).append(source)
        self._concluded.clear()
        for (slot, route), sources in concluded.items():
            self._tell(slot, Conclude(route, sources))

    def _tell_assigned(self) -> None:
        assigned: dict[int, list[Assignment]] = {}
        for name in list(itertools.islice(self._assignable, TOLD_AT_ONCE)):
            del self._assignable[name]
            shard = self._shards.get(*name)
            if shard is not None:
                assigned.setdefault(shard.slot, []).append(shard.assignment)
        for slot, assignments in assigned.items():
            for start in range(0, len(assignments), ASSIGNMENTS):
                self._tell(slot, Assign(assignments[start : start + ASSIGNMENTS]))
        if self._assignable:
            asyncio.get_running_loop().call_soon(self._tell_assigned)
        elif not self._waiting:
            self._done.set()
