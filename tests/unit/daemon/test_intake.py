"""Intake: what it logs of a source can be written, whatever the source is called."""

import io
import json
import logging
import os

import pytest
import structlog

from ingestd.daemon.intake import Intake
from ingestd.daemon.source import Found
from ingestd.logs import configure_logs


class Finder:
    """A finder that is told of ends."""

    def __init__(self):
        self.told = []

    def ended(self, source, reason):
        self.told.append((source, reason))


class Route:
    """A route with one finder."""

    name = "r"

    def __init__(self):
        self.made = Finder()

    def finder(self, stored, *, once):
        return self.made


@pytest.fixture
def logged():
    """What is logged as JSON meanwhile; logging is the process's, so what was there is put back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    configure_logs("info", "json", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("ingestd").setLevel(logging.NOTSET)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def test_the_end_of_a_source_whose_name_is_not_utf8_is_logged(logged, capsys):
    # JSON has no place for such bytes: instead of the event there was a traceback on standard error.
    route = Route()
    reason = os.fsdecode(b"renamed to /logs/caf\xe9.1, read to 7")
    Intake(route, None, None, once=False).ended(Found("s", 0, {}), reason)
    (event,) = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert event["reason"] == "renamed to /logs/caf\\xe9.1, read to 7"
    assert route.made.told == [("s", reason)]
    assert capsys.readouterr().err == ""


def test_the_end_of_a_source_is_logged_with_the_path_of_its_file(logged):
    # "truncated with at least 5 bytes unread", of which file only the database of positions could say.
    Intake(Route(), None, None, once=False).ended(Found("8-2a-1f", 0, {"path": "/logs/a"}), "deleted, read to 7")
    (event,) = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert (event["source"], event["file"], event["reason"]) == ("8-2a-1f", "/logs/a", "deleted, read to 7")
