"""A connection on a transport in memory: what it sends is a list of parts, what it receives is fed by the test."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.wire.connection import Connection, ConnectionSettings

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryTransport(asyncio.Transport):
    """Takes everything until told to be full."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []
        self.aborted = False
        self.limits: tuple[int | None, int | None] = (None, None)

    def writelines(self, list_of_data: Any) -> None:
        assert not self.aborted
        self.sent.extend(list_of_data)

    def write(self, data: Any) -> None:
        raise AssertionError("parts are sent by writelines")

    def abort(self) -> None:
        self.aborted = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)


class Wired:
    """A connection with its other end in the test's hands."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.transport = MemoryTransport()
        self.connection = Connection("broker", 9092, settings)
        self.connection.connection_made(self.transport)

    def feed(self, data: bytes, chunk: int = 1 << 30) -> None:
        """Let `data` arrive, at most `chunk` bytes at a time."""
        position = 0
        while position < len(data) and not self.connection.closed:
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), chunk, len(data) - position)
            buffer[:size] = data[position : position + size]
            position += size
            self.connection.buffer_updated(size)

    def requests(self) -> list[bytes]:
        """Every request sent so far, without its size prefix."""
        stream = b"".join(bytes(part) for part in self.transport.sent)
        found = []
        while stream:
            size = struct.unpack_from(">i", stream)[0]
            found.append(stream[4 : 4 + size])
            stream = stream[4 + size :]
        return found


def answer(correlation_id: int, body: bytes, *, flexible: bool = False) -> bytes:
    """An answer as a broker frames it."""
    payload = struct.pack(">i", correlation_id) + (b"\0" if flexible else b"") + body
    return struct.pack(">i", len(payload)) + payload


@pytest.fixture
def wire() -> Callable[..., Wired]:
    """Make a connection in memory; keyword arguments are its settings."""

    def make(**settings: Any) -> Wired:
        return Wired(ConnectionSettings(**settings))

    return make


@pytest.fixture
def framed() -> Callable[..., bytes]:
    """Frame an answer."""
    return answer
