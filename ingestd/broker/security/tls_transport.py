"""TLS between a connection and its socket, so that a connection under TLS sees what one without it would see.

uvloop's and asyncio's own TLS end a connection when the client has closed its side, with bytes that were received and
not yet handed over. So the last requests of a client that sends and goes would be lost, where it asks for no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingestd.wire.codec import Buffer

__all__ = ["RECEIVE_BYTES", "TlsTransport"]

RECEIVE_BYTES: Final = 256 * 1024
_RECORD_BYTES: Final = 16 * 1024
"""The most that one TLS record holds."""
_PIECE_BYTES: Final = 128 * 1024
"""The most that is encrypted in one go. OpenSSL keeps room for so much, as long as the connection lasts."""
_log = get_logger(__name__)


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """A transport for the protocol that `make` makes, and the protocol of the transport of its socket.

    `received` is where encrypted bytes are received, `RECEIVE_BYTES` of them; it may be shared by all of a loop, since
    nothing stays in it. The protocol is told of the connection after the handshake.

    Invariants
        The socket is read only while all that was received from it has been handed over. So its end comes last.
        What the kernel does not take is encrypted when it does. So an answer is there once, as without TLS.
    """

    def __init__(
        self, make: Callable[[], asyncio.BufferedProtocol], context: ssl.SSLContext, received: memoryview
    ) -> None:
        super().__init__()
        self._protocol = make()
        self._received = received
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[memoryview] = deque()
        """What is to be encrypted. The protocol was told to pause if there is any."""
        self._write_paused = False
        self._begun = False
        self._paused = False
        self._closing = False
        self._ended = False
        """Whether the client said that it sends no more. Its protocol hears of it when it has all before that."""
        self.handshake: asyncio.Future[None] = self._loop.create_future()
        """A future that is done after the handshake; or has the `OSError` for which there was none."""

    # What the socket's transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client's greeting."""
        self._socket = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next encrypted bytes go."""
        del sizehint
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        """Take `nbytes` more of the handshake or of what the client sends."""
        self._incoming.write(self._received[:nbytes])
        if not self._begun:
            self._shake_hands()
        if self._begun:
            self._hand_over()

    def eof_received(self) -> bool:
        """The client has gone. Its protocol has all that it sent."""
        if self._begun:
            self._protocol.eof_received()
        self._closing = True
        return bool(self._unsent)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._closing = True
        self._unsent.clear()
        if self._begun:
            self._protocol.connection_lost(exc)
            # It has this transport. The two would keep OpenSSL's memory until the garbage collector comes.
            del self._protocol
        elif not self.handshake.done():
            self.handshake.set_exception(exc or ConnectionResetError("closed by the client"))

    def pause_writing(self) -> None:
        """The kernel did not take everything."""
        self._write_paused = True
        if self._begun:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The kernel has everything that was encrypted: encrypt more, or tell the protocol."""
        self._write_paused = False
        self._encrypt()
        if self._unsent or not self._begun:
            return
        if self._closing:
            # Not now: asyncio closes a socket twice that is closed while it says that it has written.
            self._loop.call_soon(self._end)
        self._protocol.resume_writing()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except ssl.SSLError as error:
            self._send()
            self._closing = True
            self._socket.close()
            if not self.handshake.done():
                self.handshake.set_exception(error)
            return
        self._begun = True
        self._send()
        if not self.handshake.done():
            self.handshake.set_result(None)
        self._protocol.connection_made(self)

    def _hand_over(self) -> None:
        """Hand over what was received, until the protocol pauses; then it is the socket's turn again."""
        while not self._paused and not self.is_closing():
            buffer = memoryview(self._protocol.get_buffer(-1))
            filled = self._decrypt(buffer)
            if filled:
                self._protocol.buffer_updated(filled)
            elif self._ended:
                self._protocol.eof_received()
                self.close()
            else:
                break
        self._send()
        if not self._paused and not self.is_closing() and not self._socket.is_reading():
            self._socket.resume_reading()

    def _decrypt(self, buffer: memoryview) -> int:
        """How much of `buffer` was filled."""
        incoming, tls = self._incoming, self._tls
        filled, size = 0, len(buffer)
        try:
            while filled < size and (incoming.pending or tls.pending()):
                count = cast("int", tls.read(size - filled, buffer[filled:]))
                if not count:
                    self._ended = True
                    break
                filled += count
        except ssl.SSLWantReadError:
            pass  # the rest of a record is still to come
        except ssl.SSLError as error:
            _log.info("connection closed", peer=self._socket.get_extra_info("peername"), reason=f"TLS: {error.reason}")
            self._send()  # the alert
            self._closing = True
            self._unsent.clear()
            self._socket.close()
        return filled

    def _send(self) -> None:
        if self._outgoing.pending:
            self._socket.write(self._outgoing.read())

    # What the protocol calls.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`peercert` is the client's certificate, None or empty if it was not asked for; the rest is the socket's."""
        return self._tls.getpeercert() if name == "peercert" else self._socket.get_extra_info(name, default)

    def is_reading(self) -> bool:
        """Whether what comes is handed over."""
        return not self._paused

    def pause_reading(self) -> None:
        """Hand over nothing more."""
        self._paused = True
        if not self._socket.is_closing():
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Hand over what is here, in the next turn of the loop, and then what comes."""
        self._paused = False
        self._loop.call_soon(self._hand_over)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Those of the socket, for encrypted bytes."""
        self._socket.set_write_buffer_limits(high, low)

    def write(self, data: Buffer) -> None:
        """Send `data`, unless the connection is closed."""
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send the parts. Small ones share a record."""
        if self._closing:
            return
        parts = [memoryview(part) for part in list_of_data]
        if sum(part.nbytes for part in parts) <= _RECORD_BYTES:
            parts = [memoryview(b"".join(parts))]
        self._unsent.extend(parts)
        self._encrypt()

    def _encrypt(self) -> None:
        """Encrypt what is unsent, as long as the kernel takes it."""
        while self._unsent and not self._write_paused:
            part = self._unsent.popleft()
            if part.nbytes:
                written = self._tls.write(part[:_PIECE_BYTES])
                if written < part.nbytes:
                    self._unsent.appendleft(part[written:])
            if self._outgoing.pending >= _PIECE_BYTES or not self._unsent:
                self._send()

    def is_closing(self) -> bool:
        """Whether the connection is closed or about to be."""
        return self._closing or self._socket.is_closing()

    def close(self) -> None:
        """Tell the client, and close the socket once the kernel has all that was written."""
        if self._closing:
            return
        self._closing = True
        if not self._unsent:
            self._end()
        elif not self._socket.is_closing():
            self._socket.pause_reading()

    def _end(self) -> None:
        if self._socket.is_closing():
            return
        # It tells the client first. Then it fails, as the client has not told us the same, or sends more.
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self._send()
        self._socket.close()

    def abort(self) -> None:
        """Close the socket now."""
        self._closing = True
        self._unsent.clear()
        self._socket.abort()
