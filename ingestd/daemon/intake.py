"""Intake: runs one route's finder in the supervisor. What it says goes to the handover, the log and the counters."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingestd.daemon.positions import PositionsLocked, PositionsUnavailable
from ingestd.daemon.status import GoneSource, NotTaken
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ingestd.daemon.handover import Handover
    from ingestd.daemon.positions import PositionStore, StoredRoute
    from ingestd.daemon.source import End, Finder, Found, Loss, Route, StoredPosition
    from ingestd.daemon.status import GroupStatus

__all__ = ["Intake", "IntakeNews"]

ABSENCE: Final = 30 * 86400.0
"""Seconds that the position of an absent source is kept."""

FORGOTTEN_AT_ONCE: Final = 200
"""Rows of absent sources that are handled in one turn of the loop."""

FORGETTING_PAUSE: Final = 0.05
"""Seconds between two such turns."""

NOT_TAKEN_SHOWN: Final = 100
"""How many files of a route that are not taken /status shows: the last ones."""

GONE_SHOWN: Final = 100
"""The same of sources that are gone."""


class IntakeNews(Protocol):
    """What an intake tells the supervisor."""

    def untakeable(self, route: Route, thing: str, reason: str) -> None:
        """Something named is not taken."""
        ...

    def given_up(self, route: Route, reason: str) -> None:
        """A route's sources can not be looked for in this run."""
        ...

    def overflowed(self, route: Route) -> None:
        """The kernel dropped events of what a route's finder watches."""
        ...

    def gone(self, route: Route, sources: int) -> None:
        """So many sources are gone or were cut off while nobody read them."""
        ...

    def lost(self, route: Route, loss: Loss) -> None:
        """Data is lost."""
        ...

    def leased(self, route: Route, until: float) -> None:
        """A route may be sent until then."""
        ...

    def groups(self, route: Route, groups: Sequence[GroupStatus]) -> None:
        """The consumer groups whose offsets a route translates, as they are now."""
        ...


