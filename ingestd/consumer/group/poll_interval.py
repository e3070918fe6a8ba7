"""Poll interval: notices when processing makes no progress any more. Costs one timer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PollInterval"]

_STOOD_STILL: Final = 0.1
"""If a check is late by this share of the interval, the whole process stood still, and not only the work."""
_TO_SAY_SO: Final = 0.5
"""Then this share of the interval is left to report progress. It is longer than one check takes."""


class PollInterval:
    """Calls `exceeded` once, if `progressed` was not called for `seconds`. Begins with `start`.

    A process that was suspended, or whose loop was blocked, gets time to report progress first.
    """

    def __init__(self, seconds: float, exceeded: Callable[[], None]) -> None:
        self._seconds = seconds
        self._exceeded = exceeded
        self._last = 0.0
        self._due = 0.0
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
        self._due = self._last + self._seconds
        self._timer = asyncio.get_running_loop().call_at(self._due, self._check)

    def _check(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._last + self._seconds > self._due:
            self._arm()
        elif now - self._due > self._seconds * _STOOD_STILL:
            self._last = now - self._seconds * (1 - _TO_SAY_SO)
            self._arm()
        else:
            self._timer = None
            self._exceeded()
