"""Bounds the bytes of requests that are being received and answers that are being sent, over all connections."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MemoryBudget"]


class MemoryBudget:
    """A count of bytes with a limit. Requests wait for room. Answers do not, because they free their requests' bytes.

    Invariants
        Waiters are served in the order in which they came.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.used = 0

    @property
    def exhausted(self) -> bool:
        """Whether the budget is used up. Answers should be as small as possible then."""
        return self.used >= self._limit

    def take(self, size: int) -> None:
        """Count bytes that are in use already, without waiting."""
        self.used += size

    def take_or_wait(self, size: int, taken: Callable[[], None]) -> bool:
        """Count `size` bytes if there is room. Otherwise returns False, and calls `taken` once they are counted."""
        if not self._waiting and self.used + size <= self._limit:
            self.used += size
            return True
        self._waiting.append((size, taken))
        return False

    def stop_waiting(self, taken: Callable[[], None]) -> bool:
        """Stop waiting. Returns False if this caller does not wait (any more)."""
        for entry in self._waiting:
            if entry[1] == taken:
                self._waiting.remove(entry)
                return True
        return False

    def give_back(self, size: int) -> None:
        """Count bytes as free, and serve waiters."""
        self.used -= size
        while self._waiting and self.used + self._waiting[0][0] <= self._limit:
            waited_for, taken = self._waiting.popleft()
            self.used += waited_for
            taken()
