"""LookThread: the thread in which a tail looks at files, since any look may hang with its mount.

`Due`: what it is to do next. `in_turns`: what is done on the loop for many files leaves others their turn.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from ingestd.errors import DeadlineExceeded
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingestd.tail.facts import Place
    from ingestd.tail.file_id import FileId
    from ingestd.tail.generation import Generation
    from ingestd.tail.log import Log

__all__ = ["PATIENCE", "Due", "LookThread", "in_turns"]

T = TypeVar("T")

PATIENCE: Final = 10.0
"""Seconds that a look may take until it is said that a directory does not answer."""

_TURN: Final = 0.01
"""Seconds that things are taken in one go; then others get their turn."""


@dataclass(slots=True)
class Due:
    """What the thread is to do next."""

    looks: dict[str, str | None] = field(default_factory=dict)
    """Paths, and the log that a file there is of, where that is known."""
    examinations: dict[FileId, tuple[Log, Place]] = field(default_factory=dict)
    seeks: dict[str, Generation] = field(default_factory=dict)
    watches: set[str] = field(default_factory=set)
    directories: set[str] = field(default_factory=set)
    """Those that came or went: they are listed, with what is below them."""
    deleted: list[tuple[FileId, str]] = field(default_factory=list)
    """Files whose name is gone. Looked at last: what they were compressed to is told by what is known of them."""
    logs: dict[str, Log] = field(default_factory=dict)
    """The log of each search, by source."""
    untold: list[tuple[str, int]] = field(default_factory=list)
    """Files that are gone since the run before this one, and how far they were read: to be said."""
    read_out: list[tuple[str, int]] = field(default_factory=list)
    """The same of files that were read to their end before they were deleted."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be more to do."""

    def __bool__(self) -> bool:
        files = self.looks or self.examinations or self.seeks or self.deleted
        return bool(files or self.watches or self.directories or self.untold or self.read_out)

    def look(self, path: str, log: str | None) -> None:
        """A path is to be looked at. `log`: the one that a file there is of, if it is not the path's own."""
        if self.looks.get(path) is None:
            self.looks[path] = log
        self.woken.set()

    def take(self) -> Due:
        """What is due now. What is entered from now on is for the next time."""
        taken = replace(self)
        self.looks, self.examinations, self.seeks, self.logs = {}, {}, {}, {}
        self.watches, self.directories, self.deleted, self.untold, self.read_out = set(), set(), [], [], []
        return taken


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
