"""What a consumer tells whoever watches it: one event, one method. The consumer keeps no metrics of its own."""

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
        """A broker answered for a partition: what there is ends at `end`, what was handed out before `next_offset`.

        Markers and hidden batches behind what was handed out, with no record after them, count as handed out.
        """
        ...

    def retried(self, topic: str, partition: int, error: IngestdError) -> None:
        """Fetching a partition met an error and is tried again."""
        ...

    def failed(self, topic: str, partition: int, error: IngestdError) -> None:
        """Fetching a partition ended with an error, which its reader gets."""
        ...

    def moved(self, topic: str, partition: int, asked: int, offset: int) -> None:
        """What was asked for is not in the log; reading goes on at `offset`, as the policy says."""
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
