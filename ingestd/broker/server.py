"""The whole broker: starts it, listens, takes connections, and ends everything in order."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from ingestd.broker.acceptor import Acceptor
from ingestd.broker.api.handlers import HANDLERS
from ingestd.broker.broker import Broker
from ingestd.broker.connection import Connection
from ingestd.broker.control import Control
from ingestd.broker.security.tls import ServerTls
from ingestd.broker.session import Listener
from ingestd.checks import address_text
from ingestd.errors import ConfigurationError
from ingestd.logs import get_logger
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable
    from types import TracebackType

    from ingestd.broker.node import Node
    from ingestd.broker.settings import BrokerSettings

__all__ = ["BrokerServer", "serve"]

_ATTEMPTS: Final = 20
"""How often free ports are looked for that follow each other."""
_SWEEP_INTERVAL: Final = 10.0
_log = get_logger(__name__)


class BrokerServer:
    """A running broker; async context manager.

    `host` and `port` are the address once it was entered. When it is left, connections end; then logs are written to
    the disk and closed.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._broker = Broker(settings)
        self._tasks = TaskOwner(self._crashed)
        self._connections: set[Connection] = set()
        self._acceptors: list[Acceptor] = []
        self._tls: ServerTls | None = None
        self._control = None if settings.control is None else Control(self._broker, settings.control, self._end_node)
        self.host = settings.host
        self.port = settings.port

    @property
    def bootstrap(self) -> str:
        """`host:port`, for clients."""
        return address_text(self.host, self.port)

    @property
    def requests(self) -> Counter[tuple[str, str]]:
        """Requests answered so far by (API name, client id)."""
        return self._broker.request_log.counts

    async def __aenter__(self) -> Self:
        """Open and recover the data directory, then listen. Raises `ConfigurationError`, `OSError`."""
        self._broker.start()
        try:
            await self._listen()
            if self._control is not None:
                await self._control.start()
        except BaseException:
            self._stop_listening()
            await self._broker.close()
            raise
        self._tasks.start(self._sweep(), "sweep")
        _log.info("broker listening", address=self.bootstrap, security=self._settings.security.protocol)
        return self

    async def _listen(self) -> None:
        security = self._settings.security
        self._tls = ServerTls(security) if security.encrypts else None
        attempts = 1 if self._settings.port else _ATTEMPTS
        while True:
            attempts -= 1
            try:
                await self._listen_for_all()
            except ConfigurationError:
                self._stop_listening()
                if not attempts:
                    raise
            else:
                return

    async def _listen_for_all(self) -> None:
        """At ports that follow each other, so that a broker that starts again knows them by the first one."""
        first, *others = self._broker.cluster.nodes
        await self._listen_for(first, self._settings.port)
        for number, node in enumerate(others, 1):
            await self._listen_for(node, first.port + number)
        self.port = first.port

    async def _listen_for(self, node: Node, port: int) -> None:
        security = self._settings.security
        listener = Listener(security.protocol, node, security.mechanisms)
        make = partial(Connection, self._broker, listener, HANDLERS, self._tasks, self._connections)
        acceptor = Acceptor(make, self._tasks, None if self._tls is None else self._tls.context)
        try:
            self.host, node.port = await acceptor.listen(self._settings.host, port)
        except OSError as error:
            where = f"{self._settings.host}:{port}"
            raise ConfigurationError(f"can not listen on {where}: {error.strerror or error}") from error
        self._acceptors.append(acceptor)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything in order, within the shutdown timeout and the time that the disk needs."""
        self._stop_listening()
        await self._end_connections()
        await self._tasks.close()
        await self._broker.close()
        _log.info("broker closed", address=self.bootstrap)

    def _end_node(self, node_id: int) -> None:
        for connection in tuple(self._connections):
            if connection.node_id == node_id:
                connection.abort()

    def _stop_listening(self) -> None:
        if self._control is not None:
            self._control.close()
        while self._acceptors:
            self._acceptors.pop().close()

    async def _end_connections(self) -> None:
        connections = tuple(self._connections)
        for connection in connections:
            connection.close()
        if connections:
            lost = [connection.lost for connection in connections]
            await asyncio.wait(lost, timeout=self._settings.shutdown_timeout)
        # These clients do not read their answers.
        for connection in tuple(self._connections):
            connection.abort()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL)
            now = time.monotonic()
            for connection in tuple(self._connections):
                connection.sweep(now, self._settings.idle_timeout)
            if self._tls is not None:
                self._tls.follow()

    def _crashed(self, error: BaseException) -> None:
        _log.error("task failed", exc_info=error)


async def serve(settings: BrokerSettings, ready: Callable[[str, int], None], stop: asyncio.Event) -> None:
    """Run a broker until `stop` is set; `ready` is told its host and port. Raises `ConfigurationError`, `OSError`."""
    async with BrokerServer(settings) as server:
        ready(server.host, server.port)
        await stop.wait()
