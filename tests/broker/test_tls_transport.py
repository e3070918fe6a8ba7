"""TLS of the broker's listeners: nothing that a client sent is lost at its end, and both sides get all in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import weakref
from typing import TYPE_CHECKING, Any, Self, cast

import pytest
from embedded.batches import batch_of
from embedded.process import BrokerProcess
from embedded.raw import RawClient
from harness.certificates import Certificates

from ingestd.broker.acceptor import Acceptor
from ingestd.broker.security.settings import SecuritySettings
from ingestd.broker.security.tls import ServerTls
from ingestd.tasks import TaskOwner
from ingestd.wire.apis import Api
from ingestd.wire.codec import frame_request
from ingestd.wire.fetch import FetchPartition, fetch_request
from ingestd.wire.produce import produce_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REQUESTS = 1000
SECONDS = 30


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def context(certificates: Certificates) -> ssl.SSLContext:
    """The client's."""
    return ssl.create_default_context(cafile=str(certificates.ca))


class Slow(asyncio.BufferedProtocol):
    """Takes little at a time, and pauses after each; `told` is what it was told, in order."""

    def __init__(self, piece: int = 5_000, answer: bytes = b"") -> None:
        self.buffer = bytearray(piece)
        self.answer = answer
        self.content = bytearray()
        self.told: list[str] = []
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=0)

    def get_buffer(self, sizehint: int) -> bytearray:
        del sizehint
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.content += self.buffer[:nbytes]
        self.transport.pause_reading()
        assert not self.transport.is_reading()
        asyncio.get_running_loop().call_soon(self.transport.resume_reading)
        if self.answer:
            self.transport.writelines([self.answer[:10], memoryview(self.answer)[10:]])
            self.answer = b""

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def eof_received(self) -> bool:
        self.told.append("end")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")
        self.lost.set_result(exc)


