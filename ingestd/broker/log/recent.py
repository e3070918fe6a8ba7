"""Bounds the memory of things that are only kept so that they need not be read again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

__all__ = ["RecentlyUsed", "Releasable"]


class Releasable(Protocol):
    """Something that can release its memory and read its content again."""

    def release(self) -> None:
        """Release the memory."""


class RecentlyUsed:
    """The things that were used last: up to `limit` bytes, and always the last one. The others are released.

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
