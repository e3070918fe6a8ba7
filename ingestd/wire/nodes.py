"""A node's address, as produce and fetch answers carry it with a new leader (KIP-951)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingestd.wire.primitives import BodyReader

__all__ = ["NodeEndpoint", "read_node_endpoints"]


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    """A broker's id and address."""

    id: int
    host: str
    port: int
    rack: str | None = None


def read_node_endpoints(content: BodyReader) -> tuple[NodeEndpoint, ...]:
    """The content of the tagged field `NodeEndpoints`. Raises `ProtocolError`."""
    nodes = []
    for _ in range(content.array_length(11)):
        nodes.append(NodeEndpoint(content.int32(), content.string(), content.int32(), content.nullable_string()))
        content.skip_tagged_fields()
    return tuple(nodes)
