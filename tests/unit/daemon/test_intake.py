"""Intake: what a finder says is stored only where it is news, and logged so that it can be written and searched."""

import io
import json
import logging
import os
from datetime import datetime

import pytest
import structlog

from ingestd.daemon import intake as intake_module
from ingestd.daemon.intake import Intake
from ingestd.daemon.positions import PositionsLocked, PositionsUnavailable, StoredRoute
from ingestd.daemon.source import End, Found, Loss, StoredPosition, Words
from ingestd.logs import configure_logs


class Finder:
    """A finder that is told of ends, and says what a test wants."""

    def __init__(self, say=lambda sources: None):
        self.told, self.say = [], say

    def ended(self, found, end):
        self.told.append((found, end))

    async def scan(self, sources):
        self.say(sources)


class Route:
    """A route by name alone."""

    name = "r"
    words = Words("file", "line", "file", "paths")


class Handover:
    """Notes what it is asked for."""

    def __init__(self):
        self.said, self.waited = [], False

    def appeared(self, route, found, *, stored):
        self.said.append(("appeared", route, found.source, stored))

    def conclude(self, route, source):
        self.said.append(("conclude", route, source))

    def store(self, route, stored):
        self.said.append(("store", route, stored.source))

    def forget(self, route, source):
        self.said.append(("forget", route, source))

    def latest(self, route, source):
        return Found(source, 5, {"of": route})

    async def done(self):
        self.waited = True


class News:
    """Notes what it is told."""

    def __init__(self):
        self.troubles, self.losses, self.overflows, self.files_gone, self.given_up_ = [], [], [], [], []

    def untakeable(self, route, thing, reason):
        self.troubles.append((route.name, thing, reason))

    def given_up(self, route, reason):
        self.given_up_.append((route.name, reason))

    def overflowed(self, route):
        self.overflows.append(route.name)

    def gone(self, route, sources):
        self.files_gone.append((route.name, sources))

    def lost(self, route, loss):
        self.losses.append((route.name, loss))


class Positions:
    """Notes what is missing; refuses as often as it is told to."""

    def __init__(self, *refusals):
        self.missing, self.refusals = [], list(refusals)

    def note_missing(self, route, sources, seconds):
        if self.refusals:
            raise self.refusals.pop(0)
        self.missing.append((route, sources))
        return 1


def make(say=lambda sources: None, stored=None):
    made = Intake(Route(), Finder(say), stored or StoredRoute(), Handover(), News())
    return made, made._finder, made._handover, made._news


