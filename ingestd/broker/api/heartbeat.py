"""Heartbeat: a member of a classic group lives. The answer tells it whether to join again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.heartbeat
VERSIONS: Final = range(5)


def handle(context: Context, request: Request) -> Answer:
    """Answered at once."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    group_id = asked.group_id
    try:
        error = context.members_partition(group_id).heartbeat(
            group_id, asked.member_id, getattr(asked, "group_instance_id", None), asked.generation_id
        )
    except KafkaError as refused:
        error = refused.code
    return Answer([schema.encode(throttle_time=NO_THROTTLE, error_code=error)], error)
