"""Finding: runs the finders of all routes at the same time. They start from what is stored and find what there is."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ingestd.daemon.intake import Intake
from ingestd.daemon.positions import StoredRoute
from ingestd.daemon.source import Surroundings
from ingestd.errors import DeadlineExceeded
from ingestd.logs import get_logger
from ingestd.retry import Backoff, Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingestd.client.client import Client
    from ingestd.daemon.checkpoint import Checkpoint
    from ingestd.daemon.handover import Handover
    from ingestd.daemon.intake import IntakeNews
    from ingestd.daemon.positions import PositionStore
    from ingestd.daemon.source import End, Finder, Found, Loss, Route
    from ingestd.daemon.status import GoneSource, NotTaken
    from ingestd.tasks import TaskOwner

__all__ = ["Finding"]

PROGRESS_INTERVAL: Final = 3.0
"""Seconds until the first log line about how many sources are found, while they are being found. Then twice as many."""
LONGEST_PROGRESS_INTERVAL: Final = 600.0
"""The most seconds between two of them."""

REST: Final = 0.5
"""Seconds that a stop waits, at most, until what happened before it is looked at."""

_NAMED_MOST: Final = 5
"""So many names are in a line of the log."""

_NAME_AS_BEFORE: Final = (
    "if it had one of the `unused` names before, give it that name again, let it deliver everything, then rename it"
)


class Finding:
    """All routes' intakes. Owned by the supervisor.

    Invariants
        Every finder is made before the first one scans.
        A finder that hangs (with a mount) keeps only its own route from being ready.
        A route is noted as one that has run after its complete scan, together with what it found.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        positions: PositionStore,
        checkpoint: Checkpoint,
        handover: Handover,
        news: IntakeNews,
        *,
        once: bool,
        client: Callable[[str], Client],
        host: str,
    ) -> None:
        """`client` gives the supervisor's client of a cluster, by name, once the clusters are started.

        `host` is the daemon's name among those of other hosts.
        """
        self._routes = routes
        self._positions = positions
        self._checkpoint = checkpoint
        self._handover = handover
        self._news = news
        self._once = once
        self._client = client
        self._host = host
        self._intakes: dict[str, Intake] = {}
        self._scanned: set[str] = set()
        self._done = asyncio.Event()
        self._log = get_logger("ingestd.supervisor")

    async def prepare(self) -> None:
        """Read what is stored and make every route's finder from it, in threads, because there may be many rows.

        Raises `PositionsUnavailable`, and `PositionsDamaged` if a row can not be understood.
        """
        stored = await asyncio.to_thread(self._positions.read)
        with_positions = {name for name, known in stored.items() if known.positions}
        unused = sorted(with_positions.difference(route.name for route in self._routes))
        finders: list[Finder] = []
        for route in self._routes:
            of = stored.get(route.name, StoredRoute(has_run=False))
            others, first = tuple(finders), not of.has_run
            surroundings = Surroundings(self._once, others, self._client, self._host, of.since, first_run=first)
            with self._positions.naming(route.name):
                finder = await asyncio.to_thread(route.finder, of.positions, surroundings)
            if finder.keeper is not None:
                self._checkpoint.keep_elsewhere(route.name, finder.keeper)
            elif first:
                self._tell_first_run(route.name, unused)
            finders.append(finder)
            self._intakes[route.name] = Intake(route, finder, of, self._handover, self._news)

    def _tell_first_run(self, tail: str, unused: Sequence[str]) -> None:
        """`unused`: the names with positions that no route has. The tail may be one of these, renamed."""
        begins = "each file is read from where the tail's `start` says"
        log = self._log.bind(route=tail, state=str(self._positions.path), begins=begins)
        if unused:
            log.warning("first run of this tail", unused=list(unused[:_NAMED_MOST]), remedy=_NAME_AS_BEFORE)
        else:
            log.info("first run of this tail")

    def start(self, tasks: TaskOwner, found: Callable[[], None]) -> None:
        """Start every finder: a scan, then its endless run. `found` is called when all scans are done."""
        for intake in self._intakes.values():
            tasks.start(self._take(intake, tasks, found), f"finder of {intake.route.name}")
        tasks.start(self._show_progress(), "progress of finding")
        self._check_done(found)

    async def _take(self, intake: Intake, tasks: TaskOwner, found: Callable[[], None]) -> None:
        await intake.scan()
        name = intake.route.name
        self._checkpoint.note_run([name])
        self._scanned.add(name)
        self._check_done(found)
        tasks.start(intake.forget_absent(self._positions), f"old positions of {name}")
        if not self._once:
            await intake.run()

    def _check_done(self, found: Callable[[], None]) -> None:
        if not self.unfinished and not self._done.is_set():
            self._done.set()
            found()

    async def _show_progress(self) -> None:
        began = time.monotonic()
        interval = Backoff(PROGRESS_INTERVAL, LONGEST_PROGRESS_INTERVAL, jitter=0)
        while not await self.finished_within(interval.next_delay()):
            self._log.info("finding sources", found=self.count, routes=self.unfinished)
        self._log.info("sources found", sources=self.count, seconds=round(time.monotonic() - began, 3))

    async def rest(self) -> None:
        """Before a stop: have finders look at what happened before it, for at most `REST` seconds."""
        found = [intake.rest() for name, intake in self._intakes.items() if name in self._scanned]
        with suppress(DeadlineExceeded):
            await Deadline.after(REST).wait_for(asyncio.gather(*found), "a look at what happened last")

    @property
    def count(self) -> int:
        """How many sources were found so far."""
        return sum(intake.taken for intake in self._intakes.values())

    @property
    def unfinished(self) -> list[str]:
        """The routes whose sources are still being found."""
        return [route.name for route in self._routes if route.name not in self._scanned]

    async def finish(self) -> None:
        """Wait until all scans are done: everything that was there at the start is found."""
        await self._done.wait()

    async def finished_within(self, seconds: float) -> bool:
        """Wait for the same, for at most `seconds`. Returns whether all scans are done."""
        with suppress(DeadlineExceeded):
            await Deadline.after(seconds).wait_for(self.finish(), "finding sources")
        return self._done.is_set()

    def taken(self, route: str) -> int:
        """How many sources of a route were found."""
        return self._intakes[route].taken if route in self._intakes else 0

    def not_taken(self, route: str) -> Sequence[NotTaken]:
        """The last files of a route that are not taken, oldest first."""
        return self._intakes[route].not_taken if route in self._intakes else ()

    def gone(self, route: str) -> Sequence[GoneSource]:
        """The last sources of a route that are gone or were cut off while nobody read them, oldest first."""
        return self._intakes[route].last_gone if route in self._intakes else ()

    def waiting(self, route: str) -> int:
        """How many sources of a route wait, because they may be copies of others."""
        return self._intakes[route].waiting if route in self._intakes else 0

    def problem(self, route: str) -> str | None:
        """Why a route's sources can not be looked for now; None if they can."""
        return self._intakes[route].problem if route in self._intakes else None

    async def answer(self, route: str, question: Any) -> Any:
        """What a route's finder answers to its runner. Raises `IngestdError`."""
        return await self._intakes[route].answer(question)

    def lost(self, route: str, loss: Loss) -> None:
        """A runner says that data of a source is lost."""
        self._intakes[route].lost(loss)

    def moved(self, route: str) -> None:
        """Positions of a route's sources moved, and are about to be stored."""
        self._intakes[route].moved()

    def ended(self, route: str, found: Found, end: End) -> None:
        """A source is finished. Its finder looks at what comes next."""
        self._intakes[route].ended(found, end)
