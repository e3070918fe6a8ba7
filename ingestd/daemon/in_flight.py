"""In flight: the record batches of a route that are with the producer: how many, since when, how long they took."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from typing import TYPE_CHECKING

from ingestd.daemon.statistics import LATENCY_BOUNDS

if TYPE_CHECKING:
    from ingestd.daemon.statistics import RouteCounters

__all__ = ["InFlight"]


class InFlight:
    """Batches that are with the producer, by any key of their own. Times are seconds of the monotonic clock."""

    def __init__(self, counters: RouteCounters) -> None:
        self._counters = counters
        self._waits_since = 0.0
        self._began: dict[object, float] = {}
        """When each of them was first sent, in this order."""
        self._again: dict[object, float] = {}
        """The same of those that came later than their time: halves of batches that were split. Few."""
        self._newest = -math.inf

    def __len__(self) -> int:
        return len(self._began) + len(self._again)

    def begin(self, batch: object, began: float) -> None:
        """A batch that was first sent at `began` goes to the producer."""
        if not self:
            self._waits_since = time.monotonic()
        in_order = began >= self._newest
        (self._began if in_order else self._again)[batch] = began
        if in_order:
            self._newest = began

    def end(self, batch: object) -> None:
        """It is not with the producer any more."""
        if self._began.pop(batch, None) is None:
            del self._again[batch]

    def acknowledged(self, began: float, records: int, size: int) -> None:
        """Count a batch of `size` bytes that was first sent at `began` as acknowledged."""
        self._waits_since = now = time.monotonic()
        elapsed = now - began
        counters = self._counters
        counters.records_acknowledged += records
        counters.compressed_bytes_acknowledged += size
        counters.latency_counts[bisect_left(LATENCY_BOUNDS, elapsed)] += 1
        counters.latency_sum += elapsed

    @property
    def waiting(self) -> float:
        """Seconds since anything was acknowledged, while batches are with the producer; 0 while none is."""
        return time.monotonic() - self._waits_since if self else 0.0

    @property
    def oldest(self) -> float:
        """Seconds since the oldest batch that is with the producer was first sent; 0 while none is."""
        if not self:
            return 0.0
        first = next(iter(self._began.values()), math.inf)
        return time.monotonic() - min([first, *self._again.values()])
