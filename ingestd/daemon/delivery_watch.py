"""Delivery watch: which routes wait too long for an acknowledgement, in the log and in `/readyz`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.daemon.status_report import cluster_status
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ingestd.daemon.finding import Finding
    from ingestd.daemon.source import Route
    from ingestd.daemon.supervised_cluster import SupervisedCluster
    from ingestd.daemon.totals import Totals

__all__ = ["DELIVERY_PATIENCE", "DeliveryWatch"]

DELIVERY_PATIENCE: Final = 10.0
"""Seconds without any acknowledgement, while batches wait for one, after which a route is reported as not delivered."""

BROKERS_NAMED: Final = 5
"""How many brokers a log line names."""


class DeliveryWatch:
    """Looks at all routes.

    Invariants
        That nothing of a route is acknowledged is logged once, and once when that is over.
        It is not logged of a route that can not begin, nor while its cluster is silent: others have said so.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        clusters: Mapping[str, SupervisedCluster],
        totals: Totals,
        finding: Finding,
        stopped: Collection[str],
    ) -> None:
        """`stopped`: the routes that were stopped for good, at any time."""
        self._routes = routes
        self._clusters = clusters
        self._totals = totals
        self._finding = finding
        self._stopped = stopped
        self._undelivered: set[str] = set()
        """Routes for which "nothing acknowledged" was logged."""
        self._log = get_logger("ingestd.supervisor")

    def look(self) -> None:
        """Note and log how things are now."""
        self.note_blocked()
        self.tell(self._totals.waiting())

    def note_blocked(self) -> None:
        """Note which routes can not begin: a topic is missing, or their sources can not be looked for."""
        for name, route in self._routes.items():
            cluster = self._clusters[route.cluster]
            missing = not all(cluster.has(topic) for topic in route.fixed_topics)
            self._totals.note_blocked(name, blocked=missing or self._finding.problem(name) is not None)

    def tell(self, waiting: Mapping[str, float]) -> None:
        """Log once per route that nothing is acknowledged although its cluster answers, and when that is over.

        waiting: seconds, by route.
        """
        for name, seconds in waiting.items():
            if name in self._totals.blocked:
                continue  # `SupervisedCluster` logs what is missing, `Intake` why nothing can be looked for
            cluster = self._routes[name].cluster
            late = seconds > DELIVERY_PATIENCE
            if late and name not in self._undelivered and not self._clusters[cluster].silent_seconds:
                self._undelivered.add(name)
                brokers = cluster_status(cluster, self._clusters[cluster]).brokers[:BROKERS_NAMED]
                last = self._totals.retried.get(name, "none yet")
                self._log.warning(
                    "nothing acknowledged", route=name, seconds=round(seconds, 1), brokers=brokers, last_retry=last
                )
            elif not late and name in self._undelivered and name not in self._stopped:
                self._undelivered.discard(name)
                self._log.info("acknowledged again", route=name)

    def reasons(self) -> Iterator[str]:
        """Why the daemon is not ready, as far as routes wait."""
        for name, seconds in self._totals.waiting().items():
            problem = self._finding.problem(name)
            if problem is not None and (seconds > DELIVERY_PATIENCE or name in self._finding.unfinished):
                yield f"route {name}: its sources can not be looked for: {problem}"
            elif seconds > DELIVERY_PATIENCE and name not in self._totals.blocked:
                why = f" (last retry: {self._totals.retried[name]})" if name in self._totals.retried else ""
                yield f"route {name}: nothing was acknowledged for {seconds:.0f} s{why}"
