"""OffsetDelete (KIP-496): committed offsets of topics that nobody in the group reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer, when_done
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker
    from ingestd.broker.groups.group import Group
    from ingestd.broker.groups.group_partition import GroupPartition
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

API: Final = Api.offset_delete
VERSIONS: Final = range(1)


def handle(context: Context, request: Request) -> Handled:
    """Each partition has its own result. Answered when it is in the log."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    try:
        place = context.members_partition(asked.group_id)
        group = _group(place, asked.group_id)
    except KafkaError as refused:
        return Answer([schema.encode(throttle_time=NO_THROTTLE, error_code=refused.code, topics=())], refused.code)
    refusals = {
        (topic.name, one.partition_index): _refusal(broker, group, topic.name, one.partition_index)
        for topic in asked.topics
        for one in topic.partitions
    }
    gone = [partition for partition, refusal in refusals.items() if not refusal]
    return when_done(place.delete_offsets(group, gone), lambda error: _answer(schema, asked, refusals, error))


def _group(place: GroupPartition, group_id: str) -> Group:
    group = place.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.group_id_not_found, group_id)
    group.check_offsets_deletable()
    return group


def _refusal(broker: Broker, group: Group, topic: str, partition: int) -> ErrorCode:
    if broker.storage.partition(topic, partition) is None:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.group_subscribed_to_topic if group.subscribes(topic) else ErrorCode.none


def _answer(schema: Messages, asked: Any, refusals: dict[tuple[str, int], ErrorCode], error: ErrorCode) -> Answer:
    topics = tuple(
        schema.make(
            "OffsetDeleteResponseTopic",
            name=topic.name,
            partitions=tuple(
                schema.make(
                    "OffsetDeleteResponsePartition",
                    partition_index=one.partition_index,
                    error_code=refusals[topic.name, one.partition_index] or error,
                )
                for one in topic.partitions
            ),
        )
        for topic in asked.topics
    )
    first = error or next(filter(None, refusals.values()), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, topics=topics)], first)
