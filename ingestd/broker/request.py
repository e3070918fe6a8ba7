"""One request as it came from a connection, and the answer that goes back."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from ingestd.errors import ErrorCode, ProtocolError
from ingestd.wire.apis import Api, is_flexible
from ingestd.wire.primitives import BodyReader

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from ingestd.wire.codec import Buffer

__all__ = ["Answer", "Handled", "Request", "read_bare_message", "read_request", "when_done"]

T = TypeVar("T")

_START: Final = Struct(">hhi")
_SIZE: Final = Struct(">i")
_SIZE_AND_CORRELATION: Final = Struct(">ii")


@dataclass(frozen=True, slots=True)
class Request:
    """A request's header fields and its body: a writable view into the received frame.

    `received` is on the monotonic clock.
    """

    api: int
    version: int
    correlation_id: int
    client_id: str | None
    body: memoryview
    received: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response's body in parts that are sent one after the other, and its first error, for the request log.

    `parts` None: nothing is sent (acks=0). If there was an error the connection is closed, which is the only way to
    tell. `old_header`: an ApiVersions response has the header without tagged fields in every version (KIP-511).
    `closes`: the connection ends behind it. `bare`: nothing but the size goes before the parts.
    """

    parts: list[Buffer] | None
    error: ErrorCode = ErrorCode.none
    old_header: bool = False
    closes: bool = False
    bare: bool = False

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return sum(map(len, self.parts)) if self.parts is not None else 0

    def frame(self, request: Request) -> list[Buffer]:
        """The parts with size and header in front of them."""
        assert self.parts is not None
        if self.bare:
            return [_SIZE.pack(self.size), *self.parts]
        tags = b"\x00" if not self.old_header and is_flexible(request.api, request.version) else b""
        return [_SIZE_AND_CORRELATION.pack(4 + len(tags) + self.size, request.correlation_id) + tags, *self.parts]


Handled: TypeAlias = "Answer | Coroutine[Any, Any, Answer]"
"""What a handler returns: the answer, or a coroutine that returns it."""


def when_done(waiting: asyncio.Future[T], answer: Callable[[T], Answer]) -> Handled:
    """What a handler returns that answers with what a future brings. The broker owns the future, not the connection."""
    return answer(waiting.result()) if waiting.done() else _wait(waiting, answer)


async def _wait(waiting: asyncio.Future[T], answer: Callable[[T], Answer]) -> Answer:
    return answer(await waiting)


def read_request(frame: memoryview) -> Request:
    """The request in a frame without its size. Raises `ProtocolError`."""
    reader = BodyReader(frame, flexible=False)
    api, version, correlation_id = reader.unpack(_START)
    if api == Api.api_versions and version < 0:
        raise ProtocolError(f"ApiVersions version {version}")
    client_id = reader.nullable_string()
    if is_flexible(api, version):
        reader.flexible = True
        reader.skip_tagged_fields()
    return Request(api, version, correlation_id, client_id, reader.rest())


def read_bare_message(frame: memoryview) -> Request:
    """A message of an authentication that has no header (SaslHandshake version 0), as the request that has it now."""
    return Request(Api.sasl_authenticate, 0, 0, None, frame)
