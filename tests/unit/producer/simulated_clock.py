"""An event loop in simulated time: what a test says about seconds holds however the machine stalls."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class SimulatedClockLoop(asyncio.SelectorEventLoop):
    """Never sleeps: when nothing is ready, the clock jumps to the next timer. For work without sockets and threads.

    `time.monotonic` is its clock while it runs. A test that polls must sleep longer than 0 s: the clock stands still
    while anything is ready.
    """

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())
        self.now = 1000.0
        select = self._selector.select

        def jump(timeout: float | None = None) -> list[Any]:
            if timeout is None:
                raise AssertionError("nothing will ever happen again: the simulation waits for ever")
            if timeout > 0:
                self.now += timeout + self._clock_resolution  # a sum of seconds may be rounded to just before the timer
            return select(0)

        self._selector.select = jump

    def time(self) -> float:
        """Simulated seconds."""
        return self.now

    def run_forever(self) -> None:
        """Run until stopped, by this clock."""
        with mock.patch("time.monotonic", self.time):
            super().run_forever()


def simulate(work: Callable[[], Coroutine[Any, Any, T]], seconds: float = 3600.0) -> T:
    """Run `work()` in simulated time, within `seconds` of it; no task may be left."""
    loop = SimulatedClockLoop()
    raised: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: raised.append(context))
    try:
        result = loop.run_until_complete(asyncio.wait_for(work(), seconds))
        loop.run_until_complete(asyncio.sleep(0))
        assert not asyncio.all_tasks(loop), asyncio.all_tasks(loop)
    finally:
        loop.close()
    assert not raised, raised
    return result
