"""A real Kafka node with a listener for every kind of security, and the accounts that may use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from harness.certificates import Certificates
from harness.cluster import KafkaCluster
from harness.node import free_ports

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from harness.node import Node

__all__ = ["PASSWORD", "RENEWAL_MS", "USER", "SecuredCluster"]

USER = "shipper"
PASSWORD = 'p=,"\\ﬁ ü™'
"""With what SCRAM must escape, and with what normalization would change: Kafka normalizes nothing."""

RENEWAL_MS = 2500
"""The life of a session on the listener RENEWED."""

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule required",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule required",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule required",
    # Takes tokens that nobody signed (algorithm "none"), as Kafka does where nothing else is configured.
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'unsecuredLoginStringClaim_sub="broker"',
}


class SecuredCluster(KafkaCluster):
    """One node. Beside the plain listener, which the harness itself uses:

    TLS; MUTUAL (asks for a client's certificate); EXPIRED (shows a certificate that has); SASL_SSL and SASL_PLAINTEXT
    (every mechanism); RENEWED (as SASL_SSL, with sessions of `RENEWAL_MS`). The account is `USER` with `PASSWORD`.
    """

    PROTOCOLS: ClassVar[dict[str, str]] = {
        "TLS": "SSL",
        "MUTUAL": "SSL",
        "EXPIRED": "SSL",
        "SASL_SSL": "SASL_SSL",
        "SASL_PLAINTEXT": "SASL_PLAINTEXT",
        "RENEWED": "SASL_SSL",
    }

    def __init__(self, directory: Path, **options: Any) -> None:
        self.certificates = Certificates(directory / "certificates")
        self._listeners = dict(zip(self.PROTOCOLS, free_ports(len(self.PROTOCOLS)), strict=True))
        super().__init__(directory, **options)

    def listener(self, name: str, host: str = "127.0.0.1") -> str:
        """HOST:PORT of a listener."""
        return f"{host}:{self._listeners[name]}"

    def _settings(self, node: Node) -> dict[str, str]:
        settings = super()._settings(node)
        addresses = [f"{name}://{self.listener(name)}" for name in self.PROTOCOLS]
        protocols = [f"{name}:{protocol}" for name, protocol in self.PROTOCOLS.items()]
        for key, more in {
            "listeners": addresses,
            "advertised.listeners": addresses,
            "listener.security.protocol.map": protocols,
        }.items():
            settings[key] = ",".join([settings[key], *more])
        settings |= {
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.ca),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.expired.ssl.keystore.type": "PEM",
            "listener.name.expired.ssl.keystore.location": str(self.certificates.expired),
            # A wrong password is answered late, against guessing; tests need not wait.
            "connection.failed.authentication.delay.ms": "10",
        }
        for name in ("SASL_SSL", "SASL_PLAINTEXT", "RENEWED"):
            settings |= self._sasl(f"listener.name.{name.lower()}")
        return settings

    @staticmethod
    def _sasl(prefix: str) -> dict[str, str]:
        settings = {f"{prefix}.sasl.enabled.mechanisms": ",".join(MECHANISMS)}
        for mechanism, module in LOGIN_MODULES.items():
            users = f' user_{USER}="{_quoted(PASSWORD)}"' if mechanism == "PLAIN" else ""
            settings[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = f"{_escaped(module + users)};"
            if prefix.endswith("renewed"):
                settings[f"{prefix}.{mechanism.lower()}.connections.max.reauth.ms"] = str(RENEWAL_MS)
        return settings

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._create_users()
        except BaseException:
            self.close()
            raise
        return self

    def _create_users(self) -> None:
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):  # one a request, for one user
            wanted = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for created in self.admin.alter_user_scram_credentials([wanted]).values():
                created.result(timeout=60)
        self.delete_topic(self.create_topic())  # what the node knows of this it knows of the users, made before


def _quoted(text: str) -> str:
    """As a string of JAAS."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _escaped(text: str) -> str:
    """As a value of Java's properties."""
    return "".join(f"\\u{ord(each):04x}" if ord(each) > 126 else each for each in text.replace("\\", "\\\\"))
