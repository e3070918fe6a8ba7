"""Standard output and standard error are pipes that nobody reads: the daemon works and ends as ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from ingestd.daemon.positions import PositionFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE = 60.0


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe that has no room for one byte more."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        for size in (4096, 1):
            try:
                while os.write(writing, b"x" * size):
                    pass
            except BlockingIOError:
                pass
        os.set_blocking(writing, True)
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    (tmp_path / "a.log").write_text("line\n" * 1000)
    file = tmp_path / "ingestd.toml"
    file.write_text(
        f"[daemon]\nstate = '{tmp_path}/state'\nhttp = ''\nworkers = 2\n"
        "[clusters.here]\nembedded = true\nlisten = '127.0.0.1:0'\n"
        f"[tails.one]\npaths = ['{tmp_path}/*.log']\ncluster = 'here'\ntopic = 't'\n"
    )
    return file


def delivered(configuration: Path) -> int:
    """Bytes of the log that are acknowledged, as far as it is stored."""
    path = configuration.parent / "state" / "positions.sqlite"
    if not path.exists():
        return 0
    return sum(each.position for stored in PositionFile(path).check().values() for each in stored.positions)


def delivers_and_ends(daemon: subprocess.Popen[bytes], configuration: Path, *, once: bool) -> None:
    """Wait until it has delivered the log, stop it unless it ends by itself, and see that all went well."""
    try:
        if not once:
            deadline = time.monotonic() + DEADLINE
            while delivered(configuration) < 5000:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(DEADLINE) == 0
    finally:
        daemon.kill()
    assert delivered(configuration) == 5000


@pytest.mark.parametrize("once", [True, False])
def test_a_daemon_whose_output_nobody_reads_delivers_and_ends(configuration: Path, once: bool) -> None:
    # Its first line of log kept it for ever, before it had read anything: no signal but SIGKILL ended it.
    command = [sys.executable, "-m", "ingestd", "run", *(["--once"] if once else []), str(configuration)]
    with full_pipe() as (_, writing), subprocess.Popen(command, stdout=writing, stderr=writing) as daemon:
        delivers_and_ends(daemon, configuration, once=once)


def test_a_configuration_is_refused_whoever_reads_it(configuration: Path) -> None:
    configuration.write_text("[daemon\n")
    command = [sys.executable, "-m", "ingestd", "run", str(configuration)]
    with full_pipe() as (_, writing), subprocess.Popen(command, stdout=writing, stderr=writing) as daemon:
        try:
            assert daemon.wait(DEADLINE) == 2
        finally:
            daemon.kill()


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_daemon_that_is_started_without_outputs_delivers_and_ends(
    configuration: Path, closed: str, once: bool
) -> None:
    # Some programs start daemons so. It ended with 1, and nobody could hear why.
    ingestd = [sys.executable, "-m", "ingestd", "run", *(["--once"] if once else []), str(configuration)]
    with subprocess.Popen(["sh", "-c", f'exec "$@" {closed}', "sh", *ingestd]) as daemon:
        delivers_and_ends(daemon, configuration, once=once)
