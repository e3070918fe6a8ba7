"""Client credentials: tokens from an OAuth 2 or OpenID Connect provider, for a program's account (RFC 6749, 4.4)."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus, urlsplit
from weakref import WeakKeyDictionary

from ingestd.errors import (
    AuthenticationFailed,
    ConnectionLost,
    DeadlineExceeded,
    IngestdError,
    ProtocolError,
    WrongSetting,
    is_retriable,
)
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings, client_context

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ClientCredentials"]

_TIMEOUT: Final = 10.0
_FRESH: Final = 0.8
"""The fraction of a token's lifetime after which the next one is requested."""
_LAST_SECONDS: Final = 5.0
"""Seconds. A token that is valid for less than this is not sent."""
_LARGEST_ANSWER: Final = 256 * 1024
_ERROR_SHOWN: Final = 200
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class _Token:
    value: str = field(repr=False)
    asked_at: float
    """On the monotonic clock, as is what follows from it."""
    seconds: float

    @property
    def fresh(self) -> bool:
        return time.monotonic() < self.asked_at + self.seconds * _FRESH

    @property
    def usable(self) -> bool:
        return time.monotonic() < self.asked_at + self.seconds - _LAST_SECONDS


class ClientCredentials:
    """A token provider for `OAuthBearer`: asks an endpoint with a client id and secret, and keeps the token.

    Invariants
        While a token is fresh, no other is requested. Callers that need one at the same time share one request.
        A token that is valid but no longer fresh is used while the endpoint can not be reached.
        A token that a broker refused is not given out again, however long it is valid.
    """

    def __init__(
        self,
        endpoint: str,
        client_id: str,
        client_secret: Secret | str,
        *,
        scope: str = "",
        ca_file: Path | None = None,
        cleartext: bool = False,
    ) -> None:
        """`endpoint` is the token endpoint's URL (https, unless `cleartext`); `ca_file` has authorities to trust there.

        Raises `WrongSetting`.
        """
        for name, text in (("token_endpoint", endpoint), ("client_id", client_id), ("scope", scope)):
            if not isinstance(text, str):
                raise WrongSetting(name, "a string")
        if client_secret is None:
            raise WrongSetting("client_secret", "a string or a Secret")
        parts = urlsplit(endpoint)
        if parts.scheme not in ({"https", "http"} if cleartext else {"https"}) or not parts.hostname or "@" in endpoint:
            raise WrongSetting("token_endpoint", "an https URL without a user in it")
        if not client_id:
            raise WrongSetting("client_id", "the name that the provider knows this client by")
        self._endpoint = endpoint
        self._client_id = client_id
        self._client_secret = Secret.of(client_secret)
        self._scope = scope
        self._tls = TlsSettings(ca_file=ca_file) if parts.scheme == "https" else None
        self._token: _Token | None = None
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<ClientCredentials {self._client_id} at {self._endpoint}>"

    async def __call__(self) -> str:
        """A token that is valid now.

        Raises `AuthenticationFailed` (the endpoint refuses), `ConnectionLost`, `DeadlineExceeded`, `ProtocolError`,
        `ConfigurationError` (the secret can not be read).
        """
        if self._token is not None and self._token.fresh:
            return self._token.value
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return (await self._renewed(self._token)).value

    def forget(self, token: str) -> None:
        """Request another token next time: a broker has refused this one."""
        if self._token is not None and self._token.value == token:
            self._token = None

    async def _renewed(self, old: _Token | None) -> _Token:
        if old is not None and old.fresh:
            return old  # somebody else's turn brought it
        asked_at = time.monotonic()
        try:
            status, answer = await self._ask()
            self._token = self._read(status, answer, asked_at)
        except IngestdError as error:
            refused = self._token is not old  # by a broker, meanwhile
            if old is not None and old.usable and not refused and is_retriable(error):
                return old
            raise
        return self._token

    async def _ask(self) -> tuple[int, bytes]:
        import aiohttp  # noqa: PLC0415 - a third of a start; only needed by those who ask for tokens

        assert self._client_secret is not None, "given to __init__"
        # RFC 6749, 2.3.1: both are form-encoded before they are joined.
        pair = f"{quote_plus(self._client_id)}:{quote_plus(self._client_secret.read())}"
        headers = {"Authorization": f"Basic {b64encode(pair.encode()).decode()}", "Accept": "application/json"}
        form = {"grant_type": "client_credentials", **({"scope": self._scope} if self._scope else {})}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_TIMEOUT)) as session,
                session.post(
                    self._endpoint,
                    data=form,
                    headers=headers,
                    ssl=True if self._tls is None else client_context(self._tls),
                    allow_redirects=False,
                ) as answer,
            ):
                raw = b""
                async for piece in answer.content.iter_any():
                    raw += piece
                    if len(raw) > _LARGEST_ANSWER:
                        raise ProtocolError(f"{self._endpoint}: an answer of more than {_LARGEST_ANSWER} bytes")
                return answer.status, raw
        except aiohttp.ClientConnectorCertificateError as error:
            raise AuthenticationFailed(
                f"{self._endpoint}: its certificate is refused: {error.certificate_error}"
            ) from None
        except TimeoutError:
            raise DeadlineExceeded(f"{self._endpoint}: no token within {_TIMEOUT:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionLost(f"{self._endpoint}: no token: {error}") from None

    def _read(self, status: int, raw: bytes, asked_at: float) -> _Token:
        import orjson  # noqa: PLC0415

        try:
            answer = orjson.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            answer = {}
        if status in _PASSING:
            raise ConnectionLost(f"{self._endpoint}: no token: HTTP status {status}")
        if status != 200:
            reason = ": ".join(str(answer[key]) for key in ("error", "error_description") if answer.get(key))
            shown = reason[:_ERROR_SHOWN]
            raise AuthenticationFailed(f"{self._endpoint}: no token: HTTP status {status} {shown}".rstrip())
        value = answer.get("access_token")
        if not isinstance(value, str):
            raise ProtocolError(f"{self._endpoint}: an answer without access_token")
        try:
            seconds = float(answer.get("expires_in") or 0)  # some give a string, some nothing
        except (TypeError, ValueError):
            seconds = 0.0
        return _Token(value, asked_at, seconds)
