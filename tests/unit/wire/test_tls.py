"""TLS on a connection: what is trusted, what a failure is called, and data in both directions, on both event loops."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import random
import shutil
import socket
import ssl
import struct
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from harness.certificates import Certificates
from harness.scripted_broker import ECHO, ScriptedBroker

from ingestd.errors import AuthenticationFailed, ConfigurationError, ConnectionLost, DeadlineExceeded, WrongSetting
from ingestd.wire import secret
from ingestd.wire.connection import Connection, ConnectionSettings
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings, UnusableTls, client_context, handshake_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def server(certificates: Certificates, *, shown: str = "broker", client_ca: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(getattr(certificates, shown))
    if client_ca:
        context.load_verify_locations(certificates.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def opened(broker: ScriptedBroker, tls: TlsSettings | None, host: str = "127.0.0.1") -> Connection:
    return await Connection.open(host, broker.port, settings=ConnectionSettings(tls=tls), timeout=30)


async def refusal(broker: ScriptedBroker, tls: TlsSettings | None, host: str = "127.0.0.1") -> str:
    with pytest.raises(AuthenticationFailed) as caught:
        await opened(broker, tls, host)
    assert str(caught.value).startswith(f"{host}:{broker.port}: ")
    return str(caught.value)


# What is trusted


@both_loops
def test_a_certificate_of_a_known_authority_for_the_right_name_is_accepted(run: Any, certificates: Any) -> None:
    async def check() -> None:
        async with ScriptedBroker(tls=server(certificates)) as broker:
            connection = await opened(broker, TlsSettings(ca_file=certificates.ca))
            assert bytes(await connection.send(*ECHO, [b"hello"], timeout=30)) == b"hello"
            await connection.close()

    run(check())


@both_loops
@pytest.mark.parametrize(
    ("shown", "trusted", "host", "reason"),
    [
        ("broker", "foreign_ca", "127.0.0.1", "unable to get local issuer certificate"),
        ("broker", None, "127.0.0.1", "unable to get local issuer certificate"),
        ("broker", "ca", "localhost", "certificate is not valid for 'localhost'"),
        ("expired", "ca", "127.0.0.1", "certificate has expired"),
    ],
)
def test_any_other_is_refused_with_the_reason(
    run: Any, certificates: Any, shown: str, trusted: str | None, host: str, reason: str
) -> None:
    async def check() -> None:
        async with ScriptedBroker(tls=server(certificates, shown=shown)) as broker:
            settings = TlsSettings(ca_file=getattr(certificates, trusted) if trusted else None)
            assert reason in await refusal(broker, settings, host)

    run(check())


@both_loops
def test_the_name_can_be_given_or_left_unchecked_and_verification_be_switched_off(run: Any, certificates: Any) -> None:
    async def check() -> None:
        async with ScriptedBroker(tls=server(certificates)) as broker:
            for settings in (
                TlsSettings(ca_file=certificates.ca, server_name="127.0.0.1"),
                TlsSettings(ca_file=certificates.ca, verify="certificate"),
                TlsSettings(verify="none"),
            ):
                await (await opened(broker, settings, "localhost")).close()
            assert "issuer" in await refusal(broker, TlsSettings(ca_file=certificates.foreign_ca, verify="certificate"))

    run(check())


@both_loops
def test_a_broker_that_asks_for_a_certificate_gets_it(run: Any, certificates: Any) -> None:

    async def check() -> None:
        async with ScriptedBroker(tls=server(certificates, client_ca=True)) as broker:
            mine = TlsSettings(
                ca_file=certificates.ca,
                certificate_file=certificates.client,
                key_file=certificates.encrypted_key,
                key_password=Certificates.KEY_PASSWORD,
            )
            await (await opened(broker, mine)).close()

    run(check())


@pytest.fixture
def refusing() -> Iterator[Callable[[ssl.SSLContext], int]]:
    """`refusing(context)`: the port of a TLS server that sends its refusal of one client, as asyncio's does not."""

    def refuse(listener: socket.socket, context: ssl.SSLContext) -> None:
        accepted, _ = listener.accept()
        with context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as broker:
            with pytest.raises(ssl.SSLError):
                broker.do_handshake()
            socket.socket.shutdown(broker, socket.SHUT_WR)
            while socket.socket.recv(broker, 4096):
                pass

    def start(context: ssl.SSLContext) -> int:
        refusals.append(thread.submit(refuse, listener, context))
        port: int = listener.getsockname()[1]
        return port

    refusals: list[Future[None]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        yield start
        for refused in refusals:
            refused.result(30)


@both_loops
@pytest.mark.parametrize("shown", [None, "foreign_client"])
def test_a_client_whose_certificate_is_refused_is_told_so(
    run: Any, certificates: Any, refusing: Any, shown: str | None
) -> None:
    """TLS 1.3: the client is done with the handshake before the broker refuses it."""
    port = refusing(server(certificates, client_ca=True))
    certificate = getattr(certificates, shown) if shown else None
    settings = ConnectionSettings(tls=TlsSettings(ca_file=certificates.ca, certificate_file=certificate))
    with pytest.raises(AuthenticationFailed, match=rf"127.0.0.1:{port}: the broker refused the TLS handshake: "):
        run(Connection.open("127.0.0.1", port, settings=settings, timeout=30))


@both_loops
def test_no_version_in_common_is_a_refusal(run: Any, certificates: Any, refusing: Any) -> None:
    old = server(certificates)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    port = refusing(old)
    settings = ConnectionSettings(tls=TlsSettings(ca_file=certificates.ca, minimum_version="1.3"))
    with pytest.raises(AuthenticationFailed, match=r"the broker refused the TLS handshake: .*protocol version"):
        run(Connection.open("127.0.0.1", port, settings=settings, timeout=30))


# TLS on one side only, and listeners that are none


@pytest.fixture
def peer() -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """`peer(behave)`: the port of a listener that does that with every connection, one after the other."""

    def serve(behave: Callable[[socket.socket], None]) -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return  # shut down
            with accepted:
                behave(accepted)

    def start(behave: Callable[[socket.socket], None]) -> int:
        serving.append(thread.submit(serve, behave))
        port: int = listener.getsockname()[1]
        return port

    serving: list[Future[None]] = []
    with ThreadPoolExecutor(1) as thread, socket.create_server(("127.0.0.1", 0)) as listener:
        yield start
        listener.shutdown(socket.SHUT_RDWR)
        for each in serving:
            each.result(30)


def as_kafka_without_tls(accepted: socket.socket) -> None:
    """What Kafka does: a TLS handshake looks like a frame of 369 MB, and it closes; else it says its versions."""
    if accepted.recv(4)[0] != 0:
        return
    request = accepted.recv(4096)
    answer = request[4:8] + ScriptedBroker.versions(4)
    accepted.sendall(struct.pack(">i", len(answer)) + answer)
    accepted.recv(1)


@both_loops
def test_a_plaintext_listener_asked_with_tls_is_named_as_such(run: Any, peer: Any) -> None:
    port = peer(as_kafka_without_tls)
    settings = ConnectionSettings(tls=TlsSettings())
    with pytest.raises(AuthenticationFailed, match=rf"127.0.0.1:{port}: this is a listener without TLS"):
        run(Connection.open("127.0.0.1", port, settings=settings, timeout=30))


@both_loops
@pytest.mark.parametrize(("secured", "asked"), [(False, True), (True, False)])
def test_a_listener_that_closes_without_an_answer_may_want_tls(run: Any, peer: Any, secured: bool, asked: bool) -> None:
    def close(accepted: socket.socket) -> None:
        accepted.recv(4096)

    settings = ConnectionSettings(tls=TlsSettings() if secured else None)
    with pytest.raises(ConnectionLost) as caught:
        run(Connection.open("127.0.0.1", peer(close), settings=settings, timeout=30))
    assert str(caught.value).endswith("closed the connection and answered nothing; does it want TLS?") is asked


@both_loops
def test_a_listener_for_tls_asked_without_is_named_as_such(run: Any, peer: Any) -> None:
    def alert(accepted: socket.socket) -> None:
        accepted.recv(4096)
        accepted.sendall(bytes.fromhex("15030300020250"))

    port = peer(alert)
    with pytest.raises(AuthenticationFailed, match=rf"127.0.0.1:{port}: this is a listener for TLS"):
        run(Connection.open("127.0.0.1", port, settings=ConnectionSettings(), timeout=30))


@both_loops
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", AuthenticationFailed),
        (b"SSH-2.0-OpenSSH_9.2\r\n", AuthenticationFailed),
        (b"", ConnectionLost),
        (None, DeadlineExceeded),
    ],
)
def test_a_peer_that_does_no_handshake_is_no_tls_lost_or_late(
    run: Any, peer: Any, answer: bytes | None, error: Any
) -> None:
    def behave(accepted: socket.socket) -> None:
        accepted.recv(4096)
        if answer is None:
            accepted.recv(1)  # until the client has enough
        else:
            accepted.sendall(answer)

    port, patience = peer(behave), 0.5 if answer is None else 30
    with pytest.raises(error, match=f"127.0.0.1:{port}"):
        run(Connection.open("127.0.0.1", port, settings=ConnectionSettings(tls=TlsSettings()), timeout=patience))


