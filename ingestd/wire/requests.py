"""One function per API: what to ask, in the highest version both sides speak. Nobody else looks at request versions.

Each returns a `Build`: given what a broker speaks, it makes the kio request, or raises `UnsupportedVersion` where the
broker's versions cannot express what is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from kio.static.protocol import RequestPayload

    from ingestd.wire.versions import ApiVersions

__all__ = [
    "EARLIEST",
    "LATEST",
    "Build",
    "NewPartitions",
    "NewTopic",
    "OffsetAt",
    "create_partitions",
    "create_topics",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "find_coordinator",
    "init_producer_id",
    "list_offsets",
    "metadata",
]

Build: TypeAlias = "Callable[[ApiVersions], RequestPayload]"

LATEST: Final = -1
"""`OffsetAt.timestamp_ms`: the offset behind the last record, or the last stable offset where `read_committed`."""
EARLIEST: Final = -2
"""`OffsetAt.timestamp_ms`: the first offset there still is."""
_MAX_TIMESTAMP: Final = -3
_NO_REPLICA: Final = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 partitions or replication factor: the broker's default (from Kafka 2.4 on).

    `assignments` gives the replicas of every partition in their stead, the first being the preferred leader.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] | None = None
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic's new number of partitions, and replicas for the new ones where they are not left to the broker."""

    topic: str
    total: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """Asks for one partition's offset: EARLIEST, LATEST, or the first at or after a time in milliseconds."""

    topic: str
    partition: int
    timestamp_ms: int
    leader_epoch: int = -1


def _milliseconds(timeout_ms: int) -> timedelta:
    return timedelta(milliseconds=timeout_ms)


def metadata(
    topics: Collection[str] | None, *, allow_auto_topic_creation: bool = False, topic_ids: Collection[UUID] = ()
) -> Build:
    """Nodes, controller, and the partitions of `topics`; None: of every topic; empty: of none.

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
        return _made(module.MetadataRequest(**fields))

    return build


def create_topics(topics: Sequence[NewTopic], *, timeout_ms: int, validate_only: bool = False) -> Build:
    """Create topics; the answer has one error per topic. Defaults of the broker need version 4 (Kafka 2.4)."""

    def build(versions: ApiVersions) -> RequestPayload:
        defaults = any(
            topic.assignments is None and -1 in (topic.partitions, topic.replication_factor) for topic in topics
        )
        module = request_module("create_topics", versions.pick(Api.create_topics, 4 if defaults else 2, 7))
        creatable = tuple(
            module.CreatableTopic(
                name=topic.name,
                num_partitions=-1 if topic.assignments is not None else topic.partitions,
                replication_factor=-1 if topic.assignments is not None else topic.replication_factor,
                assignments=tuple(
                    module.CreatableReplicaAssignment(partition_index=partition, broker_ids=tuple(replicas))
                    for partition, replicas in enumerate(topic.assignments or ())
                ),
                configs=tuple(
                    module.CreatableTopicConfig(name=name, value=value) for name, value in (topic.configs or {}).items()
                ),
            )
            for topic in topics
        )
        return _made(
            module.CreateTopicsRequest(topics=creatable, timeout=_milliseconds(timeout_ms), validate_only=validate_only)
        )

    return build


def delete_topics(names: Collection[str], *, timeout_ms: int) -> Build:
    """Delete topics by name; the answer has one error per topic."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.delete_topics, 1, 6)
        module = request_module("delete_topics", version)
        timeout = _milliseconds(timeout_ms)
        if version >= 6:
            states = tuple(module.DeleteTopicState(name=name, topic_id=None) for name in names)
            return _made(module.DeleteTopicsRequest(topics=states, timeout=timeout))
        return _made(module.DeleteTopicsRequest(topic_names=tuple(names), timeout=timeout))

    return build


def create_partitions(topics: Sequence[NewPartitions], *, timeout_ms: int, validate_only: bool = False) -> Build:
    """Raise topics' number of partitions; the answer has one error per topic."""

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("create_partitions", versions.pick(Api.create_partitions, 0, 3))
        grown = tuple(
            module.CreatePartitionsTopic(
                name=topic.topic,
                count=topic.total,
                assignments=None
                if topic.assignments is None
                else tuple(
                    module.CreatePartitionsAssignment(broker_ids=tuple(replicas)) for replicas in topic.assignments
                ),
            )
            for topic in topics
        )
        return _made(
            module.CreatePartitionsRequest(topics=grown, timeout=_milliseconds(timeout_ms), validate_only=validate_only)
        )

    return build


