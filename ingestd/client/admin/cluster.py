"""Cluster: its description, controller, quorum and features, and brokers that are gone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from ingestd.client.admin.calls import Administration, error_of
from ingestd.client.admin.targets import PURPOSE, ToAny, ToController
from ingestd.client.answers import read_metadata
from ingestd.client.metadata import Node
from ingestd.errors import ErrorCode, UnsupportedVersion, raise_for_code
from ingestd.retry import Deadline
from ingestd.wire import requests
from ingestd.wire.requests import cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.client.broker import Broker

__all__ = [
    "ClusterAdministration",
    "ClusterDescription",
    "FeatureRange",
    "FeatureUpgrade",
    "FeaturesDescription",
    "QuorumDescription",
    "QuorumReplica",
]

_METADATA_LOG: Final = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster's id, its controller (with KRaft: a broker that stands for it) and its brokers.

    `fenced` are node ids of brokers that are not up, if they were asked for.
    """

    cluster_id: str | None
    controller_id: int
    nodes: tuple[Node, ...]
    fenced: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A controller or broker that follows the metadata log. Times in milliseconds since 1970, -1: not known."""

    node_id: int
    log_end_offset: int
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The quorum of controllers: who leads, who votes, who only reads."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """The levels of a feature that a broker supports."""

    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class FeaturesDescription:
    """What the broker supports, and what is finalized for the cluster (missing: level 0)."""

    supported: Mapping[str, FeatureRange]
    finalized: Mapping[str, int]


class FeatureUpgrade(IntEnum):
    """How a feature's level may change: up, down if nothing is lost, or down in any case."""

    upgrade = 1
    safe_downgrade = 2
    unsafe_downgrade = 3


class ClusterAdministration(Administration):
    """The cluster itself. Any broker answers. Changes of features go to the controller."""

    async def controller(self, *, timeout: float = 30.0) -> Broker:
        """The controller's broker (with KRaft: one that passes requests on to it). Raises `KafkaError`."""
        return await self._client.controller(timeout, purpose=PURPOSE)

    async def describe_cluster(
        self, *, include_fenced_brokers: bool = False, timeout: float = 30.0
    ) -> ClusterDescription:
        """Cluster id, controller and brokers. From metadata if brokers are older than 2.8.

        Fenced brokers, those that are known but not up, need Kafka 4.0.
        """
        deadline = Deadline.after(timeout)
        build = requests.describe_cluster(include_fenced_brokers=include_fenced_brokers)
        try:
            return await self._one(ToAny(self._client), lambda: build, _described, deadline)
        except UnsupportedVersion:
            if include_fenced_brokers:
                raise
        return await self._one(ToAny(self._client), lambda: requests.metadata(()), _from_metadata, deadline)

    async def describe_quorum(self, *, timeout: float = 30.0) -> QuorumDescription:
        """The quorum of controllers (KRaft; Kafka 3.3). Raises `KafkaError`."""
        build = cluster.describe_quorum(_METADATA_LOG, 0)
        return await self._one(ToAny(self._client), lambda: build, _quorum, Deadline.after(timeout))

    async def describe_features(self, *, timeout: float = 30.0) -> FeaturesDescription:
        """Feature levels (`metadata.version`, `transaction.version`, `group.version`, …; Kafka 2.7)."""
        build = cluster.describe_features()
        return await self._one(ToAny(self._client), lambda: build, _features, Deadline.after(timeout))

    async def update_features(
        self,
        levels: Mapping[str, tuple[int, FeatureUpgrade]],
        *,
        validate_only: bool = False,
        timeout: float = 60.0,
    ) -> None:
        """Finalize feature levels, all of them or none; level 0 removes a feature. Raises `KafkaError`."""
        deadline = Deadline.after(timeout)
        wanted = {name: (level, int(way)) for name, (level, way) in levels.items()}

        def done(answer: Any) -> None:
            raise_for_code(answer.error_code, answer.error_message or "UpdateFeatures")
            for result in getattr(answer, "results", ()):
                raise_for_code(result.error_code, f"{result.feature}: {result.error_message}")

        await self._one(
            ToController(self._client),
            lambda: cluster.update_features(
                wanted, timeout_ms=self._milliseconds(deadline), validate_only=validate_only
            ),
            done,
            deadline,
        )

    async def unregister_broker(self, node_id: int, *, timeout: float = 30.0) -> None:
        """Remove a broker that is gone for good from the cluster (KRaft). Raises `KafkaError`.

        If an attempt had no answer, and the broker is unknown after it, it counts as removed.
        """
        outcomes = await self._items(
            [node_id],
            ToAny(self._client),
            lambda _: cluster.unregister_broker(node_id),
            lambda answer, _: {node_id: error_of(answer.error_code, f"broker {node_id}", answer.error_message)},
            Deadline.after(timeout),
        )
        error = outcomes.error(node_id, done={ErrorCode.broker_id_not_registered})
        if error is not None:
            raise error


def _described(answer: Any) -> ClusterDescription:
    raise_for_code(answer.error_code, answer.error_message or "DescribeCluster")
    brokers = sorted(answer.brokers, key=lambda broker: int(broker.broker_id))
    return ClusterDescription(
        answer.cluster_id,
        answer.controller_id,
        tuple(Node(broker.broker_id, broker.host, broker.port, broker.rack) for broker in brokers),
        frozenset(int(broker.broker_id) for broker in brokers if getattr(broker, "is_fenced", False)),
    )


def _from_metadata(answer: Any) -> ClusterDescription:
    metadata = read_metadata(answer)
    nodes = tuple(node for _, node in sorted(metadata.nodes.items()))
    return ClusterDescription(metadata.cluster_id, metadata.controller_id, nodes)


def _quorum(answer: Any) -> QuorumDescription:
    raise_for_code(answer.error_code, getattr(answer, "error_message", None) or "DescribeQuorum")
    partition = answer.topics[0].partitions[0]
    raise_for_code(partition.error_code, getattr(partition, "error_message", None) or "DescribeQuorum")
    return QuorumDescription(
        partition.leader_id,
        partition.leader_epoch,
        partition.high_watermark,
        tuple(_replica(one) for one in partition.current_voters),
        tuple(_replica(one) for one in partition.observers),
    )


def _replica(one: Any) -> QuorumReplica:
    return QuorumReplica(
        one.replica_id,
        one.log_end_offset,
        getattr(one, "last_fetch_timestamp", -1),
        getattr(one, "last_caught_up_timestamp", -1),
    )


def _features(answer: Any) -> FeaturesDescription:
    raise_for_code(answer.error_code, "ApiVersions")
    return FeaturesDescription(
        {one.name: FeatureRange(one.min_version, one.max_version) for one in answer.supported_features},
        {one.name: int(one.max_version_level) for one in answer.finalized_features},
    )
