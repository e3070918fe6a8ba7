"""ElectLeaders (KIP-460): every partition is led by the node that shall lead it. So no election is ever needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker
    from ingestd.broker.messages import Messages
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.elect_leaders
VERSIONS: Final = range(3)

_PREFERRED: Final = 0
_UNCLEAN: Final = 1


def handle(context: Context, request: Request) -> Answer:
    """If all partitions are asked for, those that need no election are left out, as in Kafka."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    kind = getattr(asked, "election_type", _PREFERRED)
    error = ErrorCode.none if kind in {_PREFERRED, _UNCLEAN} else ErrorCode.invalid_request
    results: tuple[Any, ...] = ()
    if not error and asked.topic_partitions is None:
        names = [topic.name for topic in context.broker.storage.topics]
        results = tuple(schema.make("ReplicaElectionResult", topic=name, partition_result=()) for name in names)
    elif not error:
        results = tuple(
            schema.make(
                "ReplicaElectionResult",
                topic=topic.topic,
                partition_result=tuple(
                    _result(context.broker, schema, topic.topic, partition) for partition in topic.partitions
                ),
            )
            for topic in asked.topic_partitions
        )
    first = error or next((one.error_code for topic in results for one in topic.partition_result), ErrorCode.none)
    body = schema.encode(throttle_time=NO_THROTTLE, error_code=error, replica_election_results=results)
    return Answer([body], first)


def _result(broker: Broker, schema: Messages, topic: str, partition: int) -> Any:
    error, says = ErrorCode.election_not_needed, "the leader is the one that is preferred"
    if broker.storage.partition(topic, partition) is None:
        error, says = ErrorCode.unknown_topic_or_partition, f"there is no partition {topic}-{partition}"
    return schema.make("PartitionResult", partition_id=partition, error_code=error, error_message=says)
