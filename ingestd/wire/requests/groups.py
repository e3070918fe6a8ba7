"""Requests of a group's members in the classic protocol, and about the offsets that groups commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import by_topic, grouped_by_topic, made, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = [
    "CommittedOffset",
    "Joined",
    "JoinedMember",
    "committed_topics",
    "heartbeat",
    "join_group",
    "leave_group",
    "offset_commit",
    "offset_fetch",
    "read_joined",
    "read_leave_errors",
    "read_offset_commit",
    "read_offset_fetch",
    "sync_group",
]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset in one partition. In an answer, offset -1 means that there is none."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the coordinator tells the group's leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """An answer to `join_group`. `members` is filled only if this member is the leader."""

    error: ErrorCode
    generation: int
    protocol: str
    leader: str
    member_id: str
    skip_assignment: bool
    members: Sequence[JoinedMember]


def join_group(
    group_id: str,
    protocols: Iterable[tuple[str, bytes]],
    *,
    member_id: str,
    group_instance_id: str | None,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    reason: str | None = None,
    protocol_type: str = "consumer",
) -> Build:
    """Become a member, or take part in a rebalance. Static members need version 5 (Kafka 2.3)."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.join_group, 1 if group_instance_id is None else 5, 9)
        module = request_module("join_group", version)
        fields = _instance(group_instance_id, known=version >= 5)
        if version >= 8:
            fields["reason"] = reason
        return made(
            module.JoinGroupRequest(
                group_id=group_id,
                session_timeout=milliseconds(session_timeout_ms),
                rebalance_timeout=milliseconds(rebalance_timeout_ms),
                member_id=member_id,
                protocol_type=protocol_type,
                protocols=tuple(
                    module.JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols
                ),
                **fields,
            )
        )

    return build


def read_joined(answer: Any) -> Joined:
    """The answer to `join_group`, in any version."""
    return Joined(
        answer.error_code,
        answer.generation_id,
        answer.protocol_name or "",
        answer.leader,
        answer.member_id,
        getattr(answer, "skip_assignment", False),
        tuple(
            JoinedMember(member.member_id, getattr(member, "group_instance_id", None), member.metadata)
            for member in answer.members
        ),
    )


def sync_group(
    group_id: str,
    *,
    generation: int,
    member_id: str,
    group_instance_id: str | None,
    protocol: str,
    assignments: Mapping[str, bytes],
    protocol_type: str = "consumer",
) -> Build:
    """Get this member's assignment. The leader also sends all members' assignments, by member id."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.sync_group, 0 if group_instance_id is None else 3, 5)
        module = request_module("sync_group", version)
        fields = _instance(group_instance_id, known=version >= 3)
        if version >= 5:
            fields |= {"protocol_type": protocol_type, "protocol_name": protocol}
        return made(
            module.SyncGroupRequest(
                group_id=group_id,
                generation_id=generation,
                member_id=member_id,
                assignments=tuple(
                    module.SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                    for member, assignment in assignments.items()
                ),
                **fields,
            )
        )

    return build


def heartbeat(group_id: str, *, generation: int, member_id: str, group_instance_id: str | None) -> Build:
    """Tell that the member lives. The answer says whether the group rebalances."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.heartbeat, 0 if group_instance_id is None else 3, 4)
        return made(
            request_module("heartbeat", version).HeartbeatRequest(
                group_id=group_id,
                generation_id=generation,
                member_id=member_id,
                **_instance(group_instance_id, known=version >= 3),
            )
        )

    return build


def leave_group(group_id: str, members: Sequence[tuple[str, str | None]], *, reason: str | None = None) -> Build:
    """Take members, each (member id, group instance id), out of a group.

    More than one, or one that only its group instance id names, needs version 3 (Kafka 2.4).
    """

    def build(versions: ApiVersions) -> RequestPayload:
        single = len(members) == 1 and members[0][1] is None
        version = versions.pick(Api.leave_group, 0 if single else 3, 5)
        module = request_module("leave_group", version)
        if version < 3:
            return made(module.LeaveGroupRequest(group_id=group_id, member_id=members[0][0]))
        why = {"reason": reason} if version >= 5 else {}
        return made(
            module.LeaveGroupRequest(
                group_id=group_id,
                members=tuple(
                    module.MemberIdentity(member_id=member, group_instance_id=instance, **why)
                    for member, instance in members
                ),
            )
        )

    return build


