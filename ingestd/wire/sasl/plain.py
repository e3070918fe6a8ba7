"""PLAIN: name and password, sent as they are (RFC 4616)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.checks import is_text
from ingestd.errors import WrongSetting
from ingestd.wire.secret import Secret

if TYPE_CHECKING:
    from ingestd.wire.sasl.mechanism import Exchange

__all__ = ["Plain"]


@dataclass(frozen=True, slots=True)
class Plain:
    """A user with a password that is sent as it is. Without TLS it is refused, unless `cleartext` is set."""

    username: str
    password: Secret | str
    cleartext: bool = False

    def __post_init__(self) -> None:
        if not is_text(self.username) or "\0" in self.username:
            raise WrongSetting("username", "a name without NUL")
        if self.password is None:
            raise WrongSetting("password", "a string or a Secret")
        object.__setattr__(self, "password", Secret.of(self.password))

    @property
    def name(self) -> str:
        """See `SaslMechanism`."""
        return "PLAIN"

    @property
    def needs_tls(self) -> bool:
        """See `SaslMechanism`."""
        return not self.cleartext

    async def begin(self) -> Exchange:
        """See `SaslMechanism`."""
        password = Secret.of(self.password)
        assert password is not None, "set by __post_init__"
        return _exchange(self.username, password.read())


def _exchange(username: str, password: str) -> Exchange:
    # Encoded one by one: an encoder's error contains the whole string in its repr.
    yield b"\0" + username.encode() + b"\0" + password.encode()
