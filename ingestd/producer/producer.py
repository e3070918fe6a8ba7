"""The asynchronous producer: records and ready batches go in, each comes back in exactly one delivery."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final, Self

from ingestd.errors import BufferFull, Closed, DeadlineExceeded
from ingestd.producer.batch import Batch
from ingestd.producer.dispatcher import Dispatcher
from ingestd.producer.identity import FetchedIdentities
from ingestd.producer.ledger import Ledger
from ingestd.producer.settings import ProducerSettings
from ingestd.records.batch import HEADER_BYTES
from ingestd.records.loops import RecordIntake
from ingestd.retry import Deadline
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from ingestd.client.client import Client
    from ingestd.producer.delivery import Delivered
    from ingestd.producer.events import ProducerEvents
    from ingestd.producer.identity import IdentitySource

__all__ = ["AsyncProducer"]


_DEFAULTS: Final = ProducerSettings()


class AsyncProducer(RecordIntake):
    """Sends to any number of topics through one client, which stays the caller's to close. Of one event loop.

    Transactions have their place between the identity source (which then asks the transaction coordinator) and the
    partition producer (which then asks whether its partition was added); see issue 4.

    Invariants
        Whatever `send` or `send_batch` accepted ends in exactly one call of its `done`, at the latest by the end of
        `close`; no transport holds a batch whose `done` was called.
        Within a partition, records are in the log in the order of the calls.
    """

    def __init__(
        self,
        client: Client,
        settings: ProducerSettings = _DEFAULTS,
        *,
        identities: IdentitySource | None = None,
        events: ProducerEvents | None = None,
    ) -> None:
        """Needs a running loop from the first `send` on; takes no connection and asks for nothing before that."""
        self._settings = settings
        self._ledger = Ledger(settings.buffer_bytes)
        super().__init__(self._ledger.allowance)
        self._tasks = TaskOwner()
        self._dispatcher = Dispatcher(
            client,
            settings,
            FetchedIdentities(client, settings.request_timeout) if identities is None else identities,
            self._ledger,
            self._tasks,
            events,
            self._intakes,
        )
        self._closing = False
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def outstanding(self) -> int:
        """Batches, and records that wait for their topic's metadata, that are accepted and not done."""
        return self._ledger.entries

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records given to `send` that are accepted and not done; `BufferFull` begins at `buffer_bytes`."""
        return self._ledger.bytes

    def _take(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
        done: Delivered | None,
    ) -> None:
        """Accept or refuse a record: the long way of `send`, which is in `records/_intake_plain.py`.

        Whoever adds a reason to refuse records here sees to it that they come here: `Ledger.shut`, or close the batches
        that are open.
        """
        if self._closing or self._dispatcher.ended is not None:
            raise self._refusal()
        if self._ledger.full:
            waiting, bound = self._ledger.bytes, self._settings.buffer_bytes
            raise BufferFull(f"{waiting} bytes wait to be acknowledged; the bound is {bound}")
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        self._dispatcher.topic(topic).send(key, value, partition, headers, timestamp_ms, done)

    async def room(self) -> None:
        """Wait until `send` has room. Returns at once when the producer is closed: then `send` says so."""
        if not self._closing:
            await self._ledger.room()

    def send_batch(self, topic: str, partition: int, batch: memoryview, records: int, done: Delivered) -> None:
        """Accept a ready v2 batch of `records` records with base offset 0.

        Its producer fields and its CRC are written here, in place, so `batch` is writable. Its memory must stay as it
        is until `done`, and is not touched after. The producer's own bound does not count it: the memory is bounded by
        its owner. Raises `Closed`, `KafkaError` (an invalid partition, or what ended the producer), `ValueError` for
        memory that cannot be written, or that cannot hold a batch.
        """
        if self._closing or self._dispatcher.ended is not None:
            raise self._refusal()
        if batch.readonly or not batch.c_contiguous or batch.itemsize != 1 or len(batch) <= HEADER_BYTES or records < 1:
            raise ValueError(
                f"{topic}[{partition}]: {records} records in {batch!r}; expected one in writable, contiguous bytes"
            )
        now = time.monotonic()
        producer = self._dispatcher.topic(topic).producer_of(partition)
        generation = self._ledger.enter()
        producer.offer(Batch(batch, records, done, now, now + self._settings.delivery_timeout, generation))

    def _refusal(self) -> Exception:
        ended = self._dispatcher.ended
        return Closed("the producer is closed") if ended is None or self._closing else ended

    async def flush(self, timeout: float) -> None:
        """Send at once what is being collected, and wait until all that was accepted before this call is done.

        Raises `DeadlineExceeded` after `timeout` seconds; then it goes on being sent.
        """
        self._dispatcher.close_batches()
        await self._ledger.drained(Deadline.after(timeout), "flushing the producer")

    async def close(self, timeout: float = 30.0) -> None:
        """Accept nothing more, drain for up to `timeout` seconds, fail the rest with `Closed`. Safe to call twice."""
        if self._closed:
            return
        self._closing = True
        self._ledger.shut()
        self._ledger.wake_all()
        try:
            with contextlib.suppress(DeadlineExceeded):
                await self.flush(timeout)
        finally:
            self._closed = True
            self._dispatcher.end(Closed(f"the producer was closed and not drained within {timeout:g} s"))
            await self._tasks.close()
