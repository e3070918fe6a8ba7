"""Line runner: the runner of routes of lines. Bytes of sources go through slabs and batches to positions, in order."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, Self

from ingestd.daemon.arena import PAGE_BYTES, ArenaShare, pages_for
from ingestd.daemon.control import Unacknowledged
from ingestd.daemon.encode import EncodeJob, EncodingFailed
from ingestd.daemon.lane import LaneQueue, OpenSource, Slab
from ingestd.daemon.outbox import Outbox
from ingestd.daemon.progress import Progress
from ingestd.daemon.source import Lane
from ingestd.daemon.source_reports import SourceReports
from ingestd.daemon.statistics import READ
from ingestd.errors import IngestdError
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ingestd.client.metadata import MetadataSource
    from ingestd.daemon.arena import Arena
    from ingestd.daemon.control import Moved
    from ingestd.daemon.encode import EncodeStage
    from ingestd.daemon.outbox import BatchSender
    from ingestd.daemon.progress import Span
    from ingestd.daemon.runner import RunnerNews, Workplace
    from ingestd.daemon.source import Assignment, EncodedAgain, Encoder, Encoding, LineRoute, Opener, Piece
    from ingestd.daemon.statistics import RouteCounters, SourceGauges

__all__ = ["LineRunner"]

LEAST_READ: Final = PAGE_BYTES
"""Bytes. A slab with less room than this is full: no source is asked to read into it."""

SLABS_AT_ONCE: Final = 8
"""If a route's share of the arena has no room for this many large slabs and their batches, its slabs are small ones."""

SLABS_PER_PUMP: Final = 4
"""Slabs that are filled before sockets get their turn."""


