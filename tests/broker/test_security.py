"""Listeners with TLS and SASL: who gets in, for how long, and what becomes of garbage."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import socket
import ssl
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from embedded.process import BrokerProcess
from embedded.raw import RawClient, entity
from embedded.secured import MECHANISMS, SecuredBroker, add_user
from harness.secured import PASSWORD, USER

from ingestd.broker.security.settings import SecuritySettings
from ingestd.broker.security.tls import ServerTls, principal_of
from ingestd.client.client import Client
from ingestd.client.settings import ClientSettings
from ingestd.errors import AuthenticationFailed, ConfigurationError, ErrorCode
from ingestd.producer.producer import AsyncProducer
from ingestd.wire.apis import Api
from ingestd.wire.codec import encode_entity, frame_request
from ingestd.wire.connection import ConnectionSettings
from ingestd.wire.sasl.plain import Plain
from ingestd.wire.sasl.scram import Scram
from ingestd.wire.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RIGHT = {
    "PLAIN": Plain(USER, PASSWORD, cleartext=True),
    "SCRAM-SHA-256": Scram(USER, PASSWORD, "SHA-256"),
    "SCRAM-SHA-512": Scram(USER, PASSWORD, "SHA-512"),
}
WRONG = "hunter2"
SECONDS = 30


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured") / "broker") as broker:
        yield broker


@pytest.fixture(scope="module")
def open_to_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """SASL without TLS, for clients of bare frames. Sessions last two seconds."""
    mechanisms = [word for mechanism in MECHANISMS for word in ("--sasl", mechanism)]
    broker = BrokerProcess(tmp_path_factory.mktemp("users"), *mechanisms, "--session-lifetime", "2")
    add_user(broker.data, USER, PASSWORD)
    add_user(broker.data, "other", PASSWORD)
    with broker:
        yield broker


def handshake(mechanism: str = "PLAIN", version: int = 1) -> Any:
    return entity(Api.sasl_handshake, version, "SaslHandshakeRequest", mechanism=mechanism)


def proof(user: str = USER, password: str = PASSWORD) -> Any:
    content = b"\0" + user.encode() + b"\0" + password.encode()
    return entity(Api.sasl_authenticate, 2, "SaslAuthenticateRequest", auth_bytes=content)


# Who gets in


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_our_client_writes_by_each_mechanism(secured: SecuredBroker, new_topic: str, mechanism: str) -> None:
    tls = TlsSettings(ca_file=secured.certificates.ca)
    settings = ClientSettings(ConnectionSettings(tls=tls, sasl=RIGHT[mechanism]))
    async with Client([secured.servers], settings) as client, AsyncProducer(client) as producer:
        producer.send(new_topic, b"x")
        await producer.flush(SECONDS)
    written = [one for one in secured.process.requests() if one["api"] == "produce"]
    assert {one["principal"] for one in written} == {f"User:{USER}"}


@pytest.mark.parametrize(
    ("security", "reason"),
    [
        (lambda tls: {"tls": tls, "sasl": Plain(USER, WRONG)}, "PLAIN: .*Invalid username or password"),
        (lambda tls: {"tls": tls, "sasl": Scram(USER, WRONG)}, "SCRAM-SHA-512: .*invalid credentials"),
        (lambda tls: {"tls": tls}, "this is a listener for SASL; enabled: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
    ],
)  # fmt: skip
async def test_our_client_is_told_at_once_what_is_wrong(secured: SecuredBroker, security: Any, reason: str) -> None:
    settings = ClientSettings(ConnectionSettings(**security(TlsSettings(ca_file=secured.certificates.ca))))
    async with Client([secured.servers], settings) as client:
        with pytest.raises(AuthenticationFailed, match=reason):
            await client.partitions("x", SECONDS)


def test_who_did_not_get_in_is_one_line_with_user_address_and_reason(open_to_users: BrokerProcess) -> None:
    refused = [("stranger", lambda client: client.ask(proof("stranger", WRONG)), "Invalid username or password")]
    refused += [("", lambda client: client.ask(handshake("SCRAM-SHA-256")), "a second handshake")]
    for user, ask, reason in refused:
        with RawClient(open_to_users.port) as client:
            peer = "{}:{}".format(*client.socket.getsockname())
            client.ask(handshake())
            ask(client)
            assert client.receive() is None
        open_to_users.until_logged(f'"{peer}"')
        (line,) = [line for line in open_to_users.stderr.read_text().splitlines() if f'"{peer}"' in line]
        told = json.loads(line)
        assert (told["event"], told["user"]) == ("authentication failed", user)
        assert reason in told["reason"]


def test_the_log_has_no_secret(secured: SecuredBroker) -> None:
    secured.process.until_logged("authentication failed")
    for text in (secured.process.stderr.read_text(), secured.process.request_log.read_text()):
        assert PASSWORD not in text
        assert WRONG not in text


def test_users_are_added_and_removed_while_the_broker_runs(open_to_users: BrokerProcess) -> None:
    def gets_in(password: str) -> bool:
        with RawClient(open_to_users.port) as client:
            client.ask(handshake())
            return client.ask(proof("passing", password)).error_code is ErrorCode.none

    def users(*arguments: str) -> str:
        command = [sys.executable, "-m", "ingestd", "broker", "users", *arguments, "--data", str(open_to_users.data)]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout

    assert not gets_in("first")
    add_user(open_to_users.data, "passing", "first")
    assert gets_in("first")
    add_user(open_to_users.data, "passing", "second")
    assert [gets_in(password) for password in ("first", "second")] == [False, True]
    assert '"passing":{"SCRAM-SHA-256":8192,"SCRAM-SHA-512":8192}' in users("list")
    assert "passing  SCRAM-SHA-256 (8192), SCRAM-SHA-512 (8192)" in users("list", "--output", "table")
    users("remove", "passing")
    assert not gets_in("second")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        users("remove", "passing")
    assert (refused.value.returncode, "no user 'passing'" in refused.value.stderr) == (1, True)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        users("add", "me", "--password", WRONG)
    assert refused.value.returncode == 2
    assert WRONG not in refused.value.stderr


def test_requests_that_are_sent_before_authentication_is_answered_are_served_after_it(
    open_to_users: BrokerProcess,
) -> None:
    """Each is looked at when it is its turn: a broker that asked earlier would have ended the connection."""
    metadata = entity(
        Api.metadata, 12, "MetadataRequest", topics=(), allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )  # fmt: skip
    with RawClient(open_to_users.port) as client:
        for number, request in enumerate((handshake(), proof(), metadata)):
            parts, _ = frame_request(request.__api_key__, request.__version__, number, "raw", [encode_entity(request)])
            client.socket.sendall(b"".join(parts))
        answers = [client.receive() for _ in range(3)]
    assert [int.from_bytes(answer[:4], "big") for answer in answers if answer is not None] == [0, 1, 2]


# For how long


def test_a_session_ends_after_its_lifetime(open_to_users: BrokerProcess) -> None:
    with RawClient(open_to_users.port) as client:
        client.ask(handshake())
        assert client.ask(proof()).session_lifetime.total_seconds() == 2
        time.sleep(2.1)
        with pytest.raises(ConnectionAbortedError):
            client.metadata()


def test_a_session_that_ended_is_renewed_by_a_handshake(open_to_users: BrokerProcess) -> None:
    with RawClient(open_to_users.port) as client:
        client.ask(handshake())
        client.ask(proof())
        time.sleep(2.1)
        assert client.ask(handshake()).error_code is ErrorCode.none
        assert client.ask(proof()).error_code is ErrorCode.none
        client.metadata()


@pytest.mark.parametrize("change", ["user", "mechanism"])
def test_nobody_becomes_another_one(open_to_users: BrokerProcess, change: str) -> None:
    with RawClient(open_to_users.port) as client:
        client.ask(handshake())
        client.ask(proof())
        time.sleep(1.1)
        if change == "mechanism":
            assert client.ask(handshake("SCRAM-SHA-256")).error_code is ErrorCode.unsupported_sasl_mechanism
        else:
            client.ask(handshake())
            assert client.ask(proof("other")).error_code is ErrorCode.sasl_authentication_failed
        assert client.receive() is None


async def test_our_client_authenticates_again_and_loses_nothing(tmp_path: Path) -> None:
    def renewals() -> int:
        """Of the connection that writes."""
        requests = broker.process.requests()
        writers = {one["peer"] for one in requests if one["api"] == "produce"}
        assert len(writers) == 1
        assert {one["error"] for one in requests} == {"none"}
        return sum(one["api"] == "sasl_handshake" and one["peer"] in writers for one in requests) - 1

    with SecuredBroker(tmp_path / "renewed", "--session-lifetime", "5") as broker:
        tls = TlsSettings(ca_file=broker.certificates.ca)
        settings = ClientSettings(ConnectionSettings(tls=tls, sasl=RIGHT["SCRAM-SHA-512"]))
        async with Client([broker.servers], settings) as client, AsyncProducer(client) as producer:
            end = time.monotonic() + SECONDS
            while True:
                producer.send("t", b"x")
                await producer.flush(SECONDS)
                if renewals() == 2:
                    break
                assert time.monotonic() < end
                await asyncio.sleep(0.05)


# Garbage


def test_a_large_request_is_not_taken_from_a_stranger(open_to_users: BrokerProcess) -> None:
    def closed(size: int) -> bool:
        with RawClient(open_to_users.port) as client:
            client.socket.sendall(size.to_bytes(4, "big", signed=True) + b"\0" * 100)
            client.socket.settimeout(1)
            try:
                return client.receive() is None
            except TimeoutError:
                return False

    assert [closed(size) for size in (-1, 7, 512 * 1024, 512 * 1024 + 1, 1 << 30)] == [True, True, False, True, True]


def bare(client: RawClient, message: bytes) -> bytes | None:
    """The answer to a message that has no header: None when the broker has closed the connection."""
    client.socket.sendall(len(message).to_bytes(4, "big") + message)
    answer = client.receive()
    return None if answer is None else bytes(answer)


def test_after_a_handshake_of_version_0_messages_have_no_header(open_to_users: BrokerProcess) -> None:
    """So do clients from before Kafka 1.0. librdkafka 2.0 wants the version to be there, and uses the next one."""
    right = b"\0" + USER.encode() + b"\0" + PASSWORD.encode()
    with RawClient(open_to_users.port) as client:
        assert client.ask(handshake(version=0)).error_code is ErrorCode.none
        assert bare(client, right) == b""
        assert client.metadata().brokers
    for wrong in (right + b"x", b"", b"x" * 100_000):
        with RawClient(open_to_users.port) as client:
            client.ask(handshake(version=0))
            assert bare(client, wrong) is None
    with RawClient(open_to_users.port) as client:
        client.ask(handshake("SCRAM-SHA-256", version=0))
        first = bare(client, b"n,,n=" + USER.encode() + b",r=abc")
        assert first is not None
        assert first.startswith(b"r=abc")
    assert "Traceback" not in open_to_users.stderr.read_text()


def test_garbage_in_the_handshake_ends_only_its_own_connection(open_to_users: BrokerProcess) -> None:
    """Frames of a real authentication, with bytes changed, cut and repeated: three hundred, the same in each run."""
    choice = random.Random(7)
    frames = [
        b"".join(frame_request(one.__api_key__, one.__version__, 1, "raw", [encode_entity(one)])[0])
        for one in (handshake(), proof(), handshake("SCRAM-SHA-256"), handshake(version=0))
    ]
    memory = open_to_users.memory_bytes()
    for _ in range(300):
        mutated = bytearray(b"".join(choice.choices(frames, k=3)))
        for _ in range(choice.randrange(1, 6)):
            mutated[choice.randrange(len(mutated))] = choice.randrange(256)
        with socket.create_connection(("127.0.0.1", open_to_users.port), SECONDS) as connection:
            connection.sendall(mutated[: choice.randrange(1, len(mutated) + 1)])
    with RawClient(open_to_users.port) as client:
        client.ask(handshake())
        assert client.ask(proof()).error_code is ErrorCode.none
    assert "Traceback" not in open_to_users.stderr.read_text()
    assert open_to_users.memory_bytes() - memory < 16 << 20


def test_who_does_not_speak_tls_ends_only_its_own_connection(secured: SecuredBroker) -> None:
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 100, os.urandom(500)):
        with socket.create_connection(("127.0.0.1", secured.process.port), SECONDS) as connection:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1024):
                pass
    context = ssl.create_default_context(cafile=str(secured.certificates.ca))
    plain = socket.create_connection(("127.0.0.1", secured.process.port), SECONDS)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        assert connection.version() == "TLSv1.3"


# Files and addresses


def test_a_renewed_certificate_counts_for_new_connections_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    files, others = SecuredBroker(tmp_path / "a").certificates, SecuredBroker(tmp_path / "b").certificates
    certificate = tmp_path / "current.pem"
    shutil.copy(files.broker, certificate)
    tls = ServerTls(SecuritySettings(certificate))

    def shown(authority: Path) -> bool:
        client, server = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(authority))
        reading = context.wrap_bio(server, client, server_hostname="127.0.0.1")
        answering = tls.context.wrap_bio(client, server, server_side=True)
        for _ in range(3):
            for side in (reading, answering):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                except ssl.SSLError:
                    return False
        return True

    assert (shown(files.ca), shown(others.ca)) == (True, False)
    tls.follow()
    shutil.copy(others.broker, certificate)
    tls.follow()
    assert (shown(files.ca), shown(others.ca)) == (False, True)
    certificate.write_text("nonsense")
    tls.follow()
    certificate.unlink()
    tls.follow()
    assert (shown(files.ca), shown(others.ca)) == (False, True)


def test_files_that_are_not_right_are_named(tmp_path: Path) -> None:
    files = SecuredBroker(tmp_path / "a").certificates
    for settings, said in [
        (SecuritySettings(tmp_path / "absent"), "absent: can not be read: No such file"),
        (SecuritySettings(files.client), r"client\.pem: expected a certificate with its private key"),
        (SecuritySettings(files.client, files.encrypted_key), r"encrypted\.pem: expected .* not encrypted"),
        (SecuritySettings(files.broker, files.client_key), r"client-key\.pem: expected"),
        (SecuritySettings(files.broker, client_ca=files.client_key), r"client-key\.pem: expected certificates of"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            ServerTls(settings)


def test_a_principal_is_the_subject_as_kafka_writes_it() -> None:
    subject = ((("countryName", "CH"),), (("organizationName", 'A, "B"'),), (("commonName", "me"), ("userId", "7")))
    assert principal_of({"subject": subject}) == 'User:CN=me+UID=7,O=A\\, \\"B\\",C=CH'
    assert principal_of({}) == "User:"


@pytest.mark.parametrize("command", [["ingestd.broker"], ["ingestd", "broker"]])
def test_an_open_listener_for_other_machines_is_refused_unless_it_is_allowed(
    tmp_path: Path, command: list[str]
) -> None:
    run = [sys.executable, "-m", *command, "--data", str(tmp_path / "data"), "--listen", "0.0.0.0:0"]
    refused = subprocess.run(run, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert refused.returncode == 2
    assert "other machines reach 0.0.0.0, and the broker has no TLS (--tls-certificate) and no " in refused.stderr
    assert not (tmp_path / "data").exists()
    with subprocess.Popen([*run, "--insecure"], stdout=subprocess.PIPE, text=True) as allowed:
        assert allowed.stdout is not None
        assert "0.0.0.0" in allowed.stdout.readline()
        allowed.terminate()
    assert allowed.returncode == 0


def test_a_broker_whose_users_can_not_be_read_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text("{}")
    run = [sys.executable, "-m", "ingestd.broker", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    refused = subprocess.run(run, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert refused.returncode == 2
    assert "users.json: not a list of users of this broker" in refused.stderr


def test_a_client_that_asks_much_and_is_gone_leaves_no_lines_in_the_log(secured: SecuredBroker) -> None:
    """uvloop says for each answer behind the fifth that nobody can read it, if it is told to send it."""
    context = ssl.create_default_context(cafile=str(secured.certificates.ca))

    def connected() -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", secured.process.port), SECONDS)
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    asked = entity(Api.api_versions, 0, "ApiVersionsRequest")
    parts, _size = frame_request(Api.api_versions, 0, 1, "gone", [encode_entity(asked)])
    for _ in range(5):
        client = connected()
        client.sendall(b"".join(parts) * 400)
        client.setblocking(False)
        with contextlib.suppress(ssl.SSLError):
            client.unwrap()  # says that it goes, and does not wait
        client.close()
    client = connected()
    client.sendall(b"".join(parts))
    assert client.recv(4)
    client.close()
    said = secured.process.stderr.read_text()
    assert not [line for line in ("SSL connection is closed", "socket.send() raised exception") if line in said]
