"""How a connection begins: TLS handshake, versions, authentication; and what it failed for, if it failed."""

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
    """Have connections to this listener that have no credentials find out, until it is known, whether it needs some.

    A listener for SASL says its versions to everybody, and closes the connection at the first request of a client that
    has not authenticated: what such a client sees is a connection that was lost. Asking each listener beforehand would
    cost every connection a round trip.
    """
    _suspects[host, port] = None
    while len(_suspects) > _MOST_SUSPECTS:
        _suspects.popitem(last=False)


def tls_options(host: str, tls: TlsSettings | None) -> dict[str, Any]:
    """What `loop.create_connection` is to be told besides the socket. Raises `ConfigurationError`, naming a file."""
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
    """Put the connection on its socket, and all that comes before the first request of its users.

    When it fails nothing of it is left. Raises what `Connection.open` says.
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
        # Its own limit would come first otherwise; `deadline` says better what was waited for.
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

        # Suspected no more, unless it is one: a broker that just closes when it is asked is not asked every time.
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
    """The reason behind `error` that says more than that the connection was lost; None if none is known."""
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
    """An error that says so, if the listener talks to clients without TLS.

    It closes one that begins with a TLS handshake, which looks like any connection that was lost; so it is asked.
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
