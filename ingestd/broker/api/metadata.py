"""Metadata: the nodes, and topics with their partitions. Topics are created here on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer
from ingestd.broker.topics import is_internal
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from uuid import UUID

    from ingestd.broker.broker import Broker
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context
    from ingestd.broker.topics import Topic

API: Final = Api.metadata
VERSIONS: Final = range(14)

_FIRST_WITH_NULL_NAME: Final = 12


def handle(context: Context, request: Request) -> Answer:
    """Answered at once, with topics that were just created."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    topics = _topics(broker, schema, asked, request.version)
    body = schema.encode(
        throttle_time=NO_THROTTLE,
        brokers=tuple(
            schema.make("MetadataResponseBroker", node_id=node.id, host=host, port=port, rack=None)
            for node in broker.cluster.nodes
            for host, port in (node.address(context.session),)
        ),
        cluster_id=broker.storage.topics.cluster_id,
        controller_id=broker.cluster.controller.id,
        topics=topics,
        error_code=ErrorCode.none,
    )
    return Answer([body], next((topic.error_code for topic in topics if topic.error_code), ErrorCode.none))


def _topics(broker: Broker, schema: Messages, asked: Any, version: int) -> tuple[Any, ...]:
    # Version 0 had no null: there, an empty list means all topics.
    if asked.topics is None or (version == 0 and not asked.topics):
        return tuple(_known(broker, schema, topic) for topic in broker.storage.topics)
    errors = {}
    if broker.settings.auto_create_topics and getattr(asked, "allow_auto_topic_creation", True):
        errors = broker.create_on_demand(topic.name for topic in asked.topics if topic.name is not None)
    topics = []
    for topic in asked.topics:
        topic_id = getattr(topic, "topic_id", None)
        by_id = topic.name is None
        found = broker.storage.topics.identified(topic_id) if by_id else broker.storage.topics.named(topic.name)
        if found is not None:
            topics.append(_known(broker, schema, found))
        elif by_id:
            # Before version 12 a name could not be null in an answer.
            nameless = None if version >= _FIRST_WITH_NULL_NAME else ""
            topics.append(_unknown(schema, ErrorCode.unknown_topic_id, nameless, topic_id))
        else:
            error = errors.get(topic.name)
            code = error.code if error else ErrorCode.unknown_topic_or_partition
            topics.append(_unknown(schema, code, topic.name, None))
    return tuple(topics)


def _known(broker: Broker, schema: Messages, topic: Topic) -> Any:
    placements = (broker.cluster.placement(topic.name, partition) for partition in range(topic.partitions))
    return schema.make(
        "MetadataResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=tuple(
            schema.make(
                "MetadataResponsePartition",
                error_code=ErrorCode.none,
                partition_index=partition,
                leader_id=placement.leader,
                leader_epoch=broker.partition(topic.name, partition).log.leader_epoch,
                replica_nodes=placement.replicas,
                isr_nodes=placement.replicas,
                offline_replicas=(),
            )
            for partition, placement in enumerate(placements)
        ),
    )


def _unknown(schema: Messages, error: ErrorCode, name: str | None, topic_id: UUID | None) -> Any:
    return schema.make(
        "MetadataResponseTopic", error_code=error, name=name, topic_id=topic_id, is_internal=False, partitions=()
    )
