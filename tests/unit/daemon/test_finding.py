"""Finding: all routes' finders at once; one that hangs is its own route's trouble alone."""

import asyncio
import threading

import pytest
import structlog

from ingestd.daemon import finding as finding_module
from ingestd.daemon.finding import Finding
from ingestd.daemon.positions import PositionsDamaged, PositionStore
from ingestd.daemon.source import End, Found, StoredPosition, WrongDetail
from ingestd.tasks import TaskOwner


class FakeRoute:
    """A route that is its own finder, and scans when it may."""

    keeper = None

    def __init__(self, name, events, refusal=None):
        self.name, self.events, self.refusal = name, events, refusal
        self.may_scan, self.scanning, self.told = asyncio.Event(), asyncio.Event(), []

    def finder(self, stored, surroundings):
        assert threading.current_thread() is not threading.main_thread()
        self.events.append(("made", self.name))
        self.stored, self.first_run = stored, surroundings.first_run
        self.once, self.others = surroundings.once, surroundings.others
        if self.refusal is not None:
            raise self.refusal
        return self

    async def scan(self, sources):
        self.events.append(("scans", self.name))
        self.scanning.set()
        sources.appeared(Found(f"{self.name}1", 0, {}))
        await self.may_scan.wait()

    async def run(self, sources):
        self.events.append(("runs", self.name))
        await asyncio.Event().wait()

    def ended(self, found, end):
        self.told.append((found, end))


class FakeCheckpoint:
    def __init__(self):
        self.run = []

    def keep_elsewhere(self, route, keeper):
        pass

    def note_run(self, routes):
        self.run += routes


class FakeHandover:
    def __init__(self):
        self.appearances = []

    def appeared(self, route, found, *, stored):
        self.appearances.append((route, found.source))

    async def done(self):
        pass


class Bench:
    """A finding over fake routes, with its tasks."""

    def __init__(self, store, names, *, once=False, refusal=None):
        self.events, self.crashes = [], []
        self.tasks = TaskOwner(self.crashes.append)
        self.routes = [FakeRoute(name, self.events, refusal) for name in names]
        self.checkpoint, self.handover, self.found = FakeCheckpoint(), FakeHandover(), asyncio.Event()
        self.finding = Finding(
            self.routes, store, self.checkpoint, self.handover, None, once=once, client=None, host="h"
        )

    async def start(self):
        await self.finding.prepare()
        self.finding.start(self.tasks, self.found.set)


@pytest.fixture
async def make(tmp_path):
    made = []
    store = PositionStore(tmp_path / "positions.sqlite")

    def make(*names, **options):
        made.append(Bench(store, names, **options))
        made[-1].store = store
        return made[-1]

    yield make
    for each in made:
        await each.tasks.close()
    store.close()


async def soon(waiting):
    return await asyncio.wait_for(waiting, 5)


async def test_every_finder_is_made_before_one_scans_and_gets_those_before_it(make):
    made = make("a", "b", "c")
    await made.start()
    await soon(asyncio.gather(*(route.scanning.wait() for route in made.routes)))
    assert [event for event, _ in made.events] == ["made"] * 3 + ["scans"] * 3
    assert [route.others for route in made.routes] == [(), (made.routes[0],), (made.routes[0], made.routes[1])]


async def test_a_finder_gets_what_is_stored_of_its_route_and_whether_that_has_looked_for_all(make):
    made = make("a", "b", "c", "d", once=True)
    made.store.write([(name, StoredPosition("x", 5, {})) for name in "ad"], run={"a": None, "b": 100.0})
    await made.finding.prepare()
    stored = [StoredPosition("x", 5, {})]
    assert [route.stored for route in made.routes] == [stored, [], [], stored]
    assert [route.first_run for route in made.routes] == [False, False, True, True]
    assert all(route.once for route in made.routes)


async def test_the_first_run_of_a_route_is_said_until_it_has_found_all(make):
    # A state that was lost is a first run: only this line in the log tells of it.
    made = make("a", "b", "c", "d")
    made.store.write([(name, StoredPosition("x", 5, {})) for name in "ad"], run={"a": None, "b": 100.0})
    with structlog.testing.capture_logs() as logs:
        await made.finding.prepare()
    assert [(entry["event"], entry["route"], entry["state"]) for entry in logs] == [
        ("first run of this tail", name, str(made.store.path)) for name in "cd"
    ]
    assert [(entry["log_level"], "unused" in entry) for entry in logs] == [("info", False)] * 2


