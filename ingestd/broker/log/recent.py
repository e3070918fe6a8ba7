"""Bounds what is kept in memory only so that it need not be read again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

__all__ = ["RecentlyUsed", "Releasable"]


class Releasable(Protocol):
    """Something that can let go of memory and get its content back."""

    def release(self) -> None:
        """Let go."""


class RecentlyUsed:
    """Whatever was used last, as much as `limit` bytes hold, and always the very last; the rest is told to let go.

    Not for threads.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: OrderedDict[Releasable, int] = OrderedDict()
        self._total = 0

    def used(self, thing: Releasable, size: int) -> None:
        """`thing` is in use, and holds `size` bytes."""
        self._total += size - self._sizes.pop(thing, 0)
        self._sizes[thing] = size
        while self._total > self._limit and len(self._sizes) > 1:
            oldest, released = self._sizes.popitem(last=False)
            self._total -= released
            oldest.release()