# Data


@both_loops
def test_answers_of_any_size_arrive_whole_and_in_order(run: Any, certificates: Any) -> None:
    source = random.Random(7)
    bodies = [source.randbytes(size) for size in (0, 1, 16_375, 16_380, 16_384, 65_536, 300_001, 5_000_000, 3)]

    async def check() -> None:
        async with ScriptedBroker(tls=server(certificates)) as broker:
            connection = await opened(broker, TlsSettings(ca_file=certificates.ca))
            answers = [connection.send(*ECHO, [body[:10], memoryview(body)[10:]], timeout=30) for body in bodies]
            assert [bytes(await answer) for answer in answers] == bodies
            assert connection.has_room
            await connection.close()

    run(check())


@both_loops
def test_a_broker_that_does_not_read_means_no_room_until_it_does(run: Any, certificates: Any) -> None:
    """Kernel buffers of loopback take some 7 MB; a transport without backpressure would take all of it."""

    async def check() -> None:
        async with ScriptedBroker(tls=server(certificates)) as broker:
            connection = await opened(broker, TlsSettings(ca_file=certificates.ca))
            broker.reading.clear()
            body = os.urandom(1_000_000)
            answers: list[asyncio.Future[memoryview]] = []

            async def send_all() -> None:
                while len(answers) < 40:
                    await connection.room()
                    answers.append(connection.send(*ECHO, [body], timeout=60))

            sending = asyncio.create_task(send_all())
            sent = -1
            while not sending.done() and (connection.has_room or sent < len(answers)):  # until nothing more is taken
                sent = len(answers)
                await asyncio.sleep(0.2)
            assert not connection.has_room
            assert sent < 20
            broker.reading.set()
            await sending
            for answer in answers:
                assert len(await answer) == len(body)
            assert broker.bodies == [body] * 40
            await connection.close()

    run(check())


