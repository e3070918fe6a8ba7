"""Outbox: a route's record batches that are with the producer. Their memory is kept until nobody reads it any more."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Protocol

from ingestd.daemon.lane import Output
from ingestd.daemon.statistics import LATENCY_BOUNDS
from ingestd.errors import IngestdError, error_kind
from ingestd.producer.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.daemon.arena import ArenaShare
    from ingestd.daemon.lane import Slab
    from ingestd.daemon.source import BatchSpan, Encoding
    from ingestd.daemon.statistics import RouteCounters
    from ingestd.producer.delivery import Delivered

__all__ = ["BatchSender", "Outbox"]


class BatchSender(Protocol):
    """What the daemon needs of a producer."""

    def send_batch(self, topic: str, partition: int, batch: memoryview, records: int, done: Delivered) -> None:
        """See `ingestd.producer.AsyncProducer.send_batch`."""
        ...


class Outbox:
    """Sends what was encoded of slabs, in the order of calls.

    Invariants
        An output run is released once all its batches are done: no transport holds it then.
        `settled` is called once for each slab that is wholly sent, when its last batch is acknowledged.
    """

    def __init__(
        self,
        topic: str,
        pages: ArenaShare,
        producer: BatchSender,
        counters: RouteCounters,
        *,
        settled: Callable[[Slab], None],
        failed: Callable[[str], None],
    ) -> None:
        """`failed` is given the reason when something can not be delivered."""
        self._topic = topic
        self._pages = pages
        self._producer = producer
        self._counters = counters
        self._settled = settled
        self._failed = failed

    def send(self, slab: Slab, encoding: Encoding) -> str | None:
        """Send what `encoding` made of a slab; why that is impossible, or None."""
        run, slab.output, slab.encoding = slab.output, None, None
        assert run is not None
        slab.offset += encoding.consumed
        slab.sent = slab.offset >= slab.length
        if not encoding.batches:
            self._pages.release(run)
            left = slab.length - slab.offset
            return None if encoding.consumed else f"{left} bytes gave no record batch and were not consumed"
        used = max(span.start + span.length for span in encoding.batches)
        output = Output(self._pages.trim(run, used), len(encoding.batches))
        view = self._pages.view(output.run, used)
        slab.unacknowledged += len(encoding.batches)
        now = time.monotonic()
        counters = self._counters
        for span in encoding.batches:
            counters.records += span.records
            counters.batches += 1
            counters.uncompressed_bytes += span.uncompressed
            counters.compressed_bytes += span.length
            self._send(slab, output, span, view[span.start : span.start + span.length], now)
        return None

    def _send(self, slab: Slab, output: Output, span: BatchSpan, batch: memoryview, began: float) -> None:
        def done(delivery: Delivery) -> None:
            output.batches -= 1
            if not output.batches:
                self._pages.release(output.run)
            if delivery.error is not None:
                self._undeliverable(slab, delivery, delivery.error)
                return
            elapsed = time.monotonic() - began
            counters = self._counters
            counters.records_acknowledged += span.records
            counters.latency_counts[bisect_left(LATENCY_BOUNDS, elapsed)] += 1
            counters.latency_sum += elapsed
            slab.unacknowledged -= 1
            if slab.sent and not slab.unacknowledged:
                self._settled(slab)

        try:
            self._producer.send_batch(self._topic, span.partition, batch, span.records, done)
        except IngestdError as error:  # what has ended the producer, for this route and all others
            done(Delivery(self._topic, span.partition, span.records, error=error))

    def _undeliverable(self, slab: Slab, delivery: Delivery, error: IngestdError) -> None:
        self._counters.count_error(error_kind(error))
        where = ", ".join(sorted({held.assignment.found.source for held, _ in slab.parts}))
        self._failed(
            f"{delivery.records} records of {where} can not be delivered "
            f"to {delivery.topic}-{delivery.partition}: {error}"
        )
