"""LeaveGroup: members go, each named by its member id or its group instance id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer, when_done
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.broker.groups.consumer_group import Removal
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

API: Final = Api.leave_group
VERSIONS: Final = range(6)

_FIRST_WITH_MEMBERS: Final = 3


def handle(context: Context, request: Request) -> Handled:
    """Each member has its own result from version 3 on; before, there is one member."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    several = request.version >= _FIRST_WITH_MEMBERS
    members = asked.members if several else (asked,)
    leaving = [(member.member_id, getattr(member, "group_instance_id", None)) for member in members]
    try:
        waiting = context.members_partition(asked.group_id).leave(asked.group_id, leaving)
    except KafkaError as refused:
        return _answer(schema, (), refused.code, several=several)
    return when_done(waiting, lambda results: _answer(schema, results, ErrorCode.none, several=several))


def _answer(schema: Messages, results: Sequence[Removal], error: ErrorCode, *, several: bool) -> Answer:
    first = error or next((code for _member_id, _instance_id, code in results if code), ErrorCode.none)
    told = tuple(
        schema.make("MemberResponse", member_id=member_id, group_instance_id=instance_id, error_code=code)
        for member_id, instance_id, code in (results if several else ())
    )
    body = schema.encode(throttle_time=NO_THROTTLE, error_code=error if several else first, members=told)
    return Answer([body], first)
