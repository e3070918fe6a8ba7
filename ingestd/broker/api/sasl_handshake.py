"""SaslHandshake (KIP-43): client and broker agree on a mechanism. A re-authentication begins with it too (KIP-368)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import messages
from ingestd.broker.request import Answer
from ingestd.broker.security.exchanges import begin_exchange
from ingestd.broker.session import MOST_SHOWN, AuthenticationStep
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

API: Final = Api.sasl_handshake
VERSIONS: Final = range(2)
"""After version 0, the messages of the exchange are bare: they have no header. Clients from before Kafka 1.0 use it.
librdkafka 2.0 uses version 1, but does not authenticate at a broker that does not serve version 0 too.
"""

_SHORTEST_SESSION: Final = 1.0
"""Seconds between two authentications of a connection, as in Kafka."""


def handle(context: Context, request: Request) -> Handled:
    """Begin an exchange. A mechanism that is not enabled is told the enabled ones, late, and the connection ends."""
    broker, session = context.broker, context.session
    schema = messages(API, request.version)
    mechanism = schema.decode(request.body).mechanism
    enabled = session.listener.mechanisms
    exchanging = session.step is AuthenticationStep.exchange
    if not enabled or exchanging or broker.clock.monotonic() - session.authenticated < _SHORTEST_SESSION:
        code = ErrorCode.illegal_sasl_state
        if exchanging:
            session.log_refusal("a second handshake before the first mechanism was done")
        return Answer([schema.encode(error_code=code, mechanisms=())], code, closes=exchanging)
    if mechanism not in enabled or session.mechanism not in {"", mechanism}:
        # The second: an authenticated client authenticates again as it did before.
        session.log_refusal(f"the client wants {mechanism[:MOST_SHOWN]!r}; expected {', '.join(enabled)}")
        return _refuse(context, schema.encode(error_code=ErrorCode.unsupported_sasl_mechanism, mechanisms=enabled))
    session.begin(mechanism, begin_exchange(mechanism, broker.users), bare=request.version == 0)
    return Answer([schema.encode(error_code=ErrorCode.none, mechanisms=enabled)])


async def _refuse(context: Context, body: bytes) -> Answer:
    await context.broker.clock.sleep(context.broker.settings.security.refusal_delay)
    return Answer([body], ErrorCode.unsupported_sasl_mechanism, closes=True)
