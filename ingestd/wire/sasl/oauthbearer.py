"""OAUTHBEARER: a token from an identity provider (RFC 7628, KIP-255, KIP-342)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from ingestd.checks import is_text
from ingestd.errors import AuthenticationFailed, ConnectionLost, IngestdError, WrongSetting

if TYPE_CHECKING:
    from ingestd.wire.sasl.mechanism import Exchange

__all__ = ["OAuthBearer", "TokenProvider"]

TokenProvider: TypeAlias = Callable[[], Awaitable[str]]
"""Gives a token that is valid now. It is called for every connection and re-authentication, so it should keep tokens.

If it has a method `forget(token)`, that is called with a token that a broker has refused.
"""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7E \t\r\n]+")
_ERROR_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class OAuthBearer:
    """A token, sent as it is. Without TLS it is refused, unless `cleartext` is set.

    `extensions` are further names and values for the broker (KIP-342).
    """

    token: TokenProvider
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)
    cleartext: bool = False

    def __post_init__(self) -> None:
        if not callable(self.token):
            raise WrongSetting("token", "what gives a token when it is called and awaited, as ClientCredentials does")
        if not isinstance(self.extensions, Mapping):
            raise WrongSetting("extensions", "a mapping of names to values")
        for name, value in self.extensions.items():
            if not is_text(name) or not _EXTENSION_NAME.fullmatch(name) or name == "auth":
                raise WrongSetting("extensions", f"names of letters other than auth, not {name!r}")
            if not is_text(value) or not _EXTENSION_VALUE.fullmatch(value):
                raise WrongSetting("extensions", f"printable ASCII as the value of {name}")

    @property
    def name(self) -> str:
        """See `SaslMechanism`."""
        return "OAUTHBEARER"

    @property
    def needs_tls(self) -> bool:
        """See `SaslMechanism`."""
        return not self.cleartext

    async def begin(self) -> Exchange:
        """See `SaslMechanism`. A provider's `OSError` counts as a lost connection, any other as failed for good."""
        try:
            token: object = await self.token()
        except IngestdError:
            raise
        except OSError as error:
            raise ConnectionLost(f"OAUTHBEARER: the token provider failed: {error!r}") from error
        except Exception as error:
            # Not its text, in which there may be anything.
            raise AuthenticationFailed(f"OAUTHBEARER: the token provider failed: {type(error).__name__}") from error
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise AuthenticationFailed("OAUTHBEARER: the token provider gave something that is no token")
        return _exchange(token, self.extensions, getattr(self.token, "forget", None))


def _exchange(token: str, extensions: Mapping[str, str], forget: Callable[[str], None] | None) -> Exchange:
    pairs = "".join(f"{name}={value}\x01" for name, value in extensions.items())
    refusal = yield f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()
    if refusal:
        if forget is not None:
            forget(token)
        yield b"\x01"  # the broker waits for it before it says the same as an error
        shown = refusal[:_ERROR_SHOWN].decode(errors="replace")
        raise AuthenticationFailed(f"OAUTHBEARER: the broker refuses the token: {shown}")
