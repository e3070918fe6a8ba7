"""DeleteGroups: groups without members, with all their offsets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

API: Final = Api.delete_groups
VERSIONS: Final = range(3)


def handle(context: Context, request: Request) -> Handled:
    """Each group has its own result. Answered when it is in the log."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    outcomes: dict[str, ErrorCode | asyncio.Future[ErrorCode]] = {}
    for group_id in asked.groups_names:
        if group_id in outcomes:
            continue
        try:
            outcomes[group_id] = _delete(context, group_id)
        except KafkaError as refused:
            outcomes[group_id] = refused.code
    return _wait(schema, outcomes)


def _delete(context: Context, group_id: str) -> asyncio.Future[ErrorCode]:
    partition = context.group_partition(group_id)
    group = partition.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.group_id_not_found, group_id)
    if not group.vacant:
        raise KafkaError(ErrorCode.non_empty_group, f"{group_id!r} has members")
    return partition.delete_group(group)


async def _wait(schema: Messages, outcomes: dict[str, ErrorCode | asyncio.Future[ErrorCode]]) -> Answer:
    results = []
    first = ErrorCode.none
    for group_id, outcome in outcomes.items():
        error = await outcome if isinstance(outcome, asyncio.Future) else outcome
        first = first or error
        results.append(schema.make("DeletableGroupResult", group_id=group_id, error_code=error))
    return Answer([schema.encode(throttle_time=NO_THROTTLE, results=tuple(results))], first)
