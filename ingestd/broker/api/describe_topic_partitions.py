"""DescribeTopicPartitions (KIP-966): topics with their partitions, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.broker.topics import is_internal
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker
    from ingestd.broker.messages import Messages
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.describe_topic_partitions
VERSIONS: Final = range(1)

_MOST: Final = 2000
"""Partitions in one answer, as in Kafka (`max.request.partition.size.limit`)."""


def handle(context: Context, request: Request) -> Answer:
    """By name, from the cursor on. If there are more partitions, the answer has the cursor of the next page."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    begin, first_partition = "", 0
    if asked.cursor is not None:
        begin, first_partition = asked.cursor.topic_name, asked.cursor.partition_index
    names = {topic.name for topic in asked.topics} or {topic.name for topic in broker.storage.topics}
    room = max(1, min(asked.response_partition_limit, _MOST))
    topics: list[Any] = []
    following: Any = None
    for name in sorted(name for name in names if name >= begin):
        topic = broker.storage.topics.named(name)
        if topic is None:
            topics.append(_unknown(schema, name))
            continue
        start = first_partition if name == begin else 0
        end = min(topic.partitions, start + room)
        if room:
            topics.append(_known(broker, schema, name, range(start, end)))
            room -= max(0, end - start)
        if end < topic.partitions:
            following = schema.make("Cursor", topic_name=name, partition_index=end)
            break
    body = schema.encode(throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=following)
    return Answer([body], next((topic.error_code for topic in topics if topic.error_code), ErrorCode.none))


def _unknown(schema: Messages, name: str) -> Any:
    return schema.make(
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.unknown_topic_or_partition,
        name=name,
        topic_id=None,
        is_internal=False,
        partitions=(),
    )


def _known(broker: Broker, schema: Messages, name: str, numbers: range) -> Any:
    topic = broker.topic_named(name)
    placements = ((number, broker.cluster.placement(name, number)) for number in numbers)
    return schema.make(
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.none,
        name=name,
        topic_id=topic.topic_id,
        is_internal=is_internal(name),
        partitions=tuple(
            schema.make(
                "DescribeTopicPartitionsResponsePartition",
                error_code=ErrorCode.none,
                partition_index=number,
                leader_id=placement.leader,
                leader_epoch=broker.partition(name, number).log.leader_epoch,
                replica_nodes=placement.replicas,
                isr_nodes=placement.replicas,
                eligible_leader_replicas=(),
                last_known_elr=(),
                offline_replicas=(),
            )
            for number, placement in placements
        ),
    )
