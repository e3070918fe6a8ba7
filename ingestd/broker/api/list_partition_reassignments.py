"""ListPartitionReassignments (KIP-455): nothing is ever being moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.list_partition_reassignments
VERSIONS: Final = range(1)


def handle(context: Context, request: Request) -> Answer:
    """No topic is named, whatever was asked for."""
    del context
    schema = messages(API, request.version)
    schema.decode(request.body)
    body = schema.encode(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, topics=())
    return Answer([body])
