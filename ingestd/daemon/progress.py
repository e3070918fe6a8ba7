"""Progress of one source: its position moves over acknowledged spans, in order, never past a hole."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

__all__ = ["Progress", "Span"]


@dataclass(slots=True)
class Span:
    """The positions from the end of the span before it up to `end`. `acknowledged`: the cluster has all of it.

    `mark` is the route's own: what belongs to the position at the span's end.
    """

    end: int
    acknowledged: bool = False
    mark: Any = None


class Progress:
    """One per open source.

    Invariants
        `position` is the end of the longest run of acknowledged spans from the start.
        Spans are taken in the order in which they were read.
    """

    def __init__(self, position: int, mark: Any = None) -> None:
        self.position = position
        self.mark = mark
        """What belongs to the position: the mark of the last span that it moved over."""
        self._spans: deque[Span] = deque()

    def read(self, end: int) -> Span:
        """Note that the source was read up to `end`."""
        span = Span(end)
        self._spans.append(span)
        return span

    def acknowledge(self, span: Span) -> bool:
        """Note that a span is acknowledged. Returns whether the position moved."""
        span.acknowledged = True
        moved = False
        while self._spans and self._spans[0].acknowledged:
            passed = self._spans.popleft()
            self.position, self.mark = passed.end, passed.mark
            moved = True
        return moved

    @property
    def unacknowledged(self) -> int:
        """Bytes, as positions count them, that were read and that the position has not moved over yet."""
        return self._spans[-1].end - self.position if self._spans else 0

    @property
    def settled(self) -> bool:
        """Whether all that was read is acknowledged."""
        return not self._spans