@pytest.fixture
def logged():
    """What is logged as JSON meanwhile; logging is the process's, so what was there is put back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    configure_logs("debug", "json", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("ingestd").setLevel(logging.NOTSET)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def only(logged):
    (event,) = [json.loads(line) for line in logged.getvalue().splitlines()]
    return event


def test_the_end_of_a_source_whose_name_is_not_utf8_is_logged(logged, capsys):
    # JSON has no place for such bytes: instead of the event there was a traceback on standard error.
    made, finder, _, _ = make()
    found, end = Found("s", 7, {}), End("deleted", os.fsdecode(b"/logs/caf\xe9.1"), 7, 9)
    made.ended(found, end)
    assert only(logged)["path"] == "/logs/caf\\xe9.1"
    assert finder.told == [(found, end)]
    assert capsys.readouterr().err == ""


def test_the_end_of_a_source_is_logged_with_what_people_call_it_and_where_it_was(logged):
    made, *_ = make()
    made.ended(Found("8-2a-1f", 7, {}, label="/logs/a"), End("concluded", "/logs/a.1", 7, 7))
    event = only(logged)
    assert (event["event"], event["level"]) == ("source finished", "debug")
    fields = ("source", "file", "reason", "path", "position", "size")
    assert [event[name] for name in fields] == ["8-2a-1f", "/logs/a", "concluded", "/logs/a.1", 7, 7]


def test_a_loss_is_an_error_with_file_reason_and_range(logged):
    made, _, _, news = make()
    loss = Loss(os.fsdecode(b"/logs/caf\xe9"), "deleted", 2_204_000, 15_200, exact=False)
    made.lost(loss)
    event = only(logged)
    assert (event["event"], event["level"], event["route"]) == ("data lost", "error", "r")
    fields = ("file", "reason", "start", "bytes", "at_least")
    assert [event[name] for name in fields] == ["/logs/caf\\xe9", "deleted", 2_204_000, 15_200, True]
    assert "why" not in event
    assert news.losses == [("r", Loss("/logs/caf\\xe9", "deleted", 2_204_000, 15_200, exact=False))]


def test_a_loss_says_in_words_what_its_reader_knows_of_the_reason(logged):
    made, *_ = make()
    made.lost(Loss("/logs/a.gz", "damaged", 10, 5, exact=False, why="it is cut off"))
    assert only(logged)["why"] == "it is cut off"


def test_a_file_that_is_not_taken_is_named(logged):
    made, _, _, news = make()
    made.trouble("/logs/a", "it has NUL bytes")
    event = only(logged)
    assert (event["event"], event["level"]) == ("file not taken", "warning")
    assert (event["file"], event["reason"]) == ("/logs/a", "it has NUL bytes")
    assert news.troubles == [("r", "/logs/a", "it has NUL bytes")]


def test_an_entry_that_matches_nothing_has_an_event_of_its_own_and_is_listed_too(logged):
    made, _, _, news = make()
    made.unmatched("/logs/*.txt", "no file matches it yet")
    event = only(logged)
    assert (event["event"], event["level"]) == ("an entry of paths matches no file", "warning")
    assert (event["paths"], event["reason"]) == ("/logs/*.txt", "no file matches it yet")
    assert news.troubles == [("r", "/logs/*.txt", "no file matches it yet")]
    assert [each.file for each in made.not_taken] == ["/logs/*.txt"]


def test_files_that_are_not_taken_are_kept_with_their_last_reason_until_they_are_taken_or_gone():
    made, *_ = make()
    made.trouble("/logs/a", "can not be read: Permission denied")
    made.trouble("/logs/b", "a directory, not a file")
    made.trouble("/logs/a", "it has NUL bytes")
    assert [(each.file, each.reason) for each in made.not_taken] == [
        ("/logs/b", "a directory, not a file"),
        ("/logs/a", "it has NUL bytes"),
    ]
    assert datetime.fromisoformat(made.not_taken[0].time).tzinfo is not None
    made.appeared(Found("8-2a-1f", 0, {}, label="/logs/a"))
    assert [each.file for each in made.not_taken] == ["/logs/b"]
    made.trouble_over("/logs/b")
    made.trouble_over("/logs/c")
    assert not made.not_taken


def test_that_a_finders_events_were_dropped_is_passed_on_to_be_counted():
    made, _, _, news = make()
    made.overflowed()
    made.overflowed()
    assert news.overflows == ["r", "r"]


def test_files_that_were_gone_at_the_start_are_counted_and_the_last_are_kept():
    made, _, _, news = make()
    made.gone([("/logs/a", 5), ("/logs/\udcff", 0)])
    made.gone([("/logs/b", 7)])
    assert news.files_gone == [("r", 2), ("r", 1)]
    shown = [(each.file, each.position) for each in made.last_gone]
    assert shown == [("/logs/a", 5), (r"/logs/\xff", 0), ("/logs/b", 7)]
    assert datetime.fromisoformat(made.last_gone[0].time).tzinfo is not None
    made.gone([(f"/logs/{number}", number) for number in range(250)])
    assert [each.position for each in made.last_gone] == list(range(150, 250))


def test_that_a_file_is_taken_now_which_was_not_is_said_once(logged):
    made, *_ = make()
    made.trouble("/logs/a", "can not be read: Permission denied")
    logged.seek(0)
    logged.truncate()
    for source in ("1", "2"):
        made.appeared(Found(source, 0, {}, label="/logs/a"))
    event = only(logged)
    assert (event["event"], event["level"], event["route"], event["file"]) == ("file taken now", "info", "r", "/logs/a")
    assert event["reason_before"] == "can not be read: Permission denied"


def test_of_many_files_that_are_not_taken_the_last_are_kept():
    made, *_ = make()
    for number in range(250):
        made.trouble(f"/logs/{number}", "can not be read: Permission denied")
    assert [each.file for each in made.not_taken] == [f"/logs/{number}" for number in range(150, 250)]


async def test_a_scan_is_done_when_what_it_found_is_with_its_owners():
    made, _, handover, _ = make(lambda sources: sources.appeared(Found("a", 0, {})))
    await made.scan()
    assert handover.said == [("appeared", "r", "a", False)]
    assert handover.waited
    assert made.taken == 1


def rows(*names, missing=()):
    return StoredRoute([StoredPosition(name, 5, {"path": f"/{name}"}) for name in names], set(missing))


def test_a_source_that_resumes_as_it_is_stored_is_not_stored_again():
    made, _, handover, _ = make(stored=rows("same", "moved", "renamed", "back", missing=["back"]))
    made.appeared(Found("same", 5, {"path": "/same"}, label="/same", until=9))
    made.appeared(Found("moved", 4, {"path": "/moved"}))
    made.appeared(Found("renamed", 5, {"path": "/renamed.1"}))
    made.appeared(Found("back", 5, {"path": "/back"}))
    made.appeared(Found("new", 0, {}))
    stored = {source: stored for _, _, source, stored in handover.said}
    assert stored == {"same": True, "moved": False, "renamed": False, "back": False, "new": False}


def test_only_the_first_word_on_a_row_can_be_that_it_is_as_it_was():
    made, _, handover, _ = make(stored=rows("a"))
    made.store(StoredPosition("a", 9, {}))
    made.appeared(Found("a", 5, {"path": "/a"}))
    assert handover.said == [("store", "r", "a"), ("appeared", "r", "a", False)]


def test_a_row_that_is_kept_as_it_is_costs_no_write():
    made, _, handover, _ = make(stored=rows("a", "b", "back", missing=["back"]))
    made.store(StoredPosition("a", 5, {"path": "/a"}))
    made.store(StoredPosition("b", 5, {"path": "/b.1"}))
    made.store(StoredPosition("back", 5, {"path": "/back"}))
    made.store(StoredPosition("a", 5, {"path": "/a"}))
    assert handover.said == [("store", "r", "b"), ("store", "r", "back"), ("store", "r", "a")]


def test_what_else_a_finder_says_and_asks_goes_to_the_handover():
    made, _, handover, _ = make(stored=rows("a"))
    made.conclude("a")
    made.forget("a")
    assert handover.said == [("conclude", "r", "a"), ("forget", "r", "a")]
    assert made.latest("a") == Found("a", 5, {"of": "r"})


def test_what_is_over_counts_as_found_and_its_name_is_not_kept():
    made, *_ = make()
    for name in "ab":
        made.appeared(Found(name, 0, {}))
        made.appeared(Found(name, 0, {}))
    made.forget("a")
    made.forget("a")
    made.forget("never read")
    assert made.taken == 2
    assert made._taken == {"b"}


async def test_rows_that_nobody_named_are_noted_as_missing_bit_by_bit(monkeypatch):
    monkeypatch.setattr(intake_module, "FORGOTTEN_AT_ONCE", 2)
    monkeypatch.setattr(intake_module, "FORGETTING_PAUSE", 0)
    made, *_ = make(stored=rows("a", "b", "c", "d", "e", "f"))
    made.appeared(Found("a", 5, {"path": "/a"}))
    made.store(StoredPosition("b", 6, {}))
    made.forget("c")
    positions = Positions(PositionsLocked("another program has it"))
    with structlog.testing.capture_logs() as logs:
        await made.forget_absent(positions)
    assert positions.missing == [("r", ["d", "e"]), ("r", ["f"])]
    assert logs == [{"event": "old positions forgotten", "log_level": "info", "route": "r", "sources": 2}]


async def test_old_rows_are_kept_while_the_file_can_not_be_written():
    made, *_ = make(stored=rows("a"))
    with structlog.testing.capture_logs() as logs:
        await made.forget_absent(Positions(PositionsUnavailable("the disk is full")))
    assert [(entry["event"], entry["error"]) for entry in logs] == [("old positions are kept", "the disk is full")]


def test_that_a_route_is_given_up_is_an_error_of_the_route(logged):
    # It was said as a thing of the route that is not taken, with the route's own name.
    intake, *_, news = make()
    intake.given_up("hosts run this mirror now")
    (said,) = map(json.loads, logged.getvalue().splitlines())
    assert (said["level"], said["event"], said["route"]) == ("error", "route given up", "r")
    assert (intake.problem, intake.not_taken) == ("hosts run this mirror now", ())
    assert news.given_up_ == [("r", "hosts run this mirror now")]


def test_why_a_finder_can_not_look_is_kept_and_said_once(logged):
    intake, *_ = make()
    for problem in ("no broker", "no broker", "refused", None, None):
        intake.looked(problem)
        assert intake.problem == problem
    said = [(line["event"], line.get("error")) for line in map(json.loads, logged.getvalue().splitlines())]
    assert said == [
        ("sources can not be looked for", "no broker"),
        ("sources can not be looked for", "refused"),
        ("sources are looked for again", None),
    ]