class Listening:
    """An acceptor with TLS, for protocols that `make` makes. Async context manager."""

    def __init__(self, certificates: Certificates, make: Callable[[], Slow]) -> None:
        self.made: list[Slow] = []
        self._make = make
        self._tasks = TaskOwner()
        context = ServerTls(SecuritySettings(certificates.broker)).context
        self._acceptor = Acceptor(self._another, self._tasks, context)

    def _another(self) -> Slow:
        self.made.append(self._make())
        return self.made[-1]

    async def __aenter__(self) -> Self:
        self.address = await self._acceptor.listen("127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._acceptor.close()
        await self._tasks.close()

    def connect(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        """In a thread: it blocks."""
        return context.wrap_socket(socket.create_connection(self.address, SECONDS), server_hostname="127.0.0.1")

    def protocol(self) -> Slow:
        (only,) = self.made
        return only


def end(client: ssl.SSLSocket, how: str) -> None:
    """Say that nothing more comes, with TLS's words or without."""
    if how == "FIN":
        client.shutdown(socket.SHUT_WR)
    else:
        client.setblocking(False)
        with contextlib.suppress(ssl.SSLWantReadError):
            client.unwrap()
        client.settimeout(SECONDS)


def rest(client: ssl.SSLSocket | socket.socket) -> bytes:
    """All that comes until the end."""
    content = bytearray()
    with contextlib.suppress(ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionResetError):
        while piece := client.recv(1 << 16):
            content += piece
    return bytes(content)


@pytest.mark.parametrize("how", ["FIN", "close_notify"])
def test_a_slow_protocol_gets_all_that_was_sent_and_then_the_end(
    on_loop: Any, certificates: Certificates, context: ssl.SSLContext, how: str
) -> None:
    sent = os.urandom(3_000_000)

    async def work() -> None:
        async with Listening(certificates, Slow) as listening:

            def speak() -> None:
                with listening.connect(context) as client:
                    client.sendall(sent)
                    end(client, how)
                    # Who closes with something unread resets the connection, and the kernel drops what it has.
                    rest(client)

            await asyncio.to_thread(speak)
            protocol = listening.protocol()
            await protocol.lost
            assert bytes(protocol.content) == sent
            assert protocol.told == ["end", "lost"]

    on_loop(work())


async def asked(listening: Listening, context: ssl.SSLContext) -> tuple[ssl.SSLSocket, Slow]:
    """A client that has asked for an answer and does not read it, and its protocol, which was told to pause."""
    client = await asyncio.to_thread(listening.connect, context)
    client.sendall(b"?")
    while "pause" not in (protocol := listening.protocol()).told:
        await asyncio.sleep(0)
    return client, protocol


def test_what_was_written_before_the_close_arrives_at_a_client_that_reads_late(
    on_loop: Any, certificates: Certificates, context: ssl.SSLContext
) -> None:
    answer = os.urandom(20_000_000)

    async def work() -> None:
        async with Listening(certificates, lambda: Slow(answer=answer)) as listening:
            client, protocol = await asked(listening, context)
            protocol.transport.close()
            assert protocol.transport.is_closing()
            protocol.transport.write(b"too late")
            assert await asyncio.to_thread(rest, client) == answer
            client.close()
            assert await protocol.lost is None
            assert protocol.told[-1] == "lost"
            assert "end" not in protocol.told

    on_loop(work())


def test_who_says_that_nothing_more_comes_gets_the_rest_of_what_was_written(
    on_loop: Any, certificates: Certificates, context: ssl.SSLContext
) -> None:
    answer = os.urandom(20_000_000)

    async def work() -> None:
        async with Listening(certificates, lambda: Slow(answer=answer)) as listening:
            client, protocol = await asked(listening, context)
            with socket.socket(fileno=os.dup(client.fileno())) as raw:
                raw.shutdown(socket.SHUT_WR)
            assert await asyncio.to_thread(rest, client) == answer
            client.close()
            assert await protocol.lost is None
            assert protocol.told.count("end") == 1

    on_loop(work())


def test_a_transport_is_gone_with_its_connection(
    on_loop: Any, certificates: Certificates, context: ssl.SSLContext
) -> None:
    """OpenSSL's memory is not seen by the garbage collector, so it would come late."""

    async def work() -> None:
        async with Listening(certificates, Slow) as listening:
            (await asyncio.to_thread(listening.connect, context)).close()
            while not listening.made:
                await asyncio.sleep(0)
            await listening.protocol().lost
            await asyncio.sleep(0)
            transport = weakref.ref(listening.made.pop().transport)
            assert transport() is None

    gc.disable()
    try:
        on_loop(work())
    finally:
        gc.enable()


def test_bytes_that_are_no_record_end_the_connection(
    on_loop: Any, certificates: Certificates, context: ssl.SSLContext
) -> None:
    async def work() -> None:
        async with Listening(certificates, Slow) as listening:

            def speak() -> None:
                with listening.connect(context) as client:
                    client.sendall(b"right")
                    with socket.socket(fileno=os.dup(client.fileno())) as plain:
                        plain.sendall(b"wrong" * 10)
                    with pytest.raises(ssl.SSLError):  # the alert
                        client.recv(1)

            await asyncio.to_thread(speak)
            protocol = listening.protocol()
            await protocol.lost
            assert (bytes(protocol.content), protocol.told) == (b"right", ["lost"])

    on_loop(work())


def test_who_says_nothing_or_goes_in_the_handshake_is_let_go(
    on_loop: Any, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.broker.acceptor._HANDSHAKE_TIMEOUT", 0.1)

    async def work() -> None:
        async with Listening(certificates, Slow) as listening:
            for said in (b"", b"\x16\x03\x01"):
                for closes in (False, True):
                    with socket.create_connection(listening.address, SECONDS) as client:
                        client.sendall(said)
                        if closes:
                            client.shutdown(socket.SHUT_WR)
                        assert await asyncio.to_thread(rest, client) == b""

    on_loop(work())


@pytest.mark.parametrize("how", ["FIN", "close_notify"])
def test_the_last_requests_of_a_client_that_asks_for_no_answer_are_in_the_log(
    tmp_path: Path, certificates: Certificates, context: ssl.SSLContext, how: str
) -> None:
    """acks=0, thousands of small requests in one go: they are more than the broker takes in a turn."""
    with BrokerProcess(tmp_path, "--tls-certificate", str(certificates.broker)) as broker:

        def client() -> RawClient:
            made = RawClient(broker.port)
            made.socket = context.wrap_socket(made.socket, server_hostname="127.0.0.1")
            return made

        with client() as asks:
            asks.metadata("t")
            with client() as goes:
                body = produce_request(9, 0, 1000, None, [("t", None, [(0, batch_of([b"x"]))])])
                parts, _size = frame_request(Api.produce, 9, 1, "goes", body)
                goes.socket.sendall(b"".join(parts) * REQUESTS)
                end(cast("ssl.SSLSocket", goes.socket), how)
                rest(goes.socket)
            assert asks.produce("t", 0, batch_of([b"last"])).base_offset == REQUESTS


def test_connections_keep_no_memory_of_a_large_answer(
    tmp_path: Path, certificates: Certificates, context: ssl.SSLContext
) -> None:
    """Neither while they last nor afterwards; and a client that does not read costs its answer once."""
    largest = 40 * 900_000
    with BrokerProcess(tmp_path, "--tls-certificate", str(certificates.broker)) as broker:

        def client() -> RawClient:
            made = RawClient(broker.port)
            made.socket = context.wrap_socket(made.socket, server_hostname="127.0.0.1")
            return made

        def ask(asks: RawClient) -> None:
            wanted = [("t", None, [FetchPartition(0, 0, largest * 2)])]
            asks.send(Api.fetch, 11, fetch_request(11, wanted, max_wait_ms=1000, max_bytes=largest * 2))

        with contextlib.ExitStack() as stack:
            first, *others = [stack.enter_context(client()) for _ in range(6)]
            first.metadata("t")
            for _ in range(40):
                first.produce("t", 0, batch_of([os.urandom(900_000)]))
            before = broker.memory_bytes()
            for asks in others:
                ask(asks)
                answer = asks.receive()
                assert answer is not None
                assert len(answer) > largest
            assert broker.memory_bytes() - before < largest
            for asks in others:
                ask(asks)
            # Their answers are on their way when this one is answered.
            assert first.produce("t", 0, batch_of([b"last"])).base_offset == 40
            assert broker.memory_bytes() - before < largest * (len(others) + 1)
