"""Sender: a mirror's batches that are with the producer, in one worker: sent, split, acknowledged, refused."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ingestd.daemon.in_flight import InFlight
from ingestd.daemon.source import Loss
from ingestd.errors import IngestdError, error_kind
from ingestd.figures import in_count
from ingestd.mirror.losses import REFUSED
from ingestd.mirror.passing import split_offsets
from ingestd.producer.batch import is_record_refused
from ingestd.producer.delivery import Delivery, SplitEnds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.daemon.progress import Span
    from ingestd.daemon.statistics import RouteCounters
    from ingestd.mirror.origins import OwnProducers
    from ingestd.mirror.partition import CopiedPartition
    from ingestd.mirror.passing import Offsets, Part
    from ingestd.mirror.trail import Step

__all__ = ["CopyNews", "Sender"]


class CopyNews(Protocol):
    """What the stages of a runner tell it."""

    def acknowledge(self, held: CopiedPartition, span: Span) -> None:
        """All that was made of a span is acknowledged."""
        ...

    def released(self, held: CopiedPartition) -> None:
        """Nothing of a closed partition is with the producer any more."""
        ...

    def lost(self, held: CopiedPartition, loss: Loss) -> None:
        """A record was left out: the target refuses it for good."""
        ...

    def stop(self, reason: str) -> None:
        """Something can not be delivered."""
        ...


@dataclass(slots=True, eq=False)
class _Unit:
    """What goes to the target together, until the last of its batches is acknowledged.

    left: batches that are not acknowledged. newest_ms: the time of its newest record.
    """

    held: CopiedPartition
    span: Span
    left: int
    newest_ms: int


@dataclass(slots=True, eq=False)
class _Batch(SplitEnds):
    """A batch that is with the producer, which calls it at its end. One object: there may be 100,000 small batches.

    size: bytes. began: when it was sent, of the monotonic clock. step: of the partition's trail.
    """

    sender: Sender
    unit: _Unit
    size: int
    records: int
    offsets: Offsets
    began: float
    step: Step | None

    @property
    def alone(self) -> bool:
        return self.sender.skips

    def __call__(self, whole: Delivery) -> None:
        self.sender.delivered(self, whole)

    def split(self, at: int) -> tuple[_Batch, _Batch]:
        return self.sender.split(self, at)


class Sender:
    """One for each mirror in a worker.

    Invariants
        A span is acknowledged once each batch that was made of it is acknowledged, or left out.
        What is with the producer has at most `most` bytes, and a unit.
    """

    def __init__(
        self, news: CopyNews, producers: OwnProducers, counters: RouteCounters, most: int, *, skips: bool
    ) -> None:
        """`most`: bytes that may be sent and not acknowledged. `skips`: leave out records that are refused for good."""
        self.skips = skips
        self.in_flight = InFlight(counters)
        self._news = news
        self._producers = producers
        self._counters = counters
        self._most = most
        self._bytes = 0
        self.room = asyncio.Event()
        """Is set while more may be sent."""
        self.room.set()

    def send(self, held: CopiedPartition, span: Span, parts: Sequence[Part], newest_ms: int) -> None:
        """Send all that was made of a span, whether there is room or not."""
        if not parts:
            self._news.acknowledge(held, span)
        unit = _Unit(held, span, len(parts), newest_ms)
        now = time.monotonic()
        for part in parts:
            self._send(unit, part, now)

    def _send(self, unit: _Unit, made: Part, began: float) -> None:
        held, data, size, records = unit.held, made.data, len(made.data), made.records
        counters = self._counters
        counters.records += records
        counters.batches += 1
        counters.compressed_bytes += size
        step = None if held.trail is None else held.trail.sent(made.offsets)
        batch = _Batch(self, unit, size, records, made.offsets, began, step)
        self.in_flight.begin(batch, began)
        self._bytes += size
        held.bytes += size
        if self._bytes >= self._most:
            self.room.clear()
        topic, partition = held.target_topic, held.partition
        try:
            self._producers.of(held.through).send_batch(topic, partition, data, records, batch)
        except IngestdError as error:  # the producer has ended, for all
            self.in_flight.end(batch)
            self._return(held, size)
            self._undeliverable(batch, Delivery(topic, partition, records, error=error), error)

    def recall(self, held: CopiedPartition) -> None:
        """Take back from the producer what was never sent of a partition. It counts as not read."""
        held.recalled = True
        self._producers.of(held.through).recall(held.target_topic, held.partition)

    def delivered(self, batch: _Batch, delivery: Delivery) -> None:
        """The producer is done with a batch."""
        unit, held, size, records = batch.unit, batch.unit.held, batch.size, batch.records
        self.in_flight.end(batch)
        self._return(held, size)
        if delivery.error is None:
            self.in_flight.acknowledged(batch.began, records, size)
            self._counters.bytes_acknowledged += size
            held.target_offset = (delivery.base_offset if delivery.base_offset >= 0 else held.target_offset) + records
            if held.trail is not None and batch.step is not None:
                held.trail.acknowledged(batch.step, delivery.base_offset)
        elif self.skips and records == 1 and is_record_refused(delivery.error):
            self._leave_out(batch, delivery.error)
        else:
            if not held.recalled:
                self._undeliverable(batch, delivery, delivery.error)
            return
        unit.left -= 1
        if not unit.left:
            held.newest_ms = max(held.newest_ms, unit.newest_ms)
            self._news.acknowledge(held, unit.span)

    def split(self, batch: _Batch, at: int) -> tuple[_Batch, _Batch]:
        """The producer has made two batches of one: of its first `at` records, and of the others."""
        unit, trail = batch.unit, batch.unit.held.trail
        steps = (None, None) if trail is None or batch.step is None else trail.split(batch.step, at)
        sizes = batch.size - batch.size // 2, batch.size // 2
        counts = at, batch.records - at
        halves = split_offsets(batch.offsets, at)
        first, second = (
            _Batch(self, unit, size, records, offsets, batch.began, step)
            for size, records, offsets, step in zip(sizes, counts, halves, steps, strict=True)
        )
        unit.left += 1
        self.in_flight.end(batch)
        self.in_flight.begin(first, batch.began)
        self.in_flight.begin(second, batch.began)
        return first, second

    def _leave_out(self, batch: _Batch, error: IngestdError) -> None:
        """Go on behind a record that the target refuses for good."""
        held = batch.unit.held
        self._counters.count_error(error_kind(error))
        label = held.assignment.found.display_name
        self._news.lost(held, Loss(label, REFUSED, batch.offsets[0][0], 1, exact=True, unit="offsets"))
        if held.trail is not None and batch.step is not None:
            held.trail.left_out(batch.step)

    def _return(self, held: CopiedPartition, size: int) -> None:
        held.bytes -= size
        self._bytes -= size
        if not held.bytes:
            if held.drained is not None:
                held.drained.set()
            if held.closed:
                self._news.released(held)
        if self._bytes < self._most:
            self.room.set()

    def _undeliverable(self, batch: _Batch, delivery: Delivery, error: IngestdError) -> None:
        self._counters.count_error(error_kind(error))
        place = f"{delivery.topic}-{delivery.partition}"
        (first, _), (start, many) = batch.offsets[0], batch.offsets[-1]
        offsets = f"offset {first}" if delivery.records == 1 else f"offsets {first} to {start + many - 1}"
        records = f"{in_count(delivery.records, 'record')} of {batch.unit.held.name} ({offsets})"
        self._news.stop(f"{records} can not be delivered to {place}: {error}")
