"""`ingestd consume`: partitions of a topic, as bytes, to a stream."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from ingestd.cli.rendering import RawValues
from ingestd.cli.starts import BeforeEnd
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.offsets import resolve_offsets
from ingestd.consumer.settings import ConsumerSettings, Edge, Isolation, TopicPartition
from ingestd.errors import ConfigurationError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.cli.configured import ClusterAccess
    from ingestd.cli.rendering import Rendering
    from ingestd.client.client import Client
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.consumer.settings import Start
    from ingestd.records.columns import Columns

__all__ = ["Consumption", "consume", "consumer_settings"]

_OFFSETS_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True)
class Consumption:
    """What to read of a topic."""

    topic: str
    partitions: Sequence[int] = ()
    """Empty: all."""
    start: Start | BeforeEnd = Edge.earliest
    count: int | None = None
    """End after so many records, over all partitions; None: do not."""
    exit_at_end: bool = False
    """End at the end that each partition has at the start."""


def consumer_settings(*, committed: bool) -> ConsumerSettings:
    """Settings of a consumer that sees everything, or what is committed only."""
    return ConsumerSettings(isolation=Isolation.read_committed if committed else Isolation.read_uncommitted)


async def consume(
    access: ClusterAccess,
    consumption: Consumption,
    out: BinaryIO,
    rendering: Rendering | None = None,
    settings: ConsumerSettings | None = None,
) -> int:
    """Write a topic's records to `out`, in order within each partition; how many.

    An offset that was asked for is in the log of every partition or at its end, or nothing is read. Raises `KafkaError`
    (no such topic; offset out of range, or a group of these errors, one for each such partition), `DeadlineExceeded`
    when no broker answers.
    """
    async with access.client() as client, Consumer(client, settings) as consumer:
        topic = consumption.topic
        known = await consumer.partitions(topic)
        partitions = consumption.partitions or known
        for partition in partitions:
            if partition not in known:
                raise ConfigurationError(f"{topic} has no partition {partition}; it has {len(known)}, from 0")
        writer = _Writer(out, rendering or RawValues(), consumption.count)
        end = Edge.latest if consumption.exit_at_end else None
        if isinstance(consumption.start, int):
            await _check_in_log(client, topic, partitions, consumption.start)
        starts = await _starts(consumer, consumption, partitions)
        if consumption.count == 0:
            return 0
        opened = [await consumer.consume_partition(topic, number, start, end) for number, start in starts.items()]
        async with asyncio.TaskGroup() as group:
            for partition_consumer in opened:
                group.create_task(_copy(partition_consumer, writer, opened))
        return writer.written


async def _check_in_log(client: Client, topic: str, partitions: Sequence[int], offset: int) -> None:
    """That `offset` is in each partition's log, or its end. Raises `KafkaError`, or a group of them."""
    keys = [TopicPartition(topic, partition) for partition in partitions]
    # Whatever is to be read: what lies behind an open transaction is not beyond the end.
    firsts, ends = [
        await resolve_offsets(client, dict.fromkeys(keys, edge), Isolation.read_uncommitted, _OFFSETS_TIMEOUT)
        for edge in (Edge.earliest, Edge.latest)
    ]
    outside = [
        KafkaError(
            ErrorCode.offset_out_of_range,
            f"{key}, offset {offset}: its first offset is {firsts[key]}, its end {ends[key]}",
        )
        for key in keys
        if not firsts[key] <= offset <= ends[key]
    ]
    if len(outside) == 1:
        raise outside[0]
    if outside:
        raise ExceptionGroup("offsets out of range", outside)


async def _starts(consumer: Consumer, consumption: Consumption, partitions: Sequence[int]) -> dict[int, Start]:
    start = consumption.start
    if not isinstance(start, BeforeEnd):
        return dict.fromkeys(partitions, start)
    keys = [TopicPartition(consumption.topic, partition) for partition in partitions]
    earliest = await consumer.offsets(dict.fromkeys(keys, Edge.earliest))
    latest = await consumer.offsets(dict.fromkeys(keys, Edge.latest))
    return {key.partition: max(earliest[key], latest[key] - start.records) for key in keys}


async def _copy(source: PartitionConsumer, writer: _Writer, everyone: Sequence[PartitionConsumer]) -> None:
    async for columns in source.columns():
        if writer.write(source.topic, source.partition, columns):
            for other in everyone:
                other.close()
            return


class _Writer:
    """Writes records up to a count."""

    def __init__(self, out: BinaryIO, rendering: Rendering, limit: int | None) -> None:
        self._out = out
        self._rendering = rendering
        self._limit = limit
        self.written = 0

    def write(self, topic: str, partition: int, columns: Columns) -> bool:
        """Write what there is room for; whether that was the last."""
        count = columns.count if self._limit is None else min(columns.count, self._limit - self.written)
        if count > 0:
            self._out.write(self._rendering.render(topic, partition, columns, count))
            self._out.flush()
            self.written += count
        return self._limit is not None and self.written >= self._limit
