"""TLS and SASL against a real broker: every mechanism, right and wrong; sessions renewed under load; small tools."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from harness.programs import ingestd
from harness.secured import PASSWORD, USER
from harness.token_endpoint import TokenEndpoint, unsigned_token

from ingestd.cli.configured import ClusterAccess
from ingestd.cli.topics import describe_topics
from ingestd.client.admin import Acl, AclOperation, AclPermission, AclResourceType, ClusterAdmin
from ingestd.client.client import Client
from ingestd.client.settings import ClientSettings
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import Edge
from ingestd.errors import AuthenticationFailed
from ingestd.producer.producer import AsyncProducer
from ingestd.wire.connection import Connection, ConnectionSettings
from ingestd.wire.sasl.client_credentials import ClientCredentials
from ingestd.wire.sasl.oauthbearer import OAuthBearer
from ingestd.wire.sasl.plain import Plain
from ingestd.wire.sasl.scram import Scram
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.secured import SecuredCluster

    from ingestd.producer.delivery import Delivery

WRONG = "hunter2"
PATIENCE = 60.0
"""Seconds that a client may take to find metadata; a refusal must not need them."""


async def token() -> str:
    return unsigned_token(USER)


async def wrong_token() -> str:
    return WRONG


RIGHT = {
    "PLAIN": lambda: Plain(USER, PASSWORD, cleartext=True),
    "SCRAM-SHA-256": lambda: Scram(USER, PASSWORD, "SHA-256"),
    "SCRAM-SHA-512": lambda: Scram(USER, PASSWORD, "SHA-512"),
    "OAUTHBEARER": lambda: OAuthBearer(token, {"more": "of it"}, cleartext=True),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "PLAIN": (lambda: Plain(USER, WRONG, cleartext=True), "PLAIN: Authentication failed: Invalid username or password"),
    "SCRAM-SHA-256": (lambda: Scram(USER, WRONG, "SHA-256"), "SCRAM-SHA-256: .* invalid credentials"),
    "SCRAM-SHA-512": (lambda: Scram(USER, WRONG, "SHA-512"), "SCRAM-SHA-512: .* invalid credentials"),
    "unknown user": (lambda: Scram("nobody", WRONG), "SCRAM-SHA-512: .* invalid credentials"),
    "OAUTHBEARER": (lambda: OAuthBearer(wrong_token, cleartext=True), "OAUTHBEARER: .*invalid_token"),
}


def client(cluster: SecuredCluster, listener: str, *, host: str = "127.0.0.1", **security: Any) -> Client:
    return Client([cluster.listener(listener, host)], ClientSettings(ConnectionSettings(**security)))


@pytest.fixture
def trusting(secured_kafka: SecuredCluster) -> TlsSettings:
    return TlsSettings(ca_file=secured_kafka.certificates.ca)


async def write_and_read(open_client: Client, topic: str) -> None:
    async with open_client as connected:
        async with AsyncProducer(connected) as producer:
            for number in range(100):
                producer.send(topic, b"%d" % number)
        async with Consumer(connected) as consumer:
            partition = await consumer.consume_partition(topic, 0, Edge.earliest, Edge.latest)
            assert [record.value async for record in partition] == [b"%d" % number for number in range(100)]


async def refused(open_client: Client, topic: str, message: str) -> None:
    """Roles, producer and consumer are told at once: not one of them waits for its own deadline."""
    begun = time.monotonic()
    async with open_client as connected:
        with pytest.raises(AuthenticationFailed, match=message) as caught:
            await connected.partitions(topic, PATIENCE)
        assert WRONG not in "".join(traceback.format_exception(caught.value))
        outcomes: list[Delivery] = []
        async with AsyncProducer(connected) as producer:
            producer.send(topic, b"x", done=outcomes.append)
            await producer.flush(PATIENCE)
        assert [type(outcome.error) for outcome in outcomes] == [AuthenticationFailed]
        async with Consumer(connected) as consumer:
            with pytest.raises(AuthenticationFailed, match=message):
                await consumer.consume_partition(topic, 0, Edge.earliest)
    assert time.monotonic() - begun < PATIENCE / 2


# Who may


@pytest.mark.parametrize("mechanism", RIGHT)
@pytest.mark.parametrize("listener", ["SASL_SSL", "SASL_PLAINTEXT"])
async def test_every_mechanism_reads_and_writes(
    secured_kafka: SecuredCluster, trusting: TlsSettings, listener: str, mechanism: str
) -> None:
    tls = trusting if listener == "SASL_SSL" else None
    topic = secured_kafka.create_topic()
    await write_and_read(client(secured_kafka, listener, tls=tls, sasl=RIGHT[mechanism]()), topic)


@pytest.mark.parametrize("mechanism", REFUSED)
async def test_wrong_credentials_are_refused_at_once_by_name_and_reason(
    secured_kafka: SecuredCluster, trusting: TlsSettings, mechanism: str
) -> None:
    sasl, reason = REFUSED[mechanism]
    message = f"^{secured_kafka.listener('SASL_SSL')}: {reason}"
    await refused(client(secured_kafka, "SASL_SSL", tls=trusting, sasl=sasl()), "x", message)


async def test_tokens_come_from_a_provider_and_its_refusal_is_an_error(
    secured_kafka: SecuredCluster, trusting: TlsSettings
) -> None:
    def with_secret(secret: str) -> Client:
        tokens = ClientCredentials(endpoint.url, endpoint.CLIENT_ID, secret, cleartext=True)
        return client(secured_kafka, "SASL_SSL", tls=trusting, sasl=OAuthBearer(tokens))

    with TokenEndpoint(token=lambda _: unsigned_token(USER)) as endpoint:
        await write_and_read(with_secret(endpoint.CLIENT_SECRET), secured_kafka.create_topic())
        assert len(endpoint.asked) == 1
        await refused(with_secret(WRONG), "x", f"^{endpoint.url}: no token: HTTP status 401 invalid_client")


@pytest.mark.parametrize(
    ("listener", "sasl", "message"),
    [
        ("TLS", Scram(USER, PASSWORD), "this is not a listener for SASL"),
        ("SASL_PLAINTEXT", Scram(USER, PASSWORD), "this is a listener without TLS"),
    ],
)
async def test_security_that_the_listener_does_not_have_is_named(
    secured_kafka: SecuredCluster, trusting: TlsSettings, listener: str, sasl: Any, message: str
) -> None:
    message = f"^{secured_kafka.listener(listener)}: {message}"
    await refused(client(secured_kafka, listener, tls=trusting, sasl=sasl), "x", message)


async def test_security_that_is_missing_is_named(secured_kafka: SecuredCluster, trusting: TlsSettings) -> None:
    for listener in ("TLS", "SASL_SSL"):
        message = f"^{secured_kafka.listener(listener)}: this is a listener for TLS"
        await refused(client(secured_kafka, listener), "x", message)
    message = f"^{secured_kafka.listener('SASL_SSL')}: this is a listener for SASL; enabled: .*SCRAM-SHA-512"
    await refused(client(secured_kafka, "SASL_SSL", tls=trusting), "x", message)


# Who is trusted


async def test_tls_reads_and_writes_and_shows_a_certificate_where_it_is_asked_for(
    secured_kafka: SecuredCluster, trusting: TlsSettings
) -> None:
    files = secured_kafka.certificates
    await write_and_read(client(secured_kafka, "TLS", tls=trusting), secured_kafka.create_topic())
    password = Secret(value=files.KEY_PASSWORD)
    mutual = TlsSettings(files.ca, files.client, files.encrypted_key, password)
    await write_and_read(client(secured_kafka, "MUTUAL", tls=mutual), secured_kafka.create_topic())


@pytest.mark.parametrize(
    ("listener", "host", "settings", "reason"),
    [
        (
            "TLS",
            "127.0.0.1",
            lambda _: TlsSettings(),
            "the broker's certificate is refused: unable to get .*; `ca_file` names whom to trust",
        ),
        ("TLS", "127.0.0.1", lambda c: TlsSettings(c.foreign_ca), "the broker's certificate is refused: unable to get"),
        ("TLS", "localhost", lambda c: TlsSettings(c.ca), "the broker's certificate is refused: Hostname mismatch"),
        ("EXPIRED", "127.0.0.1", lambda c: TlsSettings(c.ca), "the broker's certificate is refused: .* has expired"),
        ("MUTUAL", "127.0.0.1", lambda c: TlsSettings(c.ca), "the broker refused the TLS handshake: .*alert"),
        (
            "MUTUAL",
            "127.0.0.1",
            lambda c: TlsSettings(c.ca, c.foreign_client),
            "the broker refused the TLS handshake: .*certificate unknown",
        ),
        ("PLAINTEXT", "127.0.0.1", lambda c: TlsSettings(c.ca), "this is a listener without TLS"),
    ],
)
async def test_a_certificate_that_is_not_right_is_refused_at_once(
    secured_kafka: SecuredCluster, listener: str, host: str, settings: Any, reason: str
) -> None:
    address = secured_kafka.bootstrap[0] if listener == "PLAINTEXT" else secured_kafka.listener(listener, host)
    connection = ConnectionSettings(tls=settings(secured_kafka.certificates))
    await refused(Client([address], ClientSettings(connection)), "x", f"^{address}: {reason}")


# Sessions


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
async def test_sessions_are_renewed_under_constant_load_and_nothing_is_lost_doubled_or_reordered(
    secured_kafka: SecuredCluster, trusting: TlsSettings, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions end after 2.5 s; the broker closes a connection that sends anything else during its renewal."""
    topic = secured_kafka.create_topic()
    connections: list[Connection] = []
    open_connection = Connection.open

    async def counted(*arguments: Any, **options: Any) -> Connection:
        connections.append(await open_connection(*arguments, **options))
        return connections[-1]

    monkeypatch.setattr(Connection, "open", counted)
    outcomes: list[Delivery] = []
    sent = 0
    kept = False
    async with (
        client(secured_kafka, "RENEWED", tls=trusting, sasl=RIGHT[mechanism]()) as connected,
        AsyncProducer(connected) as producer,
        Consumer(connected) as consumer,
    ):
        partition = await consumer.consume_partition(topic, 0, Edge.earliest)
        read: list[int] = []

        async def read_all() -> None:
            async for record in partition:
                read.append(int(record.value or b""))  # noqa: PERF401 - it is looked at while it grows

        async def send_for(seconds: float) -> None:
            nonlocal sent
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                for _ in range(20):
                    producer.send(topic, b"%d" % sent, done=outcomes.append)
                    sent += 1
                await producer.room()
                await asyncio.sleep(0.002)
            await producer.flush(30)
            async with asyncio.timeout(30):
                while len(read) < sent:
                    await asyncio.sleep(0.02)

        reading = asyncio.create_task(read_all())
        await send_for(0.1)
        assert len(connections) <= 5  # seed, control, produce, fetch
        # Where the machine stands still for the rest of a session's life, the broker ends it: so there are four tries,
        # each of two renewals of every connection.
        for _ in range(4):
            opened = len(connections)
            await send_for(5.0)
            kept = len(connections) == opened
            if kept:
                break
        reading.cancel()
    assert {outcome.error for outcome in outcomes} == {None}
    assert read == list(range(sent))
    assert kept, "each time some were lost and opened again"
    assert secured_kafka.read_back(topic)[0] == [b"%d" % number for number in range(sent)]


