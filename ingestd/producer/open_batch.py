"""Open batch: collects records of a partition until it has enough bytes or records, or is old enough."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ingestd.producer.batch import Batch
from ingestd.producer.delivery import RecordEnds
from ingestd.records.batch import HEADER_BYTES
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Compression

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingestd.producer.delivery import Delivered
    from ingestd.producer.ledger import Ledger
    from ingestd.producer.settings import ProducerSettings

__all__ = ["OpenBatch"]


class OpenBatch:
    """Turns records into batches for one partition.

    Invariants
        Batches are handed on in the order of their records.
        A record waits no longer than the linger before its batch is closed.
        A timer runs only while there are records.
    """

    def __init__(self, settings: ProducerSettings, ledger: Ledger, closed: Callable[[Batch], None]) -> None:
        """`closed` takes each batch; it is called from within `append`, `close`, or the linger's timer."""
        self._settings = settings
        self._compression = Compression.of(settings.compression)
        self._ledger = ledger
        self._closed = closed
        self.builder = BatchBuilder(max(1, settings.batch_bytes - HEADER_BYTES), settings.batch_records)
        """`RecordIntake` (the short way) puts records into it directly, without this class."""
        self._generation = 0
        self._opened_at = 0.0
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        done: Delivered | None,
        generation: int | None = None,
    ) -> bool:
        """Add a record. False: it did not fit. Nothing was added, the batch was closed, and the next one has room.

        Raises `ValueError`, `OverflowError` or `TypeError` for one that cannot be encoded; then nothing was added.
        `generation` is for a record that the ledger counts already. A flush that waits for the record waits for the
        batch.
        """
        builder = self.builder
        before = builder.size
        size = builder.append(key, value, headers, timestamp_ms, done)
        if size < 0:
            self.close()
            return False
        if builder.records == 1:
            self._open()
        if generation is not None and generation < self._generation:
            self._ledger.enter_again(generation)
            self._ledger.leave(self._generation)
            self._generation = generation
        self._ledger.reserve(size - before)
        if builder.full:
            self.close()
        return True

    def _open(self) -> None:
        self._generation = self._ledger.enter()
        self._opened_at = time.monotonic()
        loop = asyncio.get_running_loop()
        linger = self._settings.linger
        self._timer = loop.call_later(linger, self.close) if linger else loop.call_soon(self.close)

    def close(self) -> None:
        """Hand the batch on, if it has any records."""
        builder = self.builder
        records, size, dones = builder.records, builder.size, builder.dones
        if not records:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        data = builder.build(self._compression)
        self._closed(
            Batch(
                data=memoryview(data),
                records=records,
                done=RecordEnds(dones) if dones else None,
                accepted_at=self._opened_at,
                deadline=self._opened_at + self._settings.delivery_timeout,
                generation=self._generation,
                reserved=size,
            )
        )