@both_loops
def test_requests_without_answer_are_done_when_they_have_left(run: Any, certificates: Any) -> None:
    """A TLS transport whose upper write limit is 0 pauses with nothing to send, and only an answer would wake it."""

    async def check() -> None:
        async with ScriptedBroker(tls=server(certificates)) as broker:
            connection = await opened(broker, TlsSettings(ca_file=certificates.ca))
            broker.silent = True
            for number in range(10):
                await connection.send(*ECHO, [b"%d" % number], timeout=30, expect_answer=False)
            body = os.urandom(3_000_000)
            await connection.send(*ECHO, [body], timeout=30, expect_answer=False)
            while len(broker.bodies) < 11:
                await asyncio.sleep(0.01)
            assert broker.bodies == [b"%d" % number for number in range(10)] + [body]
            await connection.close()

    run(check())


@both_loops
def test_memory_of_a_request_that_was_aborted_may_be_used_again_at_once(run: Any, certificates: Any) -> None:
    async def check() -> None:
        async with ScriptedBroker(tls=server(certificates)) as broker:
            connection = await opened(broker, TlsSettings(ca_file=certificates.ca))
            broker.reading.clear()
            body = bytearray(b"a" * 2_000_000)
            answers = [connection.send(*ECHO, [memoryview(body)], timeout=30) for _ in range(3)]
            connection.abort(ConnectionLost("enough"))
            body[:] = b"b" * len(body)
            broker.reading.set()
            for answer in answers:
                with pytest.raises(ConnectionLost, match="enough"):
                    await answer
            await connection.wait_ended()
            await asyncio.sleep(0.05)
            assert not any(b"b" in seen for seen in broker.bodies)

    run(check())


@both_loops
def test_an_end_in_the_middle_of_a_record_is_a_lost_connection(run: Any, certificates: Any) -> None:
    async def check() -> None:
        async with ScriptedBroker(tls=server(certificates), delay=60) as broker:
            connection = await opened(broker, TlsSettings(ca_file=certificates.ca))
            answer = connection.send(*ECHO, [b"x"], timeout=30)
            await asyncio.sleep(0.01)
            for writer in broker._open:
                writer.transport.abort()
            with pytest.raises(ConnectionLost):
                await answer
            await connection.wait_ended()

    run(check())


# Settings and files


