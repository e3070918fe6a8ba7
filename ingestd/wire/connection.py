"""One TCP connection to one broker: requests pipelined in order of calls, answers checked, a deadline for each."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

from ingestd.checks import check_kinds, require_at_least
from ingestd.errors import (
    AuthenticationFailed,
    BufferFull,
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    IngestdError,
    ProtocolError,
    WrongSetting,
)
from ingestd.retry import Deadline
from ingestd.wire.apis import Api, api_name
from ingestd.wire.codec import decode_response, encode_request, frame_request, skip_response_header
from ingestd.wire.frames import AnswerFrames
from ingestd.wire.opening import begin, suspect_sasl, tls_options
from ingestd.wire.sockets import connect, end_socket, send_parts
from ingestd.wire.versions import ApiVersions

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from kio.static.protocol import RequestPayload, ResponsePayload

    from ingestd.wire.codec import Buffer
    from ingestd.wire.sasl.mechanism import SaslMechanism
    from ingestd.wire.sasl.session import SaslSession
    from ingestd.wire.tls import TlsSettings

__all__ = ["Connection", "ConnectionSettings"]

_INT32: Final = struct.Struct(">i")
_TLS_ALERT: Final = 0x1503
"""The first bytes of a TLS alert, with which a TLS listener answers plaintext: type 21, version 3 (RFC 8446, 5.1)."""

_NEVER: Final = float("inf")
_LARGEST_CORRELATION_ID: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How connections to a cluster's brokers are made and what they accept.

    client_id: the name in brokers' request logs and quotas.
    answer_limit: bytes; an answer announced larger than this is a `ProtocolError`. Must exceed what fetches ask for.
    answer_memory: bytes that are kept for the next large answers.
    in_flight_limit: unanswered requests that `send` allows; 0 for no limit.
    send_buffer, receive_buffer: bytes of the kernel's socket buffers; 0 leaves them to the kernel, which adapts them.
    tls: what the client trusts and shows; None: no TLS.
    sasl: the client's account; None: no account, or the one that its certificate names.

    Raises `ConfigurationError` naming the setting.
    """

    client_id: str = "ingestd"
    answer_limit: int = 128 * 1024 * 1024
    answer_memory: int = 64 * 1024 * 1024
    in_flight_limit: int = 0
    send_buffer: int = 0
    receive_buffer: int = 0
    tls: TlsSettings | None = None
    sasl: SaslMechanism | None = None

    def __post_init__(self) -> None:
        check_kinds(self)
        require_at_least(self, 1, "bytes", ("answer_limit",))
        require_at_least(self, 0, "bytes", ("answer_memory", "send_buffer", "receive_buffer"))
        require_at_least(self, 0, "a number", ("in_flight_limit",))
        # Checked by their attributes: most programs use no TLS, and importing the class would cost them.
        if self.tls is not None and not hasattr(self.tls, "verify"):
            raise WrongSetting("tls", "TlsSettings, or None")
        if self.sasl is not None and not hasattr(self.sasl, "begin"):
            raise WrongSetting("sasl", "a mechanism: Plain, Scram or OAuthBearer")
        if self.tls is None and self.sasl is not None and self.sasl.needs_tls:
            raise WrongSetting("tls", f"TLS, since {self.sasl.name} sends a secret as it is, or `cleartext` for that")


class _Pending:
    """A request in flight."""

    __slots__ = ("api", "correlation_id", "deadline", "expect_answer", "future", "timeout", "version")

    def __init__(
        self,
        api: int,
        version: int,
        correlation_id: int,
        future: asyncio.Future[memoryview],
        timeout: float,
        deadline: float,
        *,
        expect_answer: bool,
    ) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.future = future
        self.timeout = timeout
        self.deadline = deadline
        self.expect_answer = expect_answer


