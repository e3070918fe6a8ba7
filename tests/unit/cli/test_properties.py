"""`-X NAME=VALUE`: what librdkafka's names become here, and what is refused by name, without showing a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ingestd.cli.configured import cluster_access
from ingestd.cli.main import main
from ingestd.cli.properties import parse_properties
from ingestd.consumer.settings import ConsumerSettings, Isolation
from ingestd.errors import ConfigurationError
from ingestd.producer.partitioners import PARTITIONERS
from ingestd.producer.settings import ProducerSettings
from ingestd.records.codecs import Codec, Compression
from ingestd.wire.sasl.plain import Plain
from ingestd.wire.sasl.scram import Scram
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings

if TYPE_CHECKING:
    from pathlib import Path

SCRAM = ["security.protocol=SASL_SSL", "sasl.mechanisms=scram-sha-512", "sasl.username=me"]


def connection(*texts: str) -> Any:
    return parse_properties(texts).connection()


def test_an_account_over_tls() -> None:
    made = connection(*SCRAM, "sasl.password=open sesame=1", "client.id=nightly")
    assert made.tls == TlsSettings()
    assert made.sasl == Scram("me", "open sesame=1", "SHA-512")
    assert made.client_id == "nightly"


def test_the_name_of_a_protocol_without_encryption_allows_a_password_without_it() -> None:
    made = connection("security.protocol=sasl_plaintext", "sasl.mechanism=PLAIN", "sasl.username=me", "sasl.password=x")
    assert (made.tls, made.sasl) == (None, Plain("me", "x", cleartext=True))


@pytest.mark.parametrize(
    ("texts", "verify"),
    [
        ([], "full"),
        (["ssl.endpoint.identification.algorithm=none"], "certificate"),
        (["enable.ssl.certificate.verification=false"], "none"),
    ],
)
def test_what_of_a_broker_is_verified(texts: list[str], verify: str) -> None:
    assert connection("security.protocol=ssl", *texts).tls == TlsSettings(verify=verify)  # type: ignore[arg-type]


def test_a_secret_is_read_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text("open sesame\n")
    assert connection(*SCRAM, f"sasl.password=@{file}").sasl == Scram("me", Secret(file=file), "SHA-512")
    monkeypatch.setenv("PASSWORD", "open sesame")
    held = connection(*SCRAM, "sasl.password=@env:PASSWORD")
    assert held.sasl.password.read() == "open sesame"
    assert "open sesame" not in repr(held)


def test_settings_in_a_file_count_as_if_they_stood_there(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.touch(mode=0o600)
    file.write_text("# shop\n\nsecurity.protocol = SASL_SSL\nsasl.mechanisms=SCRAM-SHA-256\nsasl.username = me\n")
    assert connection(f"@{file}", "sasl.password=x", "sasl.username=you").sasl == Scram("you", "x", "SHA-256")


def test_settings_of_producers() -> None:
    texts = ["topic.request.required.acks=1", "queue.buffering.max.ms=250", "compression.codec=zstd"]
    texts += ["compression.level=3", "batch.size=1000", "message.timeout.ms=0", "partitioner=consistent_random"]
    made = parse_properties(texts).producer(ProducerSettings(compression=Compression(Codec.lz4)))
    assert (made.acks, made.linger, made.compression) == (1, 0.25, Compression(Codec.zstd, 3))
    assert (made.batch_bytes, made.delivery_timeout) == (1000, float("inf"))
    assert made.partitioner is PARTITIONERS["crc32"]
    level = parse_properties(["compression.level=-1"])
    assert level.producer(ProducerSettings(compression=Compression(Codec.lz4, 9))).compression == Compression(Codec.lz4)


def test_settings_of_consumers_and_of_others_beside_them() -> None:
    texts = ["isolation.level=read_committed", "fetch.wait.max.ms=100", "client.rack=a", "linger.ms=5"]
    made = parse_properties(texts).consumer(ConsumerSettings())
    assert made == ConsumerSettings(isolation=Isolation.read_committed, fetch_max_wait=0.1, rack="a")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["acks=2"], "-X acks: '2'; expected \"all\", -1, 1 or 0"),
        (["acks=some"], "-X acks: 'some'; expected \"all\", -1, 1 or 0"),
        (["linger.ms=-1"], "-X linger.ms=-1: expected milliseconds"),
        (["linger.ms=nan"], "-X linger.ms=nan: expected milliseconds"),
        (["linger.ms=soon"], "-X linger.ms=soon: expected milliseconds"),
        (["compression.type=zst"], "-X compression.type=zst: expected none, gzip, snappy, lz4 or zstd"),
        (["compression.level=high"], "-X compression.level=high: expected a whole number"),
        (["compression.type=zstd", "compression.level=99"], "-X compression.level: "),
        (["max.in.flight=6"], "-X max.in.flight.requests.per.connection: 6; expected at most 5"),
        (["enable.idempotence=true", "acks=1"], "-X enable.idempotence: true with acks 1; expected acks -1"),
        (["batch.size=1e6"], "-X batch.size=1e6: expected bytes, a whole number"),
    ],
)
def test_a_value_that_a_producer_can_not_take_is_refused_by_name(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_properties(texts).producer(ProducerSettings())
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["security.protocol=tls"], "-X security.protocol=tls: expected plaintext, ssl, sasl_plaintext or sasl_ssl"),
        (["security.protcol=ssl"], "-X security.protcol: unknown; did you mean 'security.protocol'?; `-X list` lists "),
        (["sasl.passwrod=geheim"], "-X sasl.passwrod: unknown; did you mean 'sasl.password'?"),
        (["geheim"], "-X: expected NAME=VALUE, as in security.protocol=sasl_ssl"),
        (["sasl.username"], "-X sasl.username: expected sasl.username=VALUE, with a name"),
        (["sasl.password="], "-X sasl.password: expected a secret, or where it is kept: @FILE or @env:NAME"),
        (["sasl.password=@"], "-X sasl.password: expected a secret, or where it is kept"),
        (["ssl.ca.location=/ca"], "-X ssl.ca.location: expected security.protocol=ssl or sasl_ssl beside it"),
        (["sasl.username=me"], "-X sasl.username: expected security.protocol=sasl_ssl or sasl_plaintext beside it"),
        (["security.protocol=sasl_ssl"], "-X sasl.mechanism: missing; expected PLAIN, SCRAM-SHA-256"),
        (["security.protocol=sasl_ssl", "sasl.mechanism=GSSAPI"], "-X sasl.mechanism=GSSAPI: expected PLAIN, SCRAM"),
        (SCRAM, "-X sasl.password: expected one, for SCRAM-SHA-512"),
        ([*SCRAM, "sasl.password=@/nowhere/password"], "-X sasl.password: /nowhere/password: a secret can not be read"),
        ([*SCRAM, "sasl.password=@env:NOT_SET"], "-X sasl.password: environment variable NOT_SET: empty or not set"),
        (["security.protocol=ssl", "ssl.ca.location=/nowhere/ca"], "/nowhere/ca: can not be read"),
        (["security.protocol=ssl", "ssl.key.location=/key"], "-X ssl.key.location: expected certificate_file beside"),
        (["@/nowhere/client.properties"], "-X @/nowhere/client.properties: can not be read: No such file"),
    ],
)
def test_what_is_wrong_with_security_is_named(texts: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(ConfigurationError) as refused:
        connection(*texts)
    assert str(refused.value).startswith(message)
    assert "geheim" not in str(refused.value)


def test_a_line_of_a_file_that_is_wrong_is_named_with_its_number(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("acks=1\nlinger=5\n")
    with pytest.raises(ConfigurationError, match=rf"^{file}:2 linger: unknown"):
        parse_properties([f"@{file}"])
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match=r"expected UTF-8, at most 1048576 bytes, a NAME=VALUE each line"):
        parse_properties([f"@{file}"])


def test_brokers_may_be_named_so_and_are_named_once() -> None:
    assert cluster_access([], None, None, properties=parse_properties(["bootstrap.servers=a,b:1"])).bootstrap == (
        "a:9092",
        "b:1",
    )
    with pytest.raises(ConfigurationError, match=r"^--brokers and -X bootstrap.servers: expected one of them"):
        cluster_access(["a"], None, None, properties=parse_properties(["bootstrap.servers=b"]))


def test_security_is_in_the_configuration_or_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^-X security.protocol and --config: expected one of them"):
        cluster_access([], tmp_path / "ingestd.toml", None, properties=parse_properties(["security.protocol=ssl"]))


def test_all_that_is_known_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consume", "-X", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["linger.ms", "(or", "queue.buffering.max.ms)", "milliseconds"] for line in lines)
    assert any(line.startswith("sasl.password ") and "@env:NAME" in line for line in lines)
