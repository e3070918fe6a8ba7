"""An embedded broker with TLS and users, and what clients of several kinds are told to reach it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from harness.certificates import Certificates
from harness.secured import PASSWORD, USER

from embedded.process import BrokerProcess

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

__all__ = ["MECHANISMS", "SCRAM", "SecuredBroker", "add_user"]

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM)
SECONDS = 30


def add_user(data: Path, name: str, password: str) -> None:
    """By the command, as an operator does it."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "ingestd",
            "broker",
            "users",
            "add",
            name,
            "--data",
            str(data),
            "--password",
            "@env:NEW",
        ],
        env={**os.environ, "NEW": password},
        timeout=SECONDS,
        check=True,
    )


class SecuredBroker:
    """TLS, every mechanism, and one account: `USER` with `PASSWORD` of `harness.secured`. Context manager."""

    def __init__(self, directory: Path, *options: str) -> None:
        directory.mkdir(exist_ok=True)
        self.certificates = Certificates(directory / "certificates")
        mechanisms = [word for mechanism in MECHANISMS for word in ("--sasl", mechanism)]
        certificate = str(self.certificates.broker)
        self.process = BrokerProcess(directory, "--tls-certificate", certificate, *mechanisms, *options)
        add_user(self.process.data, USER, PASSWORD)

    @property
    def servers(self) -> str:
        return self.process.servers

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.__exit__(*exc)

    def librdkafka(self, mechanism: str, password: str = PASSWORD, user: str = USER) -> dict[str, object]:
        """The configuration of librdkafka."""
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self.certificates.ca),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }

    def kafka_python(self, mechanism: str, password: str = PASSWORD) -> dict[str, object]:
        """The arguments of kafka-python."""
        return {
            "bootstrap_servers": self.servers,
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.certificates.ca),
            "sasl_mechanism": mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": password,
        }

    def java(self, directory: Path, mechanism: str, user: str, password: str) -> Path:
        """A properties file for Java's tools. Name and password are plain letters."""
        kind = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        module = f"org.apache.kafka.common.security.{kind} required"
        file = directory / f"{mechanism}-{user}-{len(list(directory.iterdir()))}.properties"
        file.write_text(
            "security.protocol=SASL_SSL\n"
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.certificates.ca}\n"
            f"sasl.mechanism={mechanism}\n"
            f'sasl.jaas.config={module} username="{user}" password="{password}";\n'
            "request.timeout.ms=15000\ndefault.api.timeout.ms=15000\n"
        )
        return file
