"""How much of a log the cleaner has not seen yet, and whether that is enough to clean it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.broker.configs.kinds import LONG_MAX

if TYPE_CHECKING:
    from ingestd.broker.log.partition_log import PartitionLog
    from ingestd.broker.log.segment import Segment

__all__ = ["Dirt", "dirt_of", "grouped"]

_LONGEST_RANGE: Final = (1 << 31) - 1
"""Offsets of one segment. Kafka's indexes have 32 bits for an offset within its segment."""
_LARGEST_GROUP: Final = 256
"""Segments. Each needs a descriptor until its bytes are freed."""


@dataclass(frozen=True, slots=True)
class Dirt:
    """What may be cleaned now: `segments`, from the log's first one on. Sizes in bytes.

    Records before `first_dirty` were compared with each other before. `overdue`: a record waits for longer than
    max.compaction.lag.ms.
    """

    segments: tuple[Segment, ...]
    first_dirty: int
    dirty_bytes: int
    clean_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        """The dirty part of all bytes that may be cleaned; 0 without any."""
        total = self.dirty_bytes + self.clean_bytes
        return self.dirty_bytes / total if total else 0.0


def dirt_of(log: PartitionLog, now_ms: int) -> Dirt | None:
    """What of a log should be cleaned now; None for nothing. Raises `OSError`, `CorruptBatch`."""
    if not log.config.compacts or log.closed or log.failed:
        return None
    first_dirty = max(log.cleaned_offset, log.start_offset)
    segments = _cleanable(log, now_ms)
    dirty = [segment for segment in segments if segment.next_offset > first_dirty]
    dirty_bytes = sum(segment.size for segment in dirty)
    clean_bytes = sum(segment.size for segment in segments) - dirty_bytes
    found = Dirt(tuple(segments), first_dirty, dirty_bytes, clean_bytes, _overdue(log, dirty, now_ms))
    return found if found.ratio > log.config.min_dirty_ratio or found.overdue else None


def _cleanable(log: PartitionLog, now_ms: int) -> list[Segment]:
    """The segments that do not change, whose records are stable, on the disk, and old enough."""
    until = min(log.last_stable_offset, log.high_watermark)
    newest_ms = now_ms - log.config.min_compaction_lag_ms
    found: list[Segment] = []
    for segment in log.segments[:-1]:
        too_new = log.config.min_compaction_lag_ms and _newest_ms(segment) > newest_ms
        if segment.next_offset > until or not segment.sealed or too_new:
            break
        found.append(segment)
    return found


def _newest_ms(segment: Segment) -> float:
    if not segment.size:
        return -1
    newest = segment.index.largest_timestamp
    return newest if newest >= 0 else segment.created * 1000


def _overdue(log: PartitionLog, dirty: list[Segment], now_ms: int) -> bool:
    if log.config.max_compaction_lag_ms == LONG_MAX:
        return False
    # As in Kafka, by the first batch of each segment.
    firsts = (next(segment.headers(segment.base_offset), None) for segment in dirty)
    times = [first[1].max_timestamp for first in firsts if first is not None and first[1].max_timestamp >= 0]
    return min(times, default=now_ms) < now_ms - log.config.max_compaction_lag_ms


def grouped(segments: tuple[Segment, ...], segment_bytes: int) -> list[tuple[Segment, ...]]:
    """Segments that follow each other and fit into one, as many as possible in each group."""
    groups: list[list[Segment]] = []
    size = 0
    for segment in segments:
        group = groups[-1] if groups else []
        fits = (
            0 < len(group) < _LARGEST_GROUP
            and size + segment.size <= segment_bytes
            and segment.next_offset - group[0].base_offset <= _LONGEST_RANGE
        )
        if fits:
            group.append(segment)
            size += segment.size
        else:
            groups.append([segment])
            size = segment.size
    return [tuple(group) for group in groups]
