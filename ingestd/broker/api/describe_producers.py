"""DescribeProducers (KIP-664): who writes to a partition, and where the transactions begin that are open there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer
from ingestd.broker.topics import check_topic_name
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.log.producer_state import ActiveProducer
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.describe_producers
VERSIONS: Final = range(1)


def handle(context: Context, request: Request) -> Answer:
    """Each partition has its own result. Any node that has the partition answers, not only its leader."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    first = ErrorCode.none
    topics = []
    for topic in asked.topics:
        partitions = tuple(_partition(context, schema, topic.name, number) for number in topic.partition_indexes)
        first = first or next((one.error_code for one in partitions if one.error_code), ErrorCode.none)
        topics.append(schema.make("TopicResponse", name=topic.name, partitions=partitions))
    return Answer([schema.encode(throttle_time=NO_THROTTLE, topics=tuple(topics))], first)


def _partition(context: Context, schema: Messages, topic: str, number: int) -> Any:
    error, message = ErrorCode.none, None
    producers: tuple[Any, ...] = ()
    try:
        check_topic_name(topic)
        producers = tuple(_producer(schema, one) for one in context.replica(topic, number).log.producers)
    except KafkaError as refused:
        error, message = refused.code, refused.detail
    return schema.make(
        "PartitionResponse",
        partition_index=number,
        error_code=error,
        error_message=message,
        active_producers=producers,
    )


def _producer(schema: Messages, producer: ActiveProducer) -> Any:
    return schema.make(
        "ProducerState",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.timestamp_ms,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.first_offset,
    )
