"""The open batch of a partition: collects records until it has bytes enough, records enough, or age enough."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ingestd.producer.batch import Batch
from ingestd.producer.delivery import RecordEnds
from ingestd.records.builder import BatchBuilder

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
        self._batch_bytes = settings.batch_bytes
        self._batch_records = settings.batch_records
        self._ledger = ledger
        self._closed = closed
        self._builder = BatchBuilder(settings.batch_bytes)
        self._append = self._builder.append
        self._dones: list[Delivered | None] = []
        self._size = 0
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
    ) -> None:
        """Add a record. Raises `ValueError` or `TypeError` for one that cannot be encoded; then nothing was added.

        `generation` is that of a record which is in the ledger already: a flush that waits for it waits for the batch.
        """
        size = self._append(key, value, headers, timestamp_ms)
        if size < 0:
            self.close()
            size = self._append(key, value, headers, timestamp_ms)
        if not self._dones:
            self._open()
        if generation is not None and generation < self._generation:
            self._ledger.enter_again(generation)
            self._ledger.leave(self._generation)
            self._generation = generation
        self._dones.append(done)
        self._ledger.reserve(size - self._size)
        self._size = size
        if size >= self._batch_bytes or len(self._dones) >= self._batch_records:
            self.close()

    def _open(self) -> None:
        self._generation = self._ledger.enter()
        self._opened_at = time.monotonic()
        loop = asyncio.get_running_loop()
        linger = self._settings.linger
        self._timer = loop.call_later(linger, self.close) if linger else loop.call_soon(self.close)

    def close(self) -> None:
        """Hand on what was collected, if anything."""
        if not self._dones:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        dones, self._dones = self._dones, []
        size, self._size = self._size, 0
        data = self._builder.build(self._settings.compression)
        self._closed(
            Batch(
                data=memoryview(data),
                records=len(dones),
                done=RecordEnds(dones),
                accepted_at=self._opened_at,
                deadline=self._opened_at + self._settings.delivery_timeout,
                generation=self._generation,
                reserved=size,
            )
        )
