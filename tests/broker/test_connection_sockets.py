"""One connection on real sockets, where the socket is the point: refusals, memory after an abort, backpressure.

Every test runs on asyncio's own loop and on uvloop: their transports differ in when they send and what they hold.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Self

import pytest

from ingestd.errors import AuthenticationFailed, Closed, ConnectionLost, DeadlineExceeded, IngestdError, ProtocolError
from ingestd.wire.connection import Connection, ConnectionSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SETTINGS = ConnectionSettings(send_buffer=65536)
VERSIONS = struct.pack(">hi", 0, 1) + struct.pack(">hhh", 18, 0, 0) + struct.pack(">i", 0)


async def read_request(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
    """Key, version, correlation id, and everything behind the header."""
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    data = await reader.readexactly(size)
    key, version, correlation_id, name = struct.unpack_from(">hhih", data)
    return key, version, correlation_id, data[10 + name :]


def framed(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


class Server:
    """A scripted broker: it negotiates in version 0, then hands the stream to the script."""

    def __init__(self, script: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.script = script
        self.failed: BaseException | None = None

    async def __aenter__(self) -> Self:
        # A small receive buffer, so that the client's kernel fills up soon.
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.port = listening.getsockname()[1]
        self.server = await asyncio.start_server(self._serve, sock=listening)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.server.close()
        if self.failed is not None:
            raise self.failed

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                _, version, correlation_id, _ = await read_request(reader)
                if version == 0:
                    break
                writer.write(framed(correlation_id, struct.pack(">hi", 35, 0)))
            writer.write(framed(correlation_id, VERSIONS))
            await self.script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except BaseException as error:
            self.failed = error
            raise
        finally:
            writer.close()

    async def connect(self, settings: ConnectionSettings = SETTINGS) -> Connection:
        return await Connection.open("127.0.0.1", self.port, settings=settings, timeout=5)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_a_refused_connection_fails_at_once_and_names_the_address(on_loop: Any) -> None:
    async def work() -> None:
        port, began = free_port(), time.monotonic()
        with pytest.raises(ConnectionLost, match=rf"127\.0\.0\.1:{port}.*refused"):
            await Connection.open("127.0.0.1", port, settings=SETTINGS, timeout=10)
        assert time.monotonic() - began < 5

    on_loop(work())


@pytest.mark.parametrize(
    ("greeting", "error", "complaint"),
    [
        (bytes.fromhex("15030300020250"), AuthenticationFailed, "a listener for TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError, "it answers with 'HTTP'; this is not the Kafka protocol"),
        (b"\0\0\0\0", ProtocolError, "not the Kafka protocol"),
    ],
)
def test_a_listener_of_another_protocol_is_named_as_such(
    on_loop: Any, greeting: bytes, error: type[IngestdError], complaint: str
) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(greeting)
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(error, match=complaint):
                await Connection.open("127.0.0.1", port, settings=SETTINGS, timeout=10)

    on_loop(work())


def test_an_unknown_host_is_a_lost_connection_that_names_it(on_loop: Any) -> None:
    # Too long for a name: the resolver says so without a name server, which might take longer than the deadline.
    host = "no-such-host." * 20 + "invalid"

    async def work() -> None:
        with pytest.raises(ConnectionLost, match=rf"^{host}: "):
            await Connection.open(host, 9092, settings=SETTINGS, timeout=10)

    on_loop(work())


def test_a_host_that_accepts_and_says_nothing_meets_the_deadline_and_leaves_no_socket(on_loop: Any) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            with pytest.raises(DeadlineExceeded):
                await Connection.open("127.0.0.1", silent.getsockname()[1], settings=SETTINGS, timeout=0.1)
            accepted, _ = silent.accept()
            with accepted:
                accepted.settimeout(5)
                while accepted.recv(65536):
                    pass

    on_loop(work())


def test_cancelling_an_attempt_leaves_no_socket(on_loop: Any) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            opening = Connection.open("127.0.0.1", silent.getsockname()[1], settings=SETTINGS, timeout=60)
            attempt = asyncio.create_task(opening)
            accepted, _ = await asyncio.to_thread(silent.accept)
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt
            with accepted:
                accepted.settimeout(5)
                while await asyncio.to_thread(accepted.recv, 65536):
                    pass

    on_loop(work())


def test_pipelined_requests_with_large_parts_arrive_whole_and_in_order(on_loop: Any) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, _, correlation_id, body = await read_request(reader)
            writer.write(framed(correlation_id, body))
            await writer.drain()

    async def work() -> None:
        async with Server(echo) as server:
            connection = await server.connect()
            bodies = [[bytes([n]) * 3, memoryview(bytearray([n]) * (n * 100_000)), b"end"] for n in range(20)]
            futures = [connection.send(0, 3, body, timeout=15) for body in bodies]
            for body, future in zip(bodies, futures, strict=True):
                assert await future == b"".join(body)
            await connection.close()

    on_loop(work())


def test_no_byte_leaves_after_an_abort_so_memory_may_be_used_again_at_once(on_loop: Any) -> None:
    received = bytearray()
    aborted = asyncio.Event()

    async def read_late(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await aborted.wait()
        while chunk := await reader.read(1 << 20):
            received.extend(chunk)
        done.set()

    done = asyncio.Event()

    async def work() -> None:
        async with Server(read_late) as server:
            connection = await server.connect()
            memory = bytearray(b"o" * (16 << 20))
            future = connection.send(0, 3, [memoryview(memory)], timeout=15)
            await asyncio.sleep(0)
            assert not connection.has_room
            connection.abort(Closed("enough"))
            assert future.done()
            memory[:] = b"z" * len(memory)
            aborted.set()
            await connection.wait_ended()
            with pytest.raises(ConnectionLost):
                await future
            memory.clear()  # fails with BufferError while anything holds a view
            await done.wait()

    on_loop(work())
    assert received.count(b"o") > 0
    assert received.count(b"z") == 0


def test_memory_of_a_request_without_answer_is_free_when_its_future_says_so(on_loop: Any) -> None:
    reading = asyncio.Event()
    read = asyncio.Event()

    async def read_when_told(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reading.wait()
        for length in (1000, 16 << 20):
            assert (await read_request(reader))[3] == b"m" * length
        read.set()

    async def work() -> None:
        async with Server(read_when_told) as server:
            connection = await server.connect()
            for length in (1000, 16 << 20):
                memory = bytearray(b"m" * length)
                sent = connection.send(0, 3, [memoryview(memory)], timeout=15, expect_answer=False)
                assert sent.done() == (length == 1000)
                if not sent.done():
                    reading.set()
                    await sent
                memory[:] = b"z" * length
                memory.clear()  # fails with BufferError while anything holds a view
            await read.wait()
            await connection.close()

    on_loop(work())


@pytest.fixture(params=["as it is", "as it was before CVE-2024-12254 was mended"])
def writelines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio's own `writelines`; that of Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 never paused its writer."""

    def never_pausing(transport: Any, parts: list[bytes]) -> None:
        transport._maybe_pause_protocol = lambda: None
        transport.write(b"".join(parts))
        del transport._maybe_pause_protocol

    if request.param != "as it is":
        monkeypatch.setattr("asyncio.selector_events._SelectorSocketTransport.writelines", never_pausing, raising=False)
        monkeypatch.setattr("ingestd.wire.sockets.WRITELINES_NEVER_PAUSES", True)


