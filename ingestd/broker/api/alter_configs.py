"""AlterConfigs: replaces all configurations of a topic. Those that are not named get their defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.configs.alteration import alter
from ingestd.broker.configs.changes import replaced
from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.alter_configs
VERSIONS: Final = range(3)


def handle(context: Context, request: Request) -> Answer:
    """Each resource has its own result."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    outcomes = alter(
        context, asked.resources, lambda _before, changes: replaced(changes), validate_only=asked.validate_only
    )
    responses = tuple(
        schema.make(
            "AlterConfigsResourceResponse",
            error_code=outcome.code,
            error_message=outcome.detail or None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource, outcome in zip(asked.resources, outcomes, strict=True)
    )
    first = next((outcome.code for outcome in outcomes if outcome.code), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, responses=responses)], first)
