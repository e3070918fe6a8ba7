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
    """The partitions that are being read, and when one of them has news."""

    @property
    def consumers(self) -> Mapping[TopicPartition, PartitionConsumer]:
        """Those of now."""
        ...

    async def news(self) -> None:
        """Wait until one has something to hand out, has ended, or is new."""
        ...


class MergedReader:
    """Holds nothing but the batch that is being handed out: memory is bounded by what each partition may prefetch.

    Invariants
        A partition that has something to hand out waits for at most one batch of each of the others.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._last: TopicPartition | None = None
        self._told: set[int] = set()
        self.stream = RecordStream(self._more)

    async def _more(self) -> list[Record] | None:
        while True:
            waiting = self._in_turn()
            if not waiting:
                return None
            for consumer in waiting:
                if not consumer.readable:
                    continue
                self._last = consumer.key
                try:
                    records = await consumer.lend(self.stream)
                except IngestdError:
                    self._told.add(id(consumer))
                    raise
                if records:
                    return records
                break  # it has ended, or hid everything: look anew
            else:
                await self._partitions.news()

    def _in_turn(self) -> list[PartitionConsumer]:
        """The partitions still to be read, beginning behind the one that was read last."""
        consumers = list(self._partitions.consumers.values())
        self._told &= {id(consumer) for consumer in consumers}
        keys = [consumer.key for consumer in consumers]
        begin = keys.index(self._last) + 1 if self._last in keys else 0
        rotated = consumers[begin:] + consumers[:begin]
        return [consumer for consumer in rotated if id(consumer) not in self._told]