@pytest.mark.usefixtures("writelines")
def test_a_full_kernel_is_no_room_until_the_broker_reads(on_loop: Any) -> None:
    reading = asyncio.Event()

    async def read_when_told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reading.wait()
        _, _, correlation_id, _ = await read_request(reader)
        writer.write(framed(correlation_id, b"done"))
        await reader.read()

    async def work() -> None:
        async with Server(read_when_told) as server:
            connection = await server.connect()
            future = connection.send(0, 3, [bytes(16 << 20)], timeout=15)
            room = asyncio.create_task(connection.room())
            await asyncio.sleep(0.01)
            assert not room.done()
            reading.set()
            await room
            assert bytes(await future) == b"done"
            await connection.close()

    on_loop(work())


def test_a_broker_that_dies_fails_everything_in_flight_at_once(on_loop: Any) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.transport.abort()

    async def work() -> None:
        async with Server(die) as server:
            connection = await server.connect()
            futures = [connection.send(3, 1, [bytes(10)], timeout=60) for _ in range(5)]
            for future in futures:
                with pytest.raises(ConnectionLost):
                    await future
            assert connection.closed
            await connection.close()

    on_loop(work())


def test_sockets_do_not_wait_for_company_and_are_probed(on_loop: Any) -> None:
    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async def work() -> None:
        async with Server(wait) as server:
            connection = await server.connect()
            made = connection._socket
            assert made is not None
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            await connection.close()

    on_loop(work())
