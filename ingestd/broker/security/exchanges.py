"""The broker's side of the SASL mechanisms: a client's messages in, the broker's out, until a user is proven."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from ingestd.broker.security.credentials import ITERATIONS, Credential, Mechanism
from ingestd.errors import AuthenticationFailed

if TYPE_CHECKING:
    from ingestd.broker.security.users import Users

__all__ = ["MECHANISMS", "Exchange", "Said", "begin_exchange"]

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *(mechanism.label for mechanism in Mechanism))
"""What a listener can ask for."""
_NONCE_BYTES: Final = 24
_PLAIN_PARTS: Final = 3


@dataclass(frozen=True, slots=True)
class Said:
    """The broker's next message. `user`: who the client has proven to be, and then the exchange is at its end."""

    message: bytes = field(repr=False)
    user: str | None = None


class Exchange(Protocol):
    """One authentication of one client. `user`: who it says it is, once it has said so."""

    user: str

    async def take(self, message: bytes) -> Said:
        """The answer to the client's next message. Raises `AuthenticationFailed`, with what the client may know."""
        ...


def begin_exchange(mechanism: str, users: Users) -> Exchange:
    """An exchange of one of `MECHANISMS`."""
    if mechanism == PLAIN:
        return PlainExchange(users)
    return ScramExchange(next(known for known in Mechanism if known.label == mechanism), users)


class PlainExchange:
    """PLAIN (RFC 4616): the client sends the password. It is checked against the user's SCRAM credential."""

    def __init__(self, users: Users) -> None:
        self.user = ""
        self._users = users

    async def take(self, message: bytes) -> Said:
        """See `Exchange`."""
        parts = message.decode(errors="replace").split("\0")
        if len(parts) != _PLAIN_PARTS:
            raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected {_PLAIN_PARTS} tokens, got {len(parts)}")
        authorized, user, password = parts
        self.user = user
        credentials = self._users.of(user)
        # An unknown user takes as long as a known one.
        credential = max(credentials.values(), key=lambda one: one.mechanism, default=_NOBODY)
        proven = await asyncio.to_thread(credential.proven_by, password)
        if not proven or not credentials:
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        _check_authorized(authorized, user)
        return Said(b"", user)


_NOBODY: Final = Credential(Mechanism.scram_sha_512, ITERATIONS, os.urandom(32), os.urandom(64), os.urandom(64))

_CLIENT_FIRST: Final = re.compile(
    r"(?P<header>n,(?:a=(?P<authorized>[^,]*))?,)(?P<bare>n=(?P<user>[^,]+),r=(?P<nonce>[!-+\--~]+)(?P<more>,.+)?)"
)
_CLIENT_FINAL: Final = re.compile(r"(?P<unproven>c=(?P<header>[^,]+),r=(?P<nonce>[^,]+)(?:,[^,]+)*),p=(?P<proof>[^,]+)")


class ScramExchange:
    """SCRAM (RFC 5802), without channel binding, as in Kafka: the password is never sent."""

    def __init__(self, mechanism: Mechanism, users: Users) -> None:
        self.user = ""
        self._mechanism = mechanism
        self._users = users
        self._begun: _Begun | None = None

    async def take(self, message: bytes) -> Said:
        """See `Exchange`."""
        text = message.decode(errors="replace")
        if self._begun is None:
            self._begun = self._begin(text)
            return Said(self._begun.server_first.encode())
        return self._end(self._begun, text)

    def _begin(self, text: str) -> _Begun:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise self._refused()
        user = self.user = _unescaped(found["user"])
        credential = self._users.of(user).get(self._mechanism)
        # As in Kafka, a user that is not there is refused at once. There are no delegation tokens.
        if credential is None or ",tokenauth=true" in (found["more"] or ""):
            raise self._refused()
        _check_authorized(_unescaped(found["authorized"] or ""), user)
        nonce = found["nonce"] + base64.b64encode(os.urandom(_NONCE_BYTES)).decode("ascii")
        salt = base64.b64encode(credential.salt).decode("ascii")
        server_first = f"r={nonce},s={salt},i={credential.iterations}"
        return _Begun(user, credential, found["header"], found["bare"], nonce, server_first)

    def _end(self, begun: _Begun, text: str) -> Said:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise self._refused()
        try:
            header, proof = (base64.b64decode(found[name], validate=True) for name in ("header", "proof"))
        except (binascii.Error, ValueError):
            raise self._refused() from None
        signed = f"{begun.bare},{begun.server_first},{found['unproven']}".encode()
        same = header == begun.header.encode() and found["nonce"] == begun.nonce
        if not same or not begun.credential.accepts(proof, signed):
            raise self._refused()
        signature = base64.b64encode(begun.credential.signature(signed))
        return Said(b"v=" + signature, begun.user)

    def _refused(self) -> AuthenticationFailed:
        return AuthenticationFailed(
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{self._mechanism.label}"
        )


@dataclass(frozen=True, slots=True)
class _Begun:
    """What both sides have said in the first round. The proof is for all of it."""

    user: str
    credential: Credential
    header: str
    bare: str
    nonce: str
    server_first: str


def _check_authorized(authorized: str, user: str) -> None:
    if authorized not in {"", user}:
        raise AuthenticationFailed(
            "Authentication failed: Client requested an authorization id that is different from username"
        )


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
