"""What workers counted, as Prometheus reads it: one collector, in the supervisor, fed by `WorkerStatistics`.

Invariants
    A counter never falls: what a dead incarnation of a worker counted is kept, and its successor's counts are added.
    A source that no worker reports any more has no series.

Names and units follow https://prometheus.io/docs/practices/naming/: seconds and bytes, totals end in `_total`.
"""

from __future__ import annotations

import dataclasses
import platform
import time
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ingestd import __version__
from ingestd.daemon.arena import PAGE_BYTES
from ingestd.daemon.statistics import LATENCY_BOUNDS, RouteCounters, SourceGauges, WorkerStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

__all__ = ["Metrics"]

_ROUTE_COUNTERS: Final = (
    ("records", "ingestd_records", "Records (lines) encoded."),
    ("bytes_read", "ingestd_read_bytes", "Bytes read from sources."),
    ("batches", "ingestd_batches", "Record batches handed to the producer."),
    ("uncompressed_bytes", "ingestd_batch_uncompressed_bytes", "Bytes of record batches before compression."),
    ("compressed_bytes", "ingestd_batch_compressed_bytes", "Bytes of record batches as sent."),
    ("records_acknowledged", "ingestd_acknowledged_records", "Records that every in-sync replica has."),
    ("bytes_acknowledged", "ingestd_acknowledged_bytes", "Bytes of sources that every in-sync replica has."),
    ("lines_shortened", "ingestd_shortened_lines", "Lines that the length limit cut or split."),
    ("helped_bytes", "ingestd_helped_bytes", "Bytes that a worker encoded for the owner of their source."),
)
_BUCKET_NAMES: Final = (*(str(bound) for bound in LATENCY_BOUNDS), "+Inf")


