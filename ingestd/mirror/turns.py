"""Turns: long work on the event loop in short slices, one piece of work at a time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Turns"]

SLICE: Final = 0.01
"""Seconds after which work lets others run."""

Step = TypeVar("Step")


class Turns:
    """Runs iterators that are long work, of whatever tasks, so that the event loop is never held up for long.

    Who waits, waits in order. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._until = 0.0

    async def take(self, steps: Iterator[Step | None]) -> list[Step]:
        """What an iterator gives, without each None. Raises what it raises."""
        async with self._one:
            made = []
            for step in steps:
                if step is not None:
                    made.append(step)
                if time.monotonic() >= self._until:
                    await asyncio.sleep(0)
                    self._until = time.monotonic() + SLICE
            return made
