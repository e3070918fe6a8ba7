"""Clusters of a configuration as options of the data source: addresses, TLS and account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.errors import ConfigurationError
from ingestd.wire.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.daemon.configuration import ClusterSettings
    from ingestd.wire.tls import TlsSettings

__all__ = ["cluster_options"]

_MODULES: Final = {"PLAIN": "plain.PlainLoginModule"}
_SCRAM: Final = "scram.ScramLoginModule"
_PACKAGE: Final = "org.apache.kafka.common.security"


def cluster_options(settings: ClusterSettings, bootstrap: Sequence[str]) -> dict[str, str]:
    """The options that reach a cluster. They have its secrets, which are read now.

    Raises `ConfigurationError` for what the data source has no option for.
    """
    found = {"kafka.bootstrap.servers": ",".join(bootstrap)}
    protocol = ("SASL_" if settings.sasl is not None else "") + ("SSL" if settings.tls is not None else "PLAINTEXT")
    if protocol != "PLAINTEXT":
        found["kafka.security.protocol"] = protocol
    if settings.tls is not None:
        found |= _tls(settings.name, settings.tls)
    sasl = settings.sasl
    if sasl is not None:
        if sasl.mechanism == "OAUTHBEARER":
            raise _unfit(settings.name, "sasl.mechanism", "PLAIN or SCRAM")
        assert isinstance(sasl.password, Secret), "PLAIN and SCRAM have a password"
        module = f"{_PACKAGE}.{_MODULES.get(sasl.mechanism, _SCRAM)}"
        account = f"username={_quoted(sasl.username or '')} password={_quoted(sasl.password.read())}"
        found["kafka.sasl.mechanism"] = sasl.mechanism
        found["kafka.sasl.jaas.config"] = f"{module} required {account};"
    return found


def _tls(cluster: str, tls: TlsSettings) -> dict[str, str]:
    if tls.verify == "none":
        raise _unfit(cluster, "tls.verify", "full or certificate")
    for key, differs in {
        "tls.key_file": tls.key_file is not None,
        "tls.server_name": tls.server_name is not None,
        "tls.minimum_version": tls.minimum_version != "1.2",
    }.items():
        if differs:
            raise _unfit(cluster, key, "none")
    found = {"kafka.ssl.endpoint.identification.algorithm": "https" if tls.verify == "full" else ""}
    if tls.ca_file is not None:
        found["kafka.ssl.truststore.location"] = str(tls.ca_file)
    if tls.certificate_file is not None:
        found["kafka.ssl.keystore.location"] = str(tls.certificate_file)
    if isinstance(tls.key_password, Secret):
        found["kafka.ssl.key.password"] = tls.key_password.read()
    return found


def _unfit(cluster: str, key: str, expected: str) -> ConfigurationError:
    return ConfigurationError(f"clusters.{cluster}.{key}: expected {expected}, in a cluster of a pipeline")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
