"""DeleteTopics: by name, or by id from version 6 on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.broker.topics import check_not_internal
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from uuid import UUID

    from ingestd.broker.broker import Broker
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.delete_topics
VERSIONS: Final = range(1, 7)

_FIRST_BY_ID: Final = 6


def handle(context: Context, request: Request) -> Answer:
    """Each topic has its own result. When this is answered, the name is free for a new topic."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    if request.version >= _FIRST_BY_ID:
        wanted = [(topic.name, topic.topic_id) for topic in asked.topics]
    else:
        wanted = [(name, None) for name in asked.topic_names]
    results = []
    first = ErrorCode.none
    for name, topic_id in wanted:
        error = _delete(broker, name, topic_id)
        first = first or error.code
        results.append(_result(schema, error, name, topic_id))
    return Answer([schema.encode(throttle_time=NO_THROTTLE, responses=tuple(results))], first)


def _delete(broker: Broker, name: str | None, topic_id: UUID | None) -> KafkaError:
    try:
        topic = broker.topic_with_id(topic_id) if name is None else broker.topic_named(name)
        check_not_internal(topic.name, "deleted")
        broker.storage.delete(topic)
        broker.groups.topic_deleted(topic.name)
    except KafkaError as error:
        return error
    return KafkaError(ErrorCode.none)


def _result(schema: Any, error: KafkaError, name: str | None, topic_id: UUID | None) -> Any:
    return schema.make(
        "DeletableTopicResult",
        name=name,
        topic_id=topic_id,
        error_code=error.code,
        error_message=error.detail or None,
    )
