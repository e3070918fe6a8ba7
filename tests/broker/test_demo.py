"""`make demo`, smaller: the program that people run first ends well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from ingestd import SyncProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEMO = Path(__file__).parents[2] / "load-tests" / "demo.py"
TIMEOUT = 150


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the demo, in a session of its own as from a terminal; its temporary files are in `tmp_path`."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, DEMO, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"TMPDIR": str(tmp_path)},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def processes_of(directory: Path) -> list[psutil.Process]:
    """Those that were told of something in there: workers and brokers too."""
    return [each for each in psutil.process_iter(["cmdline"]) if str(directory) in " ".join(each.info["cmdline"] or ())]


def test_the_demo_finds_every_line_and_its_copy(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = start("--size", "8MB")
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, output
    assert "0 missing, 0 damaged, 0 out of order" in output
    assert "every record of east is in west" in output
    assert output.count("rotated: ") == 3
    assert output.count("killed: worker ") == 1
    assert not list(tmp_path.iterdir())
    assert not processes_of(tmp_path)


def test_a_record_that_is_in_west_alone_fails_the_demo(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("--size", "8MB", "--rate", "4MB", "--keep", tmp_path / "demo")
    address = tmp_path / "demo" / "state" / "clusters" / "west.address"
    assert process.stdout is not None
    for line in process.stdout:
        if "killed: worker " in line:
            break
    with SyncProducer([address.read_text().strip()]) as producer:
        producer.send("east.access", b"not of this log", partition=0)
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1, output
    assert "FAILED: west does not have what east has." in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing_behind(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    process = start("--size", "200MB")
    assert process.stdout is not None
    for line in process.stdout:
        if "killed: worker " in line:
            break
    began = time.monotonic()
    os.killpg(process.pid, number)  # as a terminal does: the daemon gets it as well
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, output
    assert "Interrupted." in output
    assert time.monotonic() - began < 20
    assert not list(tmp_path.iterdir())
    assert not processes_of(tmp_path)
