"""How a listener is secured: TLS, and what clients must prove. And which addresses may go without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.broker.security.exchanges import MECHANISMS
from ingestd.checks import is_loopback
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["OPEN", "SecuritySettings"]


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """The security of a broker's listener.

    `certificate` is a PEM file with the broker's certificate and its intermediates, and with its private key unless
    `key` has that: then clients speak TLS. With `client_ca`, a PEM file of authorities, each client must show a
    certificate that one of them has signed. `mechanisms` are those of SASL that clients may authenticate with; none:
    nobody needs to. `session_lifetime` is after how many seconds a client must authenticate again (KIP-368); 0: never.
    `refusal_delay` is how many seconds the answer to a wrong password takes, as in Kafka. Raises `ConfigurationError`.
    """

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    mechanisms: tuple[str, ...] = ()
    session_lifetime: float = 0.0
    refusal_delay: float = 0.1

    def __post_init__(self) -> None:
        for name in ("key", "client_ca"):
            if getattr(self, name) is not None and self.certificate is None:
                raise ConfigurationError(f"tls {name}: expected a certificate beside it")
        unknown = [name for name in self.mechanisms if name not in MECHANISMS]
        if unknown:
            raise ConfigurationError(f"sasl: {unknown[0]!r} is not one of {', '.join(MECHANISMS)}")

    @property
    def encrypts(self) -> bool:
        """Whether connections are TLS."""
        return self.certificate is not None

    @property
    def authenticates(self) -> bool:
        """Whether a client must prove who it is, by a certificate or by SASL."""
        return self.client_ca is not None or bool(self.mechanisms)

    @property
    def protocol(self) -> str:
        """Kafka's name for it: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`."""
        transport = "SSL" if self.encrypts else "PLAINTEXT"
        return f"SASL_{transport}" if self.mechanisms else transport

    def check_reach(self, host: str) -> None:
        """Raise `ConfigurationError` unless this is enough for a listener at `host`.

        Whoever reaches an open broker can read, write and delete everything in it.
        """
        if is_loopback(host) or (self.encrypts and self.authenticates):
            return
        lacks = [
            what
            for what, there in (
                ("TLS (--tls-certificate)", self.encrypts),
                ("authentication of clients (--sasl)", self.authenticates),
            )
            if not there
        ]
        raise ConfigurationError(
            f"listen: other machines reach {host or 'every address of this one'}, and the broker has no "
            f"{' and no '.join(lacks)}; add it, listen at 127.0.0.1, or let them all in (--insecure)"
        )


OPEN = SecuritySettings()
"""No TLS, and everybody is welcome."""
