"""Where log events go and what they look like."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import warnings

import pytest
import structlog

from ingestd.logs import configure_logs


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
