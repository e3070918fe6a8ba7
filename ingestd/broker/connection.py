"""One client's connection: frames in, requests to their handlers in their order, answers out in that order too.

A frame is received into a buffer of its size, and handed on without a copy. Small frames come through a scratch buffer,
several at a time. So pipelined small requests cost one system call together.

A request starts when the one before it has taken effect. Kafka has one request of a connection in work: it mutes the
connection until the answer is sent. So a client may count on this: a LeaveGroup behind a JoinGroup that is held back
leaves after the join, and what is behind a long fetch waits. Here only Produce requests that follow each other overlap:
each has appended before the next starts, and they wait for the disk together. While a request is held back, no further
one is taken. Some bytes are still read, so that the end of the connection is noticed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from ingestd.broker.request import Answer, Request, read_bare_message, read_request
from ingestd.broker.security.tls import principal_of
from ingestd.broker.session import Context, Session
from ingestd.errors import ErrorCode, IngestdError, ProtocolError
from ingestd.logs import get_logger
from ingestd.records.loops import allocate
from ingestd.wire.apis import api_name
from ingestd.wire.sockets import send_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.broker.api.handlers import Handler
    from ingestd.broker.broker import Broker
    from ingestd.broker.session import Listener
    from ingestd.tasks import TaskOwner

__all__ = ["Connection"]

_SCRATCH_BYTES: Final = 16 * 1024
_SIZE_BYTES: Final = 4
_SMALLEST_REQUEST: Final = 8
_LARGEST_PIPELINE: Final = 32
"""Most requests of one connection that are being answered. With more, nothing is read from that connection."""
_LARGEST_BEFORE_AUTHENTICATION: Final = 512 * 1024
"""Bytes, as in Kafka (`sasl.server.max.receive.size`): a client that has not authenticated gets no more memory."""
_FRAME_TIMEOUT: Final = 60.0
"""Seconds without a byte after which a half-sent frame ends its connection: other clients may need its memory."""
_TURN: Final = 0.002
"""Seconds for which requests of one connection are taken without a break. Then it is the turn of the others."""
_NO_BODY: Final = memoryview(b"")

_log = get_logger(__name__)


class _Slot:
    """A request's place in the order of answers."""

    __slots__ = ("answer", "held", "request", "task")

    def __init__(self, request: Request, held: int) -> None:
        self.request = request
        self.held = held
        self.answer: Answer | None = None
        self.task: asyncio.Task[Answer] | None = None


