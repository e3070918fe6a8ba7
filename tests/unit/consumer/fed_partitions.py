"""Partitions that a test feeds, in the place of those that are fetched from brokers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ingestd.client.group import OffsetAndMetadata
from ingestd.consumer.fetched import Fetched, FetchedBatch
from ingestd.records.batch import patch_offset, read_header, seal
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Compression
from ingestd.records.decode import Record, TimestampType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from ingestd.client.metadata import TopicPartition
    from ingestd.errors import IngestdError

__all__ = ["Consumer", "Partition"]


class Partition:
    """Stands for a partition consumer: hands out as many records as there are."""

    def __init__(self, key: TopicPartition, offset: int) -> None:
        self.key = key
        self.next_offset = offset
        self.end = offset
        self.per_batch = 1_000
        self.high_watermark = -1
        self.lag = None
        self.paused = False
        self.awaited = False
        self.closed = False
        self._news = asyncio.Event()

    @property
    def committable(self) -> OffsetAndMetadata:
        return OffsetAndMetadata(self.next_offset, 5)

    def feed(self, count: int) -> None:
        self.end += count
        self._news.set()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def abandon(self) -> None:
        self.closed = True
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[Record]:
        while await self._some():
            while self.next_offset < self.end and not self.closed:
                self.next_offset += 1
                yield self._record(self.next_offset - 1)

    async def take(self) -> Fetched | None:
        """All there is, in batches of `per_batch`."""
        if not await self._some():
            return None
        firsts = range(self.next_offset, self.end, self.per_batch)
        batches = [self._batch(first, min(first + self.per_batch, self.end)) for first in firsts]
        self.next_offset = self.end
        return Fetched(batches, sum(len(batch.data) for batch in batches), self.end)

    @staticmethod
    def _batch(first: int, end: int) -> FetchedBatch:
        builder = BatchBuilder(1 << 20)
        for offset in range(first, end):
            builder.append(None, b"%d" % offset, (), 0)
        batch = memoryview(builder.build(Compression.parse("none")))
        patch_offset(batch, first, 5)
        seal(batch)
        return FetchedBatch(read_header(batch), batch, first, None)

    async def seek(self, start: int) -> int:
        self.next_offset = start
        self.end = max(self.end, start)
        self._news.set()
        return start

    async def _some(self) -> bool:
        while self.next_offset == self.end and not self.closed:
            self._news.clear()
            self.awaited = True
            await self._news.wait()
            self.awaited = False
        return not self.closed

    def _record(self, offset: int) -> Record:
        topic, partition = self.key
        return Record(
            offset, 0, TimestampType.create_time, None, b"v", topic=topic, partition=partition, leader_epoch=5
        )


class Consumer:
    """Stands for the consumer below: partitions by key, and a gate or an error before they open."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self.asked: list[dict[TopicPartition, Any]] = []
        self.gate: asyncio.Event | None = None
        self.errors: list[IngestdError] = []

    async def consume_partitions(self, starts: Mapping[TopicPartition, Any]) -> dict[TopicPartition, Partition]:
        self.asked.append(dict(starts))
        if self.errors:
            raise self.errors.pop(0)
        if self.gate is not None:
            await self.gate.wait()
        opened = {
            key: Partition(key, start.offset if isinstance(start, OffsetAndMetadata) else 0)
            for key, start in starts.items()
        }
        self.partitions |= opened
        return opened

    async def close(self, timeout: float) -> None:
        """Nothing to close."""
