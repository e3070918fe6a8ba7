"""MirrorRunner: one mirror in one worker. Batches go from the source's leaders to the target's, in order, as they are.

    PartitionConsumer.take ── whole batches in the memory that they were received in ── header patched ── AsyncProducer

What passes as it is, is not copied on the way, but for small parts of large answers. An answer's memory is free once
all its batches are acknowledged.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Final

from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.events import NoEvents
from ingestd.consumer.settings import ConsumerSettings
from ingestd.daemon.arena import PAGE_BYTES
from ingestd.daemon.control import Unacknowledged
from ingestd.daemon.source import End
from ingestd.daemon.statistics import READ
from ingestd.errors import IngestdError
from ingestd.mirror.answers import Answers
from ingestd.mirror.lease import Lease
from ingestd.mirror.origins import OwnProducers, SourceProducers
from ingestd.mirror.pace import Pace
from ingestd.mirror.partition import CopiedPartition
from ingestd.mirror.sender import Sender
from ingestd.mirror.trail import Trail
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from ingestd.daemon.control import Moved
    from ingestd.daemon.progress import Span
    from ingestd.daemon.runner import Workplace
    from ingestd.daemon.source import Assignment, Loss
    from ingestd.daemon.statistics import SourceGauges
    from ingestd.mirror.route import MirrorRoute

__all__ = ["MirrorRunner"]

LARGEST_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of one answer, if the mirror's share of the memory has room for several."""

LEAST_ANSWER: Final = 64 * 1024
"""Bytes of one answer, however low the bandwidth is. Otherwise it is at most what may be sent in a second."""

LEAST_MEMORY: Final = 1024 * 1024


class _Reading(NoEvents):
    """Hears from the consumer where reading went on elsewhere than it was told, and how its brokers are."""

    def __init__(
        self,
        skipped: Callable[[str, int, int], None],
        answered: Callable[[str], None],
        silent: Callable[[str], None],
    ) -> None:
        """`skipped` gets the source's name, the offset that was asked for, and where reading goes on.

        `answered` gets a source's name after each answer about it, `silent` after each attempt to get one that failed.
        """
        self._skipped = skipped
        self._answered = answered
        self._silent = silent

    def answered(self, topic: str, partition: int, next_offset: int, end: int) -> None:  # noqa: ARG002 - the event's signature
        """See `ConsumerEvents`."""
        self._answered(str(TopicPartition(topic, partition)))

    def retried(self, topic: str, partition: int, error: IngestdError) -> None:  # noqa: ARG002 - the event's signature
        """See `ConsumerEvents`."""
        self._silent(str(TopicPartition(topic, partition)))

    def moved(self, topic: str, partition: int, asked: int, offset: int) -> None:
        """See `ConsumerEvents`."""
        self._skipped(str(TopicPartition(topic, partition)), asked, offset)


