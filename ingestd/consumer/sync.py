"""Synchronous consumer: reads partitions from plain threads, without an event loop of the caller's.

Its own thread runs the event loop, and does only input and output. Decoding happens in the caller's thread.
"""

from __future__ import annotations

import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from ingestd.checks import require_settings
from ingestd.client.client import Client
from ingestd.client.loop_thread import LoopThread, soon
from ingestd.client.settings import ClientSettings
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.decoding import columns_of, records_of
from ingestd.consumer.settings import ConsumerSettings
from ingestd.errors import Closed, DeadlineExceeded, UsedAfterFork
from ingestd.records.batch import check_crc

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
    from types import TracebackType

    from ingestd.client.metadata import TopicMetadata
    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.consumer.settings import End, Start, TopicPartition
    from ingestd.records.columns import Columns
    from ingestd.records.decode import Record

__all__ = ["SyncConsumer", "SyncPartition", "read_range"]

T = TypeVar("T")


class _Call(Protocol):
    """Runs a coroutine on the consumer's loop and waits for it."""

    def __call__(self, work: Coroutine[Any, Any, T], doing: str, why: Callable[[], str] | None = None) -> T: ...


class SyncPartition:
    """Reads one partition from plain threads. Made by `SyncConsumer.consume_partition`. As a context manager it closes.

    One thread at a time may iterate it, in any form. Each form goes on where the last one stopped. Meanwhile any thread
    may call the other methods. Every wait ends after the consumer's `patience`.
    """

    def __init__(self, consumer: PartitionConsumer, call: _Call, *, check_crcs: bool) -> None:
        self._consumer = consumer
        self._call = call
        self._check_crcs = check_crcs
        self._batches: deque[FetchedBatch] = deque()
        self._begun = False
        """Whether a record of the first of them was handed out."""
        self._next_offset = consumer.next_offset

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._consumer.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._consumer.partition

    @property
    def next_offset(self) -> int:
        """The offset after the last record handed out."""
        return self._next_offset

    @property
    def high_watermark(self) -> int:
        """See `PartitionConsumer.high_watermark`."""
        return self._consumer.high_watermark

    @property
    def lag(self) -> int | None:
        """See `PartitionConsumer.lag`."""
        end = self._consumer.log_end
        at = self._next_offset if self._batches else max(self._next_offset, self._consumer.reached)
        return None if end < 0 else max(0, end - at)

    def records(self) -> Iterator[Record]:
        """Records, one by one. Raises what `batches` raises."""
        while (batch := self._head()) is not None:
            head = self._batches[0]
            records = records_of(batch, self._consumer.key, check_crc=self._check_crcs)
            self._begun = bool(records)
            for record in records:
                self._next_offset = after = record.offset + 1
                yield record
                if self._next_offset != after or not self._batches or self._batches[0] is not head:
                    break  # there was a seek, or reading went on in another form
            else:
                self._pop(batch)

    def columns(self) -> Iterator[Columns]:
        """Records as columns, one value for each record batch. Raises what `batches` raises."""
        while (batch := self._head()) is not None:
            columns = columns_of(batch, check_crc=self._check_crcs)
            self._pop(batch)
            yield columns

    def batches(self) -> Iterator[FetchedBatch]:
        """Whole record batches as the broker keeps them, not decoded.

        Raises what `PartitionConsumer.take` raises, `CorruptBatch`, `Closed`. Raises `DeadlineExceeded` if nothing came
        for `patience` seconds. For a read without an end that may only mean that nothing was produced.
        """
        while (batch := self._head()) is not None:
            if self._check_crcs:
                check_crc(batch.data, batch.header)
            self._pop(batch)
            yield batch

    def seek(self, start: Start) -> int:
        """See `PartitionConsumer.seek`. To be called by the thread that iterates."""
        offset = self._call(self._consumer.seek(start), f"seeking in {self._consumer.key}")
        self._batches.clear()
        self._begun = False
        self._next_offset = offset
        return offset

    def pause(self) -> None:
        """See `PartitionConsumer.pause`."""
        self._call(soon(self._consumer.pause), f"pausing {self._consumer.key}")

    def resume(self) -> None:
        """See `PartitionConsumer.resume`."""
        self._call(soon(self._consumer.resume), f"resuming {self._consumer.key}")

    def close(self) -> None:
        """Fetch no more. Iteration still gives what is fetched, then it ends. Safe to call at any time."""
        with contextlib.suppress(Closed, UsedAfterFork):
            self._call(soon(self._consumer.close), f"closing {self._consumer.key}")

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _head(self) -> FetchedBatch | None:
        """The next batch to hand out, without its records that were handed out before. None at the end."""
        while not self._batches:
            position = self._consumer.position
            try:
                more = self._call(self._take(), f"reading {self._consumer.key}", lambda: self._consumer.awaits)
            except DeadlineExceeded:
                if self._batches or self._consumer.error is not None or self._consumer.position == position:
                    raise
                continue  # it moves on, over batches that nobody gets: aborted transactions, markers
            if not more:
                self._next_offset = max(self._next_offset, self._consumer.next_offset)
                return None
        batch = self._batches[0]
        # Not by the offset alone: a policy may have gone back, and then there is more to hand out before it.
        return batch._replace(first=self._next_offset) if self._begun else batch

    async def _take(self) -> bool:
        """On the consumer's loop: wait for batches; False at the end.

        They are kept even if the caller's patience ended at that moment, so that no record is skipped.
        """
        if not self._batches:
            fetched = await self._consumer.take()
            if fetched is None:
                return False
            self._batches.extend(fetched.batches)
        return True

    def _pop(self, batch: FetchedBatch) -> None:
        self._batches.popleft()
        self._begun = False
        self._next_offset = batch.next_offset


