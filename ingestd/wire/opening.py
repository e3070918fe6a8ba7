"""How a connection begins: TLS handshake, versions, authentication. And the error that says why one of them failed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ingestd.errors import AuthenticationFailed, ConnectionLost, IngestdError, ProtocolError
from ingestd.wire.negotiation import negotiate

if TYPE_CHECKING:
    import socket

    from ingestd.retry import Deadline
    from ingestd.wire.connection import Connection, ConnectionSettings
    from ingestd.wire.tls import TlsSettings

__all__ = ["begin", "suspect_sasl", "tls_options"]

_suspects: OrderedDict[tuple[str, int], None] = OrderedDict()
_MOST_SUSPECTS: Final = 256


def suspect_sasl(host: str, port: int) -> None:
    """Let connections to this listener without credentials ask, until it is known, whether it needs some.

    A listener for SASL tells its versions to every client, and closes the connection at the first request of a client
    that has not authenticated. The client only sees a lost connection. To ask every listener before would cost every
    connection a round trip.
    """
    _suspects[host, port] = None
    while len(_suspects) > _MOST_SUSPECTS:
        _suspects.popitem(last=False)


def tls_options(host: str, tls: TlsSettings | None) -> dict[str, Any]:
    """The arguments of `loop.create_connection` besides the socket. Raises `ConfigurationError`, naming a file."""
    if tls is None:
        return {}
    from ingestd.wire.tls import client_context  # noqa: PLC0415 - most of a daemon's connections do without

    return {"ssl": client_context(tls), "server_hostname": tls.server_name or host}


async def begin(
    connection: Connection,
    settings: ConnectionSettings,
    connected: socket.socket,
    secured: dict[str, Any],
    deadline: Deadline,
) -> None:
    """Put the connection on its socket and do everything that comes before the first request of its users.

    If it fails, nothing of it is left. Raises what `Connection.open` says.
    """
    try:
        await _begin(connection, settings, connected, secured, deadline)
    except (IngestdError, OSError) as error:
        connection.abort(ConnectionLost(f"{_name(connection)}: gave up while connecting"))
        known = _failure(connection, settings, error)
        if known is None and settings.tls is not None and not connection.versions.ranges:
            known = await _unsecured(connection, settings, deadline)
        if known is not None:
            raise known from None
        if isinstance(error, IngestdError):
            raise
        lost = str(error) or "the connection was closed during the TLS handshake"
        raise ConnectionLost(f"{_name(connection)}: {lost}") from error
    except BaseException:
        connection.abort(ConnectionLost(f"{_name(connection)}: gave up while connecting"))
        raise


def _name(connection: Connection) -> str:
    return f"{connection.host}:{connection.port}"


async def _begin(
    connection: Connection,
    settings: ConnectionSettings,
    connected: socket.socket,
    secured: dict[str, Any],
    deadline: Deadline,
) -> None:
    if secured:
        # Otherwise asyncio's own limit comes first; `deadline` tells more about what was waited for.
        secured = {**secured, "ssl_handshake_timeout": deadline.remaining + 1.0}
    made = asyncio.get_running_loop().create_connection(lambda: connection, sock=connected, **secured)
    await deadline.wait_for(made, f"{_name(connection)}: TLS handshake")
    connection.versions = await negotiate(connection, deadline)
    if settings.sasl is not None:
        from ingestd.wire.sasl.session import SaslSession  # noqa: PLC0415 - most of a daemon's connections do without

        connection.session = SaslSession(connection, settings.sasl)
        await connection.session.begin(deadline)
    elif _suspects and (connection.host, connection.port) in _suspects:
        from ingestd.wire.sasl.authentication import check_no_sasl  # noqa: PLC0415 - see above

        # No longer suspected, unless it is one: a broker that closes at this question is not asked each time.
        del _suspects[connection.host, connection.port]
        try:
            await check_no_sasl(
                _name(connection),
                connection.versions,
                lambda api, version, body: connection.send(api, version, [body], timeout=deadline.remaining),
            )
        except AuthenticationFailed:
            suspect_sasl(connection.host, connection.port)
            raise


def _failure(connection: Connection, settings: ConnectionSettings, error: Exception) -> IngestdError | None:
    """The reason for `error`, if it says more than that the connection was lost; None if it is not known."""
    ended = connection.error
    for reason in (error, error.__cause__, ended, None if ended is None else ended.__cause__):
        if isinstance(reason, (AuthenticationFailed, ProtocolError)):
            return reason
        if settings.tls is not None and reason is not None:
            from ingestd.wire.tls import handshake_error  # noqa: PLC0415 - see above

            if (refused := handshake_error(reason, _name(connection))) is not None:
                return refused
    return None


async def _unsecured(connection: Connection, settings: ConnectionSettings, deadline: Deadline) -> IngestdError | None:
    """An error that says so if the listener speaks without TLS; None if it does not.

    Such a listener closes a connection that begins with a TLS handshake. That looks like any lost connection, so this
    asks without TLS.
    """
    plain = replace(settings, tls=None, sasl=None)
    try:
        asked = await type(connection).open(
            connection.host, connection.port, settings=plain, timeout=deadline.remaining
        )
    except IngestdError:
        return None
    await asked.close()
    return AuthenticationFailed(f"{_name(connection)}: this is a listener without TLS")
