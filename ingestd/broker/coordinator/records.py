"""The records of `__consumer_offsets`, in Kafka's own format, so that Kafka's tools read our segments.

The messages are in `entities.py`, and for groups of KIP-848 in `consumer_records.py`. Before each is its version as an
int16. A key's "version" says what the record is about. Values are written in version 3, as Kafka 4.3 does, those of
KIP-848 in version 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kio.static.primitive import i32, i64

from ingestd.broker.coordinator import consumer_records
from ingestd.broker.coordinator.coordinator_log import RecordFormat
from ingestd.broker.coordinator.entities import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ingestd.broker.groups.classic_values import StoredGroup, StoredMember
from ingestd.errors import ProtocolError
from ingestd.wire.codec import decode_entity, encode_entity

if TYPE_CHECKING:
    from ingestd.broker.coordinator.consumer_records import ConsumerKey, ConsumerRecord, ConsumerValue
    from ingestd.wire.codec import Buffer

__all__ = [
    "GROUP_RECORDS",
    "CommitKey",
    "Committed",
    "CoordinatorRecord",
    "GroupEntry",
    "GroupKey",
    "encode_record",
    "read_record",
]

_VERSION: Final = Struct(">h")
_OLD_COMMIT: Final = 0
_COMMIT: Final = 1
_GROUP: Final = 2
_VALUE: Final = 3
_CONSUMER_VALUE: Final = 0


@dataclass(frozen=True, slots=True)
class CommitKey:
    """An offset that a group committed."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset. `timestamp`: milliseconds since the epoch."""

    offset: int
    leader_epoch: int
    metadata: str
    timestamp: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A classic group."""

    group: str


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A generation of a classic group, and since when it is as it is: milliseconds since the epoch."""

    stored: StoredGroup
    since: int


CoordinatorRecord: TypeAlias = (
    "tuple[CommitKey, Committed | None] | tuple[GroupKey, GroupEntry | None] | ConsumerRecord"
)
"""A key and its value. None: there is no such thing any more."""


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """A record's key and value as bytes."""
    key, value = record
    said = None
    if isinstance(key, CommitKey):
        named: Any = OffsetCommitKey(group=key.group, topic=key.topic, partition=i32(key.partition))
        if isinstance(value, Committed):
            said = _VERSION.pack(_VALUE) + encode_entity(_commit_value(value))
    elif isinstance(key, GroupKey):
        named = GroupMetadataKey(group=key.group)
        if isinstance(value, GroupEntry):
            said = _VERSION.pack(_VALUE) + encode_entity(_group_value(value))
    else:
        return _encode_consumer(key, value)
    return _VERSION.pack(named.__version__) + encode_entity(named), said


def _encode_consumer(key: ConsumerKey, value: Any) -> tuple[bytes, bytes | None]:
    named = _VERSION.pack(consumer_records.kind_of(key)) + encode_entity(consumer_records.key_entity(key))
    if value is None:
        return named, None
    return named, _VERSION.pack(_CONSUMER_VALUE) + encode_entity(consumer_records.value_entity(key, value))


def _commit_value(value: Committed) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=i64(value.offset),
        leader_epoch=i32(value.leader_epoch),
        metadata=value.metadata,
        commit_timestamp=i64(value.timestamp),
    )


def _group_value(value: GroupEntry) -> GroupMetadataValue:
    stored = value.stored
    return GroupMetadataValue(
        protocol_type=stored.protocol_type,
        generation=i32(stored.generation),
        protocol=stored.protocol,
        leader=stored.leader,
        current_state_timestamp=i64(value.since),
        members=tuple(
            MemberMetadata(
                member_id=one.id,
                group_instance_id=one.instance_id,
                client_id=one.client_id,
                client_host=one.client_host,
                rebalance_timeout=i32(round(one.rebalance_timeout * 1000)),
                session_timeout=i32(round(one.session_timeout * 1000)),
                subscription=one.subscription,
                assignment=one.assignment,
            )
            for one in stored.members
        ),
    )


def read_record(key: Buffer | None, value: Buffer | None) -> CoordinatorRecord | None:
    """The record; None for one about something that this broker does not know, which a newer one wrote.

    Raises `ProtocolError` for bytes that are no such record, and for values of another version than 3, or 0 for groups
    of KIP-848.
    """
    if key is None:
        raise ProtocolError("a record of a coordinator without a key")
    kind, named = _versioned(key)
    if kind in {_OLD_COMMIT, _COMMIT}:
        commit = decode_entity(OffsetCommitKey, named)
        return CommitKey(commit.group, commit.topic, commit.partition), _read_commit(value)
    if kind == _GROUP:
        return GroupKey(decode_entity(GroupMetadataKey, named).group), _read_group(value)
    if kind in consumer_records.KINDS:
        return consumer_records.read_key(kind, named), _read_consumer(kind, value)
    return None


def _versioned(content: Buffer) -> tuple[int, memoryview]:
    view = memoryview(content)
    if len(view) < _VERSION.size:
        raise ProtocolError(f"a record of a coordinator with {len(view)} bytes, which hold no version")
    return _VERSION.unpack_from(view)[0], view[_VERSION.size :]


def _read_consumer(kind: int, content: Buffer | None) -> ConsumerValue:
    if content is None:
        return None
    version, body = _versioned(content)
    if version != _CONSUMER_VALUE:
        raise ProtocolError(f"a record of kind {kind} in version {version}: expected {_CONSUMER_VALUE}")
    return consumer_records.read_value(kind, body)


def _value(entity: type[Any], content: Buffer) -> Any:
    version, body = _versioned(content)
    if version != _VALUE:
        raise ProtocolError(f"{entity.__name__} version {version}: expected {_VALUE}")
    return decode_entity(entity, body)


def _read_commit(content: Buffer | None) -> Committed | None:
    if content is None:
        return None
    value = _value(OffsetCommitValue, content)
    return Committed(value.offset, value.leader_epoch, value.metadata, value.commit_timestamp)


def _read_group(content: Buffer | None) -> GroupEntry | None:
    if content is None:
        return None
    value = _value(GroupMetadataValue, content)
    members = tuple(
        StoredMember(
            one.member_id,
            one.group_instance_id,
            one.client_id,
            one.client_host,
            one.session_timeout / 1000,
            one.rebalance_timeout / 1000,
            one.subscription,
            one.assignment,
        )
        for one in value.members
    )
    stored = StoredGroup(value.protocol_type, value.generation, value.protocol, value.leader, members)
    return GroupEntry(stored, value.current_state_timestamp)


GROUP_RECORDS: Final[RecordFormat[CoordinatorRecord]] = RecordFormat(encode_record, read_record)
"""The format of `__consumer_offsets`."""
