"""Pace: how long to wait so that no more than so many bytes a second are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Pace"]


class Pace:
    """A rate in bytes a second, over all who wait by it, here and in other workers.

    Each waits until what was spent before has had its time. So nothing is sent at once but the first, in each worker.
    What others spent counts as spent evenly since the last look at it.
    """

    def __init__(self, rate: float, publish: Callable[[int], None], elsewhere: Callable[[], int]) -> None:
        """`publish` tells others what was spent here so far. `elsewhere`: what they spent; it falls if one restarts."""
        self._rate = rate
        self._publish = publish
        self._elsewhere = elsewhere
        self._here = 0
        self._seen = elsewhere()
        self._free_at = 0.0

    def spend(self, size: int, now: float) -> float:
        """Note at `now` that `size` bytes are to be sent. Returns the seconds to wait before they are."""
        self._here += size
        self._publish(self._here)
        seen = self._elsewhere()
        others, self._seen = max(0, seen - self._seen), seen
        begins = max(self._free_at + others / self._rate, now)
        self._free_at = begins + size / self._rate
        return begins - now
