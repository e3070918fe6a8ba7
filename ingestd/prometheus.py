"""What producers, consumers and group members tell, as Prometheus metrics. The client itself knows no metrics library.

One object for each kind, given to as many producers, consumers or groups of a process as shall be counted together:
`AsyncProducer(client, events=ProducerMetrics())`. Labels have few values: topics, kinds of errors, and partitions only
where a partition is being read. Names follow https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from ingestd.errors import error_kind
from ingestd.producer.events import LATENCY_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Collection

    from prometheus_client import CollectorRegistry

    from ingestd.client.metadata import TopicPartition
    from ingestd.errors import IngestdError

__all__ = ["ConsumerMetrics", "GroupMetrics", "ProducerMetrics"]


class ProducerMetrics:
    """A `ProducerEvents`. Registers its metrics with `registry`; `ValueError` where they are registered already."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"ingestd_producer_{name}", says, labels, registry=registry)

        self._records = counter("acknowledged_records", "Records acknowledged.", "topic")
        self._bytes = counter("acknowledged_bytes", "Bytes of record batches acknowledged, as sent.", "topic")
        self._batches = counter("acknowledged_batches", "Record batches acknowledged.", "topic")
        self._retries = counter("retried_batches", "Record batches that came back to be sent again.", "topic", "error")
        self._failed = counter("failed_records", "Records that ended with an error.", "topic", "error")
        self._throttled = counter("throttled_seconds", "Seconds that a broker's quota asked for.", "node")
        self._seconds = Histogram(
            "ingestd_producer_acknowledgement_seconds",
            "From handing a batch over until it is acknowledged.",
            buckets=LATENCY_BOUNDS,
            registry=registry,
        )

    def acknowledged(self, topic: str, partition: int, records: int, size: int, seconds: float) -> None:  # noqa: ARG002
        """See `ProducerEvents`."""
        self._records.labels(topic).inc(records)
        self._bytes.labels(topic).inc(size)
        self._batches.labels(topic).inc()
        self._seconds.observe(seconds)

    def retried(self, topic: str, partition: int, error: IngestdError) -> None:  # noqa: ARG002
        """See `ProducerEvents`."""
        self._retries.labels(topic, error_kind(error)).inc()

    def failed(self, topic: str, partition: int, records: int, error: IngestdError) -> None:  # noqa: ARG002
        """See `ProducerEvents`."""
        self._failed.labels(topic, error_kind(error)).inc(records)

    def throttled(self, node: int, seconds: float) -> None:
        """See `ProducerEvents`."""
        self._throttled.labels(str(node)).inc(seconds)


class ConsumerMetrics:
    """A `ConsumerEvents`. Registers its metrics with `registry`; `ValueError` where they are registered already.

    A partition has a lag for as long as it is being read.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"ingestd_consumer_{name}", says, labels, registry=registry)

        self._bytes = counter("fetched_bytes", "Bytes of record batches fetched.", "topic")
        self._retries = counter("retries", "Fetches of partitions that are tried again.", "topic", "error")
        self._failed = counter("failures", "Partitions whose reading ended with an error.", "topic", "error")
        self._moved = counter("resets", "Offsets that were not in the log, and what the policy made of them.", "topic")
        self._placed = counter("placements", "Partitions that were given a node to be fetched from.", "topic", "from")
        self._read: set[tuple[str, int]] = set()
        self._lag = Gauge(
            "ingestd_consumer_lag_records",
            "Offsets between what was handed out and the end, as of the last answer.",
            ("topic", "partition"),
            registry=registry,
        )

    def fetched(self, topic: str, partition: int, size: int) -> None:  # noqa: ARG002
        """See `ConsumerEvents`."""
        self._bytes.labels(topic).inc(size)

    def answered(self, topic: str, partition: int, next_offset: int, end: int) -> None:
        """See `ConsumerEvents`."""
        self._read.add((topic, partition))
        self._lag.labels(topic, str(partition)).set(max(0, end - next_offset))

    def retried(self, topic: str, partition: int, error: IngestdError) -> None:  # noqa: ARG002
        """See `ConsumerEvents`."""
        self._retries.labels(topic, error_kind(error)).inc()

    def failed(self, topic: str, partition: int, error: IngestdError) -> None:
        """See `ConsumerEvents`."""
        self._failed.labels(topic, error_kind(error)).inc()
        self.released(topic, partition)

    def moved(self, topic: str, partition: int, asked: int, offset: int) -> None:  # noqa: ARG002
        """See `ConsumerEvents`."""
        self._moved.labels(topic).inc()

    def placed(self, topic: str, partition: int, node: int, leader: int) -> None:  # noqa: ARG002
        """See `ConsumerEvents`."""
        self._placed.labels(topic, "leader" if node == leader else "follower").inc()

    def released(self, topic: str, partition: int) -> None:
        """See `ConsumerEvents`."""
        if (topic, partition) in self._read:
            self._read.remove((topic, partition))
            self._lag.remove(topic, str(partition))


class GroupMetrics:
    """A `GroupEvents`. Registers its metrics with `registry`; `ValueError` where they are registered already."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"ingestd_group_{name}", says, ("group", *labels), registry=registry)

        def histogram(name: str, says: str) -> Histogram:
            return Histogram(f"ingestd_group_{name}", says, ("group",), buckets=LATENCY_BOUNDS, registry=registry)

        self._attempts = counter("join_attempts", "Attempts to join, the first one included.")
        self._lost = counter("lost_partitions", "Partitions taken away without asking.")
        self._committed = counter("committed_partitions", "Offsets of partitions committed.")
        self._retries = counter("retries", "Requests to the coordinator that are tried again.", "doing", "error")
        self._assigned = Gauge(
            "ingestd_group_assigned_partitions", "Partitions of this process's members.", ("group",), registry=registry
        )
        self._join = histogram("rebalance_seconds", "From joining until there is an assignment.")
        self._heartbeat = histogram("heartbeat_seconds", "Until the coordinator answers a heartbeat.")
        self._commit = histogram("commit_seconds", "Until offsets are committed.")

    def rebalancing(self, group_id: str, reason: str) -> None:  # noqa: ARG002
        """See `GroupEvents`."""
        self._attempts.labels(group_id).inc()

    def joined(self, group_id: str, generation: int, seconds: float) -> None:  # noqa: ARG002
        """See `GroupEvents`."""
        self._join.labels(group_id).observe(seconds)

    def assigned(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """See `GroupEvents`."""
        self._assigned.labels(group_id).inc(len(partitions))

    def revoked(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """See `GroupEvents`."""
        self._assigned.labels(group_id).dec(len(partitions))

    def lost(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """See `GroupEvents`."""
        self._assigned.labels(group_id).dec(len(partitions))
        self._lost.labels(group_id).inc(len(partitions))

    def heartbeat(self, group_id: str, seconds: float) -> None:
        """See `GroupEvents`."""
        self._heartbeat.labels(group_id).observe(seconds)

    def committed(self, group_id: str, partitions: int, seconds: float) -> None:
        """See `GroupEvents`."""
        self._committed.labels(group_id).inc(partitions)
        self._commit.labels(group_id).observe(seconds)

    def retried(self, group_id: str, doing: str, error: IngestdError) -> None:
        """See `GroupEvents`."""
        self._retries.labels(group_id, doing, error_kind(error)).inc()
