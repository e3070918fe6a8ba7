"""Blocking consumer: reads partitions from plain threads, without an event loop of the caller's.

A thread of its own runs the event loop, and does only input and output there; decoding happens in the caller's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar

from ingestd.checks import require_settings
from ingestd.client.client import Client
from ingestd.client.settings import ClientSettings
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.decoding import columns_of, records_of
from ingestd.consumer.settings import ConsumerSettings
from ingestd.errors import Closed, DeadlineExceeded, IngestdError, UsedAfterFork
from ingestd.records.batch import check_crc
from ingestd.tasks import tell_of_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
    from types import TracebackType

    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.consumer.settings import End, Start, TopicPartition
    from ingestd.records.columns import Columns
    from ingestd.records.decode import Record

__all__ = ["BlockingConsumer", "BlockingPartition", "read_range"]

T = TypeVar("T")
P = ParamSpec("P")

_CLOSE_TIMEOUT = 10.0
"""Seconds for the loop's thread to end."""


class _Call(Protocol):
    """Runs a coroutine on the consumer's loop and waits for it."""

    def __call__(self, work: Coroutine[Any, Any, T], doing: str, why: Callable[[], str] | None = None) -> T: ...


class BlockingPartition:
    """Reads one partition from plain threads. Made by `BlockingConsumer.consume_partition`; context manager, closes.

    One thread at a time may iterate it, in whatever form: each goes on where the last one was left. The other methods
    may be called by any thread meanwhile. Every wait ends after the consumer's `patience`.
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
        """The offset after what was handed out last."""
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
                    break  # somebody sought, or read on in another form
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

        Raises what `PartitionConsumer.take` raises, `CorruptBatch`, `Closed`; `DeadlineExceeded` when nothing came for
        `patience` seconds, which for a read without end means that nothing was produced.
        """
        while (batch := self._head()) is not None:
            if self._check_crcs:
                check_crc(batch.data, batch.header)
            self._pop(batch)
            yield batch

    def seek(self, start: Start) -> int:
        """See `PartitionConsumer.seek`. For the thread that iterates."""
        offset = self._call(self._consumer.seek(start), f"seeking in {self._consumer.key}")
        self._batches.clear()
        self._begun = False
        self._next_offset = offset
        return offset

    def pause(self) -> None:
        """See `PartitionConsumer.pause`."""
        self._call(_soon(self._consumer.pause), f"pausing {self._consumer.key}")

    def resume(self) -> None:
        """See `PartitionConsumer.resume`."""
        self._call(_soon(self._consumer.resume), f"resuming {self._consumer.key}")

    def close(self) -> None:
        """Fetch no more. What is fetched can still be read, then iteration ends. Safe to call at any time."""
        with contextlib.suppress(Closed, UsedAfterFork):
            self._call(_soon(self._consumer.close), f"closing {self._consumer.key}")

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _head(self) -> FetchedBatch | None:
        """The batch to hand out next, without what was handed out of it before; None at the end."""
        while not self._batches:
            position = self._consumer.position
            try:
                more = self._call(self._take(), f"reading {self._consumer.key}", lambda: self._consumer.awaits)
            except DeadlineExceeded:
                if self._batches or self._consumer.error is not None or self._consumer.position == position:
                    raise
                continue  # it goes on, through what nobody is handed: aborted transactions, markers
            if not more:
                self._next_offset = max(self._next_offset, self._consumer.next_offset)
                return None
        batch = self._batches[0]
        # Not by the offset alone: a policy may have gone back, and then there is more to hand out before it.
        return replace(batch, first=self._next_offset) if self._begun else batch

    async def _take(self) -> bool:
        """On the consumer's loop: wait for batches; False at the end.

        They are kept although the caller's patience may have ended as they came: no record is skipped for that.
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
        self._bootstrap = bootstrap
        self._settings = require_settings(settings, ConsumerSettings)
        self._client_settings = require_settings(client_settings, ClientSettings)
        self._patience = patience
        self._ready: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Client, Consumer]]
        self._ready = concurrent.futures.Future()
        self._closed = False
        self._forked = False
        self._running: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(target=self._work, name="ingestd consumer", daemon=True)
        self._thread.start()
        self._loop, self._stop, self._client, self._consumer = self._ready.result(_CLOSE_TIMEOUT)
        tell_of_fork(self)

    def topics(self) -> list[str]:
        """See `Consumer.topics`."""
        return self._call(self._consumer.topics(), "listing topics")

    def partitions(self, topic: str) -> list[int]:
        """See `Consumer.partitions`."""
        return self._call(self._consumer.partitions(topic), f"partitions of {topic}")

    def offsets(self, wanted: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
        """See `Consumer.offsets`."""
        return self._call(self._consumer.offsets(wanted), "offsets")

    def consume_partition(self, topic: str, partition: int, start: Start, end: End = None) -> BlockingPartition:
        """Read a partition from `start` up to `end` (for ever where it is None). See `Consumer.consume_partition`."""
        opening = self._consumer.consume_partition(topic, partition, start, end)
        consumer = self._call(opening, f"opening {topic}-{partition}")
        return BlockingPartition(consumer, self._call, check_crcs=self._settings.check_crcs)

    def batches(self, topic: str, partition: int, start: Start, end: End) -> Iterator[FetchedBatch]:
        """Record batches of one partition, not decoded, from `start` up to `end` (for ever where it is None).

        Raises what `consume_partition` and `BlockingPartition.batches` raise. Close the iterator to end early.
        """
        with self.consume_partition(topic, partition, start, end) as reading:
            yield from reading.batches()

    def columns(self, topic: str, partition: int, start: Start, end: End) -> Iterator[Columns]:
        """The same as columns, one value for each record batch."""
        with self.consume_partition(topic, partition, start, end) as reading:
            yield from reading.columns()

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Pause these, where they are being read: they fetch no more until they are resumed."""
        self._call(_soon(self._consumer.pause, partitions), "pausing")

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Resume these, where they are being read."""
        self._call(_soon(self._consumer.resume, partitions), "resuming")

    def pause_all(self) -> None:
        """Pause every partition that is being read."""
        self._call(_soon(self._consumer.pause_all), "pausing")

    def resume_all(self) -> None:
        """Resume every partition that is being read."""
        self._call(_soon(self._consumer.resume_all), "resuming")

    def status(self) -> dict[str, Any]:
        """See `Consumer.status`."""
        return self._call(_soon(self._consumer.status), "status")

    def forked(self) -> None:
        """See `Forkable`: in the child every call raises `UsedAfterFork`, but for `close`, which does nothing there."""
        self._forked = self._closed = True

    def close(self) -> None:
        """Close the consumer, the client and the thread. Safe to call twice; ends even when no broker answers.

        Raises `DeadlineExceeded` when the thread does not end: something of the caller's own blocks its event loop.
        """
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is self._thread:  # its garbage collection met what was left of us
            return
        self._thread.join(_CLOSE_TIMEOUT)
        for left in list(self._running):  # came too late for the loop to see it
            left.cancel()
        if self._thread.is_alive():
            raise DeadlineExceeded(f"closing the consumer: its thread did not end within {_CLOSE_TIMEOUT:g} s")

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
            self._ready.set_result((asyncio.get_running_loop(), stop, client, consumer))
            await stop.wait()

    def _why(self) -> str:
        """Why a question is not answered, as far as is known."""
        return self._client.trouble or "no broker has answered it yet"

    def _call(self, work: Coroutine[Any, Any, T], doing: str, why: Callable[[], str] | None = None) -> T:
        if self._forked:
            work.close()
            raise UsedAfterFork("the consumer was made before this process was forked; make one here")
        if self._closed:
            work.close()
            raise Closed("the consumer is closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise IngestdError(f"{doing}: called in the consumer's own thread, which would wait for itself")
        try:
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:  # its loop ended since the question above
            work.close()
            raise Closed("the consumer was closed meanwhile") from error
        self._running.add(running)
        try:
            return running.result(self._patience)
        except concurrent.futures.TimeoutError as error:
            if running.cancel():
                waited = f"{doing}: nothing came for {self._patience:g} s"
                raise DeadlineExceeded(f"{waited}; {(why or self._why)()}") from error
            return running.result()  # it came at the last moment, or failed with such an error of its own
        except concurrent.futures.CancelledError as error:
            raise Closed("the consumer was closed meanwhile") from error
        except BaseException:
            running.cancel()  # interrupted: it must not take what the next call asks for
            raise
        finally:
            self._running.discard(running)


async def _soon(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function on the event loop of whoever awaits this."""
    return function(*arguments, **named)


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
