"""ConsumerGroupDescribe (KIP-848): epochs, members, their assignments and their targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, Messages, by_topic_id, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.broker.groups.consumer_state import Member, Topics
    from ingestd.broker.groups.consumer_values import TopicIdPartition
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.consumer_group_describe
VERSIONS: Final = range(2)

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1
_DEAD: Final = "Dead"
_NO_OPERATIONS: Final = -(1 << 31)


def handle(context: Context, request: Request) -> Answer:
    """Each group has its own result."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    groups = tuple(_group(context, schema, group_id) for group_id in asked.group_ids)
    first = next((group.error_code for group in groups if group.error_code), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, groups=groups)], first)


def _group(context: Context, schema: Messages, group_id: str) -> Any:
    try:
        group = context.members_partition(group_id).get(group_id)
    except KafkaError as refused:
        return _refused(schema, group_id, refused.code, refused.detail or None)
    if group is None or group.consumer is None:
        why = "not found" if group is None else "is not a consumer group"
        return _refused(schema, group_id, ErrorCode.group_id_not_found, f"Group {group_id} {why}.")
    kept = group.consumer.kept
    return _described(
        schema,
        group_id,
        group_state=kept.state.value,
        group_epoch=kept.epoch,
        assignment_epoch=kept.target_epoch,
        assignor_name=group.consumer.assignor,
        members=tuple(_member(schema, context.broker.storage.topics, member) for member in kept.members.values()),
    )


def _refused(schema: Messages, group_id: str, error: ErrorCode, message: str | None) -> Any:
    return _described(schema, group_id, error_code=error, error_message=message, group_state=_DEAD)


def _described(schema: Messages, group_id: str, **fields: Any) -> Any:
    nothing = {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": (),
        "authorized_operations": _NO_OPERATIONS,
    }
    return schema.make("DescribedGroup", group_id=group_id, **{**nothing, **fields})


def _member(schema: Messages, topics: Topics, member: Member) -> Any:
    profile, held = member.profile, member.held
    return schema.make(
        "Member",
        member_id=member.id,
        instance_id=profile.instance_id,
        rack_id=profile.rack,
        member_epoch=held.epoch,
        client_id=profile.client_id,
        client_host=profile.client_host,
        subscribed_topic_names=tuple(sorted(profile.topics)),
        subscribed_topic_regex=profile.pattern,
        # What it is asked to give up it still has.
        assignment=_assignment(schema, topics, (*held.assigned, *held.revoking)),
        target_assignment=_assignment(schema, topics, member.target or ()),
        member_type=_CONSUMER_MEMBER if profile.classic is None else _CLASSIC_MEMBER,
    )


def _assignment(schema: Messages, topics: Topics, partitions: Iterable[TopicIdPartition]) -> Any:
    """Topics that were deleted meanwhile have no name, and are left out."""
    named = (
        schema.make("TopicPartitions", topic_id=topic_id, topic_name=topic.name, partitions=numbers)
        for topic_id, numbers in by_topic_id(partitions)
        if (topic := topics.identified(topic_id)) is not None
    )
    return schema.make("Assignment", topic_partitions=tuple(named))
