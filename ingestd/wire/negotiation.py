"""The first exchange on a connection: asks for the broker's API versions (KIP-35, KIP-511).

ApiVersions (API 18) is framed by hand. Besides Produce it is the only request of a worker, and importing kio takes a
fifth of a worker's start. Layouts: https://kafka.apache.org/protocol#The_Messages_ApiVersions
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ingestd.errors import ErrorCode, KafkaError, ProtocolError
from ingestd.wire.apis import Api, is_flexible
from ingestd.wire.primitives import BodyReader, error_code, string
from ingestd.wire.versions import EMBEDDED_FEATURE, ApiVersions

if TYPE_CHECKING:
    from ingestd.retry import Deadline
    from ingestd.wire.connection import Connection

__all__ = ["negotiate"]

_HIGHEST: Final = 4
_FIRST_WITH_SOFTWARE_NAME: Final = 3
_SUPPORTED_FEATURES: Final = 0
_FINALIZED_FEATURES: Final = 2
"""The tagged fields' numbers."""
_RANGE: Final = struct.Struct(">hhh")
_LEVELS: Final = struct.Struct(">hh")


async def negotiate(connection: Connection, deadline: Deadline) -> ApiVersions:
    """Ask in our highest version. A broker without it answers in version 0; since Kafka 2.4 with its range.

    Raises `KafkaError` if the broker refuses, `ProtocolError`, `ConnectionLost`, `DeadlineExceeded`.
    """
    version = _HIGHEST
    while True:
        body = await connection.send(Api.api_versions, version, [_request(version)], timeout=deadline.remaining)
        code = int.from_bytes(body[:2], "big", signed=True)
        if code == ErrorCode.unsupported_version and version > 0:
            version = _fallback(body, version)
            continue
        versions = _read(version, body)
        if code != ErrorCode.none:
            raise KafkaError(error_code(code), f"{connection.host}:{connection.port}: ApiVersions")
        return versions


def _request(version: int) -> bytes:
    if version < _FIRST_WITH_SOFTWARE_NAME:
        return b""
    from ingestd import __version__  # noqa: PLC0415 - the package's own module, complete by now

    return string("ingestd", flexible=True) + string(__version__, flexible=True) + b"\x00"


def _fallback(body: memoryview, refused: int) -> int:
    """The version to ask in next: the highest that the broker lists, or 0. Always lower than the refused one."""
    try:
        listed = _read(0, body).ranges.get(Api.api_versions)
    except ProtocolError:  # brokers before 2.4 send the error code alone
        listed = None
    return min(refused - 1, listed[1]) if listed is not None and listed[1] >= 0 else 0


def _read(version: int, body: memoryview) -> ApiVersions:
    """The versions and features that an answer lists, whatever its error code."""
    reader = BodyReader(body, flexible=is_flexible(Api.api_versions, version))
    reader.int16()
    ranges = {}
    for _ in range(reader.array_length(_RANGE.size)):
        api, lowest, highest = reader.unpack(_RANGE)
        ranges[api] = (lowest, highest)
        reader.skip_tagged_fields()
    if version >= 1:
        reader.int32()  # the throttle time
    features: dict[str, int] = {}
    embedded = False
    for tag, content in reader.tagged_fields():
        if tag == _FINALIZED_FEATURES:
            features = _read_features(content)
        elif tag == _SUPPORTED_FEATURES:
            embedded = EMBEDDED_FEATURE in _read_features(content)
    return ApiVersions(ranges, features, embedded)


def _read_features(content: BodyReader) -> dict[str, int]:
    """Features with the first of their two levels: of finalized ones that is the highest."""
    features = {}
    for _ in range(content.array_length(_LEVELS.size + 2)):
        name = content.string()
        features[name], _ = content.unpack(_LEVELS)
        content.skip_tagged_fields()
    return features
