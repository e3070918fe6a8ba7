"""ListGroups: every group of this broker (KIP-518: by state, KIP-848: by type)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.broker.topics import OFFSETS_TOPIC
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.list_groups
VERSIONS: Final = range(6)


def handle(context: Context, request: Request) -> Answer:
    """The groups that this node coordinates. Those that are not loaded yet are missing, and the error says so."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    states = {state.lower() for state in getattr(asked, "states_filter", ())}
    types = {name.lower() for name in getattr(asked, "types_filter", ())}
    error = ErrorCode.none
    groups = []
    for partition in broker.groups.partitions:
        error = error or partition.refusal or ErrorCode.none
        for group in partition:
            if not broker.cluster.coordinates(context.node, OFFSETS_TOPIC, group.id):
                continue
            if (states and group.state.lower() not in states) or (types and group.kind not in types):
                continue
            groups.append(
                schema.make(
                    "ListedGroup",
                    group_id=group.id,
                    protocol_type=group.protocol_type,
                    group_state=group.state,
                    group_type=group.kind,
                )
            )
    return Answer([schema.encode(throttle_time=NO_THROTTLE, error_code=error, groups=tuple(groups))], error)
