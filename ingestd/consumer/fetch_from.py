"""Fetch from: where a partition is fetched, and why a broker does not serve it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingestd.client.metadata import Node, PartitionMetadata
    from ingestd.errors import IngestdError

__all__ = ["FetchFrom", "Refusal"]


@dataclass(frozen=True, slots=True)
class FetchFrom:
    """Where a partition is fetched: a node's id, and the partition's metadata when the node was chosen."""

    node: int
    leader: PartitionMetadata

    @property
    def follower(self) -> bool:
        """Whether the node is not the leader, but a replica that is closer to us (KIP-392)."""
        return self.node != self.leader.leader


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a broker does not serve a partition. `leader`: the node that does, if the answer says so; else -1."""

    error: IngestdError
    leader: int = -1
    leader_epoch: int = -1
    node: Node | None = None
    """Where that leader is."""
