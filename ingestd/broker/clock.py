"""The time as the broker sees it. Tests give the broker a clock that they move."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Clock"]


class Clock:
    """The machine's clocks, in seconds."""

    def monotonic(self) -> float:
        """For durations: never goes back, and begins anywhere."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch, for what is written to the disk or told to clients."""
        return time.time()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call `callback` when `monotonic` is `seconds` further, unless the timer is cancelled."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        """Wait until `monotonic` is `seconds` further."""
        await asyncio.sleep(seconds)
