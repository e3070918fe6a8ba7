"""AlterClientQuotas (KIP-546): this broker has no quotas. To set one is refused, to remove one changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.alter_client_quotas
VERSIONS: Final = range(2)


def handle(context: Context, request: Request) -> Answer:
    """Each entity has its own result."""
    del context
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    entries = []
    first = ErrorCode.none
    for entry in asked.entries:
        sets = [operation.key for operation in entry.ops if not operation.remove]
        error = ErrorCode.unsupported_version if sets else ErrorCode.none
        first = first or error
        entries.append(
            schema.make(
                "EntryData",
                error_code=error,
                error_message=f"{', '.join(sets)}: this broker has no quotas" if sets else None,
                entity=tuple(
                    schema.make("EntityData", entity_type=entity.entity_type, entity_name=entity.entity_name)
                    for entity in entry.entity
                ),
            )
        )
    return Answer([schema.encode(throttle_time=NO_THROTTLE, entries=tuple(entries))], first)
