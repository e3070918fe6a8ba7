"""Circuit breaker: after several failures in a row it refuses everything for a while. Then one attempt decides."""

from __future__ import annotations

import time

__all__ = ["CircuitBreaker"]


class CircuitBreaker:
    """Attempts pass while it is closed; it opens after `failures` in a row.

    While it is open none pass, for `pause` seconds. Then they pass again: the first failure opens it anew, the first
    success closes it.
    """

    def __init__(self, failures: int, pause: float) -> None:
        self._allowed = failures
        self._pause = pause
        self._failed = 0
        self._opened_at = 0.0

    @property
    def open(self) -> bool:
        """Whether attempts are refused now."""
        return self._failed >= self._allowed and time.monotonic() - self._opened_at < self._pause

    def failed(self) -> None:
        """An attempt failed."""
        self._failed += 1
        if self._failed >= self._allowed:
            self._opened_at = time.monotonic()

    def succeeded(self) -> None:
        """An attempt succeeded."""
        self._failed = 0
