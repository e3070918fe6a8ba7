"""Broker: an address, and one connection, which is opened when it is needed, and again after it was lost."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from ingestd.errors import (
    AuthenticationFailed,
    Closed,
    ConfigurationError,
    ConnectionLost,
    DeadlineExceeded,
    IngestdError,
)
from ingestd.retry import Deadline
from ingestd.tasks import TaskOwner
from ingestd.wire.connection import Connection

if TYPE_CHECKING:
    from ingestd.client.metadata import Node
    from ingestd.client.settings import ClientSettings
    from ingestd.wire.requests import Build
    from ingestd.wire.versions import ApiVersions

__all__ = ["Broker"]


class Broker:
    """Wraps at most one connection to one node.

    Invariants
        Callers who need a connection at the same time share one attempt and its outcome.
        An attempt after a failure first waits for a backoff with jitter. The first one after a success does not.
        After `close` there is no connection and no task; `connection` raises `Closed`.
        After `deregister` it is the same, but `connection` raises `ConnectionLost`. The metadata has changed, so the
        caller must ask the client for the current broker object.
    """

    def __init__(self, node: Node, settings: ClientSettings) -> None:
        self.node = node
        self._settings = settings
        self._connection: Connection | None = None
        self._opening: asyncio.Future[Connection] | None = None
        self._backoff = settings.reconnect_backoff()
        self._not_before = 0.0
        self._ended: IngestdError | None = None
        self._refused: BaseException | None = None
        self._tasks = TaskOwner()

    def __repr__(self) -> str:
        return f"<Broker {self.node.id} {self.node.host}:{self.node.port} {'up' if self.connected else 'down'}>"

    @property
    def connected(self) -> bool:
        """Whether there is a usable connection now."""
        return self._connection is not None and not self._connection.closed

    @property
    def failing(self) -> bool:
        """Whether the last attempt to connect failed."""
        return self._backoff.attempts > 0

    @property
    def silent(self) -> bool:
        """Whether the last request, or attempt to connect, timed out. The node may be up and not answer."""
        return not self.connected and isinstance(self.last_error, DeadlineExceeded)

    @property
    def in_flight(self) -> int:
        """Requests in flight on the connection."""
        return self._connection.in_flight if self._connection is not None else 0

    @property
    def versions(self) -> ApiVersions | None:
        """The API versions of the node. None if there is no connection."""
        return self._connection.versions if self._connection is not None and self.connected else None

    @property
    def last_error(self) -> BaseException | None:
        """Why there is no connection: the error of the last attempt, or the one that ended the connection."""
        if self._refused is not None:
            return self._refused
        return self._connection.error if self._connection is not None else None

    @property
    def backoff(self) -> float:
        """Seconds until the next attempt to connect may begin; 0: at once."""
        return max(0.0, self._not_before - time.monotonic())

    async def connection(self, timeout: float) -> Connection:
        """The connection. If there is none, it is opened within `timeout` seconds.

        Raises `ConnectionLost` as soon as an attempt failed, `AuthenticationFailed`, `ConfigurationError` (a secret can
        not be read), `DeadlineExceeded`, `ProtocolError`, `Closed`.
        """
        existing = self._connection
        if existing is not None and not existing.closed:
            return existing
        if self._ended is not None:
            raise self._ended
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
            # All waiters may have given up when it fails.
            self._opening.add_done_callback(lambda opening: opening.cancelled() or opening.exception())
            self._tasks.start(self._open(self._opening), f"connect to {self._name}")
        return await Deadline.after(timeout).wait_for(asyncio.shield(self._opening), f"{self._name}: connecting")

    async def request(self, build: Build, timeout: float) -> Any:
        """Connect if needed, send what `build` makes for this broker's versions, and return its answer (a kio entity).

        Raises `ConnectionLost`, `DeadlineExceeded`, `UnsupportedVersion`, `ProtocolError`, `Closed`.
        """
        deadline = Deadline.after(timeout)
        connection = await self.connection(min(timeout, self._settings.connect_timeout))
        return await connection.request(build(connection.versions), timeout=deadline.remaining)

    def moved(self, node: Node) -> None:
        """The node has a new address. A connection to the old one ends."""
        old, self.node = self.node, node
        if (old.host, old.port) == (node.host, node.port):
            return
        self._backoff.reset()
        self._not_before = 0.0
        if self._connection is not None:
            self._connection.abort(ConnectionLost(f"broker {node.id} moved to {node.host}:{node.port}"))

    def deregister(self, reason: str) -> None:
        """End this object for good, without waiting. Requests in flight fail. Its owner must still await `close`."""
        self._end(ConnectionLost(f"broker {self._name} was deregistered: {reason}"))

    async def close(self) -> None:
        """End the connection, and any attempt to open one. Safe to call twice. Never waits for the network."""
        self._end(Closed(f"broker {self._name} is closed"))
        await self._tasks.close()
        if self._connection is not None:
            await self._connection.close()

    @property
    def _name(self) -> str:
        return f"{self.node.host}:{self.node.port}"

    def _end(self, error: IngestdError) -> None:
        if self._ended is None:
            self._ended = error
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(self._ended)
        if self._connection is not None:
            self._connection.abort(self._ended)

    async def _open(self, opening: asyncio.Future[Connection]) -> None:
        """Make one attempt, after the backoff, and give its outcome to all that wait for `opening`."""
        try:
            await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
            node = self.node
            connection = await Connection.open(
                node.host, node.port, settings=self._settings.connection, timeout=self._settings.connect_timeout
            )
        except BaseException as error:
            self._opening = None
            self._refused = error
            self._not_before = time.monotonic() + self._backoff.next_delay()
            expected = isinstance(error, IngestdError)
            if not opening.done():
                opening.set_exception(self._told(error))
            if expected:
                return
            raise
        self._opening = None
        if self._ended is None and (node.host, node.port) != (self.node.host, self.node.port):
            connection.abort(ConnectionLost(f"broker {node.id} moved to {self._name}"))
        elif self._ended is not None:
            connection.abort(self._ended)
        self._connection = connection
        self._refused = None
        self._backoff.reset()
        self._not_before = 0.0
        if opening.done():
            return
        if connection.error is not None:
            opening.set_exception(connection.error)
        else:
            opening.set_result(connection)

    def _told(self, error: BaseException) -> IngestdError:
        """The error of a failed attempt, for those that wait for the connection."""
        if not isinstance(error, IngestdError):
            return ConnectionLost(f"{self._name}: {error!r}")
        if self._settings.retry_authentication and isinstance(error, (AuthenticationFailed, ConfigurationError)):
            passing = ConnectionLost(str(error))
            passing.__cause__ = error
            return passing
        return error
