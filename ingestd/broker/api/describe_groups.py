"""DescribeGroups: state, members and assignments of classic groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.groups.classic_values import GroupState
from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.describe_groups
VERSIONS: Final = range(7)

_FIRST_WITH_NOT_FOUND: Final = 6
_DEAD: Final = "Dead"
"""The state of a group that there is none of."""


def handle(context: Context, request: Request) -> Answer:
    """Each group has its own result."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    groups = tuple(_group(context, schema, request.version, group_id) for group_id in asked.groups)
    first = next((group.error_code for group in groups if group.error_code), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, groups=groups)], first)


def _group(context: Context, schema: Messages, version: int, group_id: str) -> Any:
    try:
        group = context.group_partition(group_id).get(group_id)
    except KafkaError as refused:
        return _none(schema, group_id, refused.code, "", None)
    if group is None or group.consumer is not None:
        told = version >= _FIRST_WITH_NOT_FOUND
        error = ErrorCode.group_id_not_found
        message = f"Group {group_id} {'not found' if group is None else 'is not a classic group'}."
        return _none(schema, group_id, error if told else ErrorCode.none, _DEAD, message if told else None)
    classic = group.classic
    # What members said is of interest under the protocol that was chosen.
    protocol = classic.protocol if classic.state is GroupState.stable else None
    return schema.make(
        "DescribedGroup",
        error_code=ErrorCode.none,
        error_message=None,
        group_id=group_id,
        group_state=classic.state.value,
        protocol_type=classic.protocol_type or "",
        protocol_data=protocol or "",
        members=tuple(
            schema.make(
                "DescribedGroupMember",
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol),
                member_assignment=member.assignment,
            )
            for member in classic.members.values()
        ),
    )


def _none(schema: Messages, group_id: str, error: ErrorCode, state: str, message: str | None) -> Any:
    return schema.make(
        "DescribedGroup",
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=(),
    )
