"""Outbox: a route's record batches that are with the producer. Their memory is kept until nothing reads it any more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from ingestd.daemon.in_flight import InFlight
from ingestd.daemon.lane import Output
from ingestd.errors import ErrorCode, IngestdError, KafkaError, error_kind
from ingestd.figures import in_count
from ingestd.producer.delivery import Delivery
from ingestd.records.decode import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingestd.daemon.arena import ArenaShare
    from ingestd.daemon.lane import Slab
    from ingestd.daemon.source import EncodedAgain, Encoding
    from ingestd.daemon.statistics import RouteCounters
    from ingestd.producer.delivery import Delivered

__all__ = ["BatchSender", "Outbox"]

_TOO_LARGE: Final = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})


class BatchSender(Protocol):
    """What the daemon needs of a producer."""

    def send_batch(self, topic: str, partition: int, batch: memoryview, records: int, done: Delivered) -> None:
        """See `ingestd.producer.AsyncProducer.send_batch`."""
        ...


class Outbox:
    """Sends what was encoded of slabs, in the order of calls.

    Invariants
        An output run is released once all its batches are done. No transport holds it then.
        `settled` is called once for each slab, when all of it was sent and its last batch is acknowledged.
        A batch that comes back because its partition no longer exists is sent where `encode_again` says, in order.
    """

    def __init__(
        self,
        topic: str,
        pages: ArenaShare,
        producer: BatchSender,
        counters: RouteCounters,
        *,
        settled: Callable[[Slab], None],
        encode_again: Callable[[Slab, int, memoryview], Sequence[EncodedAgain]],
        idle: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        """`encode_again` gets a slab, a partition and a batch for it. It gives copies for other partitions, or none.

        `idle` is called when the last batch that is with the producer is done. `failed` gets the reason when something
        can not be delivered.
        """
        self._topic = topic
        self._pages = pages
        self._producer = producer
        self._counters = counters
        self._settled = settled
        self._idle = idle
        self.in_flight = InFlight(counters)
        self._encode_again = encode_again
        self._failed = failed

    def send(self, slab: Slab, encoding: Encoding) -> str | None:
        """Send what `encoding` made of a slab. Returns None, or why that is impossible."""
        run, slab.output, slab.encoding = slab.output, None, None
        assert run is not None
        slab.offset += encoding.consumed
        slab.sent = slab.offset >= slab.length
        if not encoding.batches:
            self._pages.release(run)
            left = slab.length - slab.offset
            if encoding.consumed:
                return None
            return f"{left} bytes of {slab.origin} gave no record batch and were not consumed"
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
            batch = view[span.start : span.start + span.length]
            self._send(slab, output, span.partition, batch, span.records, now)
        return None

    def _send(
        self, slab: Slab, output: Output | None, partition: int, batch: memoryview, records: int, began: float
    ) -> None:
        """`output` is the run that the batch lies in; None if the batch has memory of its own."""

        def done(delivery: Delivery) -> None:
            self.in_flight.end(done)
            ended(delivery)
            if not self.in_flight:
                self._idle()

        def ended(delivery: Delivery) -> None:
            error = delivery.error
            again = () if error is None else self._again(slab, partition, batch, error)
            reason = None if error is None or again else _why_undeliverable(slab, delivery, error, batch)
            self._give_back(output)
            if again:
                slab.unacknowledged += len(again) - 1
                for each in again:
                    self._send(slab, None, each.partition, each.batch, each.records, began)
                return
            if error is not None and reason is not None:
                self._undeliverable(error, reason)
                return
            self.in_flight.acknowledged(began, records, len(batch))
            slab.unacknowledged -= 1
            if slab.sent and not slab.unacknowledged:
                self._settled(slab)

        self.in_flight.begin(done, began)
        try:
            self._producer.send_batch(self._topic, partition, batch, records, done)
        except IngestdError as error:  # the producer has ended, for this route and all others
            self.in_flight.end(done)
            delivery = Delivery(self._topic, partition, records, error=error)
            reason = _why_undeliverable(slab, delivery, error, batch)
            self._give_back(output)
            self._undeliverable(error, reason)

    def _give_back(self, output: Output | None) -> None:
        if output is None:
            return
        output.batches -= 1
        if not output.batches:
            self._pages.release(output.run)

    def _again(self, slab: Slab, partition: int, batch: memoryview, error: IngestdError) -> Sequence[EncodedAgain]:
        # Only one of these errors ends a batch: its topic or partition was missing for too long.
        if not isinstance(error, KafkaError) or not error.refresh_metadata:
            return ()
        self._counters.count_retry(error_kind(error))
        return self._encode_again(slab, partition, batch)

    def _undeliverable(self, error: IngestdError, reason: str) -> None:
        self._counters.count_error(error_kind(error))
        self._failed(reason)


def _why_undeliverable(slab: Slab, delivery: Delivery, error: IngestdError, batch: memoryview) -> str:
    """What is said of a batch that was refused for good: how many records, where they are from, and what to do."""
    remedy = ""
    if isinstance(error, KafkaError) and error.code in _TOO_LARGE:
        largest = max(len(record.value or b"") for record in decode_records(batch))
        raised = "raise the topic's max.message.bytes, or lower max_line_bytes and batch_bytes"
        remedy = f"; the longest record has {in_count(largest, 'byte')}; {raised}"
    return (
        f"{in_count(delivery.records, 'record')} of {slab.unacknowledged_origin} can not be delivered "
        f"to {delivery.topic}-{delivery.partition}: {error}{remedy}"
    )
