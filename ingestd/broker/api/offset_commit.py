"""OffsetCommit: what a group has processed. Answered when it is in the log, and on the disk with `Flush.always`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.coordinator.records import Committed
from ingestd.broker.messages import NO_THROTTLE, Messages, messages, named_as
from ingestd.broker.request import Answer, when_done
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

API: Final = Api.offset_commit
VERSIONS: Final = range(2, 11)

_FIRST_WITH_NOT_FOUND: Final = 9
_FIRST_WITH_TOPIC_ID: Final = 10


def handle(context: Context, request: Request) -> Handled:
    """Each partition has its own result."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    offsets, refused = _read(context.broker, request.version, asked)
    member = (
        asked.member_id,
        getattr(asked, "group_instance_id", None),
        asked.generation_id_or_member_epoch,
    )
    try:
        place = context.group_partition(asked.group_id)
        waiting = place.commit(asked.group_id, member, offsets, request.version)
    except KafkaError as error:
        unknown = error.code is ErrorCode.group_id_not_found and request.version < _FIRST_WITH_NOT_FOUND
        return _answer(schema, asked, refused, ErrorCode.illegal_generation if unknown else error.code)
    return when_done(waiting, lambda error: _answer(schema, asked, refused, error))


def _read(
    broker: Broker, version: int, asked: Any
) -> tuple[dict[tuple[str, int], Committed], dict[tuple[object, int], ErrorCode]]:
    """What can be committed, and why the rest can not: by topic name or id, as the request has it, and partition."""
    now_ms = int(broker.clock.wall() * 1000)
    offsets: dict[tuple[str, int], Committed] = {}
    refused: dict[tuple[object, int], ErrorCode] = {}
    for topic in asked.topics:
        named = topic.topic_id if version >= _FIRST_WITH_TOPIC_ID else topic.name
        try:
            known = broker.topic_with_id(named) if version >= _FIRST_WITH_TOPIC_ID else broker.topic_named(named)
        except KafkaError as error:
            refused.update({(named, one.partition_index): error.code for one in topic.partitions})
            continue
        for one in topic.partitions:
            metadata = one.committed_metadata or ""
            if one.partition_index >= known.partitions or one.partition_index < 0:
                refused[named, one.partition_index] = ErrorCode.unknown_topic_or_partition
            elif len(metadata.encode()) > broker.settings.offset_metadata_bytes:
                refused[named, one.partition_index] = ErrorCode.offset_metadata_too_large
            else:
                offsets[known.name, one.partition_index] = Committed(
                    one.committed_offset, getattr(one, "committed_leader_epoch", -1), metadata, now_ms
                )
    return offsets, refused


def _answer(schema: Messages, asked: Any, refused: dict[tuple[object, int], ErrorCode], error: ErrorCode) -> Answer:
    topics = []
    for topic in asked.topics:
        named = named_as(topic)
        partitions = tuple(
            schema.make(
                "OffsetCommitResponsePartition",
                partition_index=one.partition_index,
                error_code=refused.get((named, one.partition_index), error),
            )
            for one in topic.partitions
        )
        topics.append(schema.make("OffsetCommitResponseTopic", name=named, topic_id=named, partitions=partitions))
    first = error or next(iter(refused.values()), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, topics=tuple(topics))], first)
