"""DescribeAcls (KIP-140): there is no access control, and the answer says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.describe_acls
VERSIONS: Final = range(1, 4)

_CODE: Final = ErrorCode.security_disabled
_SAYS: Final = "this broker has no access control"


def handle(context: Context, request: Request) -> Answer:
    """Refuse with SECURITY_DISABLED, as a Kafka without an authorizer."""
    del context
    schema = messages(API, request.version)
    schema.decode(request.body)
    return Answer(
        [schema.encode(throttle_time=NO_THROTTLE, error_code=_CODE, error_message=_SAYS, resources=())], _CODE
    )
