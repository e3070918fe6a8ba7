"""DescribeUserScramCredentials (KIP-554): the users, with mechanisms and iterations. No secret is told."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode, IngestdError
from ingestd.logs import get_logger
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.security.users import Credentials
    from ingestd.broker.session import Context

API: Final = Api.describe_user_scram_credentials
VERSIONS: Final = range(1)

_log = get_logger(__name__)


def handle(context: Context, request: Request) -> Answer:
    """All users if none is named."""
    schema = messages(API, request.version)
    asked = Counter(user.name for user in schema.decode(request.body).users or ())
    try:
        users = context.broker.users.all()
    except (IngestdError, OSError) as failure:
        _log.error("users not read", error=str(failure))
        code, message = ErrorCode.kafka_storage_error, "the users could not be read"
        body = schema.encode(throttle_time=NO_THROTTLE, error_code=code, error_message=message, results=())
        return Answer([body], code)
    results = tuple(_result(schema, name, users.get(name, {}), asked[name]) for name in asked or users)
    body = schema.encode(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, results=results)
    return Answer([body], next((one.error_code for one in results if one.error_code), ErrorCode.none))


def _result(schema: Messages, name: str, credentials: Credentials, times: int) -> Any:
    code, message = ErrorCode.none, None
    if times > 1:
        code = ErrorCode.duplicate_resource
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    elif not credentials:
        code = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {name}"
    infos = tuple(
        schema.make("CredentialInfo", mechanism=mechanism, iterations=one.iterations)
        for mechanism, one in credentials.items()
        if code is ErrorCode.none
    )
    return schema.make(
        "DescribeUserScramCredentialsResult",
        user=name,
        error_code=code,
        error_message=message,
        credential_infos=infos,
    )
