"""Blocking consumer: reads partitions from plain threads, without an event loop of the caller's.

A thread of its own runs the event loop, and does only input and output there; decoding happens in the caller's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ingestd.client.client import Client
from ingestd.client.settings import ClientSettings
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.decoding import columns_of
from ingestd.consumer.settings import ConsumerSettings
from ingestd.errors import Closed, DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence
    from types import TracebackType

    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.consumer.settings import End, Start, TopicPartition
    from ingestd.records.columns import Columns

__all__ = ["BlockingConsumer", "read_range"]

T = TypeVar("T")

_CLOSE_TIMEOUT = 10.0
"""Seconds for the loop's thread to end."""


class BlockingConsumer:
    """A `Client` and a `Consumer` behind calls that block. Context manager; may be used by several threads at once.

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
        self._bootstrap = list(bootstrap)
        self._settings = settings or ConsumerSettings()
        self._client_settings = client_settings or ClientSettings()
        self._patience = patience
        self._ready: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Consumer]]
        self._ready = concurrent.futures.Future()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="ingestd consumer", daemon=True)
        self._thread.start()
        self._loop, self._stop, self._consumer = self._ready.result(_CLOSE_TIMEOUT)

    def topics(self) -> list[str]:
        """See `Consumer.topics`."""
        return self._call(self._consumer.topics(), "listing topics")

    def partitions(self, topic: str) -> list[int]:
        """See `Consumer.partitions`."""
        return self._call(self._consumer.partitions(topic), f"partitions of {topic}")

    def offsets(self, wanted: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
        """See `Consumer.offsets`."""
        return self._call(self._consumer.offsets(wanted), "offsets")

    def batches(self, topic: str, partition: int, start: Start, end: End) -> Iterator[FetchedBatch]:
        """Record batches of one partition, not decoded, from `start` up to `end` (for ever where it is None).

        Raises what `Consumer.consume_partition` and `PartitionConsumer.take` raise; `DeadlineExceeded` beyond
        `patience`, which for a read without end means that nothing was produced for so long. Close the iterator to
        end early.
        """
        reading = f"reading {topic}-{partition}"
        consumer = self._call(self._consumer.consume_partition(topic, partition, start, end), reading)
        try:
            while (fetched := self._call(consumer.take(), reading)) is not None:
                yield from fetched.batches
        finally:
            self._release(consumer)

    def columns(self, topic: str, partition: int, start: Start, end: End) -> Iterator[Columns]:
        """The same as columns, one value for each record batch. Raises `CorruptBatch` as well."""
        for batch in self.batches(topic, partition, start, end):
            yield columns_of(batch, check_crc=self._settings.check_crcs)

    def close(self) -> None:
        """Close the consumer, the client and the thread. Safe to call twice; ends even when no broker answers."""
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        stop = asyncio.Event()
        async with (
            Client(self._bootstrap, self._client_settings) as client,
            Consumer(client, self._settings) as consumer,
        ):
            self._ready.set_result((asyncio.get_running_loop(), stop, consumer))
            await stop.wait()

    def _call(self, work: Coroutine[Any, Any, T], doing: str) -> T:
        if self._closed:
            work.close()
            raise Closed("the consumer is closed")
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result(self._patience)
        except concurrent.futures.TimeoutError as error:
            if running.done():
                raise
            running.cancel()
            raise DeadlineExceeded(f"{doing}: nothing came for {self._patience:g} s") from error
        except concurrent.futures.CancelledError as error:
            raise Closed("the consumer was closed meanwhile") from error

    def _release(self, consumer: PartitionConsumer) -> None:
        async def close() -> None:
            consumer.close()

        if not self._closed:
            self._call(close(), f"closing {consumer.key}")


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
    """Read one partition from `start` up to but without `end`, as columns, with a connection of its own.

    Ends at `end` although the last records before it may be control records, aborted, or compacted away. Raises what
    `BlockingConsumer.columns` raises.
    """
    with BlockingConsumer(bootstrap, settings, patience=patience) as consumer:
        yield from consumer.columns(topic, partition, start, end)
