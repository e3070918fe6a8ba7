"""MirrorRunner: one mirror in one worker. Batches go from the source's leaders to the target's, in order, as they are.

    PartitionConsumer.take ── whole batches in the memory that they were received in ── header patched ── AsyncProducer

Nothing is copied on the way. An answer's memory is free once all its batches are acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.events import NoEvents
from ingestd.consumer.settings import ConsumerSettings
from ingestd.daemon.arena import PAGE_BYTES
from ingestd.daemon.control import Moved, Unacknowledged
from ingestd.daemon.in_flight import InFlight
from ingestd.daemon.progress import Progress
from ingestd.daemon.source import End, Loss
from ingestd.daemon.statistics import READ, SourceGauges
from ingestd.errors import IngestdError, error_kind
from ingestd.mirror.passing import made_anew, passes
from ingestd.producer.delivery import Delivery
from ingestd.records.batch import check_crc, patch_offset
from ingestd.retry import Backoff
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from ingestd.consumer.fetched import Fetched, FetchedBatch
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.daemon.progress import Span
    from ingestd.daemon.runner import Workplace
    from ingestd.daemon.source import Assignment
    from ingestd.mirror.route import MirrorRoute

__all__ = ["MirrorRunner"]

LARGEST_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of one answer, if the mirror's share of the memory has room for several."""

LEAST_MEMORY: Final = 1024 * 1024


@dataclass(slots=True, eq=False)
class _Partition:
    """A source partition that this worker copies.

    progress: its marks are leader epochs and topic ids. read_to, epoch: the next offset to read, and the leader epoch
    of the record before it. topic_id: of the topic that is read, empty if its cluster has none. target_offset: behind
    the last record that the target has acknowledged. bytes: sent and not acknowledged.
    """

    assignment: Assignment
    progress: Progress
    read_to: int
    epoch: int
    topic_id: str
    target_offset: int
    bytes: int = 0
    newest_ms: int = -1
    """The time of the newest record that was acknowledged, in ms since 1970 UTC."""
    reading: asyncio.Task[None] | None = None
    consumer: PartitionConsumer | None = None
    gap: tuple[int, int] | None = None
    """The first offset that is no longer at the source, and the first behind it that is."""
    finished: End | None = None
    closed: bool = False
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=0.2, maximum=30.0))

    @property
    def name(self) -> str:
        """The source's name."""
        return self.assignment.found.source


@dataclass(slots=True, eq=False)
class _Sent:
    """What was made of one batch of the source, until all of it is acknowledged."""

    held: _Partition
    span: Span
    left: int
    """Batches that are not acknowledged."""
    newest_ms: int


class _Moves(NoEvents):
    """Hears from the consumer where reading went on elsewhere than it was told."""

    def __init__(self, told: Callable[[str, int, int], None]) -> None:
        """`told` gets the source's name, the offset that was asked for, and where reading goes on."""
        self._told = told

    def moved(self, topic: str, partition: int, asked: int, offset: int) -> None:
        """See `ConsumerEvents`."""
        self._told(str(TopicPartition(topic, partition)), asked, offset)


@dataclass(slots=True, eq=False)
class _Part:
    """A batch that is with the producer, which calls it at its end. One object: there may be 100,000 small batches.

    size: bytes. began: when it was sent, of the monotonic clock.
    """

    runner: MirrorRunner
    sent: _Sent
    size: int
    records: int
    began: float

    def __call__(self, delivery: Delivery) -> None:
        self.runner.delivered(self, delivery)


