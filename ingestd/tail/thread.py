"""LookThread: the thread in which a tail looks at files, since any look may hang with its mount."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LookThread"]

T = TypeVar("T")


class LookThread:
    """One thread for looks, which nobody joins: a dead mount holds it up for ever, and nothing else."""

    def __init__(self, name: str) -> None:
        """`name`: the tail's, for debuggers."""
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started = False

    def ask(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Have the work done; of what is asked for, one after the other."""
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
