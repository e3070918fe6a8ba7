"""SASL session: authenticates one connection, and again before the broker would end it (KIP-368)."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from ingestd.errors import DeadlineExceeded, IngestdError, is_retriable
from ingestd.retry import Backoff, Deadline
from ingestd.tasks import TaskOwner
from ingestd.wire.sasl.authentication import authenticate

if TYPE_CHECKING:
    from ingestd.wire.connection import Connection
    from ingestd.wire.sasl.mechanism import Exchange, SaslMechanism

__all__ = ["SaslSession"]

_EARLIEST: Final = 0.8
_LATEST: Final = 0.9
"""The fraction of a session's lifetime after which it is renewed. Random, so that not all renew at once."""
_SHORTEST: Final = 1.0
"""Seconds. Brokers refuse to authenticate a connection more often."""
_RENEWAL_TIMEOUT: Final = 30.0


class SaslSession:
    """Keeps one connection authenticated. Belongs to the connection.

    Invariants
        During a re-authentication a broker accepts no other request. So requests in flight are answered before it, and
        requests that others send meanwhile are held back, and sent in order after it.
        What takes long (to get a token) is done before anything is held back.
        If a session can not be renewed, its connection ends, with the reason.
    """

    def __init__(self, connection: Connection, mechanism: SaslMechanism) -> None:
        self._connection = connection
        self._mechanism = mechanism
        self._loop = asyncio.get_running_loop()
        self._broker = f"{connection.host}:{connection.port}"
        self._tasks = TaskOwner(self._crashed)
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._ends_at = 0.0

    async def begin(self, deadline: Deadline) -> None:
        """Authenticate for the first time.

        Raises `AuthenticationFailed`, `ConnectionLost`, `DeadlineExceeded`, `UnsupportedVersion`, `ConfigurationError`.
        """
        exchange = await deadline.wait_for(self._mechanism.begin(), f"{self._broker}: credentials")
        connection = self._connection
        self._began(
            await authenticate(
                self._broker,
                connection.versions,
                lambda api, version, body: connection.send(api, version, [body], timeout=deadline.remaining),
                self._mechanism,
                exchange,
            )
        )

    def end(self) -> None:
        """Stop renewing: the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._renewing is not None and self._renewing is not asyncio.current_task():
            self._renewing.cancel()

    async def ended(self) -> None:
        """Wait until no task is left, after `end`."""
        await self._tasks.close()

    def _began(self, lifetime: float) -> None:
        if lifetime <= 0 or self._connection.closed:
            return
        self._ends_at = self._loop.time() + lifetime
        after = max(_SHORTEST, lifetime * random.uniform(_EARLIEST, _LATEST))  # noqa: S311 - jitter, not cryptography
        self._timer = self._loop.call_later(after, self._due)

    def _due(self) -> None:
        self._timer = None
        self._renewing = self._tasks.start(self._renew(), f"re-authenticate with {self._broker}")

    async def _renew(self) -> None:
        connection = self._connection
        try:
            exchange = await self._credentials()
            connection.hold()
            lifetime = await authenticate(
                self._broker,
                connection.versions,
                lambda api, version, body: connection.send_ahead(api, version, [body], timeout=_RENEWAL_TIMEOUT),
                self._mechanism,
                exchange,
            )
        except IngestdError as error:
            connection.abort(error)
            return
        connection.release()
        self._began(lifetime)

    async def _credentials(self) -> Exchange:
        """Get what the mechanism needs. Tried again until the session ends, if that can help."""
        deadline = Deadline.after(max(0.0, self._ends_at - self._loop.time()))
        failure: IngestdError = DeadlineExceeded(f"{self._broker}: no credentials before the session's end")
        async for _ in Backoff(initial=0.2, maximum=10.0).attempts_until(deadline):
            try:
                return await deadline.wait_for(self._mechanism.begin(), f"{self._broker}: credentials")
            except IngestdError as error:
                if not is_retriable(error):
                    raise
                failure = error
        raise failure

    def _crashed(self, error: BaseException) -> None:
        """A defect. It ends the connection for its users, and is told to the loop's exception handler."""
        self._connection.abort(IngestdError(f"{self._broker}: re-authentication failed: {error!r}"))
        self._loop.call_exception_handler({"message": "re-authentication failed", "exception": error})
