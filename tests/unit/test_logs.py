"""Where log events go and what they look like."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import subprocess
import sys
import termios
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from ingestd.logs import configure_logs
from ingestd.output import finish_outputs

if TYPE_CHECKING:
    from collections.abc import Iterator


FULL = 45_000
"""Bytes of lines of 1 kB in a pipe with room for few more: each has a page with others, or a new one."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restore():
    """Logging is the process's: put back what was there."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("ingestd").setLevel(logging.NOTSET)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def events(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_where_nobody_looks() -> None:
    stream = io.StringIO()
    configure_logs(stream=stream, process="worker-1")
    structlog.get_logger("ingestd.tail").info("file found", path="/a", size=3, odd={1, 2}.__class__)
    (event,) = events(stream)
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "level": "info",
        "event": "file found",
        "logger": "ingestd.tail",
        "process": "worker-1",
        "path": "/a",
        "size": 3,
        "odd": "<class 'set'>",
    }


def test_text_on_a_terminal() -> None:
    stream = Terminal()
    configure_logs(stream=stream)
    structlog.get_logger("ingestd.tail").warning("file vanished", path="/a")
    line = stream.getvalue()
    assert "file vanished" in line
    assert "/a" in line
    assert line.count("\n") == 1
    assert not line.startswith("{")


def test_text_without_colours_where_asked_for() -> None:
    stream = io.StringIO()
    configure_logs(form="text", stream=stream)
    structlog.get_logger("ingestd").info("started", workers=2)
    assert "started" in stream.getvalue()
    assert "workers=2" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_the_level_holds() -> None:
    stream = io.StringIO()
    configure_logs("warning", stream=stream)
    logger = structlog.get_logger("ingestd.daemon")
    logger.info("no")
    logger.warning("yes")
    assert [event["event"] for event in events(stream)] == ["yes"]


def test_what_libraries_log_takes_the_same_way() -> None:
    stream = io.StringIO()
    configure_logs(stream=stream, process="supervisor")
    logging.getLogger("asyncio").warning("slow by %d", 3, extra={"task": "x"})
    logging.getLogger("aiohttp.access").info("not shown")
    (event,) = events(stream)
    assert (event["event"], event["logger"], event["process"], event["task"]) == (
        "slow by 3",
        "asyncio",
        "supervisor",
        "x",
    )


def test_an_error_has_its_traceback_on_one_line() -> None:
    stream = io.StringIO()
    configure_logs(stream=stream)
    try:
        int("bad")
    except ValueError:
        structlog.get_logger("ingestd").exception("worker failed")
    (event,) = events(stream)
    assert event["exception"].splitlines()[-1] == "ValueError: invalid literal for int() with base 10: 'bad'"


def test_python_warnings_are_logged() -> None:
    stream = io.StringIO()
    configure_logs(stream=stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logs(stream=stream)
        logging.getLogger("py.warnings").warning("unclosed")
    assert events(stream)[0]["event"] == "unclosed"


def test_no_secret_is_logged() -> None:
    stream = io.StringIO()
    configure_logs(stream=stream)
    structlog.get_logger("ingestd").info("connect", sasl_password="hunter2")
    assert "hunter2" not in stream.getvalue()


def test_a_worker_imports_neither_the_http_nor_the_configuration_libraries() -> None:
    program = (
        "import sys, ingestd.logs, ingestd.daemon.configuration, ingestd.daemon.statistics; "
        "print([n for n in ('aiohttp', 'click', 'prometheus_client', 'tomllib') if n in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The reading end of a pipe that is standard error. Logs go there."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", stream)
            configure_logs()
        yield reading
        os.close(reading)  # what waits to be written goes nowhere
        finish_outputs()


def waiting_in(reading: int) -> int:
    """Bytes that are in the pipe."""
    return int.from_bytes(fcntl.ioctl(reading, termios.FIONREAD, bytes(4)), sys.byteorder)


def lines_from(reading: int, wanted: str) -> list[str]:
    """What is read until a line has this event."""
    read = b""
    while wanted.encode() not in read or not read.endswith(b"\n"):
        read += os.read(reading, 65536)
    return [json.loads(line)["event"] for line in read.splitlines()]


def test_nobody_who_logs_waits_for_a_reader_and_what_is_dropped_is_counted(pipe: int) -> None:
    # A pipe that was full stopped the daemon, at its first line of log.
    log = structlog.get_logger("ingestd")
    filling = "x" * 1000
    for number in range(3000):
        line = f"{number:04}{filling}"
        log.info(line)
        while number == 100 and waiting_in(pipe) < FULL:
            time.sleep(0.001)  # else there may be room again, and what was dropped is said, amid these lines
    first = lines_from(pipe, "dropped")
    log.info("the end")
    rest = first + lines_from(pipe, "the end")
    numbers = [int(line[:4]) for line in rest if line.endswith("x")]
    assert numbers == list(range(len(numbers)))
    assert 1000 < len(numbers) < 1300
    assert [line for line in rest if not line.endswith("x")] == [
        "lines of log dropped, nobody read standard error",
        "the end",
    ]


def test_a_line_that_is_larger_than_all_the_room_is_written(pipe: int) -> None:
    structlog.get_logger("ingestd").info("y" * 2_000_000 + "end")
    assert [len(line) for line in lines_from(pipe, "end")] == [2_000_003]


def test_a_reader_that_went_away_stops_nobody(pipe: int) -> None:
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), pipe)  # closes the pipe
    for _ in range(3000):
        structlog.get_logger("ingestd").info("x" * 1000)
    finish_outputs()


def test_in_a_fork_lines_are_written_once(pipe: int) -> None:
    structlog.get_logger("ingestd").info("before")
    finish_outputs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that this process has threads is the point
        child = os.fork()
    if child == 0:
        structlog.get_logger("ingestd").info("in the child")
        finish_outputs()
        os._exit(0)
    os.waitpid(child, 0)
    structlog.get_logger("ingestd").info("after")
    assert lines_from(pipe, "after") == ["before", "in the child", "after"]


def test_to_a_file_lines_are_written_by_who_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "log").open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        configure_logs()
        structlog.get_logger("ingestd").info("written")
        assert "written" in (tmp_path / "log").read_text()
