"""Authentication of one connection: both sides agree on a mechanism, then exchange its messages (KIP-43, KIP-152)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ingestd.errors import AuthenticationFailed, ConnectionLost, ErrorCode
from ingestd.wire.apis import Api
from ingestd.wire.codec import decode_response, encode_entity, request_module

if TYPE_CHECKING:
    from ingestd.wire.sasl.mechanism import Exchange, SaslMechanism
    from ingestd.wire.versions import ApiVersions

__all__ = ["Ask", "authenticate", "check_no_sasl"]

Ask: TypeAlias = Callable[[int, int, bytes], Awaitable[memoryview]]
"""Sends one request (API, version, body) and gives the body of its answer."""

_MOST_ROUNDS: Final = 10


async def authenticate(
    broker: str, versions: ApiVersions, ask: Ask, mechanism: SaslMechanism, exchange: Exchange
) -> float:
    """Authenticate with `broker` (HOST:PORT). Returns the seconds until this must be done again; 0: never.

    Raises `AuthenticationFailed`, `UnsupportedVersion` (brokers before 1.0), and whatever `ask` raises.
    """
    await _agree(broker, versions, ask, mechanism.name)
    version = versions.pick(Api.sasl_authenticate, 0, 2)
    request_type = request_module("sasl_authenticate", version).SaslAuthenticateRequest
    try:
        said = next(exchange)
        for _ in range(_MOST_ROUNDS):
            answer = await _answer(ask, request_type(auth_bytes=said))
            if answer.error_code is not ErrorCode.none:
                reason = answer.error_message or answer.error_code.name
                raise AuthenticationFailed(f"{broker}: {mechanism.name}: {reason}")
            try:
                said = exchange.send(bytes(answer.auth_bytes))
            except StopIteration:
                lifetime = getattr(answer, "session_lifetime", None)
                return 0.0 if lifetime is None else max(0.0, lifetime.total_seconds())
            except AuthenticationFailed as error:
                raise AuthenticationFailed(f"{broker}: {error}") from None
    finally:
        exchange.close()
    raise AuthenticationFailed(f"{broker}: {mechanism.name}: no end after {_MOST_ROUNDS} rounds")


async def check_no_sasl(broker: str, versions: ApiVersions, ask: Ask) -> None:
    """Raise `AuthenticationFailed`, naming the mechanisms that are enabled, if `broker` is a listener for SASL.

    For connections without credentials. Any other listener answers ILLEGAL_SASL_STATE, and the connection goes on. Some
    brokers other than Apache's name mechanisms on any listener. There it goes on too: only Kafka closes it after that.
    """
    if Api.sasl_handshake not in versions.ranges:
        return
    version = versions.pick(Api.sasl_handshake, 0, 1)
    answer = await _answer(ask, request_module("sasl_handshake", version).SaslHandshakeRequest(mechanism="NONE"))
    if answer.error_code is not ErrorCode.unsupported_sasl_mechanism:
        return
    try:
        await ask(Api.api_versions, 0, b"")
    except ConnectionLost:
        enabled = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationFailed(f"{broker}: this is a listener for SASL; enabled: {enabled}") from None


async def _agree(broker: str, versions: ApiVersions, ask: Ask, mechanism: str) -> None:
    if Api.sasl_handshake not in versions.ranges:
        raise AuthenticationFailed(f"{broker}: this is not a listener for SASL")
    # Version 0 announces messages outside the protocol's frames, which brokers have not needed since 1.0.
    version = versions.pick(Api.sasl_handshake, 1, 1)
    answer = await _answer(ask, request_module("sasl_handshake", version).SaslHandshakeRequest(mechanism=mechanism))
    if answer.error_code is ErrorCode.none:
        return
    if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
        enabled = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationFailed(f"{broker}: {mechanism} is not enabled on this listener; enabled: {enabled}")
    if answer.error_code is ErrorCode.illegal_sasl_state:
        raise AuthenticationFailed(f"{broker}: this is not a listener for SASL")
    raise AuthenticationFailed(f"{broker}: {mechanism}: {answer.error_code.name}")


async def _answer(ask: Ask, request: Any) -> Any:
    body = await ask(request.__api_key__, request.__version__, encode_entity(request))
    return decode_response(request, body)
