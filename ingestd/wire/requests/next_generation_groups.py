"""The request of a KIP-848 group's members. Besides requests about offsets it is their only one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import made, milliseconds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from kio.static.protocol import RequestPayload

    from ingestd.errors import ErrorCode
    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = [
    "JOIN_EPOCH",
    "LEAVE_EPOCH",
    "LEAVE_STATIC_EPOCH",
    "GroupHeartbeat",
    "consumer_group_heartbeat",
    "read_group_heartbeat",
]

JOIN_EPOCH: Final = 0
"""The member epoch of a member that joins, also again after it was fenced."""
LEAVE_EPOCH: Final = -1
"""The member epoch of a member that leaves for good."""
LEAVE_STATIC_EPOCH: Final = -2
"""The member epoch of a static member that will come back: its partitions are kept for it, for the session timeout."""


@dataclass(frozen=True, slots=True)
class GroupHeartbeat:
    """The answer to a member's heartbeat."""

    error: ErrorCode
    error_message: str
    member_id: str | None
    member_epoch: int
    interval: float
    """Seconds until the coordinator expects the next heartbeat."""
    assignment: Mapping[UUID, tuple[int, ...]] | None
    """All partitions that the member should have, by topic id; None if the coordinator says nothing about them."""


def consumer_group_heartbeat(
    group_id: str,
    *,
    member_id: str,
    member_epoch: int,
    group_instance_id: str | None = None,
    rack: str | None = None,
    rebalance_timeout_ms: int = -1,
    topics: Collection[str] | None = None,
    regex: str | None = None,
    assignor: str | None = None,
    owned: Mapping[UUID, Collection[int]] | None = None,
) -> Build:
    """Join, stay in or leave a group. A value of None (of -1 for the rebalance timeout) means that it has not changed.

    `regex` needs version 1 (Kafka 4.0). An empty one removes the one given before.
    """

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.consumer_group_heartbeat, 0 if regex is None else 1, 1)
        module = request_module("consumer_group_heartbeat", version)
        fields: dict[str, Any] = {} if version < 1 else {"subscribed_topic_regex": regex}
        held = None
        if owned is not None:
            held = tuple(
                module.TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions)))
                for topic_id, partitions in owned.items()
            )
        return made(
            module.ConsumerGroupHeartbeatRequest(
                group_id=group_id,
                member_id=member_id,
                member_epoch=member_epoch,
                instance_id=group_instance_id,
                rack_id=rack,
                rebalance_timeout=milliseconds(rebalance_timeout_ms),
                subscribed_topic_names=None if topics is None else tuple(sorted(topics)),
                server_assignor=assignor,
                topic_partitions=held,
                **fields,
            )
        )

    return build


def read_group_heartbeat(answer: Any) -> GroupHeartbeat:
    """The answer to `consumer_group_heartbeat`, in any version."""
    assignment = None
    if answer.assignment is not None:
        assignment = {
            topic.topic_id: topic.partitions
            for topic in answer.assignment.topic_partitions
            if topic.topic_id is not None
        }
    return GroupHeartbeat(
        answer.error_code,
        answer.error_message or "",
        answer.member_id,
        answer.member_epoch,
        answer.heartbeat_interval.total_seconds(),
        assignment,
    )
