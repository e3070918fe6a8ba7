"""Metrics for Prometheus: one collector, in the supervisor, over its `Totals`.

Names and units follow https://prometheus.io/docs/practices/naming/: seconds and bytes, totals end in `_total`.
"""

from __future__ import annotations

import platform
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
from ingestd.daemon.statistics import LATENCY_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.core import Metric

    from ingestd.daemon.statistics import RouteCounters
    from ingestd.daemon.totals import Totals

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
    (
        "records_not_sent_back",
        "ingestd_not_sent_back_records",
        "Records that a mirror left out because they came from its target.",
    ),
    ("helped_bytes", "ingestd_helped_bytes", "Bytes that a worker encoded for the owner of their source."),
)
_BUCKET_NAMES: Final = (*(str(bound) for bound in LATENCY_BOUNDS), "+Inf")


class Metrics(Collector):
    """The metric families of one daemon's totals. Belongs to the supervisor's event loop; not thread-safe."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def exposition(self, accept: str = "") -> tuple[str, bytes]:
        """Content type and body of a scrape: OpenMetrics if the `Accept` header allows it, else Prometheus text."""
        encode: Callable[[CollectorRegistry], bytes]
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every metric family. Called by prometheus-client."""
        yield from self._daemon_families()
        yield from self._worker_families()
        yield from self._route_families(self._totals.routes())
        text = "1 when a route has stopped: the cluster refuses a record for good, and /readyz says which."
        stopped = {name: int(stopped) for name, stopped in self._totals.stopped.items()}
        yield _family("ingestd_route_stopped", text, ["route"], _one_label(stopped))
        text = (
            "1 while a cluster answers when it is asked, every 5 seconds; 0 when it did not within 3, or has not yet."
        )
        reachable = {name: int(answers) for name, answers in self._totals.reachable.items()}
        yield _family("ingestd_cluster_reachable", text, ["cluster"], _one_label(reachable))
        text = "Seconds without any acknowledgement while batches wait, or the topic can not be used; else 0."
        yield _family("ingestd_route_waiting_seconds", text, ["route"], _one_label(self._totals.waiting()))
        text = "Seconds since the oldest batch that is not acknowledged was first sent; 0 while there is none."
        yield _family("ingestd_route_oldest_batch_seconds", text, ["route"], _one_label(self._totals.oldest()))
        yield from self._loss_families()
        yield from self._source_families()
        yield self._groups()

    def _groups(self) -> Metric:
        text = (
            "Consumer groups whose offsets a mirror translates, by state: translated, or waiting for what /status says."
        )
        family = GaugeMetricFamily("ingestd_groups", text, labels=["route", "state"])
        for route, groups in self._totals.groups.items():
            waiting = sum(one.problem is not None for one in groups)
            family.add_metric([route, "waiting"], waiting)
            family.add_metric([route, "translated"], len(groups) - waiting)
        return family

    def _daemon_families(self) -> Iterator[Metric]:
        build = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily("ingestd_build", "The program that runs.", value=build)
        yield _gauge("ingestd_start_time_seconds", "Start of the supervisor, as a Unix time.", self._totals.started)
        yield _gauge(
            "ingestd_ready", "1 once every source found at start is given to a worker.", float(self._totals.ready)
        )
        yield _gauge("ingestd_workers_alive", "Worker processes that run now.", len(self._totals.alive))

    def _worker_families(self) -> Iterator[Metric]:
        restarts = CounterMetricFamily(
            "ingestd_worker_restarts", "Workers that died and were restarted.", labels=["worker"]
        )
        for slot, count in sorted(self._totals.restarts.items()):
            restarts.add_metric([str(slot)], count)
        cpu = CounterMetricFamily("ingestd_worker_cpu_seconds", "CPU time of a worker, in seconds.", labels=["worker"])
        for slot, seconds in sorted(self._totals.cpu_seconds().items()):
            cpu.add_metric([str(slot)], seconds)
        size = GaugeMetricFamily("ingestd_arena_size_bytes", "Shared memory of a worker.", labels=["worker"])
        used = GaugeMetricFamily(
            "ingestd_arena_used_bytes", "Shared memory of a worker that holds unacknowledged data.", labels=["worker"]
        )
        for slot in sorted(self._totals.reporting):
            arena_bytes, used_bytes = self._totals.arena(slot)
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
            "ingestd_errors",
            "What failed, for good or for now: not_taken, read, positions, overflow, gone; or as Kafka names it.",
            labels=["route", "kind"],
        )
        ways = CounterMetricFamily(
            "ingestd_mirrored_batches",
            "Batches of a mirror's source by how they went to the target: passed, or made anew and why.",
            labels=["route", "way"],
        )
        bytes_by_way = CounterMetricFamily(
            "ingestd_mirrored_bytes", "Bytes of these batches, as they were fetched.", labels=["route", "way"]
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
            for way, count in counters.batches_by_way.items():
                ways.add_metric([route, way], count)
                bytes_by_way.add_metric([route, way], counters.bytes_by_way[way])
            if counters.compressed_bytes:
                ratio.add_metric([route], counters.uncompressed_bytes / counters.compressed_bytes)
            buckets = list(zip(_BUCKET_NAMES, accumulate(counters.latency_counts), strict=True))
            latency.add_metric([route], buckets, counters.latency_sum)
        yield from (retries, errors, ways, bytes_by_way, ratio, latency)

    def _loss_families(self) -> Iterator[Metric]:
        labels = ["route", "reason"]
        events = CounterMetricFamily("ingestd_lost_events", "How often data was lost, by why.", labels=labels)
        size = CounterMetricFamily("ingestd_lost_bytes", "Bytes that were lost, at least, by why.", labels=labels)
        for key, count in self._totals.losses.counts.items():
            events.add_metric(key, count.events)
            size.add_metric(key, count.bytes)
        yield from (events, size)

    def _source_families(self) -> Iterator[Metric]:
        """Sources by the names that people use. Two with one name (a path that was just rotated) are one series."""
        unread: dict[tuple[str, ...], int] = {}
        position: dict[tuple[str, ...], int] = {}
        count: dict[str, int] = dict.fromkeys(self._totals.routes(), 0)
        lag: dict[tuple[str, ...], int] = {}
        age: dict[tuple[str, ...], float] = {}
        for (route, _), gauges in self._totals.sources().items():
            key = (route, gauges.label)
            count[route] = count.get(route, 0) + 1
            if gauges.lag is not None:
                lag[key] = gauges.lag
            if gauges.lag_seconds is not None:
                age[key] = gauges.lag_seconds
                continue
            unread[key] = unread.get(key, 0) + gauges.unread
            position[key] = max(position.get(key, 0), gauges.position)
        text = "Sources (files, partitions) that workers have open."
        yield _family("ingestd_sources", text, ["route"], _one_label(count))
        labels = ["route", "source"]
        yield _family(
            "ingestd_source_unread_bytes", "Bytes of a source that are there and not yet read.", labels, unread
        )
        text = "Position of a source: every byte before it is acknowledged."
        yield _family("ingestd_source_position_bytes", text, labels, position)
        text = "Offsets of a source's log, a partition, that are not acknowledged on the target."
        yield _family("ingestd_source_lag_records", text, labels, lag)
        text = (
            "Age of the newest record on the target while there is a lag; or how long no broker serves the partition."
        )
        yield _family("ingestd_source_lag_seconds", text, labels, age)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _family(name: str, text: str, labels: list[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _one_label(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(key,): value for key, value in values.items()}
