"""The daemon's routes as a table on the terminal, below its log, while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ingestd.cli.figures import in_bytes, in_count, in_rate
from ingestd.daemon.supervisor import run
from ingestd.logs import configure_logs
from ingestd.records.loops import say_if_plain

if TYPE_CHECKING:
    from types import TracebackType

    from ingestd.daemon.configuration import Configuration
    from ingestd.daemon.status import DaemonStatus
    from ingestd.daemon.summary import Summary

__all__ = ["Progress", "StandardError", "run_showing_progress"]

_STANDARD_ERROR: Final = 2
_READ_BYTES: Final = 64 * 1024
_COLORS: Final = "FORCE_COLOR"
"""The environment variable that has children write in colors, though not to a terminal."""


def run_showing_progress(configuration: Configuration, *, once: bool) -> Summary:
    """Run the daemon with the table on standard error, a terminal, and the log of all its processes above it."""
    settings = replace(configuration.daemon, log_format="text")  # what its children see is no terminal any more
    configuration = replace(configuration, daemon=settings)
    progress = Progress()
    with (
        StandardError() as errors,
        Live(progress.table, console=errors.console, auto_refresh=False, transient=True) as live,
    ):
        log = partial(configure_logs, settings.log_level, settings.log_format, process="supervisor")
        log(stream=cast("TextIO", errors.lines))
        say_if_plain()

        def show(status: DaemonStatus) -> None:
            errors.relay()
            progress.take(status)
            live.update(progress.table, refresh=True)

        try:
            return run(configuration, once=once, progress=show, fork=True)
        finally:
            errors.relay_rest()
            log(stream=sys.__stderr__)


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


class Progress:
    """The daemon's routes as a table: lines, rate, lag and what is acknowledged."""

    def __init__(self) -> None:
        self._acknowledged: dict[str, int] = {}
        self._at = time.monotonic()
        self.table = _progress_table()

    def take(self, status: DaemonStatus, now: float | None = None) -> None:
        """Make the table anew from a status. Rates are those since the last one."""
        now = time.monotonic() if now is None else now
        elapsed, self._at = now - self._at, now
        self.table = _progress_table()
        for route in status.routes:
            before = self._acknowledged.get(route.name, 0)
            self._acknowledged[route.name] = route.bytes_acknowledged
            lag = route.bytes_read - route.bytes_acknowledged + sum(source.unread for source in route.sources)
            errors = sum(route.errors.values())
            self.table.add_row(
                route.name,
                in_count(len(route.sources)),
                in_count(route.records),
                in_bytes(route.bytes_acknowledged),
                in_rate(route.bytes_acknowledged - before, elapsed),
                in_bytes(max(0, lag)),
                in_count(errors) if errors else "",
            )
        troubles = [f"{cluster.name}: {cluster.error}" for cluster in status.clusters if cluster.error]
        self.table.caption = "\n".join(troubles) or None


def _progress_table() -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2), caption_justify="left", caption_style="red")
    table.add_column("route")
    for heading in ("sources", "lines acknowledged", "bytes", "rate", "lag", "errors"):
        table.add_column(heading, justify="right")
    return table
