"""Totals: what all workers counted, dead and alive, and what they hold now. Fed by `WorkerStatistics`.

Invariants
    A count never falls: the counts of a dead incarnation are kept, and those of its successor are added.
    A source that no worker reports any more is not shown.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from ingestd.daemon.arena import PAGE_BYTES
from ingestd.daemon.losses import Losses
from ingestd.daemon.statistics import ERROR_KINDS, RouteCounters, SourceGauges, WorkerStatistics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ingestd.daemon.status import GroupStatus

__all__ = ["Totals"]


class Totals:
    """The totals of all workers, dead and alive. Belongs to the supervisor's event loop; not thread-safe."""

    def __init__(self) -> None:
        self.started = time.time()
        """When the daemon started, as a Unix time in seconds."""
        self.ready = False
        """Whether all sources that were there at the start are assigned to workers."""
        self.losses = Losses()
        self.stopped: dict[str, bool] = {}
        """By route, whether it has stopped because something can not be delivered."""
        self.reachable: dict[str, bool] = {}
        """By cluster, whether it answered the last check."""
        self.retried: dict[str, str] = {}
        """By route, the error of its last batch that had to be sent again."""
        self.groups: dict[str, Sequence[GroupStatus]] = {}
        """By route that translates offsets of consumer groups, these groups as they were at the last look."""
        self._blocked: dict[str, float] = {}
        """By route that can not begin, since when, in seconds of the monotonic clock."""
        self._current: dict[int, WorkerStatistics] = {}
        self._ended_routes: dict[str, RouteCounters] = {}
        self._ended_cpu_seconds: dict[int, float] = {}
        self._ended_incarnation: dict[int, int] = {}
        self._restarts: dict[int, int] = {}
        self._alive: set[int] = set()

    def take(self, statistics: WorkerStatistics) -> None:
        """Replace a worker's last report by its newest. A report of an older incarnation is dropped."""
        current = self._current.get(statistics.slot)
        if current is not None and statistics.incarnation < current.incarnation:
            return
        if current is not None and statistics.incarnation > current.incarnation:
            self._keep(current)
            current = None
        self._note_retries(statistics, current)
        sources = {} if current is None else current.sources
        sources |= statistics.sources
        for gone in [name for name, gauges in statistics.sources.items() if gauges is None]:
            del sources[gone]
        statistics = dataclasses.replace(statistics, sources=sources)
        ended = statistics.incarnation <= self._ended_incarnation.get(statistics.slot, -1)
        self._current[statistics.slot] = _without_gauges(statistics) if ended else statistics

    def _note_retries(self, news: WorkerStatistics, before: WorkerStatistics | None) -> None:
        for route, counters in news.routes.items():
            known = None if before is None else before.routes.get(route)
            for kind, count in counters.retries.items():
                if known is None or count > known.retries.get(kind, 0):
                    self.retried[route] = kind

    def worker_started(self, slot: int) -> None:
        """The worker of a slot runs."""
        self._alive.add(slot)
        self._restarts.setdefault(slot, 0)

    def worker_ended(self, slot: int) -> None:
        """The worker of a slot is gone. Its counts stay; its sources and its arena are no longer shown."""
        self._alive.discard(slot)
        current = self._current.get(slot)
        if current is not None:
            self._ended_incarnation[slot] = current.incarnation
            self._current[slot] = _without_gauges(current)

    def worker_restarted(self, slot: int) -> None:
        """The worker of a slot died and was started again."""
        self._restarts[slot] = self._restarts.get(slot, 0) + 1
        self.worker_started(slot)

    def expect(self, route: str) -> None:
        """Show a route from now on: not stopped, with its kinds of errors at zero."""
        self.stopped[route] = False
        self._ended_routes[route] = RouteCounters(errors=dict.fromkeys(ERROR_KINDS, 0))

    def note_blocked(self, route: str, *, blocked: bool) -> None:
        """Note whether a route can not begin now, because its cluster or its topic can not be used."""
        if not blocked:
            self._blocked.pop(route, None)
        else:
            self._blocked.setdefault(route, time.monotonic())

    @property
    def blocked(self) -> Collection[str]:
        """The routes that can not begin now."""
        return self._blocked.keys()

    def error(self, route: str, kind: str, count: int = 1) -> None:
        """Count errors that the supervisor itself met: a file not taken, positions that can not be stored."""
        errors = self._ended_routes.setdefault(route, RouteCounters()).errors
        errors[kind] = errors.get(kind, 0) + count

    @property
    def alive(self) -> Collection[int]:
        """The slots whose workers run now."""
        return self._alive

    @property
    def reporting(self) -> Collection[int]:
        """The slots from which any worker has reported."""
        return self._current.keys()

    @property
    def restarts(self) -> Mapping[int, int]:
        """How often each slot's worker was restarted."""
        return self._restarts

    def routes(self) -> dict[str, RouteCounters]:
        """Each route's totals since the daemon's start, over all workers, dead and alive."""
        totals: dict[str, RouteCounters] = {}
        for name, counters in self._all_counters():
            _add(totals.setdefault(name, RouteCounters()), counters)
        return totals

    def sources(self) -> dict[tuple[str, str], SourceGauges]:
        """Every source that a live worker reports, by route and name."""
        reported = [report.sources for report in self._current.values()]
        return {name: gauges for sources in reported for name, gauges in sources.items() if gauges is not None}

    def waiting(self) -> dict[str, float]:
        """By route, the longest time in seconds that batches of a live worker have waited without any acknowledgement.

        For a route that can not begin: how long it could not.
        """
        now = time.monotonic()
        blocked = {route: now - since for route, since in self._blocked.items()}
        return self._longest([blocked, *(report.waiting for report in self._current.values())])

    def oldest(self) -> dict[str, float]:
        """By route, how many seconds ago the oldest batch that is not acknowledged was first sent."""
        return self._longest(report.oldest for report in self._current.values())

    def _longest(self, reports: Iterable[Mapping[str, float]]) -> dict[str, float]:
        longest = dict.fromkeys(self.stopped, 0.0)
        for report in reports:
            for route, seconds in report.items():
                longest[route] = max(longest.get(route, 0.0), seconds)
        return longest

    def cpu_seconds(self) -> dict[int, float]:
        """CPU seconds of each worker slot, over all its incarnations."""
        seconds = dict(self._ended_cpu_seconds)
        for slot, report in self._current.items():
            seconds[slot] = seconds.get(slot, 0.0) + report.cpu_seconds
        return seconds

    def arena(self, slot: int) -> tuple[int, int]:
        """Bytes of shared memory of the slot's worker, and how many are in use; 0 until it reports."""
        report = self._current.get(slot)
        if report is None:
            return 0, 0
        return report.arena_pages * PAGE_BYTES, report.arena_pages_used * PAGE_BYTES

    def _keep(self, ended: WorkerStatistics) -> None:
        for name, counters in ended.routes.items():
            _add(self._ended_routes.setdefault(name, RouteCounters()), counters)
        kept = self._ended_cpu_seconds.get(ended.slot, 0.0)
        self._ended_cpu_seconds[ended.slot] = kept + ended.cpu_seconds

    def _all_counters(self) -> Iterable[tuple[str, RouteCounters]]:
        yield from self._ended_routes.items()
        for report in self._current.values():
            yield from report.routes.items()


def _without_gauges(report: WorkerStatistics) -> WorkerStatistics:
    return dataclasses.replace(report, arena_pages=0, arena_pages_used=0, waiting={}, oldest={}, sources={})


def _add(total: RouteCounters, counters: RouteCounters) -> None:
    """Add `counters` to `total`, field by field, so that new fields are added up too."""
    for field in dataclasses.fields(RouteCounters):
        ours, theirs = getattr(total, field.name), getattr(counters, field.name)
        if isinstance(ours, dict):
            for key, value in theirs.items():
                ours[key] = ours.get(key, 0) + value
        elif isinstance(ours, list):
            ours[:] = [a + b for a, b in zip(ours, theirs, strict=True)]
        else:
            setattr(total, field.name, ours + theirs)
