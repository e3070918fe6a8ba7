"""Lane: the values of a line runner: open sources, slabs, and the queue of sources that share batches."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingestd.retry import Backoff

if TYPE_CHECKING:
    import asyncio

    from ingestd.daemon.arena import Run
    from ingestd.daemon.progress import Progress, Span
    from ingestd.daemon.source import Assignment, Encoding, Lane, Source

__all__ = ["LaneQueue", "OpenSource", "Output", "Slab"]


@dataclass(slots=True, eq=False)
class OpenSource:
    """A source that this worker owns. `source` is None while it can not be opened."""

    assignment: Assignment
    progress: Progress
    lane: LaneQueue
    source: Source | None = None
    queued: bool = False
    closed: bool = False
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=0.2, maximum=30.0))
    retry: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class Output:
    """A run of encoded batches; free again when all of them are acknowledged."""

    run: Run
    batches: int


@dataclass(slots=True, eq=False)
class Slab:
    """Raw bytes of one lane, from reading until every batch made of them is acknowledged."""

    lane: LaneQueue
    raw: Run
    length: int
    parts: list[tuple[OpenSource, Span]]
    timestamp_ms: int
    target: Lane
    partitions: int
    offset: int = 0
    output: Run | None = None
    encoding: Encoding | None = None
    unacknowledged: int = 0
    sent: bool = False

    @property
    def origin(self) -> str:
        """The names of the sources that these bytes are from, for people."""
        return ", ".join(sorted({held.assignment.found.display_name for held, _ in self.parts}))

    @property
    def unacknowledged_origin(self) -> str:
        """The same, each with the bytes of it that hold what is not acknowledged of these."""
        ends = {held: span.end for held, span in self.parts}  # of several spans of a source the last one
        said = (
            f"{held.assignment.found.display_name} (bytes {held.progress.position} to {end})"
            for held, end in ends.items()
        )
        return ", ".join(sorted(said))


@dataclass(slots=True, eq=False)
class LaneQueue:
    """Sources that may share batches: those with something to read, and the slabs in the order of reading."""

    lane: Lane
    sources: int = 0
    ready: deque[OpenSource] = field(default_factory=deque)
    slabs: deque[Slab] = field(default_factory=deque)
    due: bool = False
    waiting: bool = False
    timer: asyncio.TimerHandle | None = None
