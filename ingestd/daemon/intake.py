"""Intake: one route's finder at work in the supervisor, and what it finds given to shards."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.daemon.source import Found, Route, StoredPosition

__all__ = ["Intake", "IntakeNews"]


class IntakeNews(Protocol):
    """What an intake tells the supervisor."""

    def appeared(self, route: Route, found: Found) -> None:
        """A source is there."""
        ...

    def untakeable(self, route: Route, thing: str, reason: str) -> None:
        """Something named can not be taken."""
        ...


class Intake:
    """Runs one route's finder. Owned by the supervisor's task owner through `run`."""

    def __init__(self, route: Route, stored: Sequence[StoredPosition] | None, news: IntakeNews, *, once: bool) -> None:
        self.route = route
        self.taken = 0
        self._finder = route.finder(stored, once=once)
        self._news = news
        self._log = get_logger("ingestd.supervisor").bind(route=route.name)

    async def scan(self) -> None:
        """One complete pass."""
        await self._finder.scan(self)

    async def run(self) -> None:
        """Go on finding until cancelled."""
        await self._finder.run(self)

    def ended(self, found: Found, reason: str) -> None:
        """A source is finished: the finder looks at what stands in its place."""
        # It may name a path that is not UTF-8, which JSON can not hold.
        said = os.fsencode(reason).decode(errors="backslashreplace")
        self._log.info("source finished", source=found.source, file=found.label, reason=said)
        self._finder.ended(found.source, reason)

    def appeared(self, found: Found) -> None:
        """See `Sources`."""
        self.taken += 1
        self._news.appeared(self.route, found)

    def trouble(self, thing: str, reason: str) -> None:
        """See `Sources`."""
        self._log.warning("can not be taken", thing=thing, reason=reason)
        self._news.untakeable(self.route, thing, reason)