async def test_an_account_that_loses_its_password_loses_its_connections_at_the_next_renewal(
    secured_kafka: SecuredCluster, trusting: TlsSettings
) -> None:
    def set_password(password: str) -> None:
        wanted = UserScramCredentialUpsertion(
            "leaver", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode()
        )
        for changed in secured_kafka.admin.alter_user_scram_credentials([wanted]).values():
            changed.result(timeout=20)

    set_password("first")
    topic = secured_kafka.create_topic()
    outcomes: list[Delivery] = []
    sasl = Scram("leaver", "first")
    async with (
        client(secured_kafka, "RENEWED", tls=trusting, sasl=sasl) as connected,
        AsyncProducer(connected) as producer,
    ):
        producer.send(topic, b"before", done=outcomes.append)
        await producer.flush(30)
        assert [outcome.error for outcome in outcomes] == [None]
        await asyncio.to_thread(set_password, "second")
        async with asyncio.timeout(30):
            while not any(outcome.error for outcome in outcomes):
                producer.send(topic, b"after", done=outcomes.append)
                await asyncio.sleep(0.1)
    failed = next(outcome.error for outcome in outcomes if outcome.error)
    assert isinstance(failed, AuthenticationFailed)
    assert "invalid credentials" in str(failed)


# Others on the same listeners


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_what_librdkafka_writes_over_the_same_listener_is_read_here(
    secured_kafka: SecuredCluster, trusting: TlsSettings, mechanism: str
) -> None:
    topic = secured_kafka.create_topic()
    writer = LibrdkafkaProducer(
        {
            "bootstrap.servers": secured_kafka.listener("SASL_SSL"),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(secured_kafka.certificates.ca),
            "sasl.mechanisms": mechanism,
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "log_level": 2,
        }
    )
    for number in range(10):
        writer.produce(topic, b"%d" % number)
    assert writer.flush(30) == 0
    async with (
        client(secured_kafka, "SASL_SSL", tls=trusting, sasl=RIGHT[mechanism]()) as connected,
        Consumer(connected) as consumer,
    ):
        partition = await consumer.consume_partition(topic, 0, Edge.earliest, Edge.latest)
        assert [record.value async for record in partition] == [b"%d" % number for number in range(10)]