class Metrics(Collector):
    """The totals of all workers, dead and alive. Belongs to the supervisor's event loop; not thread-safe."""

    def __init__(self, *, page_bytes: int = PAGE_BYTES) -> None:
        self._page_bytes = page_bytes
        self._started = time.time()
        self._ready = False
        self._current: dict[int, WorkerStatistics] = {}
        self._ended_routes: dict[str, RouteCounters] = {}
        self._ended_cpu_seconds: dict[int, float] = {}
        self._ended_incarnation: dict[int, int] = {}
        self._restarts: dict[int, int] = {}
        self._alive: set[int] = set()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def take(self, statistics: WorkerStatistics) -> None:
        """Take a worker's newest report in place of its last one. A report older than its successor's is dropped."""
        current = self._current.get(statistics.slot)
        if current is not None and statistics.incarnation < current.incarnation:
            return
        if current is not None and statistics.incarnation > current.incarnation:
            self._keep(current)
            current = None
        if statistics.sources is None:
            unchanged = {} if current is None else current.sources
            statistics = dataclasses.replace(statistics, sources=unchanged)
        ended = statistics.incarnation <= self._ended_incarnation.get(statistics.slot, -1)
        self._current[statistics.slot] = _without_gauges(statistics) if ended else statistics

    def worker_started(self, slot: int) -> None:
        """The worker of a slot runs."""
        self._alive.add(slot)
        self._restarts.setdefault(slot, 0)

    def worker_ended(self, slot: int) -> None:
        """The worker of a slot is gone: its counts stay, its sources and its arena have no series any more."""
        self._alive.discard(slot)
        current = self._current.get(slot)
        if current is not None:
            self._ended_incarnation[slot] = current.incarnation
            self._current[slot] = _without_gauges(current)

    def worker_restarted(self, slot: int) -> None:
        """The worker of a slot died and was started again."""
        self._restarts[slot] = self._restarts.get(slot, 0) + 1
        self.worker_started(slot)

    def error(self, route: str, kind: str) -> None:
        """Count an error that the supervisor itself met (a source that can not be taken, a topic that is not there)."""
        errors = self._ended_routes.setdefault(route, RouteCounters()).errors
        errors[kind] = errors.get(kind, 0) + 1

    def set_ready(self, *, ready: bool) -> None:
        """Whether the first assignment of sources to workers is done."""
        self._ready = ready

    def totals(self) -> dict[str, RouteCounters]:
        """Each route's totals since the daemon's start, over all workers, dead and alive."""
        totals: dict[str, RouteCounters] = {}
        for name, counters in self._all_counters():
            _add(totals.setdefault(name, RouteCounters()), counters)
        return totals

    def sources(self) -> dict[str, SourceGauges]:
        """Every source that a live worker reports, by name."""
        return {name: gauges for report in self._current.values() for name, gauges in (report.sources or {}).items()}

    def cpu_seconds(self) -> dict[int, float]:
        """CPU seconds of each worker slot, over all its incarnations."""
        seconds = dict(self._ended_cpu_seconds)
        for slot, report in self._current.items():
            seconds[slot] = seconds.get(slot, 0.0) + report.cpu_seconds
        return seconds

    def arena(self, slot: int) -> tuple[int, int]:
        """Shared memory of the slot's worker, and how much of it is in use, in bytes; 0 until it reports."""
        report = self._current.get(slot)
        if report is None:
            return 0, 0
        return report.arena_pages * self._page_bytes, report.arena_pages_used * self._page_bytes

    def exposition(self, accept: str = "") -> tuple[str, bytes]:
        """Content type and text of a scrape: OpenMetrics where the `Accept` header takes it, else plain text."""
        encode: Callable[[CollectorRegistry], bytes]
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every metric family, as prometheus-client wants it."""
        yield from self._daemon_families()
        yield from self._worker_families()
        yield from self._route_families(self.totals())
        yield from self._source_families()

    def _keep(self, ended: WorkerStatistics) -> None:
        for name, counters in ended.routes.items():
            _add(self._ended_routes.setdefault(name, RouteCounters()), counters)
        kept = self._ended_cpu_seconds.get(ended.slot, 0.0)
        self._ended_cpu_seconds[ended.slot] = kept + ended.cpu_seconds

    def _all_counters(self) -> Iterable[tuple[str, RouteCounters]]:
        yield from self._ended_routes.items()
        for report in self._current.values():
            yield from report.routes.items()

    def _daemon_families(self) -> Iterator[Metric]:
        build = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily("ingestd_build", "The program that runs.", value=build)
        yield _gauge("ingestd_start_time_seconds", "Start of the supervisor, as a Unix time.", self._started)
        yield _gauge("ingestd_ready", "1 once every source found at start is given to a worker.", float(self._ready))
        yield _gauge("ingestd_workers_alive", "Worker processes that run now.", len(self._alive))

    def _worker_families(self) -> Iterator[Metric]:
        restarts = CounterMetricFamily(
            "ingestd_worker_restarts", "Workers that died and were restarted.", labels=["worker"]
        )
        for slot, count in sorted(self._restarts.items()):
            restarts.add_metric([str(slot)], count)
        cpu = CounterMetricFamily("ingestd_worker_cpu_seconds", "CPU time of a worker, in seconds.", labels=["worker"])
        for slot, seconds in sorted(self.cpu_seconds().items()):
            cpu.add_metric([str(slot)], seconds)
        size = GaugeMetricFamily("ingestd_arena_size_bytes", "Shared memory of a worker.", labels=["worker"])
        used = GaugeMetricFamily(
            "ingestd_arena_used_bytes", "Shared memory of a worker that holds unacknowledged data.", labels=["worker"]
        )
        for slot in sorted(self._current):
            arena_bytes, used_bytes = self.arena(slot)
            size.add_metric([str(slot)], arena_bytes)
            used.add_metric([str(slot)], used_bytes)
        yield from (restarts, cpu, size, used)

    def _route_families(self, totals: Mapping[str, RouteCounters]) -> Iterator[Metric]:
        for attribute, name, text in _ROUTE_COUNTERS:
            family = CounterMetricFamily(name, text, labels=["route"])
            for route, counters in totals.items():
                family.add_metric([route], getattr(counters, attribute))
            yield family
        retries = CounterMetricFamily(
            "ingestd_produce_retries", "Produce requests tried again, by what failed them.", labels=["route", "error"]
        )
        errors = CounterMetricFamily(
            "ingestd_errors", "Batches or sources that failed, for good or for now, by kind.", labels=["route", "kind"]
        )
        ratio = GaugeMetricFamily(
            "ingestd_compression_ratio", "Batch bytes before by after compression, since the start.", labels=["route"]
        )
        latency = HistogramMetricFamily(
            "ingestd_produce_latency_seconds",
            "Time from a batch's hand-over to the producer until its acknowledgement.",
            labels=["route"],
        )
        for route, counters in totals.items():
            for error, count in sorted(counters.retries.items()):
                retries.add_metric([route, error], count)
            for kind, count in sorted(counters.errors.items()):
                errors.add_metric([route, kind], count)
            if counters.compressed_bytes:
                ratio.add_metric([route], counters.uncompressed_bytes / counters.compressed_bytes)
            buckets = list(zip(_BUCKET_NAMES, accumulate(counters.latency_counts), strict=True))
            latency.add_metric([route], buckets, counters.latency_sum)
        yield from (retries, errors, ratio, latency)

    def _source_families(self) -> Iterator[Metric]:
        """Sources by what a person calls them: two that go by one name (a path rotated this second) are one series."""
        unread: dict[tuple[str, ...], int] = {}
        position: dict[tuple[str, ...], int] = {}
        count: dict[str, int] = dict.fromkeys(self.totals(), 0)
        for gauges in self.sources().values():
            key = (gauges.route, gauges.label)
            unread[key] = unread.get(key, 0) + gauges.unread
            position[key] = max(position.get(key, 0), gauges.position)
            count[gauges.route] = count.get(gauges.route, 0) + 1
        yield _family("ingestd_sources", "Sources (files) that workers have open.", ["route"], _one_label(count))
        labels = ["route", "source"]
        yield _family(
            "ingestd_source_unread_bytes", "Bytes of a source that are there and not yet read.", labels, unread
        )
        text = "Position of a source: every byte before it is acknowledged."
        yield _family("ingestd_source_position_bytes", text, labels, position)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _family(name: str, text: str, labels: list[str], values: Mapping[tuple[str, ...], int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _one_label(values: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(key,): value for key, value in values.items()}


def _without_gauges(report: WorkerStatistics) -> WorkerStatistics:
    return dataclasses.replace(report, arena_pages=0, arena_pages_used=0, sources={})


def _add(total: RouteCounters, counters: RouteCounters) -> None:
    """Add `counters` to `total`, field by field, so that a field added later is not forgotten here."""
    for field in dataclasses.fields(RouteCounters):
        ours, theirs = getattr(total, field.name), getattr(counters, field.name)
        if isinstance(ours, dict):
            for key, value in theirs.items():
                ours[key] = ours.get(key, 0) + value
        elif isinstance(ours, list):
            ours[:] = [a + b for a, b in zip(ours, theirs, strict=True)]
        else:
            setattr(total, field.name, ours + theirs)
