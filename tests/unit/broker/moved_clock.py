"""A clock that a test moves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ingestd.broker.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MovedClock"]


class MovedClock(Clock):
    """Stands still until `move`."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self._timers: list[tuple[float, asyncio.TimerHandle, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        # The loop's own timer is only what `cancel` is called on.
        timer = asyncio.get_running_loop().call_later(1e6, callback)
        self._timers.append((self.now + seconds, timer, callback))
        return timer

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, woken))
        await woken

    async def move(self, seconds: float) -> None:
        """Let the time pass, and those who slept do what they do."""
        await asyncio.sleep(0)  # who has just begun goes to sleep first
        self.now += seconds
        due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self.now]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self.now]
        rung = [timer for timer in self._timers if timer[0] <= self.now]
        self._timers = [timer for timer in self._timers if timer[0] > self.now]
        for _at, timer, callback in rung:
            if not timer.cancelled():
                timer.cancel()
                callback()
        for _at, woken in due:
            if not woken.done():
                woken.set_result(None)
        for _ in range(10):
            await asyncio.sleep(0)
