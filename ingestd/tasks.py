"""Task ownership: whoever starts a task ends it. For objects whose life is longer than one `async with` block."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ingestd.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["TaskOwner"]


class TaskOwner:
    """The tasks of one object. `asyncio.TaskGroup` where a block can hold them; this where an object with `close` does.

    Invariants
        No task outlives `close`.
        A task that ends with an error reports it to `crashed`, once; nothing is swallowed.
    """

    def __init__(self, crashed: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._crashed = crashed
        self._closed = False

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` as a task of this owner. Raises `Closed` after `close`."""
        if self._closed:
            work.close()
            raise Closed(f"{name}: its owner is closed")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        if self._crashed is not None:
            self._crashed(error)
        else:
            task.get_loop().call_exception_handler(
                {"message": f"task {task.get_name()} failed", "exception": error, "task": task}
            )

    async def close(self) -> None:
        """Cancel what still runs and wait for its end. Safe to call twice."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def finish(self) -> None:
        """Wait for the end of what still runs, without cancelling it: work that ends by itself. Starts nothing more."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        if tasks:
            await asyncio.wait(tasks)