# The small tools


def write_configuration(cluster: SecuredCluster, directory: Path, password: str, ca: Path | None = None) -> Path:
    secret, file = directory / "password", directory / "clusters.toml"
    secret.touch(mode=0o600)
    secret.write_text(password)
    file.write_text(
        f"[clusters.plain]\nbootstrap = {json.dumps(cluster.bootstrap)}\n"
        f'[clusters.secured]\nbootstrap = ["{cluster.listener("SASL_SSL")}"]\n'
        f'tls = {{ ca_file = "{ca or cluster.certificates.ca}" }}\n'
        f'sasl = {{ mechanism = "SCRAM-SHA-512", username = "{USER}", password = {{ file = "{secret}" }} }}\n'
    )
    return file


def tool(file: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*ingestd(), *arguments, "--config", str(file), "--cluster", "secured"]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
    # Where the node is busy for two seconds the tool says so, and goes on.
    said = done.stderr.splitlines(keepends=True)
    done.stderr = b"".join(line for line in said if not line.endswith(b": no answer; still trying\n"))
    return done


def test_the_small_tools_work_over_tls_and_sasl(secured_kafka: SecuredCluster, tmp_path: Path) -> None:
    file = write_configuration(secured_kafka, tmp_path, PASSWORD)
    topic = f"tools-{time.time_ns()}"
    for arguments, stdin, expected in (
        (("topics", "create", topic, "--partitions", "2"), b"", b""),
        (("produce", "-t", topic, "-p", "1"), b"one\ntwo\n", b""),
        (("consume", "-t", topic, "-e"), b"", b"one\ntwo\n"),
        (("topics", "list"), b"", topic.encode()),
        (("topics", "describe", topic), b"", topic.encode()),
        (("groups", "list"), b"", b""),
        (("topics", "delete", topic), b"", b""),
    ):
        done = tool(file, *arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b""), arguments
        assert expected in done.stdout


