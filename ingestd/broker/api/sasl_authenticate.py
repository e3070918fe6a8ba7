"""SaslAuthenticate (KIP-152): the messages of the mechanism that client and broker agreed on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import Messages, messages
from ingestd.broker.request import Answer
from ingestd.broker.session import AuthenticationStep
from ingestd.errors import AuthenticationFailed, ErrorCode, IngestdError
from ingestd.logs import get_logger
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.security.exchanges import Said
    from ingestd.broker.session import Context

API: Final = Api.sasl_authenticate
VERSIONS: Final = range(3)

_UNUSABLE: Final = "the users of this broker can not be read; its log says why"
_log = get_logger(__name__)


def handle(context: Context, request: Request) -> Handled:
    """Take the client's next message. A wrong one is answered late, against guessing, and ends the connection."""
    schema = messages(API, request.version)
    message = bytes(request.body) if context.session.bare else schema.decode(request.body).auth_bytes
    if context.session.step is not AuthenticationStep.exchange:
        code = ErrorCode.illegal_sasl_state
        return Answer(
            [_encoded(schema, code, "SaslAuthenticate request received after successful authentication")], code
        )
    return _answer(context, schema, message)


async def _answer(context: Context, schema: Messages, message: bytes) -> Answer:
    broker, session = context.broker, context.session
    bare = session.bare
    try:
        said = await _said(context, message)
    except AuthenticationFailed as refusal:
        session.log_refusal(str(refusal))
        await broker.clock.sleep(broker.settings.security.refusal_delay)
        code = ErrorCode.sasl_authentication_failed
        return Answer(None if bare else [_encoded(schema, code, str(refusal))], code, closes=True)
    lifetime = broker.settings.security.session_lifetime
    if said.user is not None:
        session.complete(_principal(said.user), broker.clock.monotonic(), lifetime)
        _log.debug("client authenticated", mechanism=session.mechanism, user=said.user, peer=session.peer)
    if bare:
        return Answer([said.message], bare=True)
    body = schema.encode(
        error_code=ErrorCode.none,
        error_message="",
        auth_bytes=said.message,
        session_lifetime=timedelta(seconds=0 if said.user is None else lifetime),
    )
    return Answer([body])


async def _said(context: Context, message: bytes) -> Said:
    """What the mechanism answers. Raises `AuthenticationFailed`."""
    session = context.session
    assert session.exchange is not None
    try:
        said = await session.exchange.take(message)
    except AuthenticationFailed:
        raise
    except (IngestdError, OSError) as error:
        _log.error("users not read", error=str(error))
        raise AuthenticationFailed(_UNUSABLE) from None
    if said.user is not None and session.principal not in {"", _principal(said.user)}:
        raise AuthenticationFailed("Cannot change principals during re-authentication")
    return said


def _principal(user: str) -> str:
    return f"User:{user}"


def _encoded(schema: Messages, code: ErrorCode, message: str) -> bytes:
    return schema.encode(error_code=code, error_message=message, auth_bytes=b"", session_lifetime=timedelta(0))
