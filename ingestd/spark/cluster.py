"""The cluster of a source or sink: addresses, TLS and account, by the names that Java's client gives its options."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from ingestd.client.settings import ClientSettings
from ingestd.errors import ConfigurationError
from ingestd.wire.connection import ConnectionSettings
from ingestd.wire.sasl.plain import Plain
from ingestd.wire.sasl.scram import Scram
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.spark.given import Given
    from ingestd.wire.sasl.mechanism import SaslMechanism

__all__ = ["CLUSTER_OPTIONS", "REFUSED", "Cluster", "cluster_of"]

CLUSTER_OPTIONS: Final = (
    "kafka.bootstrap.servers",
    "bootstrap",
    "kafka.client.id",
    "kafka.security.protocol",
    "kafka.sasl.mechanism",
    "kafka.sasl.jaas.config",
    "kafka.ssl.truststore.location",
    "kafka.ssl.truststore.type",
    "kafka.ssl.keystore.location",
    "kafka.ssl.keystore.type",
    "kafka.ssl.key.password",
    "kafka.ssl.endpoint.identification.algorithm",
)
"""The options that `cluster_of` reads."""

_INLINE: Final = (
    "expected a PEM file on every node, named by kafka.ssl.truststore.location or kafka.ssl.keystore.location"
)
REFUSED: Final = {
    "kafka.ssl.truststore.certificates": _INLINE,
    "kafka.ssl.keystore.certificate.chain": _INLINE,
    "kafka.ssl.keystore.key": _INLINE,
}
"""Options about security that can not be ignored, each with what is expected instead."""

_PROTOCOLS: Final = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_MECHANISMS: Final = {"plain": "PLAIN", "scram-sha-256": "SHA-256", "scram-sha-512": "SHA-512"}
_MODULES: Final = {"PLAIN": "PlainLoginModule", "SHA-256": "ScramLoginModule", "SHA-512": "ScramLoginModule"}
_JAAS: Final = re.compile(r"\s*(?P<module>[\w.$]+)\s+required\b(?P<options>.*?);?\s*", re.DOTALL)
_JAAS_OPTION: Final = re.compile(
    r'\s*(?P<name>[\w.]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s";=]+))', re.DOTALL
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a cluster is and how to connect to it. Pickles. Its repr shows no secret."""

    bootstrap: tuple[str, ...]
    client: ClientSettings = field(default_factory=ClientSettings)


def cluster_of(given: Given) -> Cluster:
    """The cluster that the options describe. Raises `ConfigurationError`, which never shows a secret."""
    protocol = (given.text("kafka.security.protocol") or "plaintext").lower()
    if protocol not in _PROTOCOLS:
        raise given.wrong("kafka.security.protocol", ", ".join(map(str.upper, _PROTOCOLS)))
    encrypted = protocol.endswith("ssl")
    sasl = _mechanism(given, encrypted=encrypted) if protocol.startswith("sasl") else None
    try:
        connection = ConnectionSettings(
            client_id=given.text("kafka.client.id") or "ingestd-spark",
            tls=_tls(given) if encrypted else None,
            sasl=sasl,
        )
    except ConfigurationError as error:
        raise given.error(str(error)) from None
    return Cluster(_addresses(given), ClientSettings(connection=connection))


def _addresses(given: Given) -> tuple[str, ...]:
    option = given.one_of(("kafka.bootstrap.servers", "bootstrap"))
    if option is None:
        raise given.error("option kafka.bootstrap.servers is missing; expected HOST:PORT, …")
    addresses = tuple(filter(None, map(str.strip, (given.text(option) or "").split(","))))
    if not addresses or not all(re.fullmatch(r".+:\d{1,5}", address) for address in addresses):
        raise given.wrong(option, "HOST:PORT, several separated by commas")
    return addresses


def _tls(given: Given) -> TlsSettings:
    for option in ("kafka.ssl.truststore.type", "kafka.ssl.keystore.type"):
        given.choice(option, {"pem": None}, default=None)
    checks: Mapping[str, Literal["full", "certificate"]] = {"https": "full", "": "certificate"}
    password = given.text("kafka.ssl.key.password")
    return TlsSettings(
        ca_file=given.text("kafka.ssl.truststore.location"),  # type: ignore[arg-type]  # made a path there
        certificate_file=given.text("kafka.ssl.keystore.location"),  # type: ignore[arg-type]
        key_password=None if password is None else Secret(value=password),
        verify=given.choice("kafka.ssl.endpoint.identification.algorithm", checks, default="full"),
    )


def _mechanism(given: Given, *, encrypted: bool) -> SaslMechanism:
    mechanism = _MECHANISMS.get((given.text("kafka.sasl.mechanism") or "GSSAPI").lower())
    if mechanism is None:
        raise given.wrong("kafka.sasl.mechanism", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
    module, account = _login(given)
    expected = _MODULES[mechanism]
    if module.rpartition(".")[2] != expected or not {"username", "password"} <= account.keys():
        raise given.wrong("kafka.sasl.jaas.config", f'one {expected} required username="…" password="…";')
    username, password = account["username"], Secret(value=account["password"])
    if mechanism == "PLAIN":
        # The protocol's name says that nothing is encrypted: who gives it has chosen that.
        return Plain(username, password, cleartext=not encrypted)
    return Scram(username, password, "SHA-256" if mechanism == "SHA-256" else "SHA-512")


def _login(given: Given) -> tuple[str, dict[str, str]]:
    """The login module and its options."""
    option = "kafka.sasl.jaas.config"
    text = _JAAS.fullmatch(given.text(option) or "")
    if text is None:
        raise given.wrong(option, 'a login module: "CLASS required username="…" password="…";"')
    found: dict[str, str] = {}
    rest = text["options"]
    while rest.strip():
        one = _JAAS_OPTION.match(rest)
        if one is None:
            raise given.wrong(option, 'options such as username="…" behind the login module, and one module alone')
        found[one["name"]] = one["bare"] if one["quoted"] is None else _unescaped(one["quoted"])
        rest = rest[one.end() :]
    return text["module"], found


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), text, flags=re.DOTALL)
