"""TLS of a listener: the context that new connections are made with, and the name in a client's certificate."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

from ingestd.errors import ConfigurationError
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import TypeAlias

    from ingestd.broker.security.settings import SecuritySettings

    Stamps: TypeAlias = tuple[tuple[int, int, int], ...]

__all__ = ["ServerTls", "principal_of"]

_log = get_logger(__name__)


class ServerTls:
    """The context, which follows its files: connections made after a renewal get the new certificate."""

    def __init__(self, settings: SecuritySettings) -> None:
        """Raises `ConfigurationError`, naming the file."""
        assert settings.certificate is not None
        self._certificate = settings.certificate
        self._key = settings.key
        self._files = tuple(file for file in (settings.certificate, settings.key) if file is not None)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.options |= ssl.OP_NO_RENEGOTIATION
        self._stamps = self._present()
        self._load()
        if settings.client_ca is not None:
            self.context.verify_mode = ssl.CERT_REQUIRED
            try:
                self.context.load_verify_locations(settings.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise _unusable(settings.client_ca, "certificates of authorities", error) from None

    def follow(self) -> None:
        """Load certificate and key again if one of the files has changed. If they are not right, the old ones stay."""
        try:
            stamps = self._present()
            if stamps != self._stamps:
                self._stamps = stamps
                self._load()
                _log.info("certificate loaded", file=str(self._certificate))
        except ConfigurationError as error:
            _log.error("certificate not loaded", error=str(error))

    def _present(self) -> Stamps:
        stamps = []
        for file in self._files:
            try:
                found = file.stat()
            except OSError as error:
                raise ConfigurationError(f"{file}: can not be read: {error.strerror}") from None
            stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return tuple(stamps)

    def _load(self) -> None:
        try:
            # First into another context: a certificate and a key that do not fit would leave half of each in ours.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                # Without the password, OpenSSL would ask for one at the terminal.
                context.load_cert_chain(self._certificate, self._key, password="")
        except (OSError, ssl.SSLError) as error:
            what = "a certificate with its private key, not encrypted, as PEM"
            raise _unusable(self._key or self._certificate, what, error) from None


def _unusable(file: Path, expected: str, error: OSError) -> ConfigurationError:
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return ConfigurationError(f"{file}: expected {expected} ({reason})")


_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_ESCAPED: Final = str.maketrans({letter: f"\\{letter}" for letter in ',+"\\<>;='})


def principal_of(certificate: Mapping[str, Any]) -> str:
    """Kafka's principal for a verified client certificate: its subject's distinguished name (RFC 2253)."""
    names = [
        "+".join(f"{_SHORT.get(kind, kind)}={value.translate(_ESCAPED)}" for kind, value in parts)
        for parts in reversed(certificate.get("subject", ()))
    ]
    return f"User:{','.join(names)}"