def read_leave_errors(answer: Any) -> list[ErrorCode]:
    """The errors in an answer to `leave_group`: of the request, or of its members. Empty if there are none."""
    errors = [answer.error_code, *(member.error_code for member in getattr(answer, "members", ()))]
    return [error for error in errors if error is not ErrorCode.none]


def committed_topics(
    topic_type: Any, partition_type: Any, topics: Mapping[str, Sequence[CommittedOffset]], *, with_epoch: bool
) -> tuple[Any, ...]:
    """Offsets to commit, by topic, as kio entities; for a commit of a member, or with a transaction."""
    return tuple(
        topic_type(
            name=topic,
            partitions=tuple(
                partition_type(
                    partition_index=one.partition,
                    committed_offset=one.offset,
                    committed_metadata=one.metadata,
                    **({"committed_leader_epoch": one.leader_epoch} if with_epoch else {}),
                )
                for one in committed
            ),
        )
        for topic, committed in topics.items()
    )


def offset_commit(
    group_id: str,
    offsets: Iterable[CommittedOffset],
    *,
    generation: int = -1,
    member_id: str = "",
    group_instance_id: str | None = None,
) -> Build:
    """Commit offsets. The answer has one error per partition. Leader epochs are left out before version 6 (Kafka 2.1).

    Topics are named (version 9 at most), so that a commit does not depend on metadata.
    """
    topics_offsets = grouped_by_topic(offsets)

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.offset_commit, 2 if group_instance_id is None else 7, 9)
        module = request_module("offset_commit", version)
        fields = _instance(group_instance_id, known=version >= 7)
        if version <= 4:
            fields["retention_time"] = milliseconds(-1)  # the broker's own
        topics = committed_topics(
            module.OffsetCommitRequestTopic,
            module.OffsetCommitRequestPartition,
            topics_offsets,
            with_epoch=version >= 6,
        )
        return made(
            module.OffsetCommitRequest(
                group_id=group_id,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                topics=topics,
                **fields,
            )
        )

    return build


def read_offset_commit(answer: Any) -> Iterator[tuple[str, int, ErrorCode]]:
    """The (topic, partition, error) of every partition in the answer to `offset_commit`."""
    for topic in answer.topics:
        for partition in topic.partitions:
            yield topic.name, partition.partition_index, partition.error_code


def offset_fetch(
    group_id: str,
    partitions: Iterable[tuple[str, int]] | None,
    *,
    require_stable: bool = False,
    member_id: str | None = None,
    member_epoch: int = -1,
) -> Build:
    """The group's committed offsets of these partitions; None: of all that have one (version 2, Kafka 0.10.2).

    With `require_stable`, an offset that an open transaction may change is a retriable error (version 7, Kafka 2.5;
    older brokers answer with the offset before the transaction). A KIP-848 member gives its member id (version 9).
    """
    wanted = None if partitions is None else by_topic(partitions)

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.offset_fetch, 2 if wanted is None else 1, 9)
        module = request_module("offset_fetch", version)
        fields: dict[str, Any] = {"require_stable": require_stable} if version >= 7 else {}
        topic_type = module.OffsetFetchRequestTopics if version >= 8 else module.OffsetFetchRequestTopic
        topics = None
        if wanted is not None:
            topics = tuple(topic_type(name=topic, partition_indexes=numbers) for topic, numbers in wanted.items())
        if version < 8:
            return made(module.OffsetFetchRequest(group_id=group_id, topics=topics, **fields))
        who = {"member_id": member_id, "member_epoch": member_epoch} if version >= 9 else {}
        group = module.OffsetFetchRequestGroup(group_id=group_id, topics=topics, **who)
        return made(module.OffsetFetchRequest(groups=(group,), **fields))

    return build


def read_offset_fetch(answer: Any) -> tuple[ErrorCode, list[CommittedOffset]]:
    """The answer to `offset_fetch`: the error of the group as a whole, and the partitions, each with its own."""
    group = answer.groups[0] if hasattr(answer, "groups") else answer
    return getattr(group, "error_code", ErrorCode.none), [
        CommittedOffset(
            topic.name,
            partition.partition_index,
            partition.committed_offset,
            getattr(partition, "committed_leader_epoch", -1),
            partition.metadata or "",
            partition.error_code,
        )
        for topic in group.topics
        for partition in topic.partitions
    ]


def _instance(group_instance_id: str | None, *, known: bool) -> dict[str, Any]:
    return {"group_instance_id": group_instance_id} if known else {}
