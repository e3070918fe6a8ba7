"""Takes new connections at one address.

uvloop's own servers take one connection in each turn of the loop. While the broker is busy, a turn lasts long, and
those who connect would wait for hundreds of turns. So here many are taken in one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.descriptors import end_of_connections
from ingestd.broker.security.tls_transport import RECEIVE_BYTES, TlsTransport
from ingestd.checks import address_text
from ingestd.logs import get_logger

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from ingestd.tasks import TaskOwner

__all__ = ["Acceptor"]

_BACKLOG: Final = 1024
_MOST_PER_TURN: Final = 128
_PAUSE: Final = 0.1
"""Seconds until connections are taken again after one could not be, as when descriptors run out."""
_HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds for TLS. Until then a connection does not count, so many must not wait for long."""
_log = get_logger(__name__)


class Acceptor:
    """Listens, and makes a protocol by `make` for each connection, in tasks of `tasks`.

    `tls` is None where connections are not encrypted. A name with several addresses is listened on at all of them, at
    one port.
    """

    def __init__(
        self, make: Callable[[], asyncio.BufferedProtocol], tasks: TaskOwner, tls: ssl.SSLContext | None
    ) -> None:
        self._make = make
        self._tasks = tasks
        self._tls = tls
        self._received = memoryview(bytearray(RECEIVE_BYTES if tls else 0))
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._said = False

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Begin. Returns the address, with the port that was chosen if `port` is 0. Raises `OSError`."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, *_, address in dict.fromkeys(found):
                listening = socket.create_server((address[0], port), family=family, backlog=_BACKLOG)
                self._listening.append(listening)
                listening.settimeout(0)
                port = listening.getsockname()[1]
        except BaseException:
            self.close()
            raise
        for listening in self._listening:
            self._watch(listening)
        first: tuple[str, int] = self._listening[0].getsockname()[:2]
        return first

    def close(self) -> None:
        """Take no more. Those that were taken go on."""
        while self._listening:
            listening = self._listening.pop()
            if (pause := self._pauses.pop(listening, None)) is not None:
                pause.cancel()
            self._loop.remove_reader(listening)
            listening.close()

    def _watch(self, listening: socket.socket) -> None:
        self._pauses.pop(listening, None)
        self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_MOST_PER_TURN):
            try:
                _check_descriptors(listening)
                accepted, peer = listening.accept()
            except BlockingIOError:
                self._said = False
                return
            except ConnectionError:
                continue  # gone before it was taken
            except OSError as error:
                self._pause(listening, error)
                return
            accepted.settimeout(0)
            self._tasks.start(self._take(accepted, peer), "take a connection")

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        self._loop.remove_reader(listening)
        self._pauses[listening] = self._loop.call_later(_PAUSE, partial(self._watch, listening))
        if self._said:
            return
        self._said = True
        _log.error(
            "can not take a connection; clients wait",
            address=address_text(*listening.getsockname()[:2]),
            reason=error.strerror,
            again_every=f"{_PAUSE:g} s",
        )

    async def _take(self, accepted: socket.socket, peer: tuple[Any, ...]) -> None:
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(self._make, accepted)
            else:
                await self._take_encrypted(accepted, self._tls)
        except OSError as error:  # also TLS's, and the timeout's
            accepted.close()
            event = "connection not taken" if self._tls is None else "TLS handshake failed"
            _log.info(event, peer=address_text(*peer[:2]), reason=str(error))
        except BaseException:
            accepted.close()
            raise

    async def _take_encrypted(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        make = partial(TlsTransport, self._make, tls, self._received)
        _, transport = await self._loop.connect_accepted_socket(make, accepted)
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT):
                await transport.handshake
        except TimeoutError:
            transport.abort()
            raise TimeoutError(f"not done within {_HANDSHAKE_TIMEOUT:g} s") from None
        except BaseException:
            transport.close()
            raise


def _check_descriptors(listening: socket.socket) -> None:
    """Raise `OSError` if a connection would get one of the descriptors that connections leave."""
    next_one = os.dup(listening.fileno())
    os.close(next_one)
    if next_one >= end_of_connections():
        raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}; the broker keeps the rest for its files")
