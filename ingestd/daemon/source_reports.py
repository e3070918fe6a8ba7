"""Source reports: which sources have news. A report costs as much as has changed; quiet sources cost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.daemon.control import Moved
from ingestd.daemon.statistics import SourceGauges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.daemon.lane import OpenSource

__all__ = ["SourceReports"]


class SourceReports:
    """One per line runner: positions and details that changed, and gauges of the sources that were touched."""

    def __init__(self, route: str) -> None:
        self._route = route
        self._moved: dict[OpenSource, None] = {}
        self._last: list[Moved] = []
        """The last moves of sources that were given up."""
        self._told: dict[str, SourceGauges] = {}
        self._stale: set[str] = set()

    def touch(self, held: OpenSource) -> None:
        """Something about the source may have changed."""
        self._stale.add(held.assignment.found.source)

    def drop(self, held: OpenSource) -> None:
        """The source is about to be closed. What is not reported yet is kept as it is now."""
        if held in self._moved:
            del self._moved[held]
            self._last += self._moves(held)
        self.touch(held)

    def note_move(self, held: OpenSource) -> bool:
        """The source's position or detail changed. Returns whether it is the first change since `moved` was called."""
        first = not self._moved
        self._moved[held] = None
        self.touch(held)
        return first

    def moved(self) -> list[Moved]:
        """Positions that moved, or whose detail changed, since the last call."""
        moves, self._last = self._last, []
        for held in self._moved:
            moves += self._moves(held)
        self._moved.clear()
        return moves

    def _moves(self, held: OpenSource) -> list[Moved]:
        if held.source is None:
            return []
        name, generation = held.assignment.found.source, held.assignment.generation
        return [Moved(self._route, name, generation, held.progress.position, dict(held.source.detail()))]

    def gauges(self, sources: Mapping[str, OpenSource]) -> dict[str, SourceGauges | None]:
        """The sources that changed since the last call, as they are now; None for one that is no longer open."""
        changed: dict[str, SourceGauges | None] = {}
        for name in self._stale:
            held = sources.get(name)
            if held is None:
                self._told.pop(name, None)
                changed[name] = None
            elif (gauge := self._gauge(held)) != self._told.get(name):
                changed[name] = self._told[name] = gauge
        self._stale.clear()
        return changed

    def _gauge(self, held: OpenSource) -> SourceGauges:
        unread = 0 if held.source is None else held.source.unread
        return SourceGauges(held.assignment.found.display_name, unread, held.progress.position)
