"""A node of the cluster: an id, and the address at which clients reach it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingestd.broker.session import Session

__all__ = ["Node"]


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `advertised` is what clients are told as (host, port); None: the address that they reached."""

    id: int
    advertised: tuple[str, int] | None = None

    def address(self, session: Session) -> tuple[str, int]:
        """Host and port at which the client of this session reaches the node."""
        return self.advertised or session.local
