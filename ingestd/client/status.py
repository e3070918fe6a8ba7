"""Status: what a client knows and does at one moment, for bug reports, in values that JSON can hold. No secrets."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ingestd.client.metadata import NO_LEADER
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ingestd.client.broker import Broker
    from ingestd.client.coordinators import CoordinatorKind
    from ingestd.client.metadata import ClusterMetadata, Node

__all__ = ["BrokerStatus", "ClientStatus", "MetadataStatus", "client_status"]


_TELLING: Final = (Api.produce, Api.fetch, Api.metadata, Api.api_versions, Api.join_group, Api.consumer_group_heartbeat)


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One connection, open or not.

    node_id: below -1 for a seed. purpose: what the connection is for; each purpose has one of its own.
    in_flight: requests sent and not answered. backoff_seconds: until the next attempt to connect may begin.
    last_error: the error of the last attempt, or the one that ended the connection; None while it is open.
    features: finalized feature levels (`metadata.version` says which Kafka it is), empty without a connection.
    api_versions: the highest version of a few APIs, by which releases differ; empty without a connection.
    """

    node_id: int
    address: str
    rack: str | None
    purpose: str
    connected: bool
    in_flight: int
    backoff_seconds: float
    last_error: str | None
    features: dict[str, int] = field(default_factory=dict)
    api_versions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetadataStatus:
    """The metadata of the cluster.

    version: of the snapshot; 0: there is none yet. age_seconds: since it was replaced; None: never.
    leaders: by node id, how many partitions it leads. without_leader: how many partitions nobody leads.
    errors: topics with an error, and its name.
    """

    version: int
    age_seconds: float | None
    cluster_id: str | None
    controller_id: int
    nodes: int
    topics: int
    partitions: int
    leaders: dict[str, int]
    without_leader: int
    errors: dict[str, str]


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """Everything; `coordinators` maps "group NAME" and "transaction NAME" to node ids, `sections` is what users add."""

    brokers: list[BrokerStatus]
    metadata: MetadataStatus
    coordinators: dict[str, int]
    sections: dict[str, dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """The same as plain dictionaries, lists, strings and numbers: what `json.dumps` takes."""
        return asdict(self)


def client_status(
    brokers: Iterable[tuple[str, Broker]],
    snapshot: ClusterMetadata,
    age_seconds: float | None,
    coordinators: Mapping[tuple[CoordinatorKind, str], Node],
    sections: Mapping[str, Mapping[str, Any]],
) -> ClientStatus:
    """Gather the status; see `Client.status`."""
    return ClientStatus(
        sorted((_broker(purpose, one) for purpose, one in brokers), key=lambda one: (one.node_id, one.purpose)),
        _metadata(snapshot, age_seconds),
        {f"{kind.name} {key}": node.id for (kind, key), node in coordinators.items()},
        {name: dict(section) for name, section in sections.items()},
    )


def _broker(purpose: str, broker: Broker) -> BrokerStatus:
    node, versions, error = broker.node, broker.versions, broker.last_error
    return BrokerStatus(
        node.id,
        f"{node.host}:{node.port}",
        node.rack,
        purpose,
        broker.connected,
        broker.in_flight,
        round(broker.backoff, 3),
        None if error is None else f"{type(error).__name__}: {error}",
        {} if versions is None else dict(versions.features),
        {} if versions is None else {api.name: versions.ranges[api][1] for api in _TELLING if api in versions.ranges},
    )


def _metadata(snapshot: ClusterMetadata, age_seconds: float | None) -> MetadataStatus:
    leaders = Counter(partition.leader for topic in snapshot.topics.values() for partition in topic.partitions)
    partitions = leaders.total()
    without_leader = leaders.pop(NO_LEADER, 0)
    return MetadataStatus(
        snapshot.version,
        None if age_seconds is None else round(age_seconds, 3),
        snapshot.cluster_id,
        snapshot.controller_id,
        len(snapshot.nodes),
        len(snapshot.topics),
        partitions,
        {str(node): count for node, count in sorted(leaders.items())},
        without_leader,
        {name: topic.error.name for name, topic in snapshot.topics.items() if topic.error is not ErrorCode.none},
    )