class Connection(asyncio.BufferedProtocol):
    """Invariants
    Handlers are called in the order of requests, and answers are sent in that order.
    A handler starts when the requests before it are answered, or have taken effect and overlap with it.
    Bytes counted in the memory budget are given back when the request is answered and the kernel has the answer, or
    when the connection ends.
    Bad input from a client can end only its own connection, which is logged.
    """  # noqa: D205 - the class is what the module says

    def __init__(
        self,
        broker: Broker,
        listener: Listener,
        handlers: Mapping[int, Handler],
        tasks: TaskOwner,
        connections: set[Connection],
    ) -> None:
        self._broker = broker
        self._session = Session(listener)
        self._context = Context(broker, listener.node, self._session)
        self._handlers = handlers
        self._tasks = tasks
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._filled = 0
        self._frame: bytearray | None = None
        self._received = 0
        self._slots: deque[_Slot] = deque()
        self._taking = False
        self._running = 0
        self._handler: Handler | None = None
        """The handler of the requests that are running. They have the same one."""
        self._next: tuple[_Slot, Handler] | None = None
        """A request that was read and has not started."""
        self._yielded = False
        """Whether requests that are here wait until others had their turn. Until then nothing more is read."""
        self._muted = False
        """Whether no further request is taken now, because one is held back."""
        self._unsent = 0
        self._write_paused = False
        self._waiting_for_room = False
        self._ending = False
        self._last_byte = time.monotonic()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """A future that is done when the connection is gone."""

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport, unless there are too many already."""
        self._transport = cast("asyncio.Transport", transport)
        local, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if local is None or peer is None:
            # Reset before it was accepted, as port scans do. If this raised, uvloop would keep the socket.
            self.abort()
            return
        self._session.local = tuple(local[:2])
        self._session.peer_host, self._session.peer_port = peer[:2]
        certificate = transport.get_extra_info("peercert")
        if certificate and self._session.principal:
            self._session.principal = principal_of(certificate)
        # If the kernel does not take everything at once, that is noticed, and the next answer waits.
        self._transport.set_write_buffer_limits(high=0)
        if self._broker.faults.refuses(self._context.node):
            self.abort()
            return
        if len(self._connections) >= self._broker.settings.max_connections:
            self._end("too many connections")
            return
        self._connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        del sizehint
        if self._frame is not None:
            return memoryview(self._frame)[self._received :]
        return memoryview(self._scratch)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take `nbytes` more, and all requests that are complete now."""
        self._last_byte = time.monotonic()
        if self._frame is None:
            self._filled += nbytes
            self._take_from_scratch()
            return
        self._received += nbytes
        if self._received == len(self._frame):
            frame, self._frame = self._frame, None
            self._take(memoryview(frame), held=len(frame))
            self._watch_pipeline()

    def eof_received(self) -> bool:
        """A client that closes its side gets no more answers."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all work for this client."""
        del exc
        self._ending = True
        self._connections.discard(self)
        if not self.lost.done():
            self.lost.set_result(None)
        for slot in self._slots:
            if slot.task is not None:
                slot.task.cancel()
            self._broker.memory.give_back(slot.held)
        self._slots.clear()
        self._next = None
        if self._frame is not None:
            if not self._broker.memory.stop_waiting(self._room_made):
                self._broker.memory.give_back(len(self._frame))
            self._frame = None
        self._broker.memory.give_back(self._unsent)
        self._unsent = 0

    def pause_writing(self) -> None:
        """The kernel did not take everything: the client does not read as fast as it asks."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """The kernel has everything that was written."""
        self._write_paused = False
        self._broker.memory.give_back(self._unsent)
        self._unsent = 0
        self._send_answers()

    # Frames.

    def _take_from_scratch(self) -> None:
        self._taking = True
        try:
            self._take_frames()
        finally:
            self._taking = False
        self._watch_pipeline()

    def _take_frames(self) -> None:
        scratch = memoryview(self._scratch)
        at = 0
        ends = time.monotonic() + _TURN
        while self._filled - at >= _SIZE_BYTES:
            if self._ending or self._muted or len(self._slots) >= _LARGEST_PIPELINE:
                break
            if time.monotonic() >= ends:
                self._yielded = True
                asyncio.get_running_loop().call_soon(self._resume)
                break
            size = int.from_bytes(scratch[at : at + _SIZE_BYTES], "big", signed=True)
            smallest, largest = 0 if self._session.bare else _SMALLEST_REQUEST, self._largest_request()
            if not smallest <= size <= largest:
                self._end(f"a request of {size} bytes: expected {smallest} to {largest}")
                return
            start, end = at + _SIZE_BYTES, at + _SIZE_BYTES + size
            if end <= self._filled:
                self._take(memoryview(bytearray(scratch[start:end])), held=0)
            elif end - at > len(scratch):
                self._begin_frame(size, scratch[start : self._filled])
                self._filled = 0
                return
            else:
                break
            at = end
        if at:
            scratch[: self._filled - at] = scratch[at : self._filled]
            self._filled -= at

    def _largest_request(self) -> int:
        most = self._broker.settings.max_request_bytes
        return most if self._session.principal else min(most, _LARGEST_BEFORE_AUTHENTICATION)

    def _begin_frame(self, size: int, begun: memoryview) -> None:
        self._frame = allocate(size)
        self._frame[: len(begun)] = begun
        self._received = len(begun)
        if not self._broker.memory.take_or_wait(size, self._room_made):
            self._waiting_for_room = True

    def _room_made(self) -> None:
        self._waiting_for_room = False
        self._last_byte = time.monotonic()
        self._watch_pipeline()

    def _watch_pipeline(self) -> None:
        full = len(self._slots) >= _LARGEST_PIPELINE or (self._muted and self._filled == _SCRATCH_BYTES)
        self._reading(wanted=not self._waiting_for_room and not full and not self._yielded)

    def _reading(self, *, wanted: bool) -> None:
        assert self._transport is not None
        if self._transport.is_closing() or self._transport.is_reading() == wanted:
            return
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # Requests.

    def _take(self, frame: memoryview, held: int) -> None:
        try:
            request = read_bare_message(frame) if self._session.bare else read_request(frame)
            handler = self._handlers.get(request.api)
            if handler is None or not handler.takes(request.version):
                raise ProtocolError(f"API {request.api} version {request.version} is not served here")
        except IngestdError as error:
            self._broker.memory.give_back(held)
            self._end(str(error))
            return
        slot = _Slot(request, held)
        self._slots.append(slot)
        if self._running and not (handler.overlaps and handler is self._handler):
            self._next = slot, handler
            self._muted = True
            return
        self._start(slot, handler)
        self._send_answers()

    def _start(self, slot: _Slot, handler: Handler) -> None:
        request = slot.request
        if not self._session.allows(request.api, self._broker.clock.monotonic()):
            # Only now: the requests before this one may have authenticated the client.
            self._end(f"{api_name(request.api)} from a client that has not authenticated: it needs SASL")
            return
        self._session.client_id = request.client_id
        try:
            fault = self._broker.faults.take(self._context.node, request)
            handle = handler.handle if fault is None else partial(fault.handle, handler)
            handled = handle(self._context, request)
        except IngestdError as error:
            self._end(f"API {request.api} version {request.version}: {error}")
            return
        except Exception:  # noqa: BLE001 - one request must not take the broker down; it is logged and ends its client
            _log.exception("request failed", api=request.api, version=request.version)
            self._end("request failed")
            return
        if isinstance(handled, Answer):
            self._answered(slot, handled)
            return
        self._running += 1
        # What is behind a request that is late on purpose waits for it.
        self._handler = handler if fault is None else None
        self._muted = fault is not None or not handler.overlaps
        slot.task = self._tasks.start(handled, f"api {request.api} for port {self._session.peer_port}")
        slot.task.add_done_callback(lambda task: self._done(slot, task))

    def _done(self, slot: _Slot, task: asyncio.Task[Answer]) -> None:
        slot.task = None
        self._running -= 1
        self._muted = self._next is not None
        if self._ending or task.cancelled():
            return
        if task.exception() is not None:
            # The owner of the task has logged it.
            self._end("request failed")
            return
        self._answered(slot, task.result())
        self._send_answers()
        if self._next is not None and not self._running and not self._ending:
            held_back, self._next = self._next, None
            self._muted = False
            self._start(*held_back)
            self._send_answers()

    def _answered(self, slot: _Slot, answer: Answer) -> None:
        """The request's memory is free now, except for what the answer uses."""
        memory = self._broker.memory
        memory.give_back(slot.held)
        slot.held = answer.size
        memory.take(slot.held)
        slot.answer = answer
        if self._slots[0] is not slot:
            # The answers before it may take long. Until then the request's body is not needed, only its header.
            slot.request = replace(slot.request, body=_NO_BODY)

    def _send_answers(self) -> None:
        transport = self._transport
        assert transport is not None
        while self._slots and self._slots[0].answer is not None and not self._write_paused and not self._ending:
            slot = self._slots.popleft()
            answer = slot.answer
            assert answer is not None
            self._broker.request_log.answered(self._session, slot.request, answer.error)
            self._unsent += slot.held
            if answer.parts is not None:
                send_parts(transport, answer.frame(slot.request))
            elif answer.error is not ErrorCode.none and not answer.closes:
                self._end(f"acks=0 and {answer.error.name}")
                return
            if answer.closes:
                self.close()
                return
            if not self._write_paused:
                self._broker.memory.give_back(self._unsent)
                self._unsent = 0
        if not self._ending and not self._taking and (self._filled or not transport.is_reading()):
            # Nothing more was taken for a while, and requests may have been left in the scratch buffer.
            asyncio.get_running_loop().call_soon(self._continue)

    def _resume(self) -> None:
        self._yielded = False
        self._continue()

    def _continue(self) -> None:
        if self._ending or self._yielded:
            return
        if self._frame is None:
            self._take_from_scratch()
        else:
            self._watch_pipeline()

    def sweep(self, now: float, idle_timeout: float) -> None:
        """End the connection if its client stopped in the middle of a frame, or neither asked nor read for too long."""
        quiet = now - self._last_byte
        if self._frame is not None and not self._waiting_for_room and quiet > _FRAME_TIMEOUT and self._reading_now():
            self._end(f"nothing for {quiet:.0f} s in the middle of a request")
        elif quiet > idle_timeout and self._write_paused:
            # Closing would wait for ever, because the client does not read.
            _log.warning("connection closed", peer=self._session.peer, reason=f"nothing was read for {quiet:.0f} s")
            self.abort()
        elif quiet > idle_timeout and not self._slots:
            self.close()

    def _reading_now(self) -> bool:
        return self._transport is not None and self._transport.is_reading()

    def _end(self, reason: str) -> None:
        _log.warning("connection closed", peer=self._session.peer, reason=reason)
        self.close()

    @property
    def node_id(self) -> int:
        """The node that the client reached."""
        return self._context.node.id

    def close(self) -> None:
        """Take no more requests. Answers that are ready are sent."""
        self._ending = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection now. Answers that were not sent are dropped."""
        self._ending = True
        if self._transport is not None:
            self._transport.abort()