class MirrorRunner:
    """See `ingestd.daemon.runner.Runner`.

    Invariants
        A partition's batches are sent in the order of its log. Its position moves over a batch once all that was made
        of it is acknowledged.
        What was read and is not acknowledged has at most this mirror's share of the worker's memory, and an answer.
    """

    def __init__(self, route: MirrorRoute, workplace: Workplace) -> None:
        self.route = route
        self._workplace = workplace
        self._news = workplace.news
        self._counters = workplace.counters
        self._target = workplace.clusters[route.target]
        half = max(LEAST_MEMORY, workplace.share * PAGE_BYTES // 2)
        self._most = half
        """Bytes that may be sent and not acknowledged before reading waits."""
        self._consumer = Consumer(
            workplace.clusters[route.source].client,
            ConsumerSettings(
                isolation="read_committed",
                out_of_range="earliest",
                truncation="rewind",
                recreation="earliest",
                check_crcs=False,  # done here, once
                prefetch_bytes=half,
                fetch_max_bytes=min(LARGEST_ANSWER, half),
                metadata_timeout=60.0,
            ),
            events=_Moves(self._skipped),
        )
        self._partitions: dict[str, _Partition] = {}
        self._given_up: set[_Partition] = set()
        """Closed, with batches that are still with the producer. Their positions move until those are done."""
        self._in_flight = InFlight(self._counters)
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._moved: dict[_Partition, None] = {}
        self._touched: set[str] = set()
        self._tasks = TaskOwner(self._crashed)
        self._stopped = False
        self._draining = False

    # Partitions come and go.

    def assign(self, assignment: Assignment) -> None:
        """See `Runner`."""
        if self._stopped or self._draining:
            return
        found = assignment.found
        self._give_up(found.source)
        detail = found.detail
        epoch, topic_id = detail["epoch"], detail["topic_id"]
        progress = Progress(found.position, (epoch, topic_id))
        held = _Partition(assignment, progress, found.position, epoch, topic_id, detail["target_offset"])
        self._partitions[found.source] = held
        self._touched.add(found.source)
        held.reading = self._tasks.start(self._copy(held), f"copy {found.source}")

    def revoke(self, source: str) -> None:
        """See `Runner`."""
        self._give_up(source)

    def holds(self, sources: Collection[str]) -> bool:
        """See `Runner`."""
        return any(held.name in sources for held in self._given_up)

    def conclude(self, source: str) -> None:
        """See `Runner`. A partition has no last record, so this is never asked of a mirror."""

    def _give_up(self, source: str) -> None:
        held = self._partitions.pop(source, None)
        if held is None:
            return
        held.closed = True
        self._touched.add(source)
        self._stop_reading(held)
        if held.bytes:
            self._given_up.add(held)

    def _stop_reading(self, held: _Partition) -> None:
        if held.reading is not None:
            held.reading.cancel()
        if held.consumer is not None:
            held.consumer.abandon()

    # Reading.

    async def _copy(self, held: _Partition) -> None:
        """Read a partition to its end, or for ever, whatever happens to its leaders."""
        while True:
            try:
                await self._read(held)
            except IngestdError as error:
                self._counters.count_error(READ)
                self._news.troubled(held.assignment, str(error))
            else:
                self._finish(held)
                return
            finally:
                if held.consumer is not None:
                    held.consumer.abandon()
                    held.consumer = None
                held.gap = None  # what was fetched before it is dropped, and fetched again
            await asyncio.sleep(held.backoff.next_delay())

    async def _read(self, held: _Partition) -> None:
        found = held.assignment.found
        topic, partition = found.detail["topic"], found.detail["partition"]
        self._target.count_retries(found.detail["target_topic"], self._counters)
        start = OffsetAndMetadata(held.read_to, held.epoch)
        held.consumer = await self._consumer.consume_partition(topic, partition, start, found.until)
        while (fetched := await held.consumer.take()) is not None:
            held.backoff.reset()
            held.topic_id = _shown(held.consumer.standing.topic_id)
            self._send_all(held, fetched)
            self._pass_gap(held)
            await self._room.wait()

    def _skipped(self, name: str, asked: int, offset: int) -> None:
        """What was asked for is not in the log: reading goes on at `offset`."""
        held = self._partitions.get(name)
        if held is None or offset <= asked:  # shorter than it was: another log, not an older one
            return
        (reason,) = self.route.loss_reasons
        loss = Loss(held.assignment.found.display_name, reason, asked, offset - asked, exact=True, unit="offsets")
        self._news.lost(held.assignment, loss)
        held.gap = (asked, offset)
        self._pass_gap(held)

    def _pass_gap(self, held: _Partition) -> None:
        """Move over what is lost, once all that was fetched before it is sent."""
        if held.gap is None or held.consumer is None or held.consumer.reached < held.gap[0]:
            return
        end = held.gap[1]
        held.gap = None
        if end > held.read_to:
            held.read_to, held.epoch = end, -1
            self._acknowledge(held, _span(held, end, -1), -1)

    def _finish(self, held: _Partition) -> None:
        """Everything up to the end that was asked for is read. What is left before it nobody is to see."""
        found = held.assignment.found
        assert found.until is not None, "without an end reading goes on"
        held.finished = End("end", found.display_name, found.until, found.until)
        if held.progress.position < found.until:
            self._acknowledge(held, _span(held, found.until, held.epoch), -1)
        self._check_end(held)

    # Sending.

    def _send_all(self, held: _Partition, fetched: Fetched) -> None:
        now = time.monotonic()
        last = fetched.batches[-1]
        for batch in fetched.batches:
            end = fetched.next_offset if batch is last else batch.next_offset
            self._send_one(held, batch, end, now)
            held.read_to, held.epoch = end, batch.header.leader_epoch

    def _send_one(self, held: _Partition, batch: FetchedBatch, end: int, now: float) -> None:
        """Send a batch. Its position is `end`. If `CorruptBatch` or `UnsupportedCodec` is raised, it was not read."""
        header = batch.header
        check_crc(batch.data, header)
        detail = held.assignment.found.detail
        parts: Sequence[tuple[memoryview, int]]
        if passes(batch):
            data = batch.data if not batch.data.readonly else memoryview(bytearray(batch.data))
            patch_offset(data, 0, -1)
            parts = [(data, header.records)]
        else:
            parts = list(made_anew(batch, TopicPartition(detail["topic"], detail["partition"])))
        self._counters.bytes_read += len(batch.data)
        sent = _Sent(held, _span(held, end, header.leader_epoch), len(parts), header.max_timestamp)
        if not parts:
            self._acknowledge(held, sent.span, -1)
        for data, records in parts:
            self._send(sent, data, records, now)

    def _send(self, sent: _Sent, data: memoryview, records: int, began: float) -> None:
        held, size = sent.held, len(data)
        counters = self._counters
        counters.records += records
        counters.batches += 1
        counters.compressed_bytes += size
        part = _Part(self, sent, size, records, began)
        self._in_flight.begin(part, began)
        self._bytes += size
        held.bytes += size
        if self._bytes >= self._most:
            self._room.clear()
        detail = held.assignment.found.detail
        topic, partition = detail["target_topic"], detail["partition"]
        try:
            self._target.producer.send_batch(topic, partition, data, records, part)
        except IngestdError as error:  # the producer has ended, for all
            self._in_flight.end(part)
            self._return(held, size)
            self._undeliverable(held, Delivery(topic, partition, records, error=error), error)

    def delivered(self, part: _Part, delivery: Delivery) -> None:
        """The producer is done with a batch."""
        sent, held, size, records = part.sent, part.sent.held, part.size, part.records
        self._in_flight.end(part)
        self._return(held, size)
        if delivery.error is not None:
            self._undeliverable(held, delivery, delivery.error)
            return
        self._in_flight.acknowledged(part.began, records)
        self._counters.bytes_acknowledged += size
        sent.left -= 1
        if not sent.left:
            held.newest_ms = max(held.newest_ms, sent.newest_ms)
            behind = delivery.base_offset + records if delivery.base_offset >= 0 else -1
            self._acknowledge(held, sent.span, behind)
            self._check_end(held)

    def _return(self, held: _Partition, size: int) -> None:
        held.bytes -= size
        self._bytes -= size
        if held.closed and not held.bytes:
            self._given_up.discard(held)
            self._news.settled()
        if self._bytes < self._most:
            self._room.set()

    def _acknowledge(self, held: _Partition, span: Span, target_offset: int) -> None:
        held.target_offset = max(held.target_offset, target_offset)
        if held.progress.acknowledge(span):
            if not self._moved:
                self._news.moved()
            self._moved[held] = None
            self._touched.add(held.name)
        if self._draining:
            self._news.settled()

    def _undeliverable(self, held: _Partition, delivery: Delivery, error: IngestdError) -> None:
        self._counters.count_error(error_kind(error))
        place = f"{delivery.topic}-{delivery.partition}"
        self.stop(f"{delivery.records} records of {held.name} can not be delivered to {place}: {error}")

    def stop(self, reason: str) -> None:
        """Stop reading: something can not be delivered. What the producer has still ends, and counts."""
        if self._stopped:
            return
        self._stopped = True
        self._news.failed(self.route, reason)
        for source in list(self._partitions):
            self._give_up(source)

    def _crashed(self, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler({"message": "copying failed", "exception": error})

    # The end.

    def _check_end(self, held: _Partition) -> None:
        if held.finished is not None and held.progress.settled and not held.closed:
            self._news.ended(held.assignment, held.finished)
            self._give_up(held.name)

    def drain(self) -> None:
        """See `Runner`."""
        self._draining = True
        for held in self._partitions.values():
            self._stop_reading(held)

    def kick(self) -> None:
        """See `Runner`. Nothing here waits for pages, and metadata wakes who waits for it."""

    @property
    def starved(self) -> bool:
        """See `Runner`."""
        return False

    @property
    def settled(self) -> bool:
        """See `Runner`. Of partitions that were given up, what is with the producer is still waited for."""
        return not self._in_flight

    @property
    def unacknowledged(self) -> Unacknowledged:
        """See `Runner`."""
        left = [held.bytes for held in (*self._partitions.values(), *self._given_up) if held.bytes]
        return Unacknowledged(len(left), sum(left))

    @property
    def waiting(self) -> float:
        """See `Runner`."""
        return self._in_flight.waiting

    @property
    def oldest(self) -> float:
        """See `Runner`."""
        return self._in_flight.oldest

    async def close(self) -> None:
        """See `Runner`."""
        self._stopped = True
        for source in list(self._partitions):
            self._give_up(source)
        await self._tasks.close()
        await self._consumer.close(timeout=1.0)

    # Reports.

    def moved(self) -> Sequence[Moved]:
        """See `Runner`."""
        moves = []
        for held in self._moved:
            found = held.assignment.found
            epoch, topic_id = held.progress.mark
            detail: dict[str, Any] = {
                **found.detail,
                "epoch": epoch,
                "topic_id": topic_id,
                "target_offset": held.target_offset,
            }
            moves.append(
                Moved(self.route.name, found.source, held.assignment.generation, held.progress.position, detail)
            )
        self._moved.clear()
        return moves

    def gauges(self) -> Mapping[str, SourceGauges | None]:
        """See `Runner`."""
        changed: dict[str, SourceGauges | None] = {}
        for name in self._touched:
            held = self._partitions.get(name)
            changed[name] = None if held is None else self._gauge(held)
        self._touched = {name for name, gauge in changed.items() if gauge is not None and gauge.lag}
        return changed

    def _gauge(self, held: _Partition) -> SourceGauges:
        consumer = held.consumer
        end = -1 if consumer is None else consumer.log_end
        lag = max(0, end - held.progress.position) if end >= 0 else None
        behind = time.time() - held.newest_ms / 1000 if lag and held.newest_ms >= 0 else 0.0
        label = held.assignment.found.display_name
        return SourceGauges(label, 0, held.progress.position, lag, max(0.0, behind))


def _span(held: _Partition, end: int, epoch: int) -> Span:
    """Note that the partition was read up to `end`, by a leader of this epoch."""
    span = held.progress.read(end)
    span.mark = epoch, held.topic_id
    return span


def _shown(topic_id: UUID | None) -> str:
    return "" if topic_id is None else str(topic_id)
