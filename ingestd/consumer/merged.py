"""Merged reader: the records of all partitions of a consumer as one stream, a batch of each in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ingestd.errors import IngestdError
from ingestd.records.loops import RecordStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.records.decode import Record

__all__ = ["MergedReader", "Partitions"]


class Partitions(Protocol):
    """The partitions that are being read, and which of them have something to hand out."""

    @property
    def consumers(self) -> Mapping[TopicPartition, PartitionConsumer]:
        """Those of now."""
        ...

    def next_in_turn(self) -> PartitionConsumer | None:
        """The one whose news is the oldest: something to hand out, an error or an end. None: none has any."""
        ...

    def told(self, consumer: PartitionConsumer) -> None:
        """This one has news. Its turn is after all others that have news."""
        ...

    async def news(self) -> None:
        """Wait until one has news, or is new."""
        ...


class MergedReader:
    """Holds only the batch that is being handed out. What partitions may prefetch bounds the memory.

    Invariants
        A partition that has something to hand out waits for at most one batch of each of the others.
        No two partitions count the records in `stream` as theirs.
        The error that ended a partition is raised once.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._failed: dict[TopicPartition, PartitionConsumer] = {}
        self._lender: PartitionConsumer | None = None
        self.stream = RecordStream(self._more)

    async def _more(self) -> list[Record] | None:
        while self._left():
            if self._lender is not None:
                self._lender.returned(self.stream)
                self._lender = None
            consumer = self._partitions.next_in_turn()
            if consumer is None:
                await self._partitions.news()
                continue
            if consumer.key in self._failed:
                continue
            # Before anything is awaited, so that the partition keeps its turn if the reader is cancelled.
            self._partitions.told(consumer)
            await consumer.let_others_run()
            if not consumer.readable:  # there was a seek meanwhile; the others must not wait for it
                continue
            try:
                records = await consumer.lend(self.stream)
            except IngestdError:
                self._failed[consumer.key] = consumer
                raise
            self._lender = consumer
            if records:
                return records
        return None

    def _left(self) -> bool:
        """Whether there is a partition that has not ended."""
        consumers = self._partitions.consumers
        for key, failed in list(self._failed.items()):
            if consumers.get(key) is not failed or failed.error is None:
                del self._failed[key]
        return len(consumers) > len(self._failed)