def list_offsets(partitions: Sequence[OffsetAt], *, read_committed: bool = False, timeout_ms: int = 30_000) -> Build:
    """Offsets of partitions that the asked broker leads; the answer has one error per partition."""

    def build(versions: ApiVersions) -> RequestPayload:
        lowest = 2 if read_committed else 1
        if any(partition.timestamp_ms == _MAX_TIMESTAMP for partition in partitions):
            lowest = 7
        version = versions.pick(Api.list_offsets, lowest, 10)
        module = request_module("list_offsets", version)
        by_topic: dict[str, list[Any]] = {}
        for partition in partitions:
            fields: dict[str, Any] = {
                "partition_index": partition.partition,
                "timestamp": partition.timestamp_ms,
            }
            if version >= 4:
                fields["current_leader_epoch"] = partition.leader_epoch
            by_topic.setdefault(partition.topic, []).append(module.ListOffsetsPartition(**fields))
        request: dict[str, Any] = {
            "replica_id": _NO_REPLICA,
            "topics": tuple(
                module.ListOffsetsTopic(name=topic, partitions=tuple(wanted)) for topic, wanted in by_topic.items()
            ),
        }
        if version >= 2:
            request["isolation_level"] = int(read_committed)
        if version >= 10:
            request["timeout"] = _milliseconds(timeout_ms)
        return _made(module.ListOffsetsRequest(**request))

    return build


def init_producer_id(
    transactional_id: str | None = None,
    *,
    transaction_timeout_ms: int = 60_000,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> Build:
    """A producer id and epoch; given those held before, the same id with the next epoch (version 3, KIP-360)."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.init_producer_id, 3 if producer_id >= 0 else 0, 5)
        module = request_module("init_producer_id", version)
        fields: dict[str, Any] = {
            "transactional_id": transactional_id,
            "transaction_timeout": _milliseconds(transaction_timeout_ms),
        }
        if version >= 3:
            fields["producer_id"] = producer_id
            fields["producer_epoch"] = producer_epoch
        return _made(module.InitProducerIdRequest(**fields))

    return build


def find_coordinator(key: str, key_type: int) -> Build:
    """The coordinator of a group (key type 0) or of a transactional id (key type 1)."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.find_coordinator, 1 if key_type else 0, 5)
        module = request_module("find_coordinator", version)
        fields: dict[str, Any] = {"coordinator_keys": (key,)} if version >= 4 else {"key": key}
        if version >= 1:
            fields["key_type"] = key_type
        return _made(module.FindCoordinatorRequest(**fields))

    return build


def describe_configs(
    resources: Sequence[tuple[int, str, Collection[str] | None]],
    *,
    include_synonyms: bool = False,
    include_documentation: bool = False,
) -> Build:
    """Configurations of (resource type, name, keys or None for all); 2 is a topic, 4 a broker."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.describe_configs, 3 if include_documentation else 1, 4)
        module = request_module("describe_configs", version)
        wanted = tuple(
            module.DescribeConfigsResource(
                resource_type=kind,
                resource_name=name,
                configuration_keys=None if keys is None else tuple(keys),
            )
            for kind, name, keys in resources
        )
        fields: dict[str, Any] = {"resources": wanted, "include_synonyms": include_synonyms}
        if version >= 3:
            fields["include_documentation"] = include_documentation
        return _made(module.DescribeConfigsRequest(**fields))

    return build


def describe_cluster(*, include_fenced_brokers: bool = False) -> Build:
    """Cluster id, controller and brokers. Fenced brokers need version 2 (Kafka 4.0)."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.describe_cluster, 2 if include_fenced_brokers else 0, 2)
        module = request_module("describe_cluster", version)
        fields: dict[str, Any] = {"include_cluster_authorized_operations": False}
        if version >= 2:
            fields["include_fenced_brokers"] = include_fenced_brokers
        return _made(module.DescribeClusterRequest(**fields))

    return build


def _made(request: Any) -> RequestPayload:
    """Give an entity of a dynamically imported kio class its static type."""
    return cast("RequestPayload", request)
