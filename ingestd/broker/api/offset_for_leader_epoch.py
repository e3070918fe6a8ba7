"""OffsetForLeaderEpoch (KIP-320): where an epoch ended. By that a consumer notices that records it read are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.offset_for_leader_epoch
VERSIONS: Final = range(2, 5)


def handle(context: Context, request: Request) -> Answer:
    """Each partition has its own result."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    topics = tuple(
        schema.make(
            "OffsetForLeaderTopicResult",
            topic=topic.topic,
            partitions=tuple(_end_of_epoch(context, schema, topic.topic, partition) for partition in topic.partitions),
        )
        for topic in asked.topics
    )
    first = next((p.error_code for topic in topics for p in topic.partitions if p.error_code), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, topics=topics)], first)


def _end_of_epoch(context: Context, schema: Messages, topic: str, asked: Any) -> Any:
    epoch, end_offset, error = -1, -1, ErrorCode.none
    try:
        log = context.led(topic, asked.partition).log
        log.check_leader_epoch(asked.current_leader_epoch)
        epoch, end_offset = log.end_of_epoch(asked.leader_epoch)
    except KafkaError as refused:
        error = refused.code
    return schema.make(
        "EpochEndOffset", error_code=error, partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
    )