class Intake:
    """Runs one route's finder, in the supervisor's tasks `scan` and `run`. To the finder it is `Sources`.

    Invariants
        What is stored already is not stored again.
        It forgets only rows that a complete scan has not named.
    """

    def __init__(self, route: Route, finder: Finder, stored: StoredRoute, handover: Handover, news: IntakeNews) -> None:
        self.route = route
        self._taken: set[str] = set()
        """The sources that it found, by name. One that went to another host may come again."""
        self._taken_before = 0
        """How many it found that are over: none of them comes again."""
        self._finder = finder
        self._handover = handover
        self._news = news
        self._log = get_logger("ingestd.supervisor").bind(route=route.name)
        self._rows = {row.source: row for row in stored.positions}
        """The rows that were stored at the start and that the finder has not named yet."""
        self._missing = stored.missing
        self._not_taken: dict[str, NotTaken] = {}
        self._gone: deque[GoneSource] = deque(maxlen=GONE_SHOWN)
        self.problem: str | None = None
        """Why the finder can not look for sources now."""

    @property
    def taken(self) -> int:
        """How many sources it found."""
        return len(self._taken) + self._taken_before

    @property
    def not_taken(self) -> Sequence[NotTaken]:
        """What is not taken, as far as is known: the last ones, oldest first."""
        return tuple(self._not_taken.values())

    @property
    def last_gone(self) -> Sequence[GoneSource]:
        """What is gone or was cut off while nobody read it: the last ones, oldest first."""
        return tuple(self._gone)

    @property
    def waiting(self) -> int:
        """How many sources wait, because they may be copies of others."""
        return self._finder.waiting

    async def scan(self) -> None:
        """One complete pass. Returns when everything that it found was given to its owners."""
        await self._finder.scan(self)
        await self._handover.done()

    async def run(self) -> None:
        """Go on finding until cancelled."""
        await self._finder.run(self)

    async def forget_absent(self, positions: PositionStore) -> None:
        """Forget sources that were absent for long. Runs after the scan, a few rows at a time."""
        forgotten = 0
        while self._rows:
            absent = list(islice(self._rows, FORGOTTEN_AT_ONCE))
            try:
                forgotten += positions.note_missing(self.route.name, absent, ABSENCE)
            except PositionsLocked:
                await asyncio.sleep(FORGETTING_PAUSE)
                continue
            except PositionsUnavailable as error:
                self._log.warning("old positions are kept", error=str(error))
                return
            for source in absent:
                del self._rows[source]
            await asyncio.sleep(FORGETTING_PAUSE)
        if forgotten:
            self._log.info("old positions forgotten", sources=forgotten)

    async def rest(self) -> None:
        """See `ingestd.daemon.source.Finder.rest`."""
        await self._finder.rest()

    def moved(self) -> None:
        """Positions of its sources moved, and are about to be stored."""
        self._finder.moved()

    def ended(self, found: Found, end: End) -> None:
        """A source is finished. The finder looks at what comes next."""
        self._log.debug(
            "source finished",
            source=found.source,
            file=found.display_name,
            reason=end.kind,
            path=_printable(end.path),
            position=end.position,
            size=end.size,
        )
        self._finder.ended(found, end)

    async def answer(self, question: Any) -> Any:
        """What the finder answers to the route's runner. Raises `IngestdError`."""
        return await self._finder.answer(question)

    # What the finder says: see `Sources`.

    def appeared(self, found: Found) -> None:
        """See `Sources`."""
        self._taken.add(found.source)
        before = self._not_taken.pop(found.display_name, None)
        if before is not None:
            word = self.route.words.thing
            self._log.info(f"{word} taken now", **{word: found.display_name, "reason_before": before.reason})
        row = self._known(found.source)
        stored = row is not None and (row.position, row.detail) == (found.position, found.detail)
        self._handover.appeared(self.route.name, found, stored=stored)

    def conclude(self, source: str) -> None:
        """See `Sources`."""
        self._handover.conclude(self.route.name, source)

    async def withdraw(self, sources: Collection[str]) -> None:
        """See `Sources`."""
        await self._handover.withdraw(self.route.name, sources)

    def store(self, stored: StoredPosition) -> None:
        """See `Sources`."""
        if self._known(stored.source) != stored:
            self._handover.store(self.route.name, stored)

    def forget(self, source: str) -> None:
        """See `Sources`."""
        self._known(source)
        if source in self._taken:
            self._taken.discard(source)
            self._taken_before += 1
        self._handover.forget(self.route.name, source)

    def latest(self, source: str) -> Found | None:
        """See `Sources`."""
        return self._handover.latest(self.route.name, source)

    def trouble(self, thing: str, reason: str) -> None:
        """See `Sources`."""
        word = self.route.words.thing
        self._not_take(f"{word} not taken", word, thing, reason)

    def unmatched(self, entry: str, reason: str) -> None:
        """See `Sources`."""
        words = self.route.words
        self._not_take(f"an entry of {words.entries} matches no {words.thing}", words.entries, entry, reason)

    def _not_take(self, event: str, word: str, thing: str, reason: str) -> None:
        thing, reason = _printable(thing), _printable(reason)
        self._log.warning(event, **{word: thing, "reason": reason})
        self._not_taken.pop(thing, None)
        self._not_taken[thing] = NotTaken(_now(), thing, reason)
        if len(self._not_taken) > NOT_TAKEN_SHOWN:
            del self._not_taken[next(iter(self._not_taken))]
        self._news.untakeable(self.route, thing, reason)

    def trouble_over(self, thing: str) -> None:
        """See `Sources`."""
        self._not_taken.pop(_printable(thing), None)

    def found_all(self, until: float) -> None:
        """See `Sources`."""
        self._handover.found_all(self.route.name, until)

    def overflowed(self) -> None:
        """See `Sources`."""
        self._news.overflowed(self.route)

    def gone(self, read_to: Sequence[tuple[str, int]]) -> None:
        """See `Sources`."""
        now = _now()
        self._gone += (GoneSource(now, _printable(name), position) for name, position in read_to)
        self._news.gone(self.route, len(read_to))

    def leased(self, until: float) -> None:
        """See `Sources`."""
        self._news.leased(self.route, until)

    def looked(self, problem: str | None) -> None:
        """See `Sources`. Logged where it changed."""
        problem = None if problem is None else _printable(problem)
        if problem != self.problem and problem is not None:
            self._log.warning("sources can not be looked for", error=problem, then="tried again")
        elif problem != self.problem:
            self._log.info("sources are looked for again")
        self.problem = problem

    def given_up(self, reason: str) -> None:
        """See `Sources`."""
        self.problem = reason = _printable(reason)
        self._log.error("route given up", reason=reason)
        self._news.given_up(self.route, reason)

    def show_groups(self, groups: Sequence[GroupStatus]) -> None:
        """See `Sources`."""
        self._news.groups(self.route, groups)

    def lost(self, loss: Loss) -> None:
        """See `Sources`. Runners' losses come here too."""
        thing = _printable(loss.thing)
        fields = {self.route.words.source: thing, "reason": loss.reason, "start": loss.start, loss.unit: loss.length}
        why = {"why": loss.why} if loss.why else {}
        self._log.error("data lost", **fields, at_least=not loss.exact, **why)
        self._news.lost(self.route, replace(loss, thing=thing))

    def _known(self, source: str) -> StoredPosition | None:
        """The stored row of a source, if the finder names it for the first time. None: store it in any case."""
        row = self._rows.pop(source, None)
        if source in self._missing:
            self._missing.discard(source)
            return None  # storing it ends its absence
        return row


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _printable(text: str) -> str:
    """File names may not be UTF-8, and JSON can hold nothing else."""
    return os.fsencode(text).decode(errors="backslashreplace")
