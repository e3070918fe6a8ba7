"""CopiedPartition: a source partition that a worker copies: how far it was read and acknowledged, and its position."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ingestd.daemon.control import Moved
from ingestd.daemon.progress import Progress
from ingestd.daemon.source import Loss
from ingestd.daemon.statistics import SourceGauges
from ingestd.mirror.losses import RETENTION
from ingestd.retry import Backoff

if TYPE_CHECKING:
    import asyncio

    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.daemon.progress import Span
    from ingestd.daemon.source import Assignment, End
    from ingestd.mirror.trail import Trail

__all__ = ["CopiedPartition"]


@dataclass(slots=True, eq=False)
class CopiedPartition:
    """One for each time that a source partition is opened. The runner's stages share it, on the worker's event loop.

    progress: its marks are leader epochs and topic ids. read_to, epoch: the next offset to read, and the leader epoch
    of the record before it. topic_id: of the topic that is read, empty if its cluster has none. target_offset: behind
    the last record that the target has acknowledged. bytes: sent and not acknowledged.

    Invariant
        What has nothing to copy is passed only once all that was fetched before it is sent.
    """

    assignment: Assignment
    trail: Trail | None
    """Where its records went, if offsets of groups are translated."""
    progress: Progress = field(init=False)
    read_to: int = field(init=False)
    epoch: int = field(init=False)
    topic_id: str = field(init=False)
    target_topic: str = field(init=False)
    partition: int = field(init=False)
    target_offset: int = field(init=False)
    bytes: int = 0
    silent_since: float | None = field(default_factory=time.monotonic)
    """Since when no broker of the source has answered for it, of the monotonic clock; None while they do."""
    newest_ms: int = -1
    """The time of the newest record that was acknowledged, in ms since 1970 UTC."""
    reading: asyncio.Task[None] | None = None
    consumer: PartitionConsumer | None = None
    sending: bool = False
    """Whether batches of an answer wait to be sent."""
    gap: tuple[int, int] | None = None
    """The first offset that is no longer at the source, and the first behind it that is."""
    through: frozenset[str] = frozenset()
    """The clusters that what is sent may have been on before it was at the source."""
    drained: asyncio.Event | None = None
    """Is set once nothing is with the producer, where that is waited for."""
    finished: End | None = None
    closed: bool = False
    recalled: bool = False
    """Whether what was never sent of it was taken back from the producer."""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=0.2, maximum=30.0))

    def __post_init__(self) -> None:
        found = self.assignment.found
        detail = found.detail
        self.read_to, self.epoch, self.topic_id = found.position, detail["epoch"], detail["topic_id"]
        self.target_topic, self.partition = detail["target_topic"], detail["partition"]
        self.target_offset = detail["target_offset"]
        self.progress = Progress(found.position, (self.epoch, self.topic_id))

    @property
    def name(self) -> str:
        """The source's name."""
        return self.assignment.found.source

    def stop_reading(self) -> None:
        """End its task and its consumer."""
        if self.reading is not None:
            self.reading.cancel()
        if self.consumer is not None:
            self.consumer.abandon()

    def read(self, end: int, epoch: int) -> Span:
        """Note that it was read up to `end`, by a leader of this epoch."""
        self.read_to, self.epoch = end, epoch
        span = self.progress.read(end)
        span.mark = epoch, self.topic_id
        return span

    # What has nothing to copy.

    def skip(self, asked: int, offset: int) -> Loss | None:
        """The source has nothing from `asked` to `offset`, where reading goes on. Returns what is lost."""
        if offset <= asked:  # shorter than it was: another log, not an older one
            return None
        self.gap = (asked, offset)
        label = self.assignment.found.display_name
        return Loss(label, RETENTION, asked, offset - asked, exact=True, unit="offsets")

    def pass_gap(self) -> Span | None:
        """Read over what is lost, once all that was fetched before it is sent."""
        if self.gap is None or self.sending or self.closed:  # closed: what was taken may not have been sent
            return None
        if self.consumer is None or self.consumer.reached < self.gap[0]:
            return None
        end = self.gap[1]
        self.gap = None
        return self.read(end, -1) if end > self.read_to else None

    def pass_hidden(self) -> Span | None:
        """Read over markers and aborted records, once all that was fetched before them is sent and nothing follows."""
        waits = self.sending or self.gap is not None or self.finished is not None
        if waits or self.closed or self.consumer is None:  # closed: what was taken may not have been sent
            return None
        reached = self.consumer.reached
        return self.read(reached, self.consumer.fetch_position.leader_epoch) if reached > self.read_to else None

    # How its brokers are.

    def answered(self) -> None:
        """A broker of the source answered for it."""
        self.silent_since = None

    def unanswered(self) -> None:
        """No broker of the source answers for it."""
        if self.silent_since is None:
            self.silent_since = time.monotonic()

    @property
    def silent(self) -> float:
        """For how many seconds no broker of the source has answered for it; 0 while they do."""
        return 0.0 if self.silent_since is None else time.monotonic() - self.silent_since

    # Reports.

    def _detail(self) -> dict[str, Any]:
        """What is stored with its position now."""
        epoch, topic_id = self.progress.mark
        now = {"epoch": epoch, "topic_id": topic_id, "target_offset": self.target_offset}
        return {**self.assignment.found.detail, **now}

    def again(self) -> Assignment:
        """The same assignment, to go on behind what is acknowledged."""
        found = self.assignment.found._replace(position=self.progress.position, detail=self._detail())
        return self.assignment._replace(found=found)

    def moved(self) -> Moved:
        """Its position, for the supervisor, with the stretches that are new since the last call."""
        route, found, generation = self.assignment
        note = None if self.trail is None else self.trail.take() or None
        return Moved(route, found.source, generation, self.progress.position, self._detail(), note)

    def gauge(self) -> SourceGauges:
        """Its position and lag. What waits behind an open transaction counts: while it hangs, nothing is copied."""
        end = -1 if self.consumer is None else self.consumer.high_watermark
        position = self.progress.position
        lag = max(0, end - position) if end >= 0 else None
        behind = time.time() - self.newest_ms / 1000 if lag and self.newest_ms >= 0 else 0.0
        return SourceGauges(self.assignment.found.display_name, 0, position, lag, max(behind, self.silent))
