"""CreateTopics: checks each topic, and creates those that pass in one durable step."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.broker.storage import NewTopic
from ingestd.broker.topic_config import described_topic
from ingestd.broker.topics import check_not_internal
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.broker.broker import Broker
    from ingestd.broker.messages import Messages
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context
    from ingestd.broker.topics import Topic

API: Final = Api.create_topics
VERSIONS: Final = range(2, 8)


def handle(context: Context, request: Request) -> Answer:
    """Topics that exist, are asked for twice, or are wrong in any way, are refused. The others are created."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    twice = {name for name, times in Counter(topic.name for topic in asked.topics).items() if times > 1}
    new: dict[str, NewTopic] = {}
    errors: dict[str, KafkaError] = {}
    for topic in asked.topics:
        try:
            new[topic.name] = _check(broker, topic, twice)
        except KafkaError as error:
            errors[topic.name] = error
    if new and not asked.validate_only:
        try:
            broker.storage.create(new.values())
            _assign(broker, [topic for topic in asked.topics if topic.name in new])
        except KafkaError as error:
            errors.update(dict.fromkeys(new, error))
    results = [
        _refused(schema, name, errors[name])
        if name in errors
        else _created(broker, schema, new[name].topic, validate_only=asked.validate_only)
        for name in dict.fromkeys(topic.name for topic in asked.topics)
    ]
    first = next((error.code for error in errors.values()), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, topics=tuple(results))], first)


def _check(broker: Broker, topic: Any, twice: set[str]) -> NewTopic:
    if topic.name in twice:
        raise KafkaError(ErrorCode.invalid_request, "named twice in one request")
    if broker.storage.topics.named(topic.name) is not None:
        raise KafkaError(ErrorCode.topic_already_exists, f"topic {topic.name!r} exists")
    check_not_internal(topic.name, "created")
    broker.storage.topics.check_no_collision(topic.name)
    partitions = topic.num_partitions
    if topic.assignments:
        partitions = _partitions_assigned(broker, topic)
    replication = _replication(broker, topic)
    config = {entry.name: entry.value for entry in topic.configs}
    if partitions == -1:
        partitions = broker.settings.default_partitions
    return NewTopic(topic.name, partitions, config, broker.settings.topic_defaults, replication)


def _replication(broker: Broker, topic: Any) -> int:
    if topic.assignments:
        return len(topic.assignments[0].broker_ids)
    nodes = len(broker.cluster.nodes)
    if topic.replication_factor == -1:
        return nodes
    if not 1 <= topic.replication_factor <= nodes:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"replication factor {topic.replication_factor}: there are {nodes} nodes",
        )
    return int(topic.replication_factor)


def _partitions_assigned(broker: Broker, topic: Any) -> int:
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise KafkaError(ErrorCode.invalid_request, "both an assignment and a number of partitions or replicas")
    numbers = sorted(assignment.partition_index for assignment in topic.assignments)
    if numbers != list(range(len(numbers))):
        raise KafkaError(ErrorCode.invalid_replica_assignment, f"partitions {numbers} are not 0 to {len(numbers) - 1}")
    for assignment in topic.assignments:
        broker.cluster.check_nodes(assignment.broker_ids)
    return len(numbers)


def _assign(broker: Broker, topics: Iterable[Any]) -> None:
    for topic in topics:
        for assignment in topic.assignments:
            broker.cluster.assign(topic.name, assignment.partition_index, assignment.broker_ids)


def _refused(schema: Messages, name: str, error: KafkaError) -> Any:
    return schema.make(
        "CreatableTopicResult",
        name=name,
        topic_id=None,
        error_code=error.code,
        error_message=error.detail,
        num_partitions=-1,
        replication_factor=-1,
        configs=(),
    )


def _created(broker: Broker, schema: Messages, topic: Topic, *, validate_only: bool) -> Any:
    return schema.make(
        "CreatableTopicResult",
        name=topic.name,
        topic_id=None if validate_only else topic.topic_id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=topic.partitions,
        replication_factor=topic.replication,
        configs=tuple(
            schema.make(
                "CreatableTopicConfigs",
                name=one.name,
                value=one.value,
                read_only=False,
                config_source=one.source,
                is_sensitive=False,
            )
            for one in described_topic(topic.config, broker.settings.topic_defaults)
        )
        if schema.has("CreatableTopicConfigs")
        else (),
    )
