"""Requests of administrators about groups: list, describe and delete them, and delete their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import by_topic, made

if TYPE_CHECKING:
    from collections.abc import Collection

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = ["delete_groups", "describe_classic_groups", "describe_consumer_groups", "list_groups", "offset_delete"]


def list_groups(states: Collection[str] = (), types: Collection[str] = ()) -> Build:
    """The groups that the asked broker coordinates; empty filters take any.

    Filters by state need version 4 (Kafka 2.6, KIP-518), by type version 5 (Kafka 3.8, KIP-848).
    """

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.list_groups, 5 if types else 4 if states else 0, 5)
        fields: dict[str, Any] = {}
        if version >= 4:
            fields["states_filter"] = tuple(states)
        if version >= 5:
            fields["types_filter"] = tuple(types)
        return made(request_module("list_groups", version).ListGroupsRequest(**fields))

    return build


def describe_classic_groups(groups: Collection[str]) -> Build:
    """Groups of the classic protocol; the answer has one error per group."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.describe_groups, 0, 6)
        fields = {"include_authorized_operations": False} if version >= 3 else {}
        return made(request_module("describe_groups", version).DescribeGroupsRequest(groups=tuple(groups), **fields))

    return build


def describe_consumer_groups(groups: Collection[str]) -> Build:
    """Groups of the protocol of KIP-848; the answer has one error per group."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.consumer_group_describe, 0, 1)
        return made(
            request_module("consumer_group_describe", version).ConsumerGroupDescribeRequest(
                group_ids=tuple(groups), include_authorized_operations=False
            )
        )

    return build


def delete_groups(groups: Collection[str]) -> Build:
    """Delete groups without members, and their offsets; the answer has one error per group."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.delete_groups, 0, 2)
        return made(request_module("delete_groups", version).DeleteGroupsRequest(groups_names=tuple(groups)))

    return build


def offset_delete(group: str, partitions: Collection[tuple[str, int]]) -> Build:
    """Delete a group's offsets of partitions; the answer has one error for the group and one per partition."""

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("offset_delete", versions.pick(Api.offset_delete, 0, 0))
        topics = tuple(
            module.OffsetDeleteRequestTopic(
                name=topic,
                partitions=tuple(module.OffsetDeleteRequestPartition(partition_index=number) for number in numbers),
            )
            for topic, numbers in by_topic(partitions).items()
        )
        return made(module.OffsetDeleteRequest(group_id=group, topics=topics))

    return build
