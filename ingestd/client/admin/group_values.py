"""Group values: groups as administration sees them, made from the answers of both protocols."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ingestd.client.admin.calls import error_of
from ingestd.client.metadata import TopicPartition
from ingestd.errors import ErrorCode, IngestdError, KafkaError, ProtocolError
from ingestd.wire.consumer_protocol import PROTOCOL_TYPE, decode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.wire.consumer_protocol import Kind

__all__ = [
    "GroupDescription",
    "GroupListing",
    "MemberDescription",
    "described_classic_group",
    "described_consumer_group",
]

_DEAD: Final = "Dead"


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group by name. State and type ("classic", "consumer", "share", "streams") are "" if brokers do not say."""

    group_id: str
    protocol_type: str
    state: str = ""
    type: str = ""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member. Fields that a protocol does not have are empty.

    assignment: what it has now. target_assignment, epoch, subscription_pattern, rack: of KIP-848 groups.
    metadata: the bytes of the classic protocol that are not a consumer's (Kafka Connect, a schema registry).
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    subscription: tuple[str, ...] = ()
    assignment: tuple[TopicPartition, ...] = ()
    target_assignment: tuple[TopicPartition, ...] = ()
    epoch: int = -1
    subscription_pattern: str | None = None
    rack: str | None = None
    metadata: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group, or the error (GROUP_ID_NOT_FOUND: there is no group of that name).

    type: "classic" or "consumer" (KIP-848). assignor: the name of the assignor chosen, "" while there is none.
    coordinator: the node id. epoch, assignment_epoch: of KIP-848 groups; the group is settled when they are equal.
    """

    group_id: str
    type: str = ""
    state: str = ""
    protocol_type: str = ""
    assignor: str = ""
    members: tuple[MemberDescription, ...] = ()
    coordinator: int = -1
    epoch: int = -1
    assignment_epoch: int = -1
    error: IngestdError | None = None


def described_classic_group(group: Any) -> GroupDescription | IngestdError:
    """A group of the classic protocol. A group that does not exist is "Dead"; since version 6 it is an error."""
    message = getattr(group, "error_message", None)
    if group.error_code is ErrorCode.none and group.group_state == _DEAD:
        return KafkaError(ErrorCode.group_id_not_found, group.group_id)
    return error_of(group.error_code, group.group_id, message) or GroupDescription(
        group.group_id,
        "classic",
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        tuple(_classic_member(member, group.protocol_type) for member in group.members),
    )


def described_consumer_group(group: Any) -> GroupDescription | IngestdError:
    """A group of the protocol of KIP-848."""
    return error_of(group.error_code, group.group_id, group.error_message) or GroupDescription(
        group.group_id,
        "consumer",
        group.group_state,
        "consumer",
        group.assignor_name,
        tuple(_consumer_member(member) for member in group.members),
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
    )


def _classic_member(member: Any, protocol_type: str) -> MemberDescription:
    who = (member.member_id, getattr(member, "group_instance_id", None), member.client_id, member.client_host)
    if protocol_type != PROTOCOL_TYPE:
        return MemberDescription(*who, metadata=member.member_metadata)
    subscription = _consumer_protocol("subscription", member.member_metadata)
    assignment = _consumer_protocol("assignment", member.member_assignment)
    return MemberDescription(
        *who,
        () if subscription is None else tuple(sorted(subscription.topics)),
        () if assignment is None else _partitions(assignment.assigned_partitions, "topic"),
        rack=getattr(subscription, "rack_id", None),
    )


def _consumer_protocol(kind: Kind, data: bytes) -> Any:
    """A consumer's subscription or assignment. None if it is empty or not readable (members may send anything)."""
    try:
        return decode(kind, data) if data else None
    except ProtocolError:
        return None


def _consumer_member(member: Any) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        tuple(sorted(member.subscribed_topic_names)),
        _partitions(member.assignment.topic_partitions, "topic_name"),
        _partitions(member.target_assignment.topic_partitions, "topic_name"),
        member.member_epoch,
        member.subscribed_topic_regex or None,
        member.rack_id,
    )


def _partitions(topics: Iterable[Any], name: str) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(TopicPartition(getattr(topic, name), number) for topic in topics for number in topic.partitions)
    )
