"""ElectLeaders (KIP-460): lets the preferred replica lead, which is the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker
    from ingestd.broker.messages import Messages
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context
    from ingestd.broker.topics import Topic

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
        results = tuple(_all_of(context.broker, schema, topic, kind) for topic in context.broker.storage.topics)
    elif not error:
        results = tuple(
            schema.make(
                "ReplicaElectionResult",
                topic=topic.topic,
                partition_result=tuple(
                    _result(context.broker, schema, topic.topic, partition, kind) for partition in topic.partitions
                ),
            )
            for topic in asked.topic_partitions
        )
    first = error or next((one.error_code for topic in results for one in topic.partition_result), ErrorCode.none)
    body = schema.encode(throttle_time=NO_THROTTLE, error_code=error, replica_election_results=results)
    return Answer([body], first)


def _all_of(broker: Broker, schema: Messages, topic: Topic, kind: int) -> Any:
    results = (_result(broker, schema, topic.name, partition, kind) for partition in range(topic.partitions))
    needed = tuple(one for one in results if one.error_code is not ErrorCode.election_not_needed)
    return schema.make("ReplicaElectionResult", topic=topic.name, partition_result=needed)


def _result(broker: Broker, schema: Messages, topic: str, partition: int, kind: int) -> Any:
    error: ErrorCode = ErrorCode.none
    says = None
    try:
        broker.cluster.elect(topic, partition, preferred=kind == _PREFERRED)
    except KafkaError as refused:
        error, says = refused.code, refused.detail
    return schema.make("PartitionResult", partition_id=partition, error_code=error, error_message=says)
