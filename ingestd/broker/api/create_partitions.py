"""CreatePartitions: a topic grows; it never shrinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.broker.storage import MAX_PARTITIONS
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.create_partitions
VERSIONS: Final = range(4)


def handle(context: Context, request: Request) -> Answer:
    """Each topic has its own result."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    results = []
    first = ErrorCode.none
    for topic in asked.topics:
        error = _grow(broker, topic, validate_only=asked.validate_only)
        first = first or error.code
        results.append(
            schema.make(
                "CreatePartitionsTopicResult",
                name=topic.name,
                error_code=error.code,
                error_message=error.detail or None,
            )
        )
    return Answer([schema.encode(throttle_time=NO_THROTTLE, results=tuple(results))], first)


def _grow(broker: Broker, asked: Any, *, validate_only: bool) -> KafkaError:
    topic = broker.storage.topics.named(asked.name)
    if topic is None:
        return KafkaError(ErrorCode.unknown_topic_or_partition, asked.name)
    if not topic.partitions < asked.count <= MAX_PARTITIONS:
        return KafkaError(
            ErrorCode.invalid_partitions,
            f"{asked.count} partitions: expected more than {topic.partitions} and at most {MAX_PARTITIONS}",
        )
    if asked.assignments is not None:
        if len(asked.assignments) != asked.count - topic.partitions:
            return KafkaError(ErrorCode.invalid_replica_assignment, "one assignment per new partition is expected")
        try:
            for assignment in asked.assignments:
                broker.cluster.check_nodes(assignment.broker_ids)
        except KafkaError as error:
            return error
    if not validate_only:
        try:
            broker.storage.add_partitions(topic, asked.count)
            for number, assignment in enumerate(asked.assignments or (), topic.partitions):
                broker.cluster.assign(asked.name, number, assignment.broker_ids)
        except KafkaError as error:
            return error
    return KafkaError(ErrorCode.none)
