"""Feeder: what a partition consumer needs of the stage that fetches it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.consumer.settings import Start

__all__ = ["Feeder"]


class Feeder(Protocol):
    """Called on the event loop. No method waits."""

    def share(self) -> int:
        """Bytes of memory for each partition."""
        ...

    def wake(self, consumer: PartitionConsumer) -> None:
        """Whether or what to fetch of it may have changed."""
        ...

    def repositioned(self, consumer: PartitionConsumer) -> None:
        """Fetch from another position. An answer for the old one does not count."""
        ...

    def release(self, consumer: PartitionConsumer) -> None:
        """Fetch no more."""
        ...

    def told(self, consumer: PartitionConsumer) -> None:
        """It has something to hand out, or has ended."""
        ...

    @property
    def locate(self) -> Callable[[TopicPartition, Start], Awaitable[int]]:
        """The offset that a start means now."""
        ...