@pytest.mark.parametrize(
    ("listener", "told"),
    [
        ("TLS", ["security.protocol=ssl"]),
        ("MUTUAL", ["security.protocol=ssl", "ssl.certificate.location={client}", "ssl.key.location={key}"]),
        ("SASL_SSL", ["security.protocol=sasl_ssl", "sasl.mechanism=PLAIN", "sasl.password={password}"]),
        ("SASL_SSL", ["security.protocol=SASL_SSL", "sasl.mechanisms=SCRAM-SHA-256", "sasl.password=@{file}"]),
        ("SASL_SSL", ["security.protocol=sasl_ssl", "sasl.mechanism=SCRAM-SHA-512", "sasl.password=@env:PASSWORD"]),
        ("SASL_PLAINTEXT", ["security.protocol=sasl_plaintext", "sasl.mechanism=PLAIN", "sasl.password=@{file}"]),
    ],
    ids=lambda given: given if isinstance(given, str) else given[-1],
)
def test_the_small_tools_take_security_by_librdkafkas_names(
    secured_kafka: SecuredCluster, tmp_path: Path, listener: str, told: list[str]
) -> None:
    secret = tmp_path / "password"
    secret.touch(mode=0o600)
    secret.write_text(PASSWORD)
    certificates = secured_kafka.certificates
    places = {"file": secret, "client": certificates.client, "key": certificates.client_key}
    settings = [one.format(password=PASSWORD, **places) for one in told]
    settings += [] if listener == "SASL_PLAINTEXT" else [f"ssl.ca.location={certificates.ca}"]
    settings += ["sasl.username=" + USER] if listener.startswith("SASL") else []
    command = [*ingestd(), "topics", "list", "-b", secured_kafka.listener(listener), "-m", "60"]
    command += [word for setting in settings for word in ("-X", setting)]
    environment = {**os.environ, "PASSWORD": PASSWORD}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    refused = [*command, "-X", "sasl.password=" + WRONG]
    if listener.startswith("SASL"):
        done = subprocess.run(refused, env=environment, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 1
        assert WRONG not in done.stderr + done.stdout


@pytest.mark.parametrize("arguments", [("consume", "-t", "x", "-e"), ("topics", "list"), ("produce", "-t", "x")])
def test_a_small_tool_that_is_refused_says_so_in_one_line_and_shows_no_secret(
    secured_kafka: SecuredCluster, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    wrong = tool(write_configuration(secured_kafka, tmp_path, WRONG), *arguments, stdin=b"one\n")
    assert wrong.returncode == 1
    address = secured_kafka.listener("SASL_SSL")
    reason = "SCRAM-SHA-512: Authentication failed during authentication due to invalid credentials"
    assert wrong.stderr.decode().startswith(f"ingestd: {address}: {reason}")
    assert wrong.stderr.count(b"\n") == 1
    assert WRONG.encode() not in wrong.stderr + wrong.stdout


def test_a_small_tool_whose_files_are_not_there_names_file_and_key(
    secured_kafka: SecuredCluster, tmp_path: Path
) -> None:
    file = write_configuration(secured_kafka, tmp_path, PASSWORD, tmp_path / "none.pem")
    refused = tool(file, "topics", "list")
    assert refused.returncode == 2
    named = f"ingestd: {file}: clusters.secured.tls.ca_file: {tmp_path}/none.pem"
    assert refused.stderr.decode() == f"{named}: can not be read: No such file or directory\n"


async def test_topics_are_described_to_an_account_that_may_not_see_their_configurations(
    secured_kafka: SecuredCluster, trusting: TlsSettings
) -> None:
    name = await asyncio.to_thread(secured_kafka.create_topic)
    entries = [
        Acl(AclResourceType.topic, name, f"User:{USER}", AclOperation.all),
        Acl(AclResourceType.topic, name, f"User:{USER}", AclOperation.describe_configs, AclPermission.deny),
    ]
    async with Client(secured_kafka.bootstrap) as unsecured:
        added = await ClusterAdmin(unsecured).create_acls(entries)
    assert [one.error for one in added] == [None, None]
    connection = ConnectionSettings(tls=trusting, sasl=RIGHT["PLAIN"]())
    access = ClusterAccess((secured_kafka.listener("SASL_SSL"),), connection)
    async with asyncio.timeout(PATIENCE):
        while (described := (await describe_topics(access, [name]))[0]).configs_error is None:
            await asyncio.sleep(0.05)  # the node hears of the entry a moment later
    assert "TOPIC_AUTHORIZATION_FAILED" in described.configs_error
    assert "configurations not known" in next(iter(described.lines()))
    assert [one.leader for one in described.partitions] == [1]
