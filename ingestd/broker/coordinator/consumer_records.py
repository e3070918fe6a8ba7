"""The records of groups of KIP-848, in Kafka's own format. The messages are in `consumer_entities.py`.

Kafka 4.3 writes the topics of a group as a hash in its epoch's record. It removes the older record of their partitions
(kind 4), which this broker never writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kio.static.primitive import i8, i32, i64

from ingestd.broker.coordinator.consumer_entities import (
    AssignedTopic,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupIdKey,
    GroupIdWithNameKey,
    TargetTopic,
)
from ingestd.broker.groups.consumer_values import (
    ClassicSide,
    GroupEpoch,
    Held,
    MatchedTopics,
    MemberState,
    Profile,
    TargetEpoch,
)
from ingestd.errors import ProtocolError
from ingestd.wire.codec import decode_entity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from ingestd.broker.groups.consumer_values import TopicIdPartition
    from ingestd.wire.codec import Buffer

__all__ = [
    "KINDS",
    "ConsumerGroupKey",
    "ConsumerKey",
    "ConsumerRecord",
    "ConsumerValue",
    "CurrentKey",
    "MatchedTopicsKey",
    "MemberKey",
    "TargetKey",
    "TargetMemberKey",
    "key_entity",
    "kind_of",
    "read_key",
    "read_value",
    "value_entity",
]


@dataclass(frozen=True, slots=True)
class ConsumerGroupKey:
    """A group: `GroupEpoch`."""

    group: str


@dataclass(frozen=True, slots=True)
class MemberKey:
    """A member: `Profile`."""

    group: str
    member: str


@dataclass(frozen=True, slots=True)
class TargetKey:
    """A group's targets: `TargetEpoch`."""

    group: str


@dataclass(frozen=True, slots=True)
class TargetMemberKey:
    """A member's target: a set of partitions."""

    group: str
    member: str


@dataclass(frozen=True, slots=True)
class CurrentKey:
    """A member's partitions: `Held`."""

    group: str
    member: str


@dataclass(frozen=True, slots=True)
class MatchedTopicsKey:
    """A regular expression of a group: `MatchedTopics`."""

    group: str
    pattern: str


ConsumerKey: TypeAlias = "ConsumerGroupKey | MemberKey | TargetKey | TargetMemberKey | CurrentKey | MatchedTopicsKey"
ConsumerValue: TypeAlias = (
    "GroupEpoch | Profile | TargetEpoch | frozenset[TopicIdPartition] | Held | MatchedTopics | None"
)
"""None: there is no such thing any more."""
ConsumerRecord: TypeAlias = "tuple[ConsumerKey, ConsumerValue]"


@dataclass(frozen=True, slots=True)
class _Kind:
    key: Callable[..., ConsumerKey]
    entity: type[Any]
    write: Callable[[Any], Any]
    read: Callable[[Any], ConsumerValue]


# To entities.


def _epoch_entity(value: GroupEpoch) -> Any:
    return ConsumerGroupMetadataValue(epoch=i32(value.epoch), metadata_hash=i64(value.topics_hash))


def _profile_entity(value: Profile) -> Any:
    classic = value.classic
    return ConsumerGroupMemberMetadataValue(
        instance_id=value.instance_id,
        rack_id=value.rack,
        client_id=value.client_id,
        client_host=value.client_host,
        subscribed_topic_names=tuple(sorted(value.topics)),
        subscribed_topic_regex=value.pattern,
        rebalance_timeout_ms=i32(round(value.rebalance_timeout * 1000)),
        server_assignor=value.assignor,
        classic_member_metadata=ClassicMemberMetadata()
        if classic is None
        else ClassicMemberMetadata(
            present=i8(1),
            session_timeout_ms=i32(round(classic.session_timeout * 1000)),
            supported_protocols=tuple(
                ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
            ),
        ),
    )


def _target_epoch_entity(value: TargetEpoch) -> Any:
    return ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=i32(value.epoch), assignment_timestamp=i64(value.made)
    )


def _target_entity(value: frozenset[TopicIdPartition]) -> Any:
    return ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=tuple(
            TargetTopic(topic_id=topic, partitions=tuple(map(i32, numbers)))
            for topic, numbers in _by_topic(value).items()
        )
    )


def _held_entity(value: Held) -> Any:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=i32(value.epoch),
        previous_member_epoch=i32(value.previous_epoch),
        state=i8(value.state.value),
        assigned_partitions=_assigned_topics(value.assigned),
        partitions_pending_revocation=_assigned_topics(value.revoking),
    )


def _assigned_topics(partitions: Mapping[TopicIdPartition, int]) -> tuple[AssignedTopic, ...]:
    return tuple(
        AssignedTopic(
            topic_id=topic,
            partitions=tuple(map(i32, numbers)),
            assignment_epochs=tuple(i32(partitions[topic, number]) for number in numbers),
        )
        for topic, numbers in _by_topic(partitions).items()
    )


