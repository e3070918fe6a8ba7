"""Ownership: whoever starts a task ends it; and what a process has opened stays with it when it forks."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakSet

from ingestd.errors import Closed, WrongLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

__all__ = ["Forkable", "TaskOwner", "end_task", "same_loop", "tell_of_fork"]


def same_loop(known: asyncio.AbstractEventLoop | None, what: str) -> asyncio.AbstractEventLoop:
    """The running loop, which must be the `known` one if there is one: nothing comes on another. Raises `WrongLoop`."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        where = f"in thread {threading.current_thread().name!r}, which runs no event loop"
        raise WrongLoop(
            f"{what} was called {where}; expected a call from a coroutine, or by `loop.call_soon_threadsafe`"
        ) from None
    if known is not running and known is not None:
        raise WrongLoop(f"{what} belongs to another event loop; make one on each loop")
    return running


async def end_task(task: asyncio.Future[Any]) -> None:
    """Cancel a task, unless it is done, and wait for its end: whoever needed its outcome does so no more."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # looked at: an error that nobody waits for is no news to the loop


class TaskOwner:
    """The tasks of one object. `asyncio.TaskGroup` where a block can hold them; this where an object with `close` does.

    Invariants
        No task outlives `close` without a timeout.
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

    async def close(self, timeout: float | None = None) -> Collection[asyncio.Task[Any]]:
        """Cancel what still runs and wait for its end, `timeout` seconds where there is one. Safe to call twice.

        Gives the tasks that still run then: foreign code in them swallows its cancellation.
        """
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if not tasks:
            return ()
        return (await asyncio.wait(tasks, timeout=timeout))[1]

    async def finish(self) -> None:
        """Wait for the end of what still runs, without cancelling it: work that ends by itself. Starts nothing more."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        if tasks:
            await asyncio.wait(tasks)


class Forkable(Protocol):
    """Something with connections or threads, which belong to the process that made them."""

    def forked(self) -> None:
        """This process is a child that `os.fork` made: refuse to be used from now on, and touch no socket and no lock.

        Closing here what the parent shares would take its sockets out of its event loop.
        """
        ...


_forkables: Final[WeakSet[Forkable]] = WeakSet()


def tell_of_fork(owner: Forkable) -> None:
    """Have `owner.forked` called in every child that `os.fork` makes while `owner` lives. Costs nothing otherwise."""
    _forkables.add(owner)


def _after_fork() -> None:
    for owner in list(_forkables):
        owner.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
