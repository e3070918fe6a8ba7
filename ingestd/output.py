"""Output of a process that must not wait for whoever reads it: lines to a descriptor, written by a thread of its own.

A pipe holds 64 KiB. When its reader stands still, the next write does, for as long: a log would stop the daemon.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import stat
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Self, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Output", "finish_outputs", "unhindered"]

ROOM: Final = 1024 * 1024
"""Bytes of lines that wait for a reader; what comes when there are so many is dropped."""

PATIENCE: Final = 2.0
"""Seconds without progress after which a process that ends leaves behind what is not written."""


class Output(io.TextIOBase):
    """One for each descriptor of this process. Its thread starts with the first line: who has threads does not fork.

    Invariants
        `write` never waits for the descriptor.
        Lines are written whole and in order; a line that finds no room is dropped, and counted.
    """

    _of: Final[dict[int, Output]] = {}

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.dropped: Callable[[int], object] = lambda _: None
        """Called in the thread when there is room again, with the number of lines that were dropped."""
        self.start_anew()

    @classmethod
    def of(cls, descriptor: int) -> Self:
        """The output at a descriptor, the same for all who ask."""
        return cast("Self", cls._of.setdefault(descriptor, cls(descriptor)))

    def start_anew(self) -> None:
        """Forget what waits, and the thread: in the child of a fork, both are the parent's."""
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._bytes = self._missing = 0
        self._thread: threading.Thread | None = None
        self._moved = time.monotonic()

    def write(self, text: str, /) -> int:
        """Have a line written, or several; without waiting."""
        line = text.encode(errors="backslashreplace")
        with self._changed:
            if self._lines and self._bytes + len(line) > ROOM:
                self._missing += 1
                return len(text)
            if not self._lines:
                self._moved = time.monotonic()
            self._lines.append(line)
            self._bytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"output {self._descriptor}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return len(text)

    def finish(self) -> None:
        """Wait until all is written, or for `PATIENCE` in which nothing is."""
        with self._changed:
            while self._lines:
                left = self._moved + PATIENCE - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line = self._lines[0]
            self._put(memoryview(line))
            with self._changed:
                self._lines.popleft()
                self._bytes -= len(line)
                self._moved = time.monotonic()
                missing, self._missing = self._missing, 0
                self._changed.notify_all()
            if missing:
                self.dropped(missing)

    def _put(self, line: memoryview) -> None:
        while line:
            try:
                line = line[os.write(self._descriptor, line) :]
            except BlockingIOError:  # another process made it so: it is theirs too
                select.select([], [self._descriptor], [])
            except OSError:  # nobody can read it any more, and the work goes on
                return


def unhindered(stream: TextIO | Any) -> TextIO | Any:
    """`stream`, or the output at its descriptor where a write may have to wait: unless it is a file."""
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return stream
    return stream if stat.S_ISREG(os.fstat(descriptor).st_mode) else Output.of(descriptor)


def finish_outputs() -> None:
    """Wait for all outputs of this process, before it ends. An exit of the interpreter does this by itself."""
    for output in Output._of.values():  # noqa: SLF001 - this module's
        output.finish()


def _forked() -> None:
    for output in Output._of.values():  # noqa: SLF001 - this module's
        output.start_anew()


atexit.register(finish_outputs)
os.register_at_fork(after_in_child=_forked)
