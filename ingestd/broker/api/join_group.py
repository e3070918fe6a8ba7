"""JoinGroup: to become a member of a classic group, or to take part in its rebalance."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.groups.classic_values import Join, Joined
from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer, when_done
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

API: Final = Api.join_group
VERSIONS: Final = range(10)

_FIRST_WITH_REBALANCE_TIMEOUT: Final = 1
_FIRST_THAT_MUST_KNOW_ITS_ID: Final = 4
_FIRST_WITH_NULL_PROTOCOL: Final = 7
_FIRST_WITH_SKIPPED_ASSIGNMENT: Final = 9


def handle(context: Context, request: Request) -> Handled:
    """Answered when the join phase is over."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    try:
        join = _read(context, request, asked)
        waiting = context.members_partition(asked.group_id).join(asked.group_id, join)
    except KafkaError as refused:
        return _answer(schema, request.version, Joined(refused.code, asked.member_id))
    return when_done(waiting, lambda joined: _answer(schema, request.version, joined))


def _read(context: Context, request: Request, asked: Any) -> Join:
    settings = context.broker.settings
    session_timeout = asked.session_timeout.total_seconds()
    if not settings.min_session_timeout <= session_timeout <= settings.max_session_timeout:
        raise KafkaError(ErrorCode.invalid_session_timeout, f"{session_timeout} s")
    known = request.version >= _FIRST_WITH_REBALANCE_TIMEOUT
    client_id = request.client_id or ""
    instance_id = getattr(asked, "group_instance_id", None)
    return Join(
        asked.member_id,
        instance_id,
        client_id,
        f"/{context.session.peer_host}",
        session_timeout,
        max(0.0, asked.rebalance_timeout.total_seconds()) if known else session_timeout,
        asked.protocol_type,
        tuple((protocol.name, protocol.metadata) for protocol in asked.protocols),
        f"{instance_id or client_id}-{uuid.uuid4()}",
        must_know_id=request.version >= _FIRST_THAT_MUST_KNOW_ITS_ID,
        can_skip_assignment=request.version >= _FIRST_WITH_SKIPPED_ASSIGNMENT,
    )


def _answer(schema: Messages, version: int, joined: Joined) -> Answer:
    nothing = None if version >= _FIRST_WITH_NULL_PROTOCOL else ""
    body = schema.encode(
        throttle_time=NO_THROTTLE,
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=nothing if joined.protocol is None else joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=tuple(
            schema.make(
                "JoinGroupResponseMember", member_id=member_id, group_instance_id=instance_id, metadata=metadata
            )
            for member_id, instance_id, metadata in joined.members
        ),
    )
    return Answer([body], joined.error)
