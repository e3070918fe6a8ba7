"""SyncGroup: a member gets its assignment, and the leader gives those of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.groups.classic_values import Sync, Synced
from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer, when_done
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

API: Final = Api.sync_group
VERSIONS: Final = range(6)

_FIRST_WITH_PROTOCOL: Final = 5


def handle(context: Context, request: Request) -> Handled:
    """Answered when the leader's assignment is in the log."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    if request.version >= _FIRST_WITH_PROTOCOL and (asked.protocol_type is None or asked.protocol_name is None):
        return _answer(schema, Synced(ErrorCode.inconsistent_group_protocol))
    try:
        waiting = context.members_partition(asked.group_id).sync(asked.group_id, _read(asked))
    except KafkaError as refused:
        return _answer(schema, Synced(refused.code))
    return when_done(waiting, lambda synced: _answer(schema, synced))


def _read(asked: Any) -> Sync:
    return Sync(
        asked.member_id,
        getattr(asked, "group_instance_id", None),
        asked.generation_id,
        getattr(asked, "protocol_type", None),
        getattr(asked, "protocol_name", None),
        {each.member_id: each.assignment for each in asked.assignments},
    )


def _answer(schema: Messages, synced: Synced) -> Answer:
    body = schema.encode(
        throttle_time=NO_THROTTLE,
        error_code=synced.error,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )
    return Answer([body], synced.error)