class MirrorRunner:
    """See `ingestd.daemon.runner.Runner`, and `CopyNews`, for its stages.

    Invariants
        A partition's batches are sent in the order of its log. Its position moves over a unit of them once all that
        was made of it is acknowledged.
        What was read and is not acknowledged has at most this mirror's share of the worker's memory, and an answer.
    """

    def __init__(self, route: MirrorRoute, workplace: Workplace) -> None:
        self.route = route
        self._news = workplace.news
        self._counters = workplace.counters
        self._target = workplace.clusters[route.target]
        half = max(LEAST_MEMORY, workplace.share * PAGE_BYTES // 2)
        at_once = math.inf if route.bandwidth is None else route.bandwidth / workplace.workers
        self._consumer = Consumer(
            workplace.clusters[route.source].client,
            ConsumerSettings(
                isolation="read_committed",
                out_of_range="earliest",
                truncation="rewind",
                recreation="earliest",
                check_crcs=False,  # done here, once
                prefetch_bytes=half,
                fetch_max_bytes=int(min(LARGEST_ANSWER, half, max(LEAST_ANSWER, at_once))),
                metadata_timeout=60.0,
            ),
            events=_Reading(self._skipped, self._answered, self._silent),
        )
        self._lease = Lease(self._suspend, lambda held: self.assign(held.again()))
        producers = OwnProducers(self._target, workplace.ask)
        skips = route.on_undeliverable == "skip"
        self._sender = Sender(self, producers, workplace.counters, half, skips=skips)
        origins = SourceProducers(workplace.ask)
        pace = None if route.bandwidth is None else _pace(route.bandwidth, workplace)
        self._answers = Answers(route, workplace.counters, origins, pace, self._lease, self._sender, self)
        self._partitions: dict[str, CopiedPartition] = {}
        self._given_up: set[CopiedPartition] = set()
        """Closed, with batches that are still with the producer. Their positions move until those are done."""
        self._moved: dict[CopiedPartition, None] = {}
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
        self._lease.forget(found.source)
        held = CopiedPartition(assignment, Trail(found.detail["target_offset"]) if self.route.groups else None)
        self._partitions[found.source] = held
        self._touched.add(found.source)
        held.reading = self._tasks.start(self._copy(held), f"copy {found.source}")

    def revoke(self, source: str) -> None:
        """See `Runner`."""
        self._give_up(source)
        if self._lease.forget(source):
            self._touched.add(source)

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
        held.stop_reading()
        if held.bytes:
            self._given_up.add(held)

    def leased(self, until: float) -> None:
        """See `Runner`."""
        self._lease.renew(until)

    def _suspend(self) -> None:
        """The lease is over: what was never sent is not sent, and counts as not read."""
        for held in list(self._partitions.values()):
            self._give_up(held.name)
            held.unanswered()
            self._lease.suspend(held)
            self._sender.recall(held)

    # Reading.

    async def _copy(self, held: CopiedPartition) -> None:
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
                self._unanswered(held)
                held.gap = None  # what was fetched before it is dropped, and fetched again
            await asyncio.sleep(held.backoff.next_delay())

    async def _read(self, held: CopiedPartition) -> None:
        self._target.count_retries(held.target_topic, self._counters)
        found = held.assignment.found
        start = OffsetAndMetadata(held.read_to, held.epoch)
        held.consumer = await self._consumer.consume_partition(
            found.detail["topic"], held.partition, start, found.until
        )
        while (fetched := await held.consumer.take()) is not None:
            held.backoff.reset()
            held.topic_id = _shown(held.consumer.standing.topic_id)
            await self._answers.copy(held, fetched)
            self._pass(held, held.pass_gap())
            self._pass(held, held.pass_hidden())

    def _finish(self, held: CopiedPartition) -> None:
        """Everything up to the end that was asked for was read. What is left before it is for no reader."""
        found = held.assignment.found
        assert found.until is not None, "without an end reading goes on"
        held.finished = End("end", found.display_name, found.until, found.until)
        if held.progress.position < found.until:
            self.acknowledge(held, held.read(found.until, held.epoch))
        else:
            self._check_end(held)

    def _pass(self, held: CopiedPartition, span: Span | None) -> None:
        """Nothing of a span is to be copied."""
        if span is not None:
            self.acknowledge(held, span)

    # What the consumer says.

    def _silent(self, name: str) -> None:
        """No broker answered for a partition."""
        held = self._partitions.get(name)
        if held is not None:
            self._unanswered(held)

    def _unanswered(self, held: CopiedPartition) -> None:
        held.unanswered()
        self._touched.add(held.name)

    def _answered(self, name: str) -> None:
        """A broker answered for a partition."""
        held = self._partitions.get(name)
        if held is None or held.consumer is None:
            return
        held.answered()
        self._touched.add(name)
        self._pass(held, held.pass_hidden())

    def _skipped(self, name: str, asked: int, offset: int) -> None:
        """What was asked for is not in the log: reading goes on at `offset`."""
        held = self._partitions.get(name)
        loss = None if held is None else held.skip(asked, offset)
        if held is not None and loss is not None:
            self.lost(held, loss)
            self._pass(held, held.pass_gap())

    # What the stages say.

    def acknowledge(self, held: CopiedPartition, span: Span) -> None:
        """See `CopyNews`."""
        if held.progress.acknowledge(span):
            if not self._moved:
                self._news.moved()
            self._moved[held] = None
            self._touched.add(held.name)
        if self._draining:
            self._news.settled()
        if held.finished is not None:
            self._check_end(held)

    def _check_end(self, held: CopiedPartition) -> None:
        if held.finished is not None and held.progress.settled and not held.closed:
            self._news.ended(held.assignment, held.finished)
            self._give_up(held.name)

    def released(self, held: CopiedPartition) -> None:
        """See `CopyNews`."""
        self._given_up.discard(held)
        self._news.settled()
        if held.recalled:
            asyncio.get_running_loop().call_soon(self._lease.resume, held)  # its position moves meanwhile

    def lost(self, held: CopiedPartition, loss: Loss) -> None:
        """See `CopyNews`."""
        self._news.lost(held.assignment, loss)

    def stop(self, reason: str) -> None:
        """See `CopyNews`. Reading stops. What the producer has still ends, and counts."""
        if self._stopped:
            return
        self._stopped = True
        self._news.failed(self.route, reason)
        self._lease.close()
        for source in list(self._partitions):
            self._give_up(source)

    def _crashed(self, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler({"message": "copying failed", "exception": error})

    # The end.

    def drain(self) -> None:
        """See `Runner`."""
        self._draining = True
        for held in self._partitions.values():
            held.stop_reading()

    def kick(self) -> None:
        """See `Runner`. Nothing here waits for pages, and metadata wakes who waits for it."""

    @property
    def starved(self) -> bool:
        """See `Runner`."""
        return False

    @property
    def settled(self) -> bool:
        """See `Runner`. Of partitions that were given up, what is with the producer is still waited for."""
        return not self._sender.in_flight

    @property
    def unacknowledged(self) -> Unacknowledged:
        """See `Runner`."""
        left = [held.bytes for held in (*self._partitions.values(), *self._given_up) if held.bytes]
        return Unacknowledged(len(left), sum(left))

    @property
    def waiting(self) -> float:
        """See `Runner`."""
        return self._sender.in_flight.waiting

    @property
    def oldest(self) -> float:
        """See `Runner`."""
        return self._sender.in_flight.oldest

    async def close(self) -> None:
        """See `Runner`."""
        self._stopped = True
        self._lease.close()
        for source in list(self._partitions):
            self._give_up(source)
        await self._tasks.close()
        await self._consumer.close(timeout=1.0)

    # Reports.

    def moved(self) -> Sequence[Moved]:
        """See `Runner`."""
        moves = [held.moved() for held in self._moved]
        self._moved.clear()
        return moves

    def gauges(self) -> Mapping[str, SourceGauges | None]:
        """See `Runner`."""
        changed: dict[str, SourceGauges | None] = {}
        for name in self._touched:
            held = self._partitions.get(name) or self._lease.suspended(name)
            changed[name] = None if held is None else held.gauge()
        self._touched = {
            name for name, gauge in changed.items() if gauge is not None and (gauge.lag or gauge.lag_seconds)
        }
        return changed


def _pace(bandwidth: int, workplace: Workplace) -> Pace:
    """What a host may send in a second goes to the workers that have something to send."""
    publish = partial(workplace.arena.publish_sent, workplace.number)
    return Pace(bandwidth, publish, partial(workplace.encoding.peers_sent, workplace.number))


def _shown(topic_id: UUID | None) -> str:
    return "" if topic_id is None else str(topic_id)
