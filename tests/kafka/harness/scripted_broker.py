"""A broker of few answers on real sockets, with or without TLS and SASL, strict about what may be sent when."""

from __future__ import annotations

import asyncio
import datetime as dt
import struct
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i64Timedelta

from ingestd.wire.apis import api_name
from ingestd.wire.codec import decode_entity, encode_entity

if TYPE_CHECKING:
    import ssl

__all__ = ["ECHO", "ScriptedBroker"]

ECHO = (3, 1)
"""API and version of the requests that are answered by their own body."""

HANDSHAKE, VERSIONS, AUTHENTICATE = 17, 18, 36

Says: TypeAlias = Callable[[bytes], "bytes | str | None"]
"""What a broker answers to a SASL message: its own, or an error as text; None closes the connection."""


class ScriptedBroker:
    """Serves while entered, on 127.0.0.1. Answers each connection's requests one after the other, as Kafka does.

    authenticate_versions: those of SaslAuthenticate; None: it has none, as brokers before 1.0.
    says: for each authentication a function that is asked message by message. lifetime: of sessions, in seconds.
    delay: seconds before each echo. silent: whether echoes are left out. handshakes: whether SASL's are answered.
    lenient: whether a connection goes on, needing no authentication, behind a mechanism it does not have; Kafka's ends.
    reading: when cleared, nothing more is read.
    asked: the names of all APIs, bodies: of the echoed requests; in order of arrival. violations: what was sent when it
    must not be. authentications: how many were begun.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        says: Callable[[], Says] | None = None,
        mechanisms: tuple[str, ...] = ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"),
        lifetime: float = 0.0,
        delay: float = 0.0,
        authenticate_versions: tuple[int, int] | None = (0, 2),
    ) -> None:
        self.authenticate_versions = authenticate_versions
        self.tls = tls
        self.says = says
        self.mechanisms = mechanisms
        self.handshakes = True
        self.lenient = False
        self.lifetime = lifetime
        self.delay = delay
        self.silent = False
        self.reading = asyncio.Event()
        self.reading.set()
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self.violations: list[str] = []
        self.authentications = 0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        self.reading.set()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self.connections += 1
        try:
            await self._answer_all(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            pass  # the client has gone
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        authenticated, talking = self.says is None, None
        while True:
            await self.reading.wait()
            frame = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
            api, version, correlation_id, name = struct.unpack_from(">hhih", frame)
            self.asked.append(api_name(api))
            flexible = (api, version) == (AUTHENTICATE, 2) or ((api, version) >= (VERSIONS, 3) and api == VERSIONS)
            body = frame[10 + name + flexible :]
            header = struct.pack(">i", correlation_id) + (b"\0" if (api, version) == (AUTHENTICATE, 2) else b"")
            if api == VERSIONS:
                answer: bytes | None = self.versions(version, self.authenticate_versions)
            elif api == HANDSHAKE and not self.handshakes:
                return
            elif api == HANDSHAKE:
                answer, talking = self._handshake(version, body)
                authenticated = authenticated or (self.lenient and talking is None)
            elif api == AUTHENTICATE:
                answer, talking = self._authenticate(version, body, talking)
                authenticated = authenticated or talking is None
            else:
                if not authenticated or talking is not None:
                    self.violations.append(f"API {api} before authentication was done")
                    return
                await asyncio.sleep(self.delay)
                self.bodies.append(body)
                if self.silent:
                    continue
                answer = body
            if answer is None:
                return
            writer.write(struct.pack(">i", len(header) + len(answer)) + header + answer)
            await writer.drain()
            if api == HANDSHAKE and talking is None and self.says is not None and not self.lenient:
                return

    @staticmethod
    def versions(version: int, authenticate: tuple[int, int] | None = (0, 2)) -> bytes:
        """The body of its ApiVersions answer."""
        module = import_module(f"kio.schema.api_versions.v{version}.response")
        ranges = {ECHO[0]: (0, 1), HANDSHAKE: (0, 1), VERSIONS: (0, 4)}
        if authenticate is not None:
            ranges[AUTHENTICATE] = authenticate
        keys = tuple(
            module.ApiVersion(api_key=i16(key), min_version=i16(low), max_version=i16(high))
            for key, (low, high) in ranges.items()
        )
        throttled: dict[str, Any] = {"throttle_time": dt.timedelta(0)} if version else {}
        return encode_entity(module.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys, **throttled))

    def _handshake(self, version: int, body: bytes) -> tuple[bytes, Says | None]:
        request = decode_entity(
            import_module(f"kio.schema.sasl_handshake.v{version}.request").SaslHandshakeRequest, body
        )
        module = import_module(f"kio.schema.sasl_handshake.v{version}.response")
        error, talking = ErrorCode.none, None
        if self.says is None:
            error = ErrorCode.illegal_sasl_state
        elif request.mechanism not in self.mechanisms:
            error = ErrorCode.unsupported_sasl_mechanism
        else:
            self.authentications += 1
            talking = self.says()
        return encode_entity(module.SaslHandshakeResponse(error_code=error, mechanisms=self.mechanisms)), talking

    def _authenticate(self, version: int, body: bytes, talking: Says | None) -> tuple[bytes | None, Says | None]:
        request = decode_entity(
            import_module(f"kio.schema.sasl_authenticate.v{version}.request").SaslAuthenticateRequest, body
        )
        module = import_module(f"kio.schema.sasl_authenticate.v{version}.response")
        if talking is None:
            self.violations.append("SaslAuthenticate without SaslHandshake")
            return None, None
        said = talking(request.auth_bytes)
        if said is None:
            return None, talking
        fields: dict[str, Any] = {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": b""}
        if isinstance(said, str):
            fields |= {"error_code": ErrorCode.sasl_authentication_failed, "error_message": said}
        else:
            fields["auth_bytes"] = said
        if version:
            fields["session_lifetime"] = i64Timedelta.parse(dt.timedelta(seconds=self.lifetime))
        done = isinstance(said, bytes) and getattr(talking, "done", True)
        return encode_entity(module.SaslAuthenticateResponse(**fields)), None if done else talking
