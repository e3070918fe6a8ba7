"""`ingestd run` on a terminal: a table of the tails, and above it the log of every process, a line each."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 60
DRAWN = 1.5
"""Seconds in which the table is drawn some times."""
ERASED = "\x1b[2K"
COLOR = re.compile(r"\x1b\[[0-9;]*m")
LOGGED = re.compile(r"\d\d:\d\d:\d\d\.\d{6} \[(info|warning|error) *\] ")


class Terminal:
    """A terminal of 100 columns, and what was written to it."""

    def __init__(self) -> None:
        self._ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self._written = b""

    def read_until(self, text: str | None) -> str:
        """All that was written, once `text` is in it; None: once nobody writes any more."""
        deadline = time.monotonic() + SECONDS
        while text is None or text not in self._written.decode(errors="ignore"):
            readable, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, self._written.decode()
            try:
                self._written += os.read(self._ours, 65536)
            except OSError:  # so the kernel says that the other side was closed
                break
        return self._written.decode()

    def close(self) -> None:
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture
def daemon(terminal: Terminal, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`ingestd run` with its log on the terminal; ready."""
    (tmp_path / "a.log").write_text("line\n")
    (tmp_path / "ingestd.toml").write_text(
        f"""
        [daemon]
        state = "{tmp_path}/state"
        http = ""
        workers = 1
        [clusters.local]
        embedded = true
        [tails.access]
        paths = ["{tmp_path}/*.log"]
        cluster = "local"
        topic = "access"
        """
    )
    command = [sys.executable, "-m", "ingestd", "run", str(tmp_path / "ingestd.toml")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=terminal.theirs) as daemon:
        os.close(terminal.theirs)
        try:
            terminal.read_until("sources found")
            yield daemon
        finally:
            daemon.kill()


def test_what_children_log_stands_above_the_table_on_lines_of_its_own(
    terminal: Terminal, daemon: subprocess.Popen[bytes]
) -> None:
    """A broker's lines began where the table's last line ended."""
    daemon.send_signal(signal.SIGTERM)
    written = terminal.read_until(None)
    assert daemon.wait(SECONDS) == 0
    lines = [COLOR.sub("", line.rpartition(ERASED)[2]) for line in written.split("\r\n")]
    logged = [line for line in lines if LOGGED.search(line)]
    assert [line for line in logged if not LOGGED.match(line)] == []
    for event in ("storage open", "broker listening", "worker started", "sources found", "broker closed"):
        assert [event in line and "process=" in line for line in logged].count(True) == 1, event
    assert any(line.startswith("access ") for line in lines)


def test_a_terminal_that_is_closed_ends_nothing(terminal: Terminal, daemon: subprocess.Popen[bytes]) -> None:
    """The window was closed, or ssh ended: what is drawn goes nowhere."""
    terminal.close()
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.wait(DRAWN)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(SECONDS) == 0
