"""Loop thread: a thread with an event loop. Each object with blocking calls has one."""

from __future__ import annotations

import asyncio
import threading
import warnings
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from ingestd.errors import Closed, DeadlineExceeded, IngestdError, UsedAfterFork
from ingestd.tasks import tell_of_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

__all__ = ["LoopThread", "soon"]

T = TypeVar("T")
P = ParamSpec("P")

START_SECONDS: Final = 30.0
CLOSE_MARGIN: Final = 10.0
"""Seconds for the loop and the thread to end, after the owner's own ending. None of that waits for the network."""


class LoopThread:
    """Runs coroutines for threads that have no event loop. `what` names the owner in threads, warnings and errors.

    Its owner calls `close`, or `drop` if it is garbage-collected unclosed.

    Invariants
        A call that its caller gave up, because of a deadline or an interrupt, is cancelled.
        Every call that is under way when the thread ends raises `Closed`.
        It takes no lock. So a garbage collection in the middle of a call, and a fork, may end it.
        In a forked child every call raises `UsedAfterFork`, but for `close`, which does nothing there.
    """

    def __init__(self, what: str) -> None:
        """Starts the thread."""
        self._what = what
        self._forked = False
        self._closing = threading.Lock()
        """Held by the one that closes. Nobody waits for it."""
        self._ended = False
        self._running: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"ingestd {what}", daemon=True)
        self._thread.start()
        tell_of_fork(self)

    @property
    def closed(self) -> bool:
        """Whether it is closed, or was made in another process."""
        return self._forked or self._closing.locked()

    def call(
        self, work: Coroutine[Any, Any, T], timeout: float | None, doing: str, why: Callable[[], str] | None = None
    ) -> T:
        """Run `work` on the loop, and wait for it, up to `timeout` seconds (None: no limit). Raises what it raises.

        Raises also `Closed`, `UsedAfterFork`, `IngestdError` in the loop's own thread, and `DeadlineExceeded`, with
        `doing` and, from `why`, the likely reason.
        """
        if refusal := self._refusal(doing):
            work.close()
            raise refusal
        try:
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # its loop ended after the check above
            work.close()
            raise Closed(f"{doing}: the {self._what} was closed meanwhile") from None
        self._running.add(running)
        if self._ended:  # it came too late: the loop did not see it
            running.cancel()
        try:
            return running.result(timeout)
        except CancelledError:
            work.close()
            raise Closed(f"{doing}: the {self._what} was closed meanwhile") from None
        except TimeoutError:
            if running.cancel():
                reason = "" if why is None else f"; {why()}"
                raise DeadlineExceeded(f"{doing}: not done within {timeout:g} s{reason}") from None
            return running.result()  # it ended at the last moment, or raised a TimeoutError itself
        except BaseException:
            running.cancel()  # interrupted: it must not take the result of the next call
            raise
        finally:
            self._running.discard(running)

    def begin(self, work: Coroutine[Any, Any, T]) -> T:
        """The first call: makes the objects on the loop. If that fails, ends the thread, and raises."""
        try:
            return self.call(work, START_SECONDS, f"starting the {self._what}")
        except BaseException:
            self.close(_nothing, 0.0)
            raise

    def forked(self) -> None:
        """See `Forkable`."""
        self._forked = True

    def close(self, ending: Callable[[], Coroutine[Any, Any, object]], timeout: float) -> None:
        """Run `ending`, which takes `timeout` seconds at most, and end the thread. Safe to call twice.

        Raises what `ending` raises, and `DeadlineExceeded` if a callback of the caller blocks the loop. In the loop's
        own thread it waits for nothing.
        """
        if self._forked or not self._closing.acquire(blocking=False):
            return
        if threading.current_thread() is self._thread:  # a garbage collection in this thread found the owner
            self._end_after(ending)
            return
        seconds = timeout + CLOSE_MARGIN
        ended = asyncio.run_coroutine_threadsafe(ending(), self._loop)
        try:
            ended.result(seconds)
        except TimeoutError:
            if ended.done():
                raise
            raise DeadlineExceeded(f"closing the {self._what}: not done within {seconds:g} s") from None
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_MARGIN)
        if self._thread.is_alive():
            raise DeadlineExceeded(f"closing the {self._what}: its thread did not end within {CLOSE_MARGIN:g} s")

    def drop(self, owner: object, ending: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """For the owner's `__del__`: warn that it was not closed, and end the thread after `ending`."""
        if self._forked or not self._closing.acquire(blocking=False):
            return
        self._end_after(ending)
        # Last, because it raises if warnings are errors.
        warnings.warn(f"unclosed {owner!r}", ResourceWarning, source=owner, stacklevel=3)

    def _end_after(self, ending: Callable[[], Coroutine[Any, Any, object]]) -> None:
        loop = self._loop
        ended = asyncio.run_coroutine_threadsafe(ending(), loop)
        ended.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))

    def _refusal(self, doing: str) -> IngestdError | None:
        if self._forked:
            return UsedAfterFork(f"the {self._what} was made before this process was forked; make one here")
        if self._closing.locked():
            return Closed(f"the {self._what} is closed")
        if threading.current_thread() is self._thread:
            return IngestdError(f"{doing}: called in the {self._what}'s own thread, which would wait for itself")
        return None

    def _run(self) -> None:
        """The thread: run the loop until it is stopped, then end what is left of it."""
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            loop.close()
            self._ended = True
            for late in list(self._running):
                late.cancel()


async def soon(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function on the event loop of whoever awaits this."""
    return function(*arguments, **named)


async def _nothing() -> None:
    """Nothing was begun that has to end."""
