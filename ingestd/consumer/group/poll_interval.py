"""Poll interval: notices when nobody says any more that processing goes on. Costs one timer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PollInterval"]


class PollInterval:
    """Calls `exceeded` once, when `progressed` was not called for `seconds`. Not running before `start`."""

    def __init__(self, seconds: float, exceeded: Callable[[], None]) -> None:
        self._seconds = seconds
        self._exceeded = exceeded
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Count from now on."""
        self.progressed()
        self._arm()

    def progressed(self) -> None:
        """Processing goes on."""
        self._last = asyncio.get_running_loop().time()

    def stop(self) -> None:
        """Count no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.stop()
        self._timer = asyncio.get_running_loop().call_at(self._last + self._seconds, self._check)

    def _check(self) -> None:
        if asyncio.get_running_loop().time() - self._last < self._seconds:
            self._arm()
            return
        self._timer = None
        self._exceeded()
