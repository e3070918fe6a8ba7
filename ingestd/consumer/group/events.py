"""Events of a group's member, for metrics: one method for each event. The member itself keeps no metrics."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    from ingestd.client.metadata import TopicPartition
    from ingestd.errors import IngestdError

__all__ = ["GroupEvents", "LoggedGroupEvents"]

_log = logging.getLogger(__name__)


class GroupEvents(Protocol):
    """Called on the event loop; must not raise and must not block."""

    def rebalancing(self, group_id: str, reason: str) -> None:
        """The member joins the group again, or for the first time."""
        ...

    def joined(self, group_id: str, generation: int, seconds: float) -> None:
        """A rebalance has ended with an assignment. It took the member so many seconds."""
        ...

    def assigned(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """These partitions came."""
        ...

    def revoked(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """These partitions were given up."""
        ...

    def lost(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """These partitions were lost: they were not revoked first."""
        ...

    def heartbeat(self, group_id: str, seconds: float) -> None:
        """The coordinator answered a heartbeat."""
        ...

    def committed(self, group_id: str, partitions: int, seconds: float) -> None:
        """The offsets of so many partitions are committed."""
        ...

    def retried(self, group_id: str, doing: str, error: IngestdError) -> None:
        """Something failed and is tried again."""
        ...


class LoggedGroupEvents:
    """The default: logs when a rebalance begins, and what is tried again."""

    def rebalancing(self, group_id: str, reason: str) -> None:
        """See `GroupEvents`."""
        _log.info("group %s: joins: %s", group_id, reason)

    def joined(self, group_id: str, generation: int, seconds: float) -> None:
        """See `GroupEvents`."""

    def assigned(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """See `GroupEvents`."""

    def revoked(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """See `GroupEvents`."""

    def lost(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """See `GroupEvents`."""

    def heartbeat(self, group_id: str, seconds: float) -> None:
        """See `GroupEvents`."""

    def committed(self, group_id: str, partitions: int, seconds: float) -> None:
        """See `GroupEvents`."""

    def retried(self, group_id: str, doing: str, error: IngestdError) -> None:
        """See `GroupEvents`."""
        _log.warning("group %s: %s failed and is tried again: %s", group_id, doing, error)
