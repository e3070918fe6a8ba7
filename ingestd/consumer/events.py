"""Events of a consumer, for metrics: one method for each event. The consumer itself keeps no metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ingestd.errors import IngestdError

__all__ = ["ConsumerEvents", "NoEvents"]


class ConsumerEvents(Protocol):
    """Called on the event loop; must not raise and must not block."""

    def fetched(self, topic: str, partition: int, size: int) -> None:
        """`size` bytes of record batches came for a partition."""
        ...

    def answered(self, topic: str, partition: int, next_offset: int, end: int) -> None:
        """A broker answered for a partition. Its log ends before `end`; everything before `next_offset` was handed out.

        Markers and hidden batches count as handed out if no record follows them.
        """
        ...

    def retried(self, topic: str, partition: int, error: IngestdError) -> None:
        """An error was met while a partition was fetched. It is tried again."""
        ...

    def failed(self, topic: str, partition: int, error: IngestdError) -> None:
        """Fetching a partition ended with an error, which its reader gets."""
        ...

    def moved(self, topic: str, partition: int, asked: int, offset: int) -> None:
        """The position is not in the log. Reading goes on at `offset`, as the policy says."""
        ...

    def placed(self, topic: str, partition: int, node: int, leader: int) -> None:
        """A partition is fetched from `node` from now on; its leader is `leader`."""
        ...

    def released(self, topic: str, partition: int) -> None:
        """A partition is read no more."""
        ...


class NoEvents:
    """Nobody watches."""

    def fetched(self, topic: str, partition: int, size: int) -> None:
        """See `ConsumerEvents`."""

    def answered(self, topic: str, partition: int, next_offset: int, end: int) -> None:
        """See `ConsumerEvents`."""

    def retried(self, topic: str, partition: int, error: IngestdError) -> None:
        """See `ConsumerEvents`."""

    def failed(self, topic: str, partition: int, error: IngestdError) -> None:
        """See `ConsumerEvents`."""

    def moved(self, topic: str, partition: int, asked: int, offset: int) -> None:
        """See `ConsumerEvents`."""

    def placed(self, topic: str, partition: int, node: int, leader: int) -> None:
        """See `ConsumerEvents`."""

    def released(self, topic: str, partition: int) -> None:
        """See `ConsumerEvents`."""
