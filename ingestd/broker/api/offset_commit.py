"""OffsetCommit: what a group has processed. Answered when it is in the log, and on the disk with `Flush.always`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.api.offsets_to_commit import offsets_to_commit
from ingestd.broker.messages import NO_THROTTLE, Messages, messages, named_as
from ingestd.broker.request import Answer, when_done
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
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
    by_id = request.version >= _FIRST_WITH_TOPIC_ID
    offsets, refused = offsets_to_commit(context.broker, asked.topics, by_id=by_id)
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
