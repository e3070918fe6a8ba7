"""OffsetFetch: what a group has committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, Messages, messages, named_as
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.broker.broker import Broker
    from ingestd.broker.coordinator.records import Committed
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.offset_fetch
VERSIONS: Final = range(1, 11)

_FIRST_WITH_ERROR: Final = 2
_FIRST_WITH_GROUPS: Final = 8
_FIRST_WITH_MEMBER: Final = 9
_FIRST_WITH_TOPIC_ID: Final = 10


def handle(context: Context, request: Request) -> Answer:
    """Each group has its own result from version 8 on; before, there is one group."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    if request.version < _FIRST_WITH_GROUPS:
        stable = getattr(asked, "require_stable", False)
        topics, error = _group(context, schema, request.version, asked, stable=stable)
        if error and request.version < _FIRST_WITH_ERROR:
            topics = _all_refused(schema, asked.topics, error)
        return Answer([schema.encode(throttle_time=NO_THROTTLE, topics=topics, error_code=error)], error)
    groups = []
    first = ErrorCode.none
    for group in asked.groups:
        topics, error = _group(context, schema, request.version, group, stable=asked.require_stable)
        first = first or error
        groups.append(schema.make("OffsetFetchResponseGroup", group_id=group.group_id, topics=topics, error_code=error))
    return Answer([schema.encode(throttle_time=NO_THROTTLE, groups=tuple(groups))], first)


def _group(
    context: Context, schema: Messages, version: int, asked: Any, *, stable: bool
) -> tuple[tuple[Any, ...], ErrorCode]:
    """`stable`: an offset that hangs on an open transaction is an error."""
    broker = context.broker
    try:
        place = context.group_partition(asked.group_id)
        group = place.get(asked.group_id)
        if group is not None and version >= _FIRST_WITH_MEMBER:
            group.check_fetch(asked.member_id, asked.member_epoch)
    except KafkaError as refused:
        return (), refused.code
    offsets = {} if group is None else group.offsets
    if asked.topics is not None:
        wanted = [(named_as(topic), topic.partition_indexes) for topic in asked.topics]
    else:
        wanted = list(_all(broker, version, offsets).items())
    topics = []
    for named, numbers in wanted:
        known = broker.storage.topics.identified(named) if version >= _FIRST_WITH_TOPIC_ID else None
        error = ErrorCode.unknown_topic_id if version >= _FIRST_WITH_TOPIC_ID and known is None else ErrorCode.none
        name = named if known is None else known.name
        partitions = tuple(
            _partition(schema, number, None, ErrorCode.unstable_offset_commit)
            if stable and place.unstable(asked.group_id, (name, number))
            else _partition(schema, number, offsets.get((name, number)), error)
            for number in numbers
        )
        topics.append(_topic(schema, named, partitions))
    return tuple(topics), ErrorCode.none


def _all(broker: Broker, version: int, offsets: Mapping[tuple[str, int], Committed]) -> dict[Any, list[int]]:
    """The partitions of all offsets, by topic as this version names it."""
    partitions: dict[Any, list[int]] = {}
    for topic, number in sorted(offsets):
        named: Any = topic
        if version >= _FIRST_WITH_TOPIC_ID:
            known = broker.storage.topics.named(topic)
            if known is None:
                continue
            named = known.topic_id
        partitions.setdefault(named, []).append(number)
    return partitions


def _all_refused(schema: Messages, topics: Any, error: ErrorCode) -> tuple[Any, ...]:
    return tuple(
        _topic(schema, topic.name, tuple(_partition(schema, number, None, error) for number in topic.partition_indexes))
        for topic in topics
    )


def _topic(schema: Messages, named: Any, partitions: tuple[Any, ...]) -> Any:
    entity = "OffsetFetchResponseTopics" if schema.has("OffsetFetchResponseTopics") else "OffsetFetchResponseTopic"
    return schema.make(entity, name=named, topic_id=named, partitions=partitions)


def _partition(schema: Messages, number: int, committed: Committed | None, error: ErrorCode) -> Any:
    several = schema.has("OffsetFetchResponsePartitions")
    return schema.make(
        "OffsetFetchResponsePartitions" if several else "OffsetFetchResponsePartition",
        partition_index=number,
        committed_offset=-1 if committed is None else committed.offset,
        committed_leader_epoch=-1 if committed is None else committed.leader_epoch,
        metadata="" if committed is None else committed.metadata,
        error_code=error,
    )
