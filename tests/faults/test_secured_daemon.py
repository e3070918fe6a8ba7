"""The daemon on a secured cluster: every line over TLS and SASL, accounts mended under way, and no secret anywhere."""

from __future__ import annotations

import json
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest
from harness.daemon import Daemon
from harness.secured import PASSWORD, USER
from harness.token_endpoint import TokenEndpoint, unsigned_token
from harness.written import LogWriter, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.secured import SecuredCluster
    from harness.written import Delivered

WRONG = "hunter2-is-wrong"


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """The file that the daemons of `secured` have their password from."""
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text(PASSWORD + "\n")
    return file


@pytest.fixture
def secured(secured_kafka: SecuredCluster, tmp_path: Path, logs: Path) -> Iterator[Callable[..., Daemon]]:
    """`secured(topic, listener, sasl, secret)`: a daemon with two workers that reaches its cluster there and so."""
    made: list[Daemon] = []

    def make(topic: str, listener: str, sasl: dict[str, object], secret: dict[str, str], **tls: str) -> Daemon:
        key = "client_secret" if "client_id" in sasl else "password"
        daemon = Daemon(
            tmp_path / "daemon",
            servers=[secured_kafka.listener(listener)],
            topic=topic,
            paths=[f"{logs}/*.log*"],
            daemon={"workers": 2, "drain_timeout": 10},
            tables={
                "clusters.target.tls": {"ca_file": str(secured_kafka.certificates.ca), **tls},
                "clusters.target.sasl": sasl,
                f"clusters.target.sasl.{key}": secret,
            },
        )
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.kill()


def shown(daemon: Daemon) -> str:
    """All that a daemon shows of itself."""
    return daemon.log.read_text() + json.dumps(daemon.status(), ensure_ascii=False) + daemon.metrics()


SCRAM = {"mechanism": "SCRAM-SHA-512", "username": USER}


def test_every_line_arrives_once_while_sessions_are_renewed_and_no_secret_is_shown(
    secured_kafka: SecuredCluster,
    password: Path,
    logs: Path,
    secured: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    """Sessions end after 2.5 s, of the supervisor and of both workers; nothing may be lost or doubled for that."""
    topic, written = secured_kafka.create_topic(partitions=4), Written()
    daemon = secured(topic, "RENEWED", SCRAM, {"file": str(password)})
    with LogWriter(logs / "one.log", written, seed=1), LogWriter(logs / "two.log", written, seed=2):
        daemon.start_ready()
        time.sleep(6.0)
    all_there(secured_kafka, topic, written).check(duplicates=False)
    assert len(daemon.worker_pids()) == 2
    assert 'level":"warning' not in daemon.log.read_text().replace(" ", "")
    assert PASSWORD not in shown(daemon)
    assert daemon.stop() == 0
    assert PASSWORD not in daemon.log.read_text()


def test_a_broker_that_is_killed_and_started_again_costs_no_line(
    secured_kafka: SecuredCluster,
    password: Path,
    logs: Path,
    secured: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    topic, written = secured_kafka.create_topic(partitions=2), Written()
    daemon = secured(topic, "SASL_SSL", SCRAM, {"file": str(password)})
    with LogWriter(logs / "one.log", written):
        daemon.start_ready()
        daemon.until(lambda: daemon.acknowledged() > 0, "lines are acknowledged", 60)
        secured_kafka.kill(1)
        time.sleep(0.5)
        secured_kafka.start(1)
        before = daemon.acknowledged()
        daemon.until(lambda: daemon.acknowledged() > before, "lines are acknowledged again", 60)
    all_there(secured_kafka, topic, written).check(duplicates=False)
    assert daemon.stop() == 0


def test_tokens_are_asked_for_once_in_each_process(
    secured_kafka: SecuredCluster, tmp_path: Path, logs: Path, secured: Any, all_there: Callable[..., Delivered]
) -> None:
    topic, written = secured_kafka.create_topic(partitions=2), Written()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secured_kafka.certificates.broker)
    with TokenEndpoint(context, lambda _: unsigned_token(USER)) as endpoint:
        sasl = {
            "mechanism": "OAUTHBEARER",
            "token_endpoint": endpoint.url,
            "client_id": endpoint.CLIENT_ID,
            "token_ca_file": str(secured_kafka.certificates.ca),
        }
        secret = tmp_path / "client-secret"
        secret.touch(mode=0o600)
        secret.write_text(endpoint.CLIENT_SECRET)
        daemon = secured(topic, "SASL_SSL", sasl, {"file": str(secret)})
        with LogWriter(logs / "one.log", written, seed=1), LogWriter(logs / "two.log", written, seed=2):
            daemon.start_ready()
            time.sleep(1.0)
        all_there(secured_kafka, topic, written).check(duplicates=False)
        assert endpoint.CLIENT_SECRET not in shown(daemon)
        assert daemon.stop() == 0
        assert 2 <= len(endpoint.asked) <= 3


def test_an_account_that_is_mended_lets_a_refused_daemon_go_on_by_itself(
    secured_kafka: SecuredCluster,
    password: Path,
    logs: Path,
    secured: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    topic, written = secured_kafka.create_topic(), Written()
    password.write_text(WRONG)
    daemon = secured(topic, "SASL_SSL", SCRAM, {"file": str(password)})
    with LogWriter(logs / "one.log", written):
        daemon.start()

        def refused() -> bool:
            body = daemon.page("/status")
            return body is not None and "invalid credentials" in (json.loads(body)["clusters"][0]["error"] or "")

        daemon.until(refused, "the status says that the credentials are wrong", 60)
        assert daemon.page("/readyz") is None
        assert WRONG not in shown(daemon)
        password.write_text(PASSWORD)
        daemon.until(lambda: daemon.page("/readyz") is not None, "the daemon is ready", 60)
        time.sleep(0.5)
    all_there(secured_kafka, topic, written).check(duplicates=False)
    assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("tls", "secret", "key", "reason"),
    [
        (
            {"ca_file": "/nowhere/ca.pem"},
            None,
            "tls.ca_file",
            "/nowhere/ca.pem: can not be read: No such file or directory",
        ),
        ({}, {"file": "/nowhere/password"}, "sasl.password", "/nowhere/password: a secret can not be read: No such"),
        ({}, {"environment": "NOT_SET_HERE"}, "sasl.password", "environment variable NOT_SET_HERE: empty or not set"),
    ],
)
def test_a_daemon_whose_files_are_not_there_does_not_start_and_names_the_key(
    password: Path, secured: Any, tls: dict[str, str], secret: dict[str, str] | None, key: str, reason: str
) -> None:
    daemon = secured("t", "SASL_SSL", SCRAM, secret or {"file": str(password)}, **tls)
    daemon.start()
    assert daemon.wait(60) == 2
    assert f"ingestd: {daemon.file}: clusters.target.{key}: {reason}" in daemon.log.read_text()
