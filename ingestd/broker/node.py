"""A node of the cluster: an id, and the address at which clients reach it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingestd.broker.session import Session

__all__ = ["Node"]


@dataclass(slots=True, eq=False)
class Node:
    """One node. `advertised` is what clients are told as (host, port); None: the host that they reached.

    `port` is where it listens, once it does.
    """

    id: int
    advertised: tuple[str, int] | None = None
    port: int = 0

    def address(self, session: Session) -> tuple[str, int]:
        """Host and port at which the client of this session reaches the node."""
        if self.advertised is not None:
            return self.advertised
        # A client behind a forwarded port reaches this node at a port that only its connection knows.
        return session.local if session.listener.node is self else (session.local[0], self.port)
