"""LookThread: the thread in which a tail looks at files, since any look may hang with its mount.

And `in_turns`: what is done on the loop for many files leaves others their turn.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from ingestd.errors import DeadlineExceeded
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["PATIENCE", "LookThread", "in_turns"]

T = TypeVar("T")

PATIENCE: Final = 10.0
"""Seconds that a look may take until it is said that a directory does not answer."""

_TURN: Final = 0.01
"""Seconds that things are taken in one go; then others get their turn."""


class LookThread:
    """One thread for looks, which nobody joins: a dead mount holds it up for ever, and nothing else."""

    def __init__(self, name: str, steps: Callable[[], int], hangs: Callable[[float], None]) -> None:
        """`name`: the tail's, for debuggers. `steps` counts looks. `hangs`: without one for so many seconds."""
        self._name = name
        self._steps = steps
        self._hangs = hangs
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started = False

    async def ask(self, work: Callable[[], T]) -> T:
        """Have the work done; of what is asked for, one after the other. Returns, or raises, what it does."""
        asked = self._put(work)
        while True:
            steps = self._steps()
            try:
                return await Deadline.after(PATIENCE).wait_for(asyncio.shield(asked), "a look at files")
            except DeadlineExceeded:
                if steps == self._steps():
                    self._hangs(PATIENCE)

    def _put(self, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type] # there is one where there is no error

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as failure:  # noqa: BLE001 - raised where the answer is awaited
                error = failure
            try:
                loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name=f"looks of {self._name}", daemon=True).start()
        self._work.put(run)
        return answer

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def close(self) -> None:
        """Let the thread end when it has nothing to do."""
        self._work.put(None)


async def in_turns(things: Iterable[T], take: Callable[[T], None]) -> None:
    """Take all these things on the loop, one after the other; others get their turn in between."""
    began = time.monotonic()
    for thing in things:
        take(thing)
        if time.monotonic() - began > _TURN:
            await asyncio.sleep(0)
            began = time.monotonic()
