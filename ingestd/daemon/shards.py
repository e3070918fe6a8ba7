"""Shards: which worker owns which source, in which generation. The supervisor's record; it starts nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ingestd.daemon.source import Assignment, Found, StoredPosition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.daemon.control import Moved

__all__ = ["Shard", "Shards"]


class Shard(NamedTuple):
    """A source with its owner. `found.position` and `found.detail` are kept up to date."""

    route: str
    found: Found
    slot: int
    generation: int

    @property
    def assignment(self) -> Assignment:
        """What the owner is told."""
        return Assignment(self.route, self.found, self.generation)

    @property
    def stored(self) -> StoredPosition:
        """What is stored of it."""
        return StoredPosition(self.found.source, self.found.position, self.found.detail)


@dataclass(slots=True)
class _Group:
    """The slot that owns a group, and how many sources of the group it owns."""

    slot: int
    sources: int


class Shards:
    """All sources that are being followed.

    Invariants
        A source has one owner. Only what its present generation reports counts.
        A new source goes to the slot that owns its group or, without a group, to the slot that owns the fewest sources.
        A question about one source costs the same however many sources there are.
    """

    def __init__(self, slots: int) -> None:
        self._owned = [0] * slots
        self._shards: dict[tuple[str, str], Shard] = {}
        self._dropped: dict[tuple[str, str], Shard] = {}
        """Sources of dropped routes, and withdrawn ones. What their owners had sent is still acknowledged."""
        self._groups: dict[tuple[str, str], _Group] = {}
        self._generation = 0

    def __len__(self) -> int:
        return len(self._shards)

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards.values())

    def get(self, route: str, source: str) -> Shard | None:
        """A source with its owner, or None when it is not followed (any more)."""
        return self._shards.get((route, source))

    def place(self, route: str, found: Found) -> Shard | None:
        """Give a new source an owner; None when it has one already."""
        if (route, found.source) in self._shards:
            return None
        slot = self._slot_for(route, found.group)
        self._owned[slot] += 1
        self._generation += 1
        shard = self._shards[route, found.source] = Shard(route, found, slot, self._generation)
        return shard

    def _slot_for(self, route: str, group: str) -> int:
        known = self._groups.get((route, group))
        if known is not None:
            known.sources += 1
            return known.slot
        slot = self._owned.index(min(self._owned))
        if group:
            self._groups[route, group] = _Group(slot, 1)
        return slot

    def conclude(self, route: str, source: str) -> Shard | None:
        """Note that a source gets nothing more, for its owner and the next ones. None if that was known."""
        shard = self._shards.get((route, source))
        if shard is None or shard.found.last:
            return None
        shard = self._shards[route, source] = shard._replace(found=shard.found._replace(last=True))
        return shard

    def renew(self, slot: int) -> list[Shard]:
        """Give all sources of a slot whose worker died a new generation. They start again from their positions."""
        renewed = []
        for name, shard in self._shards.items():
            if shard.slot == slot:
                self._generation += 1
                renewed.append(shard._replace(generation=self._generation))
                self._shards[name] = renewed[-1]
        return renewed

    def moved(self, move: Moved) -> Shard | None:
        """Take a position from an owner, also of a dropped route. None if its generation is not the present one."""
        name = move.route, move.source
        book = self._dropped if name in self._dropped else self._shards
        shard = book.get(name)
        if shard is None or shard.generation != move.generation:
            return None
        found = shard.found._replace(position=move.position, detail=move.detail)
        shard = book[name] = shard._replace(found=found)
        return shard

    def end(self, route: str, source: str, generation: int) -> Shard | None:
        """Remove a finished source. None if an old generation reports it."""
        shard = self._shards.get((route, source))
        if shard is None or shard.generation != generation:
            return None
        del self._shards[route, source]
        self._owned[shard.slot] -= 1
        group = self._groups.get((route, shard.found.group))
        if group is not None:
            group.sources -= 1
            if not group.sources:
                del self._groups[route, shard.found.group]
        return shard

    def withdraw(self, route: str, source: str) -> Shard | None:
        """Remove a source that is read elsewhere from now on. Its owner may still report positions until `forget`."""
        shard = self._shards.get((route, source))
        if shard is not None:
            self.end(route, source, shard.generation)
            self._dropped[route, source] = shard
        return shard

    def forget(self, route: str, source: str) -> None:
        """Take no more positions of a source that was withdrawn."""
        self._dropped.pop((route, source), None)

    def drop_route(self, route: str) -> list[Shard]:
        """Remove all sources of a route."""
        dropped = [shard for shard in self._shards.values() if shard.route == route]
        for shard in dropped:
            self.end(route, shard.found.source, shard.generation)
            self._dropped[route, shard.found.source] = shard
        return dropped