def _by_topic(partitions: Iterable[TopicIdPartition]) -> dict[UUID, list[int]]:
    grouped: dict[UUID, list[int]] = {}
    for topic, number in sorted(partitions):
        grouped.setdefault(topic, []).append(number)
    return grouped


def _match_entity(value: MatchedTopics) -> Any:
    return ConsumerGroupRegularExpressionValue(
        topics=tuple(sorted(value.topics)), version=i64(value.version), timestamp=i64(value.made)
    )


# From entities.


def _read_epoch(value: Any) -> GroupEpoch:
    return GroupEpoch(value.epoch, value.metadata_hash)


def _read_profile(value: Any) -> Profile:
    classic = value.classic_member_metadata
    return Profile(
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        frozenset(value.subscribed_topic_names),
        value.subscribed_topic_regex,
        value.rebalance_timeout_ms / 1000,
        value.server_assignor,
        None
        if not classic.present
        else ClassicSide(
            classic.session_timeout_ms / 1000,
            tuple((protocol.name, protocol.metadata) for protocol in classic.supported_protocols),
        ),
    )


def _read_target_epoch(value: Any) -> TargetEpoch:
    return TargetEpoch(value.assignment_epoch, value.assignment_timestamp)


def _read_target(value: Any) -> frozenset[TopicIdPartition]:
    return frozenset((topic.topic_id, number) for topic in value.topic_partitions for number in topic.partitions)


def _read_held(value: Any) -> Held:
    try:
        state = MemberState(value.state)
    except ValueError as error:
        raise ProtocolError(f"ConsumerGroupCurrentMemberAssignment: state {value.state}") from error
    return Held(
        value.member_epoch,
        value.previous_member_epoch,
        state,
        _read_assigned(value.assigned_partitions, value.member_epoch),
        _read_assigned(value.partitions_pending_revocation, value.member_epoch),
    )


def _read_assigned(topics: Iterable[Any], epoch: int) -> dict[TopicIdPartition, int]:
    found: dict[TopicIdPartition, int] = {}
    for topic in topics:
        # Before Kafka 4.3 there were none.
        epochs = topic.assignment_epochs or (epoch,) * len(topic.partitions)
        found.update({(topic.topic_id, number): at for number, at in zip(topic.partitions, epochs, strict=False)})
    return found


def _read_match(value: Any) -> MatchedTopics:
    return MatchedTopics(frozenset(value.topics), value.version, value.timestamp)


KINDS: Final[Mapping[int, _Kind]] = {
    3: _Kind(ConsumerGroupKey, ConsumerGroupMetadataValue, _epoch_entity, _read_epoch),
    5: _Kind(MemberKey, ConsumerGroupMemberMetadataValue, _profile_entity, _read_profile),
    6: _Kind(TargetKey, ConsumerGroupTargetAssignmentMetadataValue, _target_epoch_entity, _read_target_epoch),
    7: _Kind(TargetMemberKey, ConsumerGroupTargetAssignmentMemberValue, _target_entity, _read_target),
    8: _Kind(CurrentKey, ConsumerGroupCurrentMemberAssignmentValue, _held_entity, _read_held),
    16: _Kind(MatchedTopicsKey, ConsumerGroupRegularExpressionValue, _match_entity, _read_match),
}
"""By the number that a key begins with."""

_GROUP_KINDS: Final = frozenset({3, 6})
_KIND_OF: Final[Mapping[Any, int]] = {kind.key: number for number, kind in KINDS.items()}


def kind_of(key: ConsumerKey) -> int:
    """The number that this key begins with."""
    return _KIND_OF[type(key)]


def key_entity(key: ConsumerKey) -> Any:
    """The message for a key."""
    if isinstance(key, ConsumerGroupKey | TargetKey):
        return GroupIdKey(group_id=key.group)
    name = key.pattern if isinstance(key, MatchedTopicsKey) else key.member
    return GroupIdWithNameKey(group_id=key.group, name=name)


def value_entity(key: ConsumerKey, value: ConsumerValue) -> Any:
    """The message for a value that is not None."""
    return KINDS[kind_of(key)].write(value)


def read_key(kind: int, content: Buffer) -> ConsumerKey:
    """The key of a kind in `KINDS`. Raises `ProtocolError`."""
    if kind in _GROUP_KINDS:
        return KINDS[kind].key(decode_entity(GroupIdKey, content).group_id)
    named = decode_entity(GroupIdWithNameKey, content)
    return KINDS[kind].key(named.group_id, named.name)


def read_value(kind: int, content: Buffer) -> ConsumerValue:
    """The value of a kind in `KINDS`. Raises `ProtocolError`."""
    return KINDS[kind].read(decode_entity(KINDS[kind].entity, content))