class SyncConsumer:
    """A `Client` and a `Consumer` with blocking calls. A context manager. Several threads may use it at once.

    `patience`: seconds that reading may go without any progress before it raises `DeadlineExceeded`.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        settings: ConsumerSettings | None = None,
        client_settings: ClientSettings | None = None,
        *,
        patience: float = 60.0,
    ) -> None:
        self._settings = require_settings(settings, ConsumerSettings)
        client_settings = require_settings(client_settings, ClientSettings)
        self._patience = patience
        self._host = LoopThread("consumer")
        self._client, self._consumer = self._host.begin(_build(bootstrap, self._settings, client_settings))

    def topics(self) -> list[str]:
        """See `Consumer.topics`."""
        return self._call(self._consumer.topics(), "listing topics")

    def describe(self, topics: Collection[str]) -> dict[str, TopicMetadata]:
        """See `Consumer.describe`."""
        return self._call(self._consumer.describe(topics), f"describing {', '.join(sorted(topics)[:5])}")

    def partitions(self, topic: str) -> list[int]:
        """See `Consumer.partitions`."""
        return self._call(self._consumer.partitions(topic), f"partitions of {topic}")

    def offsets(self, wanted: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
        """See `Consumer.offsets`."""
        return self._call(self._consumer.offsets(wanted), "offsets")

    def consume_partition(self, topic: str, partition: int, start: Start, end: End = None) -> SyncPartition:
        """Read a partition from `start` to before `end` (None: without an end). See `Consumer.consume_partition`."""
        opening = self._consumer.consume_partition(topic, partition, start, end)
        consumer = self._call(opening, f"opening {topic}-{partition}")
        return SyncPartition(consumer, self._call, check_crcs=self._settings.check_crcs)

    def batches(self, topic: str, partition: int, start: Start, end: End) -> Iterator[FetchedBatch]:
        """Record batches of one partition, not decoded, from `start` to before `end` (None: without an end).

        Raises what `consume_partition` and `SyncPartition.batches` raise. Close the iterator to end early.
        """
        with self.consume_partition(topic, partition, start, end) as reading:
            yield from reading.batches()

    def columns(self, topic: str, partition: int, start: Start, end: End) -> Iterator[Columns]:
        """The same as columns, one value for each record batch."""
        with self.consume_partition(topic, partition, start, end) as reading:
            yield from reading.columns()

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch no more of these partitions until they are resumed. Those that are not being read are ignored."""
        self._call(soon(self._consumer.pause, partitions), "pausing")

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these partitions again. Those that are not being read are ignored."""
        self._call(soon(self._consumer.resume, partitions), "resuming")

    def pause_all(self) -> None:
        """Pause every partition that is being read."""
        self._call(soon(self._consumer.pause_all), "pausing")

    def resume_all(self) -> None:
        """Resume every partition that is being read."""
        self._call(soon(self._consumer.resume_all), "resuming")

    def status(self) -> dict[str, Any]:
        """See `Consumer.status`."""
        return self._call(soon(self._consumer.status), "status")

    def close(self, timeout: float = 10.0) -> None:
        """Close the consumer, the client and the thread in `timeout` seconds, whatever the brokers do.

        Safe to call twice. Raises `DeadlineExceeded` if a callback of the caller blocks its event loop.
        """
        self._host.close(partial(_end, self._client, self._consumer, timeout), timeout)

    def __del__(self) -> None:
        if hasattr(self, "_consumer"):  # it was made
            self._host.drop(self, partial(_end, self._client, self._consumer, 0.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _why(self) -> str:
        """Why a request is not answered, as far as is known."""
        return self._client.trouble or "no broker has answered it yet"

    def _call(self, work: Coroutine[Any, Any, T], doing: str, why: Callable[[], str] | None = None) -> T:
        return self._host.call(work, self._patience, doing, why or self._why)


async def _build(
    bootstrap: Sequence[str], settings: ConsumerSettings, client_settings: ClientSettings
) -> tuple[Client, Consumer]:
    client = Client(bootstrap, client_settings)
    return client, Consumer(client, settings)


async def _end(client: Client, consumer: Consumer, timeout: float) -> None:
    try:
        await consumer.close(timeout / 2)
    finally:
        await client.close(timeout / 2)


def read_range(
    bootstrap: Sequence[str],
    topic: str,
    partition: int,
    start: Start,
    end: End,
    settings: ConsumerSettings | None = None,
    *,
    patience: float = 60.0,
) -> Iterator[Columns]:
    """Read one partition from `start` to before `end`, as columns, with a connection of its own.

    It ends at `end` also if the last records before that are control records, aborted, or compacted away. Raises what
    `SyncConsumer.columns` raises.
    """
    with SyncConsumer(bootstrap, settings, patience=patience) as consumer:
        yield from consumer.columns(topic, partition, start, end)