def test_verification_and_a_recent_version_are_the_default(certificates: Any) -> None:
    context = client_context(TlsSettings(ca_file=certificates.ca))
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_context_is_made_anew_when_a_file_was_replaced_and_only_then(certificates: Any, tmp_path: Path) -> None:
    trusted = shutil.copy(certificates.ca, tmp_path / "ca.pem")
    first = client_context(TlsSettings(ca_file=trusted))
    assert client_context(TlsSettings(ca_file=trusted)) is first
    fresh = tmp_path / "fresh.pem"
    shutil.copy(certificates.foreign_ca, fresh)
    fresh.rename(trusted)
    assert client_context(TlsSettings(ca_file=trusted)) is not first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda c, p: TlsSettings(ca_file=p / "none.pem"), "none.pem: can not be read: No such file"),
        (lambda c, p: TlsSettings(ca_file=c.client_key), "client-key.pem: no certificates in PEM"),
        (lambda c, p: TlsSettings(ca_file=p / "empty.pem"), "empty.pem: no certificates in PEM"),
        (lambda c, p: TlsSettings(certificate_file=c.client), "client.pem: expected a certificate in PEM and in .*key"),
        (lambda c, p: TlsSettings(certificate_file=c.client, key_file=c.ca), "expected a certificate in PEM"),
        (
            lambda c, p: TlsSettings(certificate_file=c.client, key_file=c.broker),
            "expected a certificate in PEM.*key values mismatch",
        ),
        (
            lambda c, p: TlsSettings(certificate_file=c.client, key_file=c.encrypted_key),
            "client-key-encrypted.pem: its private key is encrypted; expected key_password",
        ),
        (
            lambda c, p: TlsSettings(certificate_file=c.client, key_file=c.encrypted_key, key_password="hunter2"),
            "client-key-encrypted.pem its private key, opened with key_password",
        ),
        (
            lambda c, p: TlsSettings(
                certificate_file=c.client, key_file=c.encrypted_key, key_password=Secret(environment="NOT_SET_HERE")
            ),
            "environment variable NOT_SET_HERE: empty or not set",
        ),
    ],
)
def test_a_file_that_is_not_right_is_named(
    certificates: Any, tmp_path: Path, settings: Callable[[Any, Path], TlsSettings], message: str
) -> None:
    (tmp_path / "empty.pem").touch()
    with pytest.raises(ConfigurationError, match=message) as caught:
        client_context(settings(certificates, tmp_path))
    assert "hunter2" not in str(caught.value)


async def test_a_file_that_is_not_right_is_said_before_anything_is_connected(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        settings = ConnectionSettings(tls=TlsSettings(ca_file=tmp_path / "none.pem"))
        with pytest.raises(ConfigurationError, match=r"none.pem"):
            await Connection.open("127.0.0.1", nobody.getsockname()[1], settings=settings, timeout=30)


def test_a_key_or_password_without_a_certificate_is_refused() -> None:
    with pytest.raises(WrongSetting, match="key_file: expected certificate_file beside it"):
        TlsSettings(key_file="key.pem")  # type: ignore[arg-type]
    with pytest.raises(WrongSetting, match="key_password: expected certificate_file beside it"):
        TlsSettings(key_password="x")


def test_less_than_full_verification_is_in_the_log(caplog: pytest.LogCaptureFixture, certificates: Any) -> None:
    with caplog.at_level(logging.WARNING, "ingestd"):
        client_context(TlsSettings(verify="none", server_name="for this test"))
        client_context(TlsSettings(ca_file=certificates.ca, verify="certificate", server_name="for this test"))
    assert [record.getMessage() for record in caplog.records] == [
        "TLS without a look at the brokers' certificate: anybody on the way can pretend to be one",
        "TLS without a look at the brokers' name: anybody on the way can pretend to be one",
    ]


def test_a_key_that_everybody_can_read_is_in_the_log(
    caplog: pytest.LogCaptureFixture, certificates: Any, tmp_path: Path
) -> None:
    secret.warn_if_others_can_read.cache_clear()
    key = tmp_path / "key.pem"
    shutil.copy(certificates.client_key, key)
    key.chmod(0o644)
    with caplog.at_level(logging.WARNING, "ingestd"):
        client_context(TlsSettings(certificate_file=certificates.client, key_file=key))
    assert [record.getMessage() for record in caplog.records] == [
        f"{key} (-rw-r--r--): every user of this machine can read the secret in it; chmod o= would end that"
    ]


def test_no_password_is_in_a_repr() -> None:
    settings = TlsSettings(certificate_file="client.pem", key_password="hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in repr(ConnectionSettings(tls=settings))


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        (62, "Hostname mismatch", "server_name"),
        (64, "IP address mismatch", "server_name"),
        (20, "unable to get local issuer certificate", "ca_file"),
    ],
)
def test_a_certificate_that_is_refused_is_said_with_the_setting_that_helps(code: int, reason: str, remedy: str) -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, f"{reason}."
    said = str(handshake_error(error, "kafka-1:9093"))
    assert said.startswith(f"kafka-1:9093: the broker's certificate is refused: {reason}; ")
    assert f"`{remedy}`" in said


def test_an_error_of_a_file_goes_from_one_process_to_another(tmp_path: Path) -> None:
    with pytest.raises(UnusableTls) as caught:
        client_context(TlsSettings(tmp_path / "none"))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.problems) == (str(caught.value), caught.value.problems)
    assert [name for name, _ in copy.problems] == ["ca_file"]
