"""Statistics: what workers count and the supervisor shows. Values only. Counters begin with the worker process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ingestd.producer.events import LATENCY_BOUNDS

__all__ = [
    "ERROR_KINDS",
    "GONE",
    "LATENCY_BOUNDS",
    "NOT_TAKEN",
    "OVERFLOW",
    "POSITIONS",
    "READ",
    "RouteCounters",
    "SourceGauges",
    "WorkerStatistics",
]

NOT_TAKEN: Final = "not_taken"
"""A file is not taken: unreadable when it was found, a directory, or another tail's."""

READ: Final = "read"
"""A source could not be opened or read. It is tried again."""

POSITIONS: Final = "positions"
"""Positions could not be stored. They are tried again."""

OVERFLOW: Final = "overflow"
"""The kernel dropped events of a tail's directories."""

GONE: Final = "gone"
"""A source is gone or was cut off since the last run. What was written to it after that run is unknown."""

ERROR_KINDS: Final = (NOT_TAKEN, READ, POSITIONS, OVERFLOW, GONE)
"""Kinds of errors that are shown from the start, at zero. An error that stops a route is counted by Kafka's name."""


@dataclass(slots=True)
class RouteCounters:
    """One route's totals in one worker. They only grow while the worker lives."""

    bytes_read: int = 0
    """Bytes taken from sources, as positions count them."""
    records: int = 0
    """Records (lines) encoded."""
    lines_shortened: int = 0
    """Lines that the length limit cut or split."""
    batches: int = 0
    """Record batches handed to the producer."""
    uncompressed_bytes: int = 0
    """Bytes of these batches before compression."""
    compressed_bytes: int = 0
    """Bytes of these batches as sent."""
    helped_bytes: int = 0
    """Raw bytes that this worker encoded for other owners."""
    compressed_bytes_acknowledged: int = 0
    """Bytes of batches as sent that every in-sync replica has."""
    records_acknowledged: int = 0
    bytes_acknowledged: int = 0
    """Bytes of sources, as positions count them, that every in-sync replica has."""
    records_not_sent_back: int = 0
    """Records that a mirror left out because they came to its source from its target."""
    retries: dict[str, int] = field(default_factory=dict)
    """Produce requests tried again, by Kafka error name (or `connection_lost`, `deadline_exceeded`)."""
    errors: dict[str, int] = field(default_factory=dict)
    """Batches or sources that failed, for good or for now, by kind (`ERROR_KINDS`, or Kafka's name)."""
    latency_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS) + 1))
    """Batches by seconds from `send_batch` to their acknowledgement. One count per bucket, not cumulative."""
    latency_sum: float = 0.0
    """Seconds, over all batches in `latency_counts`."""

    batches_by_way: dict[str, int] = field(default_factory=dict)
    """Of a mirror: batches of the source by how they went to the target (`ingestd.mirror.passing.WAYS`)."""
    bytes_by_way: dict[str, int] = field(default_factory=dict)
    """Bytes of these batches, as they were fetched."""

    def count_way(self, way: str, size: int, *, batches: int = 1) -> None:
        """Count batches of the source by how they went to the target."""
        self.batches_by_way[way] = self.batches_by_way.get(way, 0) + batches
        self.bytes_by_way[way] = self.bytes_by_way.get(way, 0) + size

    def count_error(self, kind: str) -> None:
        """Count one error of a kind."""
        self.errors[kind] = self.errors.get(kind, 0) + 1

    def count_retry(self, kind: str) -> None:
        """Count one retry after an error of a kind, by Kafka's name."""
        self.retries[kind] = self.retries.get(kind, 0) + 1


class SourceGauges(NamedTuple):
    """One source now."""

    label: str
    """What a person calls it (a path)."""
    unread: int
    """Bytes there but not yet read."""
    position: int
    """Everything before it is acknowledged: bytes of a file; or an offset, where there is a lag."""
    lag: int | None = None
    """Offsets from the position to the end of the source's log; None if it is not known, or the source is no log."""
    lag_seconds: float | None = None
    """How old the newest record is that was acknowledged, while there is a lag; or for how long the lag is not known
    any more, if that is longer; else 0. None if the source is no log."""


@dataclass(slots=True)
class WorkerStatistics:
    """What one worker reports, twice a second and at its end."""

    slot: int
    """Which of the workers, from 0."""
    incarnation: int
    """Grows with every restart of the slot. The new process counts from 0."""
    cpu_seconds: float = 0.0
    arena_pages: int = 0
    arena_pages_used: int = 0
    routes: dict[str, RouteCounters] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    """By route, seconds since anything was acknowledged, while batches are with the producer; 0 while none is."""
    oldest: dict[str, float] = field(default_factory=dict)
    """By route, seconds since the oldest batch that is with the producer was first sent; 0 while none is."""
    sources: dict[tuple[str, str], SourceGauges | None] = field(default_factory=dict)
    """By route and name, the sources that changed since the last report; None for one that is gone."""
