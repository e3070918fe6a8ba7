"""Peers: descriptors between two workers over a `SOCK_SEQPACKET` pair; the bytes stay in the owner's arena.

An owner asks a peer to encode a raw run of the owner's arena into an output run of the same arena, and gets back where
the batches lie. All pages stay the owner's, so a peer's death costs nothing but the answer.
"""

from __future__ import annotations

import asyncio
import errno
import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from ingestd.daemon.source import BatchSpan, Encoding, Lane

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

__all__ = ["EncodeAnswer", "EncodeFailed", "EncodeRequest", "PeerChannel", "PeerMessage"]

_PACKET_BYTES: Final = 32768
_REQUEST: Final = struct.Struct("=BQHIIIIIiIqi")
_ANSWER: Final = struct.Struct("=BQIH")
_SPAN: Final = struct.Struct("=iIIII")
_FAILED: Final = struct.Struct("=BQH")
_NO_KEY: Final = -1
_NO_MEMORY: Final = (errno.ENOBUFS, errno.ENOMEM)
_PAUSE: Final = 0.02
"""Seconds until a packet is sent again that the kernel had no memory for."""


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """Encode `raw_length` bytes at `raw_offset` of the run at `raw_page` into the `out_length` bytes at `out_page`."""

    job: int
    route: int
    raw_page: int
    raw_offset: int
    raw_length: int
    out_page: int
    out_length: int
    lane: Lane
    partitions: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class EncodeAnswer:
    """The encoding that a request asked for. The spans are relative to its output run."""

    job: int
    encoding: Encoding


@dataclass(frozen=True, slots=True)
class EncodeFailed:
    """A request could not be encoded; the reason is for people."""

    job: int
    reason: str


PeerMessage: TypeAlias = EncodeRequest | EncodeAnswer | EncodeFailed


def _pack(message: PeerMessage) -> bytes:
    if isinstance(message, EncodeRequest):
        key = message.lane.key
        partition = message.lane.partition
        assert partition is not None, "the owner fixes the partition before it asks"
        return _REQUEST.pack(
            1,
            message.job,
            message.route,
            message.raw_page,
            message.raw_offset,
            message.raw_length,
            message.out_page,
            message.out_length,
            partition,
            message.partitions,
            message.timestamp_ms,
            _NO_KEY if key is None else len(key),
        ) + (key or b"")
    if isinstance(message, EncodeAnswer):
        batches = message.encoding.batches
        head = _ANSWER.pack(2, message.job, message.encoding.consumed, len(batches))
        return head + b"".join(
            _SPAN.pack(span.partition, span.start, span.length, span.records, span.uncompressed) for span in batches
        )
    reason = message.reason.encode()[:4096]
    return _FAILED.pack(3, message.job, len(reason)) + reason


def _unpack(packet: bytes) -> Iterator[PeerMessage]:
    at = 0
    while at < len(packet):
        kind = packet[at]
        if kind == 1:
            (
                _,
                job,
                route,
                raw_page,
                raw_offset,
                raw_length,
                out_page,
                out_length,
                partition,
                partitions,
                timestamp,
                key,
            ) = _REQUEST.unpack_from(packet, at)
            at += _REQUEST.size
            lane = Lane(partition, None if key == _NO_KEY else packet[at : at + key])
            at += max(key, 0)
            yield EncodeRequest(
                job, route, raw_page, raw_offset, raw_length, out_page, out_length, lane, partitions, timestamp
            )
        elif kind == 2:
            _, job, consumed, count = _ANSWER.unpack_from(packet, at)
            at += _ANSWER.size
            end = at + count * _SPAN.size
            batches = [BatchSpan(*fields) for fields in _SPAN.iter_unpack(packet[at:end])]
            at = end
            yield EncodeAnswer(job, Encoding(consumed, batches))
        else:
            _, job, length = _FAILED.unpack_from(packet, at)
            at += _FAILED.size
            yield EncodeFailed(job, packet[at : at + length].decode(errors="replace"))
            at += length


class PeerChannel:
    """One worker's end of the pair that joins it with a peer.

    Invariants
        Messages arrive in the order of `send`, several in a packet.
        The queue is bounded, because a worker has only a few jobs with each peer.
        `lost` means that the peer has closed its end, so it no longer writes into our runs. Any other failure is an
        error of this worker, which ends it.
    """

    def __init__(self, sock: socket.socket, received: Callable[[PeerMessage], None], lost: Callable[[], None]) -> None:
        sock.settimeout(0)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._received = received
        self._lost = lost
        self._waiting: deque[bytes] = deque()
        self._flush_due = False
        self._blocked = False
        self._closed = False
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, message: PeerMessage) -> None:
        """Queue a message. What is queued in one turn of the loop is sent in as few packets as possible."""
        if self._closed:
            return
        self._waiting.append(_pack(message))
        if not self._flush_due and not self._blocked:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def flush(self) -> None:
        """Send now what is queued. Called before long work that would keep the peer waiting."""
        if self._waiting and not self._blocked:
            self._flush()

    def close(self) -> None:
        """Leave the loop and close the socket. Safe to call twice; `lost` is not called."""
        if self._closed:
            return
        self._closed = True
        descriptor = self._sock.fileno()
        self._loop.remove_reader(descriptor)
        if self._blocked:
            self._loop.remove_writer(descriptor)
        self._sock.close()

    def _flush(self) -> None:
        self._flush_due = False
        if self._closed:
            return
        while self._waiting:
            taken, size = [self._waiting.popleft()], 0
            size = len(taken[0])
            while self._waiting and size + len(self._waiting[0]) <= _PACKET_BYTES:
                size += len(self._waiting[0])
                taken.append(self._waiting.popleft())
            try:
                self._sock.send(b"".join(taken))
            except BlockingIOError:
                self._waiting.extendleft(reversed(taken))
                if not self._blocked:
                    self._blocked = True
                    self._loop.add_writer(self._sock.fileno(), self._writable)
                return
            except ConnectionError:
                self._end()
                return
            except OSError as error:
                if error.errno not in _NO_MEMORY:
                    raise
                self._waiting.extendleft(reversed(taken))
                self._blocked = True
                self._loop.call_later(_PAUSE, self._writable)
                return

    def _writable(self) -> None:
        if self._closed:
            return
        self._loop.remove_writer(self._sock.fileno())
        self._blocked = False
        self._flush()

    def _readable(self) -> None:
        while not self._closed:
            try:
                packet = self._sock.recv(2 * _PACKET_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                packet = b""
            if not packet:
                self._end()
                return
            for message in _unpack(packet):
                self._received(message)

    def _end(self) -> None:
        if not self._closed:
            self.close()
            self._lost()
