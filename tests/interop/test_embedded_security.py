"""TLS and SASL of the embedded broker, judged by clients written elsewhere, and by what a real Kafka answers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import aiokafka
import aiokafka.errors
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from embedded.process import BrokerProcess
from embedded.raw import RawClient, entity
from embedded.secured import MECHANISMS, SCRAM, SecuredBroker, add_user
from harness.kafka_python import left_sockets
from harness.programs import program
from harness.secured import PASSWORD, USER

from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.secured import SecuredCluster

WRONG = "hunter2"
SECONDS = 30
SHUT_OUT = {KafkaError._SSL, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
"""What librdkafka says when a broker ends the TLS handshake. With TLS 1.3 the client had taken it for complete."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured") / "broker") as broker:
        yield broker
        said = broker.process.stderr.read_text()
        assert PASSWORD not in said
        assert WRONG not in said


# librdkafka


def produced(settings: dict[str, object], topic: str, values: list[bytes]) -> None:
    producer = Producer(settings)
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(SECONDS) == 0


def consumed(settings: dict[str, object], topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    end = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < end:
        found += [message.value() for message in consumer.consume(count - len(found), 1)]
    consumer.close()
    return found


def refused(settings: dict[str, object]) -> KafkaError:
    """The first error that librdkafka tells."""
    told: list[KafkaError] = []
    client = AdminClient({**settings, "error_cb": told.append})
    end = time.monotonic() + SECONDS
    while not told and time.monotonic() < end:
        client.poll(0.1)
    return told[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_reads_and_writes(secured: SecuredBroker, new_topic: str, mechanism: str) -> None:
    values = [b"%d" % number for number in range(100)]
    produced(secured.librdkafka(mechanism), new_topic, values)
    assert consumed(secured.librdkafka(mechanism), new_topic, 100) == values


@pytest.mark.peers
def test_kcat_reads_and_writes(secured: SecuredBroker, new_topic: str) -> None:
    """Debian 12's has librdkafka 2.0, which authenticates only where handshakes of version 0 are served. Not by SCRAM:
    before 2.6.1 it sends a nonce that is not the server's, which Kafka 4 refuses too ("SCRAM, another nonce" below).
    """
    settings = {name: value for name, value in secured.librdkafka("PLAIN").items() if name != "bootstrap.servers"}
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    command = [program("kcat"), "-b", secured.servers, "-t", new_topic, "-m", str(SECONDS), *options]
    subprocess.run([*command, "-P"], input=b"one\n", timeout=SECONDS, check=True)
    read = subprocess.run([*command, "-C", "-e", "-q"], capture_output=True, timeout=SECONDS, check=True)
    assert read.stdout == b"one\n"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", [USER, "nobody"])
def test_librdkafka_is_told_that_a_password_is_wrong(secured: SecuredBroker, mechanism: str, user: str) -> None:
    error = refused(secured.librdkafka(mechanism, WRONG, user))
    assert error.code() == KafkaError._AUTHENTICATION
    reason = "Invalid username or password" if mechanism == "PLAIN" else f"invalid credentials .* {mechanism}"
    assert re.search(reason, error.str())


def test_much_goes_through_tls_in_both_directions(secured: SecuredBroker, new_topic: str) -> None:
    """Answers are larger than what the kernel takes at once."""
    values = [b"%7d" % number * 1000 for number in range(4000)]
    settings = {**secured.librdkafka("PLAIN"), "queue.buffering.max.kbytes": 1 << 20}
    produced(settings, new_topic, values)
    assert consumed(settings, new_topic, len(values)) == values


def test_users_are_made_described_and_removed_by_librdkafka(secured: SecuredBroker, new_topic: str) -> None:
    admin = AdminClient(secured.librdkafka("SCRAM-SHA-512"))

    def alter(change: Any) -> None:
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result(SECONDS)

    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    alter(UserScramCredentialUpsertion("made", info, b"first"))
    produced(secured.librdkafka("SCRAM-SHA-256", "first", "made"), new_topic, [b"x"])
    produced(secured.librdkafka("PLAIN", "first", "made"), new_topic, [b"x"])
    assert refused(secured.librdkafka("SCRAM-SHA-512", "first", "made")).code() == KafkaError._AUTHENTICATION
    found = admin.describe_user_scram_credentials(["made"])["made"].result(SECONDS)
    (described,) = found.scram_credential_infos
    assert (described.mechanism, described.iterations) == (ScramMechanism.SCRAM_SHA_256, 4096)
    alter(UserScramCredentialUpsertion("made", info, b"second"))
    assert refused(secured.librdkafka("PLAIN", "first", "made")).code() == KafkaError._AUTHENTICATION
    produced(secured.librdkafka("PLAIN", "second", "made"), new_topic, [b"x"])
    alter(UserScramCredentialDeletion("made", ScramMechanism.SCRAM_SHA_256))
    assert refused(secured.librdkafka("PLAIN", "second", "made")).code() == KafkaError._AUTHENTICATION
    everybody = admin.describe_user_scram_credentials().result(SECONDS)
    assert set(everybody) == {USER}


def test_a_client_certificate_is_asked_for_and_names_the_client(tmp_path: Path, new_topic: str) -> None:
    files = SecuredBroker(tmp_path / "files").certificates
    told = ("--tls-certificate", str(files.broker), "--tls-client-ca", str(files.ca))
    with BrokerProcess(tmp_path, *told) as broker:
        trusting = {
            "bootstrap.servers": broker.servers,
            "security.protocol": "ssl",
            "ssl.ca.location": str(files.ca),
            "log_level": 0,
        }
        mutual = {"ssl.certificate.location": str(files.client), "ssl.key.location": str(files.client_key)}
        produced({**trusting, **mutual}, new_topic, [b"x"])
        principals = {request["principal"] for request in broker.requests()}
        asked = len(broker.requests())
        foreign = str(files.foreign_client)
        wrong = {"ssl.certificate.location": foreign, "ssl.key.location": foreign}
        assert refused(trusting).code() in SHUT_OUT
        assert refused({**trusting, **wrong}).code() in SHUT_OUT
        assert len(broker.requests()) == asked
    (principal,) = principals
    assert str(principal).startswith("User:CN=client,OU=")


# kafka-python and aiokafka


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
@pytest.mark.parametrize("mechanism", MECHANISMS)
@left_sockets()
def test_kafka_python_reads_and_writes(secured: SecuredBroker, new_topic: str, mechanism: str) -> None:
    import kafka as kafka_python

    told: dict[str, Any] = secured.kafka_python(mechanism)
    with contextlib.closing(kafka_python.KafkaProducer(**told)) as producer:
        producer.send(new_topic, b"one", partition=0).get(SECONDS)
    consumer = kafka_python.KafkaConsumer(**told, consumer_timeout_ms=SECONDS * 1000)
    with contextlib.closing(consumer):
        consumer.assign([kafka_python.TopicPartition(new_topic, 0)])
        consumer.seek_to_beginning()
        assert next(consumer).value == b"one"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_does_not_get_in_with_a_wrong_password(secured: SecuredBroker, mechanism: str) -> None:
    """In a process of its own: a producer that does not get in leaves its sockets to the garbage collector."""
    name = f"wrong-{mechanism}"
    told = {**secured.kafka_python(mechanism, WRONG), "client_id": name, "bootstrap_timeout_ms": 2000}
    program = f"import kafka; kafka.KafkaProducer(**{told!r})"
    command = [sys.executable, "-W", "ignore", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 1
    assert "KafkaTimeoutError: Unable to bootstrap" in ended.stderr
    asked = [one for one in secured.process.requests() if one["client_id"] == name]
    assert "sasl_authentication_failed" in {one["error"] for one in asked if one["api"] == "sasl_authenticate"}
    assert {one["api"] for one in asked} == {"api_versions", "sasl_handshake", "sasl_authenticate"}


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_reads_and_writes(secured: SecuredBroker, new_topic: str, mechanism: str) -> None:
    told: dict[str, Any] = secured.kafka_python(mechanism)
    told["ssl_context"] = ssl.create_default_context(cafile=told.pop("ssl_cafile"))
    async with aiokafka.AIOKafkaProducer(**told) as producer:
        await producer.send_and_wait(new_topic, b"one", partition=0)
    async with aiokafka.AIOKafkaConsumer(**told, auto_offset_reset="earliest") as consumer:
        consumer.assign([aiokafka.TopicPartition(new_topic, 0)])
        assert (await asyncio.wait_for(consumer.getone(), SECONDS)).value == b"one"


# Java


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_javas_tools_make_users_who_read_and_write(
    secured: SecuredBroker, new_topic: str, java_tool: Callable[..., str], tmp_path: Path, mechanism: str
) -> None:
    add_user(secured.process.data, "operator", "letters")
    server = ("--bootstrap-server", secured.servers)
    stored = SCRAM[0] if mechanism == "PLAIN" else mechanism
    name = f"java-{mechanism.lower()}"
    admin = ("--command-config", str(secured.java(tmp_path, mechanism, "operator", "letters")))
    config = ("kafka.admin.ConfigCommand", *server, *admin, "--entity-type", "users", "--entity-name", name)
    java_tool(*config, "--alter", "--add-config", f"{stored}=[iterations=8192,password=right]")
    assert f"{stored}=iterations=8192" in java_tool(*config, "--describe")
    right = str(secured.java(tmp_path, mechanism, name, "right"))
    java_tool(
        "ProducerPerformance", "--topic", new_topic, "--num-records", "1000", "--throughput", "-1", "--record-size",
        "100", *server, "--command-config", right,
    )  # fmt: skip
    lines = java_tool(
        "consumer.ConsoleConsumer", *server, "--topic", new_topic, "--from-beginning", "--max-messages", "1000",
        "--timeout-ms", "30000", "--command-config", right,
    ).splitlines()  # fmt: skip
    assert len(lines) == 1000
    wrong = str(secured.java(tmp_path, mechanism, name, WRONG))
    with pytest.raises(RuntimeError, match="SaslAuthenticationException"):
        java_tool("TopicCommand", *server, "--command-config", wrong, "--list")
    java_tool(*config, "--alter", "--delete-config", stored)
    with pytest.raises(RuntimeError, match="SaslAuthenticationException"):
        java_tool("TopicCommand", *server, "--command-config", right, "--list")


# A real Kafka


def handshake(mechanism: str = "PLAIN", version: int = 1) -> Any:
    return entity(Api.sasl_handshake, version, "SaslHandshakeRequest", mechanism=mechanism)


def message(content: bytes, version: int = 2) -> Any:
    return entity(Api.sasl_authenticate, version, "SaslAuthenticateRequest", auth_bytes=content)


VERSIONS = entity(Api.api_versions, 3, "ApiVersionsRequest", client_software_name="x", client_software_version="1")
METADATA = entity(
    Api.metadata, 12, "MetadataRequest", topics=(), allow_auto_topic_creation=False,
    include_topic_authorized_operations=False,
)  # fmt: skip
NAME = USER.encode()
RIGHT = b"\0" + NAME + b"\0" + PASSWORD.encode()
FIRST = b"n,,n=" + NAME + b",r=abc"
SEQUENCES = {
    "a request before all else": [METADATA],
    "a request after ApiVersions": [VERSIONS, METADATA],
    "a message before the handshake": [message(RIGHT)],
    "a mechanism that is not enabled": [handshake("GSSAPI"), VERSIONS],
    "a second handshake": [handshake(), handshake(), VERSIONS],
    "ApiVersions amid the exchange": [handshake(), VERSIONS, VERSIONS],
    "right": [VERSIONS, handshake(), message(RIGHT), METADATA],
    "right, oldest version": [handshake(), message(RIGHT, 0), METADATA],
    "a handshake again, at once": [handshake(), message(RIGHT), handshake(), METADATA],
    "a message again": [handshake(), message(RIGHT), message(RIGHT), METADATA],
    "a wrong password": [handshake(), message(b"\0" + NAME + b"\0x"), METADATA],
    "an unknown user": [handshake(), message(b"\0nobody\0x"), METADATA],
    "as itself": [handshake(), message(NAME + RIGHT), METADATA],
    "as another one": [handshake(), message(b"x" + RIGHT), METADATA],
    "PLAIN, nothing": [handshake(), message(b""), METADATA],
    "PLAIN, one part": [handshake(), message(b"abc"), METADATA],
    "PLAIN, four parts": [handshake(), message(RIGHT + b"\0x"), METADATA],
    "PLAIN, not UTF-8": [handshake(), message(b"\0\xff\0\xff"), METADATA],
    "SCRAM, not UTF-8": [handshake(SCRAM[0]), message(b"\xff\0"), METADATA],
    "SCRAM, nothing": [handshake(SCRAM[0]), message(b""), METADATA],
    "SCRAM, an unknown user": [handshake(SCRAM[0]), message(b"n,,n=nobody,r=abc"), METADATA],
    "SCRAM, channel binding": [handshake(SCRAM[0]), message(b"p=tls-unique,,n=" + NAME + b",r=abc"), METADATA],
    "SCRAM, channel binding supported": [handshake(SCRAM[0]), message(b"y,,n=" + NAME + b",r=abc"), METADATA],
    "SCRAM, a token": [handshake(SCRAM[0]), message(FIRST + b",tokenauth=true"), METADATA],
    "SCRAM, an extension": [handshake(SCRAM[0]), message(FIRST + b",other=true"), message(b"x")],
    "SCRAM, as itself": [handshake(SCRAM[0]), message(b"n,a=" + NAME + FIRST[2:]), message(b"x")],
    "SCRAM, as another one": [handshake(SCRAM[0]), message(b"n,a=x" + FIRST[2:]), METADATA],
    "SCRAM, garbage at the end": [handshake(SCRAM[0]), message(FIRST), message(b"x"), METADATA],
    "SCRAM, another nonce": [handshake(SCRAM[0]), message(FIRST), message(b"c=biws,r=abc,p=AAAA"), METADATA],
    "of one mechanism for the other": [handshake(SCRAM[1]), message(RIGHT), METADATA],
}
"""Where answers differ, and why: Kafka ends a connection at a second ApiVersions. When another request comes amid the
exchange, Kafka answers it with an error before it ends the connection; here it ends at once. Kafka takes the attribute
`m` of SCRAM, which RFC 5802 forbids."""


def told(port: int, sequence: list[Any]) -> list[object]:
    """For each request, the error with its text, or that the connection was closed."""
    answers: list[object] = []
    with RawClient(port) as client:
        for request in sequence:
            try:
                answer = client.ask(request)
            except ConnectionAbortedError:
                return [*answers, "closed"]
            answers.append((getattr(answer, "error_code", ErrorCode.none), getattr(answer, "error_message", None)))
    return answers


@pytest.fixture(scope="module")
def in_the_clear(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("in-the-clear")
    mechanisms = [word for mechanism in MECHANISMS for word in ("--sasl", mechanism)]
    broker = BrokerProcess(directory, *mechanisms)
    add_user(broker.data, USER, PASSWORD)
    with broker:
        yield broker


def bare(port: int, *messages: bytes) -> list[bytes | None]:
    """What is told to messages without a header, behind a handshake of version 0."""
    answers: list[bytes | None] = []
    with RawClient(port) as client:
        answers.append(bytes([client.ask(handshake(version=0)).error_code.value]))
        for one in messages:
            client.socket.sendall(len(one).to_bytes(4, "big") + one)
            answer = client.receive()
            answers.append(None if answer is None else bytes(answer))
    return answers


@pytest.mark.parametrize("messages", [[RIGHT], [RIGHT + b"x"], [b""], [b"abc"]])
def test_messages_without_a_header_are_answered_as_kafka_does(
    in_the_clear: BrokerProcess, secured_kafka: SecuredCluster, messages: list[bytes]
) -> None:
    port = int(secured_kafka.listener("SASL_PLAINTEXT").rpartition(":")[2])
    assert bare(in_the_clear.port, *messages) == bare(port, *messages)


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_who_is_not_authenticated_is_told_what_kafka_tells(
    in_the_clear: BrokerProcess, secured_kafka: SecuredCluster, sequence: str
) -> None:
    port = int(secured_kafka.listener("SASL_PLAINTEXT").rpartition(":")[2])
    expected = told(port, SEQUENCES[sequence])
    assert told(in_the_clear.port, SEQUENCES[sequence]) == expected