class LineRunner:
    """Moves the bytes of one route's sources in this worker.

    Invariants
        Slabs of a lane are sent in the order in which they were read, whoever encoded them.
        A span is acknowledged when every batch made of its slab is; then, and in order, the position moves.
        Reading stops when the route's share of the arena is in use; nothing is dropped.
        If the topic now has fewer partitions, what is read comes after everything that was read for more.
    """

    def __init__(
        self,
        route: LineRoute,
        number: int,
        *,
        arena: Arena,
        share: int,
        encoding: EncodeStage,
        metadata: MetadataSource,
        producer: BatchSender,
        counters: RouteCounters,
        news: RunnerNews,
    ) -> None:
        self.route = route
        self._number = number
        self._pages = ArenaShare(arena, share)
        plenty = share >= SLABS_AT_ONCE * 2 * pages_for(route.slab_bytes)
        self._slab_bytes = route.slab_bytes if plenty else route.batch_bytes
        self._encoding = encoding
        self._metadata = metadata
        self._outbox = Outbox(
            route.topic,
            self._pages,
            producer,
            counters,
            settled=self._settle,
            encode_again=self._encode_again,
            idle=self._close_given_up,
            failed=self.stop,
        )
        self._counters = counters
        self._news = news
        self._opener: Opener = route.opener(self._ready, self._changed)
        self._sources: dict[str, OpenSource] = {}
        self._given_up: list[OpenSource] = []
        """Sources that are given up but not closed, because batches of them may be with the producer: their positions
        move until those are done."""
        self._unplaced: set[OpenSource] = set()
        """Sources that were opened for another number of partitions. Their lane may be another one now."""
        self._log = get_logger("ingestd.worker").bind(route=route.name)
        self._reports = SourceReports(route.name)
        self._lanes: dict[Lane, LaneQueue] = {}
        self._waiting: deque[LaneQueue] = deque()
        """Lanes that are due and wait for an encoder, for pages or for partitions, the longest waiting first."""
        self._interrupted: set[LaneQueue] = set()
        """Lanes whose first slab is encoded in part, and waits for another output run."""
        self._loop = asyncio.get_running_loop()
        self._encoding_now = 0
        self._under_way = 0
        """Slabs that were read and are not acknowledged completely."""
        self._spread = 0
        """The number of partitions for which the slabs under way were read."""
        self._regrouping = False
        """Whether reading waits until everything that was read for more partitions is acknowledged."""
        self._again: Encoder | None = None
        self._sticky = 0
        self._stopped = False
        self._draining = False
        self._starved = False

    @classmethod
    def at(cls, route: LineRoute, workplace: Workplace) -> Self:
        """The runner of `route` in a worker."""
        cluster = workplace.clusters[route.cluster]
        cluster.count_retries(route.topic, workplace.counters)
        workplace.encoding.add(workplace.number, route.encoder)
        return cls(
            route,
            workplace.number,
            arena=workplace.arena,
            share=workplace.share,
            encoding=workplace.encoding,
            metadata=cluster.metadata,
            producer=cluster.producer,
            counters=workplace.counters,
            news=workplace.news,
        )

    # Sources come and go.

    def assign(self, assignment: Assignment) -> None:
        """Open a source and follow it. If it is open under an older generation, that one is given up first."""
        if self._stopped or self._draining:
            return
        self._give_up(assignment.found.source)
        partitions = self._partitions()
        held = OpenSource(assignment, Progress(assignment.found.position), self._lane_of(assignment, partitions))
        held.lane.sources += 1
        if not partitions:
            self._unplaced.add(held)
        self._sources[assignment.found.source] = held
        self._reports.touch(held)
        self._open(held)

    def _lane_of(self, assignment: Assignment, partitions: int) -> LaneQueue:
        lane = self.route.lane(assignment.found, partitions)
        return self._lanes.setdefault(lane, LaneQueue(lane))

    def _place(self, partitions: int) -> None:
        """Move sources that were opened for another number of partitions to their lanes. None has a slab under way."""
        for held in self._unplaced:
            queue = self._lane_of(held.assignment, partitions)
            if queue is held.lane:
                continue
            queued = held.queued
            if queued:
                held.lane.ready.remove(held)
                held.queued = False
            held.lane.sources -= 1
            self._drop_unused(held.lane)
            held.lane = queue
            queue.sources += 1
            if queued:
                self._queue(held)
        self._unplaced.clear()

    def _drop_unused(self, queue: LaneQueue) -> None:
        if not queue.sources and not queue.slabs and self._lanes.get(queue.lane) is queue:
            if queue.timer is not None:
                queue.timer.cancel()
            del self._lanes[queue.lane]

    def revoke(self, source: str) -> None:
        """Close a source. What of it is not with the producer yet counts as not read, and is not sent."""
        self._give_up(source)

    def holds(self, sources: Collection[str]) -> bool:
        """See `Runner`."""
        return any(held.assignment.found.source in sources for held in self._given_up)

    def conclude(self, source: str) -> None:
        """Nothing more is expected of a source. If it is not open yet, it is opened as concluded."""
        held = self._sources.get(source)
        if held is None:
            return
        held.assignment = held.assignment._replace(found=held.assignment.found._replace(last=True))
        if held.source is not None:
            held.source.conclude()
            self._check_end(held)  # it may be finished at once

    def _changed(self, source: str) -> None:
        held = self._sources.get(source)
        if held is not None:
            self._note_move(held)

    def _open(self, held: OpenSource) -> None:
        held.retry = None
        try:
            held.source = self._opener.open(held.assignment)
        except OSError as error:
            self._trouble(held, error)
            return
        self._check_end(held)  # a file that is gone ends at once, though nothing can be read in an outage
        self._queue(held)

    def _trouble(self, held: OpenSource, error: OSError) -> None:
        self._counters.count_error(READ)
        self._news.troubled(held.assignment, _in_words(error))
        again = self._open if held.source is None else self._queue
        held.retry = self._loop.call_later(held.backoff.next_delay(), again, held)

    def _give_up(self, source: str) -> None:
        held = self._sources.pop(source, None)
        if held is None:
            return
        self._unplaced.discard(held)
        held.closed = True
        if held.retry is not None:
            held.retry.cancel()
        if held.queued:
            held.lane.ready.remove(held)
            held.queued = False
        held.lane.sources -= 1
        self._drop_unused(held.lane)
        if held.progress.settled or not self._outbox.in_flight:
            self._close_source(held)
        else:
            self._given_up.append(held)

    def _close_source(self, held: OpenSource) -> None:
        """Close a source whose position can not move any more."""
        self._reports.drop(held)
        if held.source is not None:
            held.source.close()

    def _close_given_up(self) -> None:
        if not self._given_up:
            return
        given_up, self._given_up = self._given_up, []
        for held in given_up:
            self._close_source(held)
        self._news.settled()

    # When to read.

    def _ready(self, source: str) -> None:
        held = self._sources.get(source)
        if held is not None and held.source is not None and not held.queued and held.retry is None:
            self._queue(held)

    def _queue(self, held: OpenSource) -> None:
        held.retry = None
        if held.queued or held.closed or self._stopped or self._draining:
            return
        queue = held.lane
        held.queued = True
        queue.ready.append(held)
        if queue.due:
            return
        source = held.source
        if source is not None and (source.unread >= self._slab_bytes or source.finished is not None):
            self._make_due(queue)
        elif queue.timer is None:
            queue.timer = self._loop.call_later(self.route.linger, self._make_due, queue)

    def _make_due(self, queue: LaneQueue) -> None:
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        if not queue.due:
            queue.due = True
            self._loop.call_soon(self._pump, queue)

    def leased(self, until: float) -> None:
        """See `Runner`. Files are this host's alone, so no finder of lines asks for this."""

    def kick(self) -> None:
        """Go on reading where it stopped because pages or metadata were missing."""
        self._starved = False
        self._resume()

    def _resume(self) -> None:
        """Let lanes that wait go on, in turn. Those with a half encoded slab come first: only they give pages back."""
        interrupted, self._interrupted = self._interrupted, set()
        for queue in interrupted:
            self._advance(queue)
        for _ in range(len(self._waiting)):
            if self._stopped or self._starved or self._encoding_now >= self._encoding.capacity:
                return
            queue = self._waiting.popleft()
            queue.waiting = False
            self._pump(queue)

    def _wait(self, queue: LaneQueue) -> None:
        if not queue.waiting:
            queue.waiting = True
            self._waiting.append(queue)

    @property
    def starved(self) -> bool:
        """Whether reading waits for pages."""
        return self._starved

    # Reading.

    def _partitions(self) -> int:
        topic = self._metadata.snapshot.topics.get(self.route.topic)
        return 0 if topic is None else len(topic.partitions)

    def _pump(self, queue: LaneQueue) -> None:
        """Fill slabs from sources that are ready, as long as there is room and an encoder is free."""
        for _ in range(SLABS_PER_PUMP):
            if self._stopped or not queue.due:
                return
            if not queue.ready:
                queue.due = False
                if self._draining:
                    self._news.settled()
                return
            # While starved nothing more is read: pages that come back are for slabs that are half encoded.
            if self.starved or self._encoding_now >= self._encoding.capacity:
                self._wait(queue)
                return
            partitions = self._partitions()
            if partitions == 0:
                self._metadata.wanted([self.route.topic], "no partitions known")
                self._wait(queue)
                return
            if not self._gathered(partitions):
                self._wait(queue)
                return
            if self._unplaced:
                self._place(partitions)
                continue
            slab = self._fill(queue, partitions)
            if slab is None:
                if self._starved:
                    self._wait(queue)
                    return
                continue
            self._encode(slab)
        self._loop.call_soon(self._pump, queue)

    def _gathered(self, partitions: int) -> bool:
        """Whether reading may go on. It may not while slabs are under way for more partitions than the topic has now.

        The topic was deleted and made again. What is read now must not overtake batches that need a new partition.
        """
        if partitions >= self._spread:
            self._spread = partitions
            self._regrouping = False
            return True
        if not self._regrouping:
            self._regrouping = True
            self._log.warning(
                "the topic has fewer partitions than before; what was under way to others goes to those that are left",
                topic=self.route.topic,
                before=self._spread,
                now=partitions,
            )
        if self._under_way:
            return False
        self._regrouping = False
        self._spread = partitions
        self._unplaced.update(self._sources.values())
        return True

    def _fill(self, queue: LaneQueue, partitions: int) -> Slab | None:
        size = self._slab_bytes
        runs = self._pages.begin(size, size + LEAST_READ)
        if runs is None:
            self._starved = True
            return None
        raw, output = runs
        view = self._pages.view(raw, size)
        parts: list[tuple[OpenSource, Span]] = []
        filled = 0
        while queue.ready and size - filled >= LEAST_READ:
            held = queue.ready[0]
            piece = self._read(held, view[filled:])
            if piece is None or piece.exhausted:
                self._reports.touch(held)
                queue.ready.popleft()
                held.queued = False
            if piece is None:
                self._check_end(held)
                continue
            filled += piece.length
            parts.append((held, held.progress.read(piece.end)))
            self._counters.bytes_read += piece.end - piece.start
            if piece.lines_shortened:
                self._note_shortened(held, piece.lines_shortened)
        if not filled:
            self._pages.put_back(raw, output)
            return None
        queue.ready.rotate(-1)
        raw = self._pages.trim(raw, filled)
        output = self._pages.trim(output, filled + LEAST_READ)
        target = self._target(queue.lane, partitions)
        slab = Slab(queue, raw, filled, parts, int(time.time() * 1000), target, partitions)
        slab.output = output
        queue.slabs.append(slab)
        self._under_way += 1
        return slab

    def _note_shortened(self, held: OpenSource, lines: int) -> None:
        """Logged once: a program that writes such lines writes many."""
        if self.route.cuts_lines and not self._counters.lines_shortened:
            remedy = 'raise `max_line_bytes`; `long_lines = "split"` sends all of them, in pieces'
            file = held.assignment.found.display_name
            self._log.warning("lines are longer than `max_line_bytes`, and cut off there", file=file, remedy=remedy)
        self._counters.lines_shortened += lines

    def _read(self, held: OpenSource, into: memoryview) -> Piece | None:
        assert held.source is not None
        try:
            piece = held.source.read(into)
        except OSError as error:
            self._trouble(held, error)
            return None
        held.backoff.reset()
        return piece

    def _target(self, lane: Lane, partitions: int) -> Lane:
        if lane.partition is not None:
            return lane
        topic = self._metadata.snapshot.topics[self.route.topic]
        self._sticky += 1
        for step in range(partitions):
            candidate = topic.partitions[(self._sticky + step) % partitions]
            if candidate.leader >= 0:
                return Lane(candidate.partition, lane.key)
        return Lane(self._sticky % partitions, lane.key)

    # Encoding.

    def _encode(self, slab: Slab) -> None:
        assert slab.output is not None
        self._encoding_now += 1
        self._encoding.submit(
            EncodeJob(
                self._number,
                slab.raw,
                slab.offset,
                slab.length - slab.offset,
                slab.output,
                slab.target,
                slab.partitions,
                slab.timestamp_ms,
                lambda result: self._encoded(slab, result),
            )
        )

    def _encoded(self, slab: Slab, result: Encoding | EncodingFailed) -> None:
        self._encoding_now -= 1
        if isinstance(result, EncodingFailed):
            self._abandon(slab)
            self.stop(f"{slab.origin}: {result}")
            return
        if self._stopped:
            self._abandon(slab)
            return
        slab.encoding = result
        self._advance(slab.lane)
        self._resume()

    # Sending, in order of reading.

    def _advance(self, queue: LaneQueue) -> None:
        """Send the slabs at the head of a lane that are encoded."""
        while queue.slabs and not self._stopped:
            slab = queue.slabs[0]
            if slab.encoding is not None and all(held.closed for held, _ in slab.parts):
                queue.slabs.popleft()
                self._abandon(slab)
                self._passed()
                continue
            if slab.encoding is not None:
                failure = self._outbox.send(slab, slab.encoding)
                if failure is not None:
                    self.stop(failure)
                if not queue.slabs:
                    return  # stopped meanwhile
            if slab.sent:
                queue.slabs.popleft()
                self._pages.release(slab.raw)
                if not slab.unacknowledged:
                    self._settle(slab)
                continue
            if slab.output is None:
                # The output run was full before all raw bytes were encoded. Only the head of a lane asks for another
                # run: the batches that it has sent already will come back as free pages.
                slab.output = self._pages.go_on(slab.length - slab.offset + LEAST_READ)
                if slab.output is None:
                    self._starved = True
                    self._interrupted.add(queue)
                    return
                self._encode(slab)
            return
        self._drop_unused(queue)

    def _encode_again(self, slab: Slab, partition: int, batch: memoryview) -> Sequence[EncodedAgain]:
        """New batches for a batch whose partition was missing for too long; none if its lane has no other partition."""
        if self._stopped:
            return ()
        partitions = self._partitions()
        lane = Lane(partition)
        if partition >= partitions > 0:
            source, _ = slab.parts[0]
            lane = self._target(self.route.lane(source.assignment.found, partitions), partitions)
            if lane.partition is not None and lane.partition >= partitions:
                return ()
        if self._again is None:
            self._again = self.route.encoder()
        try:
            return self._again.encode_again(batch, lane=lane, partitions=partitions, timestamp_ms=slab.timestamp_ms)
        except IngestdError as error:
            self._log.error("a batch can not be encoded again", error=str(error))
            return ()

    def _passed(self) -> None:
        """A slab is no longer under way."""
        self._under_way -= 1
        if self._regrouping and not self._under_way:
            self._loop.call_soon(self.kick)

    def _settle(self, slab: Slab) -> None:
        self._passed()
        for held, span in slab.parts:
            before = held.progress.position
            if held.progress.acknowledge(span):
                self._counters.bytes_acknowledged += held.progress.position - before
                self._note_move(held)
                self._check_end(held)
        if self._draining:
            self._news.settled()

    def _abandon(self, slab: Slab) -> None:
        self._pages.release(slab.raw)
        if slab.output is not None:
            self._pages.release(slab.output)

    # The end.

    def _check_end(self, held: OpenSource) -> None:
        source = held.source
        if held.closed or held.queued or source is None or source.finished is None or not held.progress.settled:
            return
        if source.unread:
            self._queue(held)
            return
        self._note_move(held)  # what it knows at its end goes into the state, too
        self._news.ended(held.assignment, source.finished)
        self._give_up(held.assignment.found.source)

    def stop(self, reason: str) -> None:
        """Stop reading and sending: something can not be delivered. What the producer has still ends, and counts."""
        if self._stopped:
            return
        self._stopped = True
        self._news.failed(self.route, reason)
        for queue in self._lanes.values():
            if queue.timer is not None:
                queue.timer.cancel()
            queue.ready.clear()
            slabs, queue.slabs = queue.slabs, deque()
            for slab in slabs:
                if slab.output is None or slab.encoding is not None:
                    self._abandon(slab)  # else it is with an encoder, and ends when that is done
        self._interrupted.clear()
        for held in list(self._sources.values()):
            held.queued = False
            self._give_up(held.assignment.found.source)

    def drain(self) -> None:
        """Stop reading, but for what nobody can read later: what there is now of deleted files."""
        self._draining = True
        self._opener.drain()
        for queue in self._lanes.values():
            if queue.timer is not None:
                queue.timer.cancel()
                queue.timer = None
            for held in queue.ready:
                held.queued = False
            queue.ready.clear()
        if self._stopped or not self._partitions():
            return
        for held in self._sources.values():
            if held.source is not None and held.source.deleted and held.source.unread:
                held.queued = True
                held.lane.ready.append(held)
                self._make_due(held.lane)

    @property
    def settled(self) -> bool:
        """Whether everything that was read is acknowledged or given up. After `drain`: whether it is drained."""
        if self._given_up or (self._draining and any(queue.ready for queue in self._lanes.values())):
            return False
        return all(held.progress.settled for held in self._sources.values())

    @property
    def unacknowledged(self) -> Unacknowledged:
        """How many sources have bytes that were read and are not acknowledged, and how many bytes."""
        left: list[int] = []
        deleted: Counter[str] = Counter()
        for held in self._sources.values():
            if held.source is not None and held.source.deleted:
                deleted[held.source.deleted] += held.progress.unacknowledged + held.source.unread
            elif not held.progress.settled:
                left.append(held.progress.unacknowledged)
        return Unacknowledged(len(left), sum(left), +deleted)

    @property
    def waiting(self) -> float:
        """Seconds since anything was acknowledged, while batches are with the producer; 0 while none is."""
        return self._outbox.in_flight.waiting

    @property
    def oldest(self) -> float:
        """Seconds since the oldest batch that is with the producer was first sent; 0 while none is."""
        return self._outbox.in_flight.oldest

    async def close(self) -> None:
        """See `Runner`."""
        self._stopped = True
        for queue in self._lanes.values():
            if queue.timer is not None:
                queue.timer.cancel()
        for source in list(self._sources):
            self._give_up(source)
        self._close_given_up()
        self._opener.close()

    # Reports.

    def moved(self) -> list[Moved]:
        """Positions that moved, and details that changed, since the last call."""
        return self._reports.moved()

    def gauges(self) -> dict[str, SourceGauges | None]:
        """The sources that changed since the last call, as they are now; None for one that is no longer open."""
        for queue in self._lanes.values():
            for held in queue.ready:
                self._reports.touch(held)
        return self._reports.gauges(self._sources)

    def _note_move(self, held: OpenSource) -> None:
        if self._reports.note_move(held):
            self._news.moved()


def _in_words(error: OSError) -> str:
    """Why something can not be read: without a number, and with the path if the error has one."""
    said = error.strerror or str(error)
    if not isinstance(error.filename, str):
        return said
    return f"{os.fsencode(error.filename).decode(errors='backslashreplace')}: {said}"