async def test_the_first_run_of_a_route_is_a_warning_where_another_name_has_positions_that_nobody_uses(make):
    # A tail was renamed: its rotated files that were not delivered are never read, and only this line tells of it.
    made = make("a", "c", "kept elsewhere")
    made.routes[2].keeper = object()
    names = ["a", "kept elsewhere", *(f"old{number}" for number in reversed(range(7)))]
    run = {"a": 100.0, "a mirror that was removed": 100.0}
    made.store.write([(name, StoredPosition("x", 5, {})) for name in names], run=run)
    with structlog.testing.capture_logs() as logs:
        await made.finding.prepare()
    (entry,) = logs
    assert (entry["log_level"], entry["event"], entry["route"]) == ("warning", "first run of this tail", "c")
    assert entry["unused"] == ["old0", "old1", "old2", "old3", "old4"]
    assert "give it that name again" in entry["remedy"]


async def test_a_finder_that_hangs_keeps_nobody_but_its_own_route_from_being_ready(make):
    # The first route's directory is on a mount that answers no more.
    made = make("dead", "b")
    await made.start()
    made.routes[1].may_scan.set()
    async with asyncio.timeout(5):
        while ("runs", "b") not in made.events:
            await asyncio.sleep(0)
    assert made.finding.unfinished == ["dead"]
    assert made.checkpoint.run == ["b"]
    assert not made.found.is_set()
    assert not await made.finding.finished_within(0)
    made.routes[0].may_scan.set()
    await soon(made.found.wait())
    assert made.checkpoint.run == ["b", "dead"]
    assert made.finding.unfinished == []
    assert await made.finding.finished_within(5)


async def test_no_route_is_nothing_to_find(make):
    made = make()
    await made.start()
    assert made.found.is_set()


async def test_a_run_with_an_end_does_not_go_on_finding(make):
    made = make("a", once=True)
    await made.start()
    made.routes[0].may_scan.set()
    await soon(made.found.wait())
    assert made.events == [("made", "a"), ("scans", "a")]


async def test_progress_is_logged_until_all_is_found(make, monkeypatch):
    monkeypatch.setattr(finding_module, "PROGRESS_INTERVAL", 0.001)
    made = make("a", "b")
    with structlog.testing.capture_logs() as logs:
        await made.start()
        made.routes[0].may_scan.set()
        async with asyncio.timeout(5):
            while not any(entry.get("routes") == ["b"] for entry in logs):
                await asyncio.sleep(0)
        made.routes[1].may_scan.set()
        async with asyncio.timeout(5):
            while logs[-1]["event"] != "sources found":
                await asyncio.sleep(0)
    assert [entry["found"] for entry in logs if entry.get("routes") == ["b"]][-1] == 2
    assert logs[-1]["sources"] == 2


async def test_progress_is_logged_at_growing_intervals(make, monkeypatch):
    waited = []

    async def waits(self, seconds):
        waited.append(seconds)
        return len(waited) > 10

    monkeypatch.setattr(finding_module.Finding, "finished_within", waits)
    made = make("a")
    with structlog.testing.capture_logs() as logs:
        await made.finding._show_progress()
    assert waited == [3, 6, 12, 24, 48, 96, 192, 384, 600, 600, 600]
    assert len([entry for entry in logs if entry["event"] == "finding sources"]) == 10


async def test_what_a_route_found_is_counted_and_its_finder_hears_of_ends(make):
    made = make("a")
    await made.start()
    await soon(made.routes[0].scanning.wait())
    assert (made.finding.taken("a"), made.finding.taken("nobody")) == (1, 0)
    found, end = Found("a1", 5, {}), End("deleted", "/a", 5, 5)
    made.finding.ended("a", found, end)
    assert made.routes[0].told == [(found, end)]


async def test_a_detail_that_a_route_can_not_understand_is_named_with_its_row(make):
    made = make("a", refusal=WrongDetail("x", "size: expected a number of 0 or more, not -1"))
    with pytest.raises(PositionsDamaged, match="route 'a', source 'x': its detail can not be understood: size: exp"):
        await made.finding.prepare()


async def test_a_finder_that_fails_is_no_secret(make):
    made = make("a")
    await made.start()
    failure = RuntimeError("a defect")

    async def fail(sources):
        raise failure

    made.routes[0].run = fail
    made.routes[0].may_scan.set()
    async with asyncio.timeout(5):
        while not made.crashes:
            await asyncio.sleep(0)
    assert made.crashes == [failure]
