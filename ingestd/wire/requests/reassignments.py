"""Requests about where partitions' replicas are, and which of them leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import by_topic, made, milliseconds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = ["alter_partition_reassignments", "elect_leaders", "list_partition_reassignments"]


def alter_partition_reassignments(
    targets: Mapping[tuple[str, int], Sequence[int] | None],
    *,
    timeout_ms: int,
    allow_replication_factor_change: bool = True,
) -> Build:
    """Move partitions to these replicas; None: cancel the move. The answer has one error per partition.

    To forbid another number of replicas needs version 1 (Kafka 4.1, KIP-860).
    """

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.alter_partition_reassignments, 0 if allow_replication_factor_change else 1, 1)
        module = request_module("alter_partition_reassignments", version)
        fields: dict[str, Any] = {}
        if version >= 1:
            fields["allow_replication_factor_change"] = allow_replication_factor_change
        topics = []
        for topic, numbers in by_topic(targets).items():
            partitions = []
            for number in numbers:
                replicas = targets[topic, number]
                partitions.append(
                    module.ReassignablePartition(
                        partition_index=number, replicas=None if replicas is None else tuple(replicas)
                    )
                )
            topics.append(module.ReassignableTopic(name=topic, partitions=tuple(partitions)))
        return made(
            module.AlterPartitionReassignmentsRequest(timeout=milliseconds(timeout_ms), topics=tuple(topics), **fields)
        )

    return build


def list_partition_reassignments(partitions: Collection[tuple[str, int]] | None, *, timeout_ms: int) -> Build:
    """The moves of these partitions that are under way; None: of all partitions."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.list_partition_reassignments, 0, 0)
        module = request_module("list_partition_reassignments", version)
        topics = None
        if partitions is not None:
            topics = tuple(
                module.ListPartitionReassignmentsTopics(name=topic, partition_indexes=numbers)
                for topic, numbers in by_topic(partitions).items()
            )
        return made(module.ListPartitionReassignmentsRequest(timeout=milliseconds(timeout_ms), topics=topics))

    return build


def elect_leaders(partitions: Collection[tuple[str, int]] | None, *, timeout_ms: int, unclean: bool = False) -> Build:
    """Make preferred replicas leaders (None: of all partitions). With `unclean`, any replica if none is in sync.

    The answer has one error per partition. Unclean needs version 1 (Kafka 2.4).
    """

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.elect_leaders, 1 if unclean else 0, 2)
        module = request_module("elect_leaders", version)
        topics = None
        if partitions is not None:
            topics = tuple(
                module.TopicPartitions(topic=topic, partitions=numbers)
                for topic, numbers in by_topic(partitions).items()
            )
        kind = {"election_type": int(unclean)} if version >= 1 else {}
        return made(module.ElectLeadersRequest(topic_partitions=topics, timeout=milliseconds(timeout_ms), **kind))

    return build
