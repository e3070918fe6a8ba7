"""SCRAM: proves that both sides know the password without sending it (RFC 5802, RFC 7677)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ingestd.checks import is_text
from ingestd.errors import AuthenticationFailed, WrongSetting
from ingestd.wire.secret import Secret

if TYPE_CHECKING:
    from ingestd.wire.sasl.mechanism import Exchange

__all__ = ["Scram"]

_MOST_ITERATIONS: Final = 4 * 16_384
"""The broker chooses; more are refused. Kafka stores at most 16,384. Each costs the event loop some 0.7 µs."""

_ITERATIONS: Final = re.compile(r"(?:^|,)i=(\d+)(?:,|$)")


@dataclass(frozen=True, slots=True)
class Scram:
    """A user with a password that never leaves this process. The broker's signature is verified too."""

    username: str
    password: Secret | str
    algorithm: Literal["SHA-256", "SHA-512"] = "SHA-512"

    def __post_init__(self) -> None:
        if not is_text(self.username):
            raise WrongSetting("username", "a name")
        if self.algorithm not in ("SHA-256", "SHA-512"):
            raise WrongSetting("algorithm", "SHA-256 or SHA-512")
        if self.password is None:
            raise WrongSetting("password", "a string or a Secret")
        object.__setattr__(self, "password", Secret.of(self.password))

    @property
    def name(self) -> str:
        """See `SaslMechanism`."""
        return f"SCRAM-{self.algorithm}"

    @property
    def needs_tls(self) -> bool:
        """See `SaslMechanism`."""
        return False

    async def begin(self) -> Exchange:
        """See `SaslMechanism`."""
        password = Secret.of(self.password)
        assert password is not None, "set by __post_init__"
        return _exchange(self.name, self.username, password.read())


class _AsItIs(str):
    """Kafka uses names and passwords as they are, without the normalization of RFC 5802 (`ScramFormatter`)."""

    __slots__ = ()

    def escape(self) -> str:
        return self.replace("=", "=3D").replace(",", "=2C")

    def __bytes__(self) -> bytes:
        return self.encode()


def _exchange(mechanism: str, username: str, password: str) -> Exchange:
    from scramp import ScramClient, ScramException  # noqa: PLC0415 - only for those who use it

    client = ScramClient([mechanism], "replaced", "replaced")
    client.username, client.password = _AsItIs(username), _AsItIs(password)
    server_first = yield client.get_client_first().encode()
    try:
        client.set_server_first(_bounded(server_first))
        server_final = yield client.get_client_final().encode()
        client.set_server_final(server_final.decode())
    except (ScramException, UnicodeDecodeError) as error:
        raise AuthenticationFailed(f"{mechanism}: the broker's answer is not right: {error}") from None


def _bounded(server_first: bytes) -> str:
    text = server_first.decode()
    iterations = _ITERATIONS.search(text)
    if iterations is not None and int(iterations[1][:10]) > _MOST_ITERATIONS:
        raise AuthenticationFailed(f"SCRAM: the broker asks for more than {_MOST_ITERATIONS} iterations")
    return text
