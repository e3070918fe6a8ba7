"""Status report: makes the values that /status and the live view show from what the supervisor's parts know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.daemon.statistics import RouteCounters
from ingestd.daemon.status import ClusterStatus, RouteStatus, SourceStatus, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.daemon.finding import Finding
    from ingestd.daemon.shards import Shards
    from ingestd.daemon.source import Route
    from ingestd.daemon.supervised_cluster import SupervisedCluster
    from ingestd.daemon.totals import Totals
    from ingestd.daemon.workers import Workers

__all__ = ["cluster_status", "route_statuses", "worker_status"]


def worker_status(slot: int, workers: Workers, totals: Totals) -> WorkerStatus:
    """One slot: its living process, if there is one, and its last report."""
    worker = workers.get(slot)
    size, used = totals.arena(slot)
    return WorkerStatus(
        slot=slot,
        pid=None if worker is None else worker.process.pid,
        incarnation=0 if worker is None else worker.incarnation,
        restarts=workers.restarts[slot],
        cpu_seconds=totals.cpu_seconds().get(slot, 0.0),
        arena_bytes=size,
        arena_used_bytes=used,
    )


def route_statuses(
    routes: Mapping[str, Route],
    totals: Totals,
    shards: Shards,
    finding: Finding,
    stopped: Mapping[str, str],
) -> list[RouteStatus]:
    """Every route: totals since the daemon's start, the last losses, and the sources that workers have open.

    `stopped` has the reason of each route that stopped.
    """
    counted = totals.routes()
    sources: dict[str, list[SourceStatus]] = {name: [] for name in routes}
    for (route, source), gauges in totals.sources().items():
        shard = shards.get(route, source)
        if shard is None:
            continue  # it has ended, and its worker tells so in a moment
        path = str(shard.found.detail.get("path", ""))
        sources[route].append(SourceStatus(source, gauges.label, gauges.unread, gauges.position, path, gauges.lag))
    return [
        RouteStatus(
            name=name,
            cluster=route.cluster,
            topic=route.writes_to,
            records=counters.records_acknowledged,
            bytes_read=counters.bytes_read,
            bytes_acknowledged=counters.bytes_acknowledged,
            errors=counters.errors,
            sources=sources[name],
            losses=totals.losses.last(name),
            not_taken=finding.not_taken(name),
            gone=finding.gone(name),
            waiting=finding.waiting(name),
            stopped=stopped.get(name),
            problem=finding.problem(name),
            groups=totals.groups.get(name, ()),
        )
        for name, route in routes.items()
        for counters in [counted.get(name, RouteCounters())]
    ]


def cluster_status(name: str, cluster: SupervisedCluster) -> ClusterStatus:
    """A cluster's brokers, as its newest metadata has them."""
    snapshot = cluster.metadata
    nodes = [] if snapshot is None else [f"{node.host}:{node.port}" for node in snapshot.nodes.values()]
    return ClusterStatus(name, cluster.settings.embedded, nodes, cluster.trouble)
