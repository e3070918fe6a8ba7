"""Requests that make, grow and delete topics, and cut their logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import by_topic, made, milliseconds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = ["NewPartitions", "NewTopic", "create_partitions", "create_topics", "delete_records", "delete_topics"]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 partitions or replication factor: the broker's default (from Kafka 2.4 on).

    `assignments` gives instead the replicas of each partition. The first one is the preferred leader.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] | None = None
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic's new number of partitions, and replicas for the new ones, unless the broker chooses them."""

    topic: str
    total: int
    assignments: Sequence[Sequence[int]] | None = None


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
        return made(
            module.CreateTopicsRequest(topics=creatable, timeout=milliseconds(timeout_ms), validate_only=validate_only)
        )

    return build


def delete_topics(names: Collection[str], *, timeout_ms: int, ids: Mapping[str, UUID] | None = None) -> Build:
    """Delete topics, by id if it is in `ids` (version 6, Kafka 2.8), else by name.

    The answer has one error per topic.
    """
    known = ids or {}

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.delete_topics, 1, 6)
        module = request_module("delete_topics", version)
        timeout = milliseconds(timeout_ms)
        if version >= 6:
            states = tuple(
                module.DeleteTopicState(name=None if name in known else name, topic_id=known.get(name))
                for name in names
            )
            return made(module.DeleteTopicsRequest(topics=states, timeout=timeout))
        return made(module.DeleteTopicsRequest(topic_names=tuple(names), timeout=timeout))

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
        return made(
            module.CreatePartitionsRequest(topics=grown, timeout=milliseconds(timeout_ms), validate_only=validate_only)
        )

    return build


def delete_records(before: Mapping[tuple[str, int], int], *, timeout_ms: int) -> Build:
    """Delete the records before an offset, in partitions that the asked broker leads; -1: all records that exist now.

    The answer has one error per partition.
    """

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("delete_records", versions.pick(Api.delete_records, 0, 2))
        topics = tuple(
            module.DeleteRecordsTopic(
                name=topic,
                partitions=tuple(
                    module.DeleteRecordsPartition(partition_index=number, offset=before[topic, number])
                    for number in numbers
                ),
            )
            for topic, numbers in by_topic(before).items()
        )
        return made(module.DeleteRecordsRequest(topics=topics, timeout=milliseconds(timeout_ms)))

    return build
