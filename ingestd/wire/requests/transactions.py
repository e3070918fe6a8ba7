"""Requests of producers with an identity: producer ids and transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import made, milliseconds

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = ["init_producer_id"]


def init_producer_id(
    transactional_id: str | None = None,
    *,
    transaction_timeout_ms: int = 60_000,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> Build:
    """A producer id and epoch; given those held before, the same id with the next epoch (version 3, KIP-360)."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.init_producer_id, 3 if producer_id >= 0 else 0, 5)
        module = request_module("init_producer_id", version)
        fields: dict[str, Any] = {
            "transactional_id": transactional_id,
            "transaction_timeout": milliseconds(transaction_timeout_ms),
        }
        if version >= 3:
            fields["producer_id"] = producer_id
            fields["producer_epoch"] = producer_epoch
        return made(module.InitProducerIdRequest(**fields))

    return build
