"""ConsumerProtocol: what members of a group and their leader tell each other through the coordinator, as kio entities.

Kafka's ConsumerProtocolSubscription versions 0 to 3 and ConsumerProtocolAssignment
(https://kafka.apache.org/protocol, KIP-429, KIP-792, KIP-881), each after its version as an int16. Readers take the
fields that they know and ignore what a newer writer adds at the end, so the highest version suits every reader.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from ingestd.errors import ProtocolError
from ingestd.wire.codec import decode_entity, encode_entity

if TYPE_CHECKING:
    from ingestd.wire.codec import Buffer

__all__ = ["HIGHEST_VERSION", "PROTOCOL_TYPE", "Kind", "decode", "encode", "module_of"]

PROTOCOL_TYPE: Final = "consumer"
"""JoinGroup's protocol type of every group whose members speak this."""

HIGHEST_VERSION: Final = 3
_VERSION: Final = struct.Struct(">h")

Kind: TypeAlias = Literal["subscription", "assignment"]


@lru_cache(maxsize=16)
def module_of(kind: Kind, version: int) -> Any:
    """Where kio has the entities of a version."""
    return import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")


def encode(entity: Any) -> bytes:
    """An entity's bytes, after its version."""
    return _VERSION.pack(entity.__version__) + encode_entity(entity)


def decode(kind: Kind, data: Buffer) -> Any:
    """The entity in `data`, read in the highest known version that fits. Raises `ProtocolError`."""
    if len(data) < _VERSION.size:
        raise ProtocolError(f"ConsumerProtocol: {len(data)} bytes, which hold no version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise ProtocolError(f"ConsumerProtocol version {version}")
    module = module_of(kind, min(version, HIGHEST_VERSION))
    return decode_entity(getattr(module, f"ConsumerProtocol{kind.capitalize()}"), data[_VERSION.size :])