class Connection(asyncio.BufferedProtocol):
    """One connection; versions are negotiated when `open` returns. Not thread-safe; belongs to one event loop.

    Invariants
        Requests are sent in the order of calls. Answers come in the same order (brokers promise it), and each answer's
        correlation id is that of the oldest request in flight. Anything else ends the connection.
        Every future that `send` returned ends: with its answer, or with an error if the connection ends.
        The memory of `body` belongs to the caller again once the future is done. Under uvloop the transport sends from
        that memory itself. So an abort first shuts the socket down, in the same call. After that no byte can leave it,
        although the transport holds the memory until the next turn of the loop. (With TLS it holds only encrypted
        copies.)
        Between `hold` and `release` requests are queued. `release` sends them in order, except those whose caller gave
        up.
    """

    def __init__(self, host: str, port: int, settings: ConnectionSettings) -> None:
        self.host = host
        self.port = port
        self.versions = ApiVersions()
        self.session: SaslSession | None = None
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._error: IngestdError | None = None
        self._ended = self._loop.create_future()
        self._pending: deque[_Pending] = deque()
        self._draining: deque[_Pending] = deque()
        self._held: deque[tuple[_Pending, list[Buffer]]] | None = None
        self._next_correlation_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._paused = False
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._frames = AnswerFrames(settings.answer_limit, settings.answer_memory)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.in_flight} in flight"
        return f"<Connection {self.host}:{self.port} {state}>"

    @classmethod
    async def open(cls, host: str, port: int, *, settings: ConnectionSettings, timeout: float) -> Connection:
        """Connect, do the TLS handshake, negotiate versions and authenticate, all within `timeout` seconds.

        Raises `ConnectionLost` (refused: at once), `AuthenticationFailed`, `DeadlineExceeded`, `ProtocolError`,
        `UnsupportedVersion`, `ConfigurationError` (a file of the TLS settings, or a secret, can not be read).
        """
        deadline = Deadline.after(timeout)
        secured = tls_options(host, settings.tls)
        connected = await connect(host, port, settings.send_buffer, settings.receive_buffer, deadline)
        connection = cls(host, port, settings)
        connection._socket = connected
        await begin(connection, settings, connected, secured, deadline)
        return connection

    # What callers use

    @property
    def in_flight(self) -> int:
        """Requests sent, or held back, and not answered yet."""
        return len(self._pending) + (0 if self._held is None else len(self._held))

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._error is not None

    @property
    def error(self) -> IngestdError | None:
        """Why the connection ended; None while it is open."""
        return self._error

    @property
    def full(self) -> bool:
        """Whether `send` would raise `BufferFull`: as many requests are unanswered as the settings allow."""
        limit = self._settings.in_flight_limit
        return limit > 0 and self.in_flight >= limit

    @property
    def has_room(self) -> bool:
        """Whether the kernel took everything sent so far, nothing is held back, and the in-flight window is not full.

        With TLS it is sometimes true too early: the transport takes one more write before it reports that it is full.
        """
        limit = self._settings.in_flight_limit
        return not self._paused and self._held is None and (limit == 0 or len(self._pending) < limit)

    async def room(self) -> None:
        """Wait until `has_room`: backpressure for callers that send much. Raises what ended the connection."""
        while True:
            if self._error is not None:
                raise self._error
            if self.has_room:
                return
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room_waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._room_waiters:
                    self._room_waiters.remove(waiter)
                else:
                    self._wake_for_room()  # it was this one's turn; pass it on
                raise

    async def wait_ended(self) -> None:
        """Wait until the connection is down and the transport holds no caller's memory."""
        await asyncio.shield(self._ended)
        if self.session is not None:
            await self.session.ended()

    def send(
        self, api: int, version: int, body: Sequence[Buffer], *, timeout: float, expect_answer: bool = True
    ) -> asyncio.Future[memoryview]:
        """Send one request; the parts of `body` go to the kernel as they are. Never waits.

        The future gives the answer's body, after its header, in a buffer of its own that lives as long as the view.
        It fails with `ConnectionLost` if the connection ends first, with `DeadlineExceeded` after `timeout` seconds. A
        missed deadline also ends the connection, because a broker that does not answer one request does not answer the
        next ones. Without `expect_answer` (acks=0) it gives an empty view once the kernel has taken everything. Raises
        what ended the connection, and `BufferFull` beyond the in-flight limit.
        """
        if self._error is not None:
            raise self._error
        if self.full:
            raise BufferFull(f"{self.host}:{self.port}: {self._settings.in_flight_limit} requests are in flight")
        pending, parts = self._framed(api, version, body, timeout, expect_answer=expect_answer)
        if self._held is None:
            self._transmit(pending, parts)
        else:
            self._held.append((pending, parts))
        return pending.future

    def hold(self) -> None:
        """Queue requests of `send` from now on, until `release`. `send_ahead` still sends. For one owner at a time."""
        assert self._held is None, "one owner at a time"
        self._held = deque()

    def release(self) -> None:
        """Send the queued requests in the order of calls, and drop those whose caller gave up."""
        held, self._held = self._held, None
        for pending, parts in held or ():
            if not pending.future.done():
                self._transmit(pending, parts)
        self._wake_for_room()

    def send_ahead(
        self, api: int, version: int, body: Sequence[Buffer], *, timeout: float
    ) -> asyncio.Future[memoryview]:
        """Send a request before those that are held back. `timeout` counts from the last deadline of those in flight.

        Raises what ended the connection.
        """
        if self._error is not None:
            raise self._error
        now = self._loop.time()
        before = max((pending.deadline - now for pending in self._pending), default=0.0)
        pending, parts = self._framed(api, version, body, max(0.0, before) + timeout, expect_answer=True)
        self._transmit(pending, parts)
        return pending.future

    async def request(self, request: RequestPayload, *, timeout: float) -> ResponsePayload:
        """Send a kio request once there is room. Returns its answer.

        Raises `ConnectionLost`, `DeadlineExceeded`, `ProtocolError`. Cancelling it leaves the connection intact: the
        answer is dropped when it comes.
        """
        deadline = Deadline.after(timeout)
        if not self.has_room:
            await deadline.wait_for(
                self.room(), f"{self.host}:{self.port}: room to send {api_name(request.__api_key__)}"
            )
        answer = self.send(
            request.__api_key__, request.__version__, [encode_request(request)], timeout=deadline.remaining
        )
        return decode_response(request, await answer)

    def abort(self, error: IngestdError) -> None:
        """End the connection now. Every request in flight fails with `ConnectionLost`, whose cause is `error`.

        Nothing leaves the socket after this call. Safe to call at any time, more than once.
        """
        if self._error is not None:
            return
        self._error = error
        if self._socket is not None:
            end_socket(self._socket)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.session is not None:
            self.session.end()
        self._fail_all(error)
        if self._transport is not None:
            self._transport.abort()
        elif not self._ended.done():
            self._ended.set_result(None)

    async def close(self) -> None:
        """End the connection and wait until the transport has let go of everything. What is in flight fails."""
        self.abort(Closed(f"{self.host}:{self.port}: the connection was closed"))
        await self.wait_ended()

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport. Its write limits are 0, so that "not paused" means that the kernel has everything.

        For TLS the upper limit is 1. Such a transport compares it with `>=`: with 0 it would pause with nothing to
        send, and nothing would wake it.
        """
        self._transport = cast("asyncio.Transport", transport)
        if self._error is not None:  # cancelled while it connected
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=0 if self._settings.tls is None else 1, low=0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is in flight. By now the transport has released every buffer."""
        self._transport = None
        self._lost(str(exc or "the connection was closed"), exc)
        if not self._ended.done():
            self._ended.set_result(None)

    def pause_writing(self) -> None:
        """The kernel did not take all of it: `has_room` is false from now on."""
        self._paused = True

    def resume_writing(self) -> None:
        """The kernel has taken everything."""
        self._paused = False
        while self._draining:
            future = self._draining.popleft().future
            if not future.done():
                future.set_result(memoryview(b""))
        self._wake_for_room()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        """Where the next bytes go."""
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take `nbytes` more, and every answer that is whole now."""
        if self._error is not None:
            return
        for answer in self._frames.received(nbytes):
            self._answered(answer)
            if self.closed:
                return
        if self._frames.wrong_size is not None:
            self.abort(self._wrong(self._frames.wrong_size))

    def eof_received(self) -> bool:
        """End the connection at once. Otherwise the transport would first try to send what it still has."""
        unanswered = self._settings.tls is None and self._next_correlation_id == len(self._pending) > 0
        hint = " and answered nothing; does it want TLS?" if unanswered else ""
        self._lost(f"the broker closed the connection{hint}", None)
        return False

    # How it is done

    def _framed(
        self, api: int, version: int, body: Sequence[Buffer], timeout: float, *, expect_answer: bool
    ) -> tuple[_Pending, list[Buffer]]:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = correlation_id + 1 if correlation_id < _LARGEST_CORRELATION_ID else 0
        parts, _ = frame_request(api, version, correlation_id, self._settings.client_id, body)
        future: asyncio.Future[memoryview] = self._loop.create_future()
        deadline = self._loop.time() + timeout
        if deadline < self._timer_at:
            self._set_timer(deadline)
        return _Pending(api, version, correlation_id, future, timeout, deadline, expect_answer=expect_answer), parts

    def _transmit(self, pending: _Pending, parts: list[Buffer]) -> None:
        if pending.expect_answer:
            self._pending.append(pending)
        assert self._transport is not None
        send_parts(self._transport, parts)
        if pending.expect_answer:
            return
        if self._paused:
            self._draining.append(pending)
        else:
            pending.future.set_result(memoryview(b""))

    def _lost(self, reason: str, cause: Exception | None) -> None:
        if self._error is not None:
            return
        # It told its versions (asked once or twice) and nothing else: so does a listener for SASL without credentials.
        versions_only = self.versions.ranges and self._next_correlation_id - len(self._pending) <= 2
        if (
            self._settings.sasl is None
            and versions_only
            and self._pending
            and self._pending[0].api != Api.sasl_handshake
        ):
            suspect_sasl(self.host, self.port)
        error = ConnectionLost(f"{self.host}:{self.port}: {reason}")
        error.__cause__ = cause
        self.abort(error)

    def _wrong(self, size: int) -> IngestdError:
        name, limit = f"{self.host}:{self.port}", self._settings.answer_limit
        if size >> 16 == _TLS_ALERT and self._settings.tls is None:
            return AuthenticationFailed(f"{name}: this is a listener for TLS")
        first = size.to_bytes(4, "big", signed=True)
        if first.isalpha():  # more than 1 GB as a size
            return ProtocolError(f"{name}: it answers with {first.decode()!r}; this is not the Kafka protocol")
        if size > limit:
            return ProtocolError(f"{name}: an answer of {size} bytes was announced; the limit is {limit}")
        return ProtocolError(f"{name}: an answer of {size} bytes was announced; this is not the Kafka protocol")

    def _answered(self, answer: memoryview) -> None:
        if not self._pending:
            self.abort(ProtocolError(f"{self.host}:{self.port}: an answer to no request"))
            return
        pending = self._pending[0]
        correlation_id = _INT32.unpack_from(answer)[0]
        if correlation_id != pending.correlation_id:
            self.abort(
                ProtocolError(
                    f"{self.host}:{self.port}: answer {correlation_id} came where {pending.correlation_id} was due"
                )
            )
            return
        try:
            body = skip_response_header(pending.api, pending.version, answer)
        except ProtocolError as error:
            self.abort(error)
            return
        self._pending.popleft()
        if not pending.future.done():
            pending.future.set_result(body)
        if self._room_waiters:
            self._wake_for_room()

    def _wake_for_room(self) -> None:
        """Wake as many waiters as may send now, in order of arrival, so that they do not compete for one place."""
        limit = self._settings.in_flight_limit
        places = limit - len(self._pending) if limit else len(self._room_waiters)
        while self._room_waiters and places > 0 and not self._paused and self._held is None:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                places -= 1

    def _fail_all(self, error: IngestdError) -> None:
        while self._pending:
            self._fail(self._pending.popleft().future, error)
        while self._draining:
            self._fail(self._draining.popleft().future, error)
        while self._held:
            self._fail(self._held.popleft()[0].future, error)
        for waiter in self._room_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._room_waiters.clear()

    def _fail(self, future: asyncio.Future[Any], error: IngestdError) -> None:
        if future.done():
            return
        if isinstance(error, ConnectionLost):
            future.set_exception(ConnectionLost(*error.args))
        else:
            lost = ConnectionLost(f"{self.host}:{self.port}: connection ended: {error}")
            lost.__cause__ = error
            future.set_exception(lost)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._check_deadlines)

    def _check_deadlines(self) -> None:
        """One timer for all requests: fires at the earliest deadline, is set again if that request was answered."""
        self._timer = None
        self._timer_at = _NEVER
        now = self._loop.time()
        earliest = _NEVER
        for pending in chain(self._pending, self._draining, (held for held, _ in self._held or ())):
            if pending.deadline <= now:
                self._missed(pending)
                return
            earliest = min(earliest, pending.deadline)
        if earliest < _NEVER:
            self._set_timer(earliest)

    def _missed(self, pending: _Pending) -> None:
        error = DeadlineExceeded(
            f"{self.host}:{self.port}: {api_name(pending.api)} not answered within {pending.timeout:g} s"
        )
        if not pending.future.done():
            pending.future.set_exception(error)
        self.abort(error)
