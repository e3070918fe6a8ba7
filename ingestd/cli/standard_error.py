"""Standard error while a live table is on the terminal: what children write there is printed above the table."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["StandardError"]

_STANDARD_ERROR: Final = 2
_READ_BYTES: Final = 64 * 1024
_COLORS: Final = "FORCE_COLOR"
"""The environment variable that has children write in colors, though not to a terminal."""


class StandardError:
    """Standard error, for a while, is a pipe: what children write there is printed above a live table.

    Each writes when it likes, and would write into the table. No thread reads the pipe: a process that has one does not
    fork. So this process itself writes to `lines`, and not into a pipe that nobody but itself would empty.
    """

    def __init__(self) -> None:
        self._terminal = _Terminal(os.fdopen(os.dup(_STANDARD_ERROR), "wb"), "utf-8", "backslashreplace")
        self.console = Console(file=self._terminal)
        """The terminal."""
        self.lines = _Lines(self.console)
        """What this process writes its log to."""
        self._childrens = _Lines(self.console)
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.dup2(writing, _STANDARD_ERROR)
        os.close(writing)
        self._relaying = False
        self._forced = os.environ.get(_COLORS)

    def __enter__(self) -> Self:
        os.environ[_COLORS] = "1"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._terminal.flush()
        os.dup2(self._terminal.fileno(), _STANDARD_ERROR)
        self._terminal.close()
        os.close(self._reading)
        if self._forced is None:
            del os.environ[_COLORS]
        else:
            os.environ[_COLORS] = self._forced

    def relay(self) -> None:
        """Print what children write, as it comes, on the event loop that runs."""
        if not self._relaying:
            asyncio.get_running_loop().add_reader(self._reading, self._print)
            self._relaying = True

    def relay_rest(self) -> None:
        """Print what has been written and was not printed yet."""
        sys.stderr.flush()
        self._print()
        self._childrens.end()

    def _print(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._childrens.write(os.read(self._reading, _READ_BYTES).decode(errors="backslashreplace"))


class _Terminal(io.TextIOWrapper):
    """A terminal that may be closed: what is written then goes nowhere, and the daemon goes on."""

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


class _Lines(io.TextIOBase):
    """A stream that prints whole lines on a console, none of them broken where the terminal ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rest = ""

    def write(self, text: str, /) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        return len(text)

    def isatty(self) -> bool:
        return True

    def end(self) -> None:
        """Print what has no end of line."""
        if self._rest:
            self.write("\n")
