"""The first exchange on a connection: asks what this broker speaks (KIP-35, KIP-511)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.errors import ErrorCode, KafkaError, ProtocolError
from ingestd.wire.apis import Api
from ingestd.wire.codec import decode_entity, encode_entity, request_module
from ingestd.wire.versions import ApiVersions

if TYPE_CHECKING:
    from ingestd.retry import Deadline
    from ingestd.wire.connection import Connection

__all__ = ["negotiate"]

_HIGHEST: Final = 4
_FIRST_WITH_SOFTWARE_NAME: Final = 3


async def negotiate(connection: Connection, deadline: Deadline) -> ApiVersions:
    """Ask in our highest version; a broker that does not have it says so in version 0, with its range since Kafka 2.4.

    Raises `KafkaError` when the broker refuses, `ProtocolError`, `ConnectionLost`, `DeadlineExceeded`.
    """
    version = _HIGHEST
    while True:
        body = await connection.send(Api.api_versions, version, [_request(version)], timeout=deadline.remaining)
        code = int.from_bytes(body[:2], "big", signed=True)
        if code == ErrorCode.unsupported_version and version > 0:
            version = _fallback(body, version)
            continue
        answer = _decode(body, version)
        if answer.error_code is not ErrorCode.none:
            raise KafkaError(answer.error_code, f"{connection.host}:{connection.port}: ApiVersions")
        return _versions(answer)


def _request(version: int) -> bytes:
    request_type = request_module("api_versions", version).ApiVersionsRequest
    if version < _FIRST_WITH_SOFTWARE_NAME:
        return encode_entity(request_type())
    from ingestd import __version__  # noqa: PLC0415 - the package's own module, complete by now

    return encode_entity(request_type(client_software_name="ingestd", client_software_version=__version__))


def _fallback(body: memoryview, refused: int) -> int:
    """The version to ask in next: the highest the broker lists, else 0; always lower than the one refused."""
    try:
        listed = _versions(_decode(body, 0)).ranges.get(Api.api_versions)
    except ProtocolError:  # brokers before 2.4 send the error code alone
        listed = None
    return min(refused - 1, listed[1]) if listed is not None and listed[1] >= 0 else 0


def _decode(body: memoryview, version: int) -> Any:
    from importlib import import_module  # noqa: PLC0415

    module = import_module(f"kio.schema.api_versions.v{version}.response")
    return decode_entity(module.ApiVersionsResponse, body)


def _versions(answer: Any) -> ApiVersions:
    return ApiVersions(
        {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in answer.api_keys},
        {feature.name: int(feature.max_version_level) for feature in getattr(answer, "finalized_features", ())},
    )
