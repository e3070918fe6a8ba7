"""Request headers, answer headers and kio entities as bytes. Nothing here uses a socket."""

from __future__ import annotations

import struct
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from ingestd.errors import ConfigurationError, ProtocolError
from ingestd.wire.apis import Api, is_flexible
from ingestd.wire.lengths import readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kio.static.protocol import RequestPayload, ResponsePayload

__all__ = [
    "Buffer",
    "decode_entity",
    "decode_response",
    "encode_entity",
    "encode_request",
    "frame_request",
    "request_module",
    "response_module",
    "skip_response_header",
]

Buffer: TypeAlias = "bytes | bytearray | memoryview"
"""A part of a request body. A memoryview must be contiguous and of bytes."""

_REQUEST_HEADER: Final = struct.Struct(">ihhi")
_INSTEAD: Final = {("describe_transactions", 0): "ingestd.wire.transaction_description"}


@lru_cache(maxsize=16)
def _client_id_field(client_id: str) -> bytes:
    encoded = client_id.encode()
    return struct.pack(">h", len(encoded)) + encoded


def frame_request(
    api: int, version: int, correlation_id: int, client_id: str, body: Sequence[Buffer]
) -> tuple[list[Buffer], int]:
    """The request as parts to send in order (size prefix and header first), and its total size in bytes.

    The body's parts are in the result as they are, never copied. The client id is a length-prefixed string in both
    header versions (KIP-482 kept it so). A flexible header ends with tagged fields, of which we send none.
    """
    name = _client_id_field(client_id)
    trailer = b"\x00" if is_flexible(api, version) else b""
    size = 8 + len(name) + len(trailer) + sum(map(len, body))
    header = _REQUEST_HEADER.pack(size, api, version, correlation_id) + name + trailer
    return [header, *body], size + 4


def skip_response_header(api: int, version: int, answer: memoryview) -> memoryview:
    """The answer's body: what follows the correlation id and the tagged fields of a flexible header.

    An ApiVersions answer has the old header in every version, so that a client can read it before it knows the broker's
    versions (KIP-511). Raises `ProtocolError`.
    """
    if api == Api.api_versions or not is_flexible(api, version):
        return answer[4:]
    if len(answer) > 4 and answer[4] == 0:
        return answer[5:]
    from ingestd.wire.primitives import BodyReader  # noqa: PLC0415 - no broker is known to send header tags

    reader = BodyReader(answer[4:], flexible=True)
    reader.skip_tagged_fields()
    return reader.rest()


def request_module(name: str, version: int) -> Any:
    """Kio's module of one API's request in one version. Imported when first needed, because there are hundreds."""
    return import_module(f"kio.schema.{name}.v{version}.request")


def response_module(name: str, version: int) -> Any:
    """The module with the response of one API in one version: kio's, but where kio can not read what Kafka sends."""
    return import_module(_INSTEAD.get((name, version), f"kio.schema.{name}.v{version}.response"))


@lru_cache(maxsize=256)
def _response_type(request_type: type[RequestPayload]) -> type[ResponsePayload]:
    module = response_module(Api(request_type.__api_key__).name, request_type.__version__)
    return cast("type[ResponsePayload]", getattr(module, request_type.__name__.removesuffix("Request") + "Response"))


def encode_entity(entity: Any) -> bytes:
    """A kio entity's bytes, without a header."""
    from kio.serial import entity_writer  # noqa: PLC0415 - see `request_module`

    buffer = BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def encode_request(request: RequestPayload) -> bytes:
    """A request's bytes. Raises `ConfigurationError` if a value that a caller gave does not fit its field."""
    try:
        return encode_entity(request)
    except (struct.error, AttributeError, TypeError, ValueError, OverflowError) as error:
        name = type(request).__name__
        raise ConfigurationError(f"{name}: a value that Kafka's format does not take: {error}") from error


def decode_entity(entity_type: type[Any], body: Buffer) -> Any:
    """The kio entity in `body`. Raises `ProtocolError`."""
    from kio.serial import entity_reader  # noqa: PLC0415 - see `request_module`
    from kio.serial.errors import SerialError  # noqa: PLC0415

    known = readable(entity_type, body)
    try:
        # kio refuses writable memory, and large answers are received into such.
        return entity_reader(entity_type)(memoryview(known).toreadonly(), 0)[0]
    except (SerialError, ValueError, OverflowError, MemoryError) as error:
        raise ProtocolError(f"{entity_type.__name__} version {entity_type.__version__}: {error!r}") from error


def decode_response(request: RequestPayload, body: Buffer) -> ResponsePayload:
    """The answer to `request`, in the request's version. Raises `ProtocolError`."""
    return cast("ResponsePayload", decode_entity(_response_type(type(request)), body))
