"""AlterPartitionReassignments (KIP-455): moves replicas. A move is done when it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.alter_partition_reassignments
VERSIONS: Final = range(2)


def handle(context: Context, request: Request) -> Answer:
    """Each partition has its own result."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    first = ErrorCode.none
    responses: list[Any] = []
    for topic in asked.topics:
        partitions = []
        for partition in topic.partitions:
            error = _outcome(context.broker, topic.name, partition)
            first = first or error.code
            partitions.append(
                schema.make(
                    "ReassignablePartitionResponse",
                    partition_index=partition.partition_index,
                    error_code=error.code,
                    error_message=error.detail or None,
                )
            )
        responses.append(schema.make("ReassignableTopicResponse", name=topic.name, partitions=tuple(partitions)))
    body = schema.encode(
        throttle_time=NO_THROTTLE,
        allow_replication_factor_change=getattr(asked, "allow_replication_factor_change", True),
        error_code=ErrorCode.none,
        error_message=None,
        responses=tuple(responses),
    )
    return Answer([body], first)


def _outcome(broker: Broker, topic: str, asked: Any) -> KafkaError:
    if broker.storage.partition(topic, asked.partition_index) is None:
        name = f"{topic}-{asked.partition_index}"
        return KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no partition {name}")
    if asked.replicas is None:
        return KafkaError(ErrorCode.no_reassignment_in_progress, "nothing is being moved")
    try:
        broker.cluster.move(topic, asked.partition_index, asked.replicas)
    except KafkaError as error:
        return error
    return KafkaError(ErrorCode.none)
