"""Requests about the cluster as a whole: metadata, coordinators, its description, quorum and features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import made, milliseconds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = [
    "describe_cluster",
    "describe_features",
    "describe_quorum",
    "find_coordinators",
    "metadata",
    "unregister_broker",
    "update_features",
]


def metadata(
    topics: Collection[str] | None, *, allow_auto_topic_creation: bool = False, topic_ids: Collection[UUID] = ()
) -> Build:
    """Nodes, controller, and the partitions of `topics` (None: all topics; empty: none).

    Brokers before 0.11 (version 4) create a missing topic whatever `allow_auto_topic_creation` says.
    """

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.metadata, 12 if topic_ids else 1, 13)
        module = request_module("metadata", version)
        wanted: tuple[Any, ...] | None = None
        if topics is not None or topic_ids:
            with_id = {"topic_id": None} if version >= 10 else {}
            wanted = tuple(module.MetadataRequestTopic(name=name, **with_id) for name in topics or ())
            wanted += tuple(module.MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in topic_ids)
        fields: dict[str, Any] = {"topics": wanted}
        if version >= 4:
            fields["allow_auto_topic_creation"] = allow_auto_topic_creation
        if version >= 8:
            fields["include_topic_authorized_operations"] = False
        if 8 <= version <= 10:
            fields["include_cluster_authorized_operations"] = False
        return made(module.MetadataRequest(**fields))

    return build


def find_coordinators(keys: Collection[str], key_type: int) -> Build:
    """The coordinators of groups (key type 0) or of transactional ids (key type 1).

    More than one key needs version 4 (Kafka 3.0, KIP-699).
    """

    def build(versions: ApiVersions) -> RequestPayload:
        lowest = 4 if len(keys) != 1 else 1 if key_type else 0
        version = versions.pick(Api.find_coordinator, lowest, 5)
        module = request_module("find_coordinator", version)
        fields: dict[str, Any] = {"coordinator_keys": tuple(keys)} if version >= 4 else {"key": next(iter(keys))}
        if version >= 1:
            fields["key_type"] = key_type
        return made(module.FindCoordinatorRequest(**fields))

    return build


def describe_cluster(*, include_fenced_brokers: bool = False) -> Build:
    """Cluster id, controller and brokers. Fenced brokers need version 2 (Kafka 4.0)."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.describe_cluster, 2 if include_fenced_brokers else 0, 2)
        module = request_module("describe_cluster", version)
        fields: dict[str, Any] = {"include_cluster_authorized_operations": False}
        if version >= 2:
            fields["include_fenced_brokers"] = include_fenced_brokers
        return made(module.DescribeClusterRequest(**fields))

    return build


def describe_quorum(topic: str, partition: int) -> Build:
    """The voters and observers of a partition that Raft replicates: the cluster's own metadata (KIP-595)."""

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("describe_quorum", versions.pick(Api.describe_quorum, 0, 2))
        partitions = (module.PartitionData(partition_index=partition),)
        return made(module.DescribeQuorumRequest(topics=(module.TopicData(topic_name=topic, partitions=partitions),)))

    return build


def describe_features() -> Build:
    """What the asked broker speaks, with the features that it supports and those that are finalized (KIP-584)."""

    def build(versions: ApiVersions) -> RequestPayload:
        from ingestd import __version__  # noqa: PLC0415 - the package's own module, complete by now

        module = request_module("api_versions", versions.pick(Api.api_versions, 3, 4))
        return made(module.ApiVersionsRequest(client_software_name="ingestd", client_software_version=__version__))

    return build


def update_features(levels: Mapping[str, tuple[int, int]], *, timeout_ms: int, validate_only: bool = False) -> Build:
    """Set features to (level, upgrade type): 1 upgrades, 2 downgrades safely, 3 downgrades whatever is lost.

    Level 0 removes a feature. Kafka 3.3 (version 1, KIP-778).
    """

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("update_features", versions.pick(Api.update_features, 1, 2))
        return made(
            module.UpdateFeaturesRequest(
                timeout=milliseconds(timeout_ms),
                feature_updates=tuple(
                    module.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
                    for name, (level, kind) in levels.items()
                ),
                validate_only=validate_only,
            )
        )

    return build


def unregister_broker(node_id: int) -> Build:
    """Make the cluster forget a broker that is gone for good (Kafka 2.8, KRaft only)."""

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("unregister_broker", versions.pick(Api.unregister_broker, 0, 0))
        return made(module.UnregisterBrokerRequest(broker_id=node_id))

    return build
