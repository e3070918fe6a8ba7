"""Worker cluster: one cluster as a worker sees it. Metadata and producer ids come from the supervisor."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

from ingestd.client.client import Client
from ingestd.client.pushed import PushedMetadata
from ingestd.client.settings import ClientSettings
from ingestd.daemon.control import LeaderHinted, MetadataWanted
from ingestd.errors import error_kind
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from ingestd.daemon.configuration import ClusterSettings
    from ingestd.daemon.statistics import RouteCounters
    from ingestd.errors import IngestdError
    from ingestd.producer.identity import IdentitySource, ProducerIdentity

__all__ = ["AsksSupervisor", "WorkerCluster"]


class AsksSupervisor(Protocol):
    """What a worker's clusters need of it."""

    def tell(self, message: object) -> None:
        """Send the supervisor a message."""
        ...

    async def identity(self, cluster: str, previous: tuple[int, int] | None) -> ProducerIdentity:
        """Ask the supervisor for a producer id. Raises `ConnectionLost` if it can give none now."""
        ...


class _SupervisorIdentities:
    """Producer ids from the supervisor, the only process that asks a cluster for them."""

    def __init__(self, cluster: str, worker: AsksSupervisor) -> None:
        self._cluster = cluster
        self._worker = worker

    async def acquire(self, previous: ProducerIdentity | None) -> ProducerIdentity:
        """See `ingestd.producer.identity.IdentitySource`."""
        before = None if previous is None else (previous.producer_id, previous.epoch)
        return await self._worker.identity(self._cluster, before)


class _RetryCounts:
    """Counts retries of a cluster's producer for the routes that write to the topic. See `ProducerEvents`."""

    def __init__(self) -> None:
        self._by_topic: dict[str, list[RouteCounters]] = {}
        self._all: list[RouteCounters] = []

    def add(self, topic: str, counters: RouteCounters) -> None:
        """Count for this route too when it writes to `topic`."""
        writing = self._by_topic.setdefault(topic, [])
        if not any(known is counters for known in writing):
            writing.append(counters)
        if not any(known is counters for known in self._all):
            self._all.append(counters)

    def acknowledged(self, topic: str, partition: int, records: int, size: int, seconds: float) -> None:
        """Counted by the runner, which knows the source."""

    def retried(self, topic: str, partition: int, error: IngestdError) -> None:  # noqa: ARG002 - the event's signature
        """Count by error name."""
        for counters in self._by_topic.get(topic, ()):
            counters.count_retry(error_kind(error))

    def failed(self, topic: str, partition: int, records: int, error: IngestdError) -> None:
        """Counted by the runner, whose route fails."""

    def throttled(self, node: int, seconds: float) -> None:  # noqa: ARG002 - the event's signature
        """Count a quota's pause for every route of the cluster, because it slows all of them."""
        for counters in self._all:
            counters.count_retry("throttled")


class WorkerCluster:
    """One cluster in one worker: its client, its metadata, and the producer that its routes share."""

    def __init__(self, settings: ClusterSettings, slot: int, worker: AsksSupervisor) -> None:
        name = settings.name
        self.metadata = PushedMetadata(
            wanted=lambda topics, reason: worker.tell(MetadataWanted(name, tuple(topics), reason)),
            hint=lambda topic, partition, leader, epoch: worker.tell(
                LeaderHinted(name, topic, partition, leader, epoch)
            ),
        )
        connection = settings.connection(f"ingestd-worker-{slot}")
        self.client = Client([], ClientSettings(connection, retry_authentication=True), metadata=self.metadata)
        self._retries = _RetryCounts()
        self._own: list[AsyncProducer] = []
        self.producer = self._producer(_SupervisorIdentities(name, worker))

    def own_producer(self, identities: IdentitySource) -> AsyncProducer:
        """A producer whose ids no other one has, for a route that must be known by them. It ends with the cluster."""
        self._own.append(self._producer(identities))
        return self._own[-1]

    def _producer(self, identities: IdentitySource) -> AsyncProducer:
        settings = ProducerSettings(delivery_timeout=inf, metadata_timeout=inf)
        return AsyncProducer(self.client, settings, identities=identities, events=self._retries)

    def count_retries(self, topic: str, counters: RouteCounters) -> None:
        """Count retries of batches for `topic` in `counters` too. Safe to call twice."""
        self._retries.add(topic, counters)

    async def close(self) -> None:
        """Give up what is not delivered, and close the client within a second."""
        for producer in (self.producer, *self._own):
            await producer.close(timeout=0)
        await self.client.close(timeout=1)
