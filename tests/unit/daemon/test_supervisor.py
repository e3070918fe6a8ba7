"""Supervisor: a signal ends it at any moment, a look cut short forgets nothing, and runs with an end end."""

import asyncio
import os
import signal
import sqlite3
import time
from dataclasses import dataclass, field

import pytest
import structlog

from ingestd.daemon import supervisor
from ingestd.daemon.configuration import ClusterSettings, Configuration, DaemonSettings
from ingestd.daemon.control import SourceEnded, SourceTroubled
from ingestd.daemon.positions import PositionStore
from ingestd.daemon.source import Found, StoredPosition
from ingestd.daemon.supervisor import ABSENCE, Supervisor


@dataclass(frozen=True)
class FakeRoute:
    """A route whose finder finds what it is told to, as soon as `looked` is set."""

    found: tuple = ()
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    looking: asyncio.Event = field(default_factory=asyncio.Event)
    name: str = "r"
    cluster: str = "c"
    topic: str = "t"

    def finder(self, stored, *, once):
        return self

    async def scan(self, sources):
        self.looking.set()
        await self.looked.wait()
        for found in self.found:
            sources.appeared(found)

    async def run(self, sources):
        await asyncio.Event().wait()

    def ended(self, source, reason):
        pass


class FakeWorkers:
    """Workers that are told things and do nothing; stuck ones drain until they are abandoned."""

    stuck = False

    def __init__(self, settings, routes, clusters, *, received, started, died):
        self.count, self.restarts, self.told, self.received = 1, [0], [], received
        self.draining, self.abandoned = asyncio.Event(), asyncio.Event()

    async def start(self):
        pass

    def get(self, slot):
        return None

    def tell(self, slot, message):
        self.told.append(message)

    tell_all = tell

    async def drain(self, deadline):
        if self.stuck:
            self.draining.set()
            await self.abandoned.wait()
        return 0

    def abandon(self):
        self.abandoned.set()

    async def close(self, deadline):
        pass


class FakeSession:
    """A cluster that is there at once, or never."""

    starts = True
    ended = False

    def __init__(self, settings, topics, daemon, push):
        self.settings, self.metadata, self.trouble, self.ready = settings, None, None, True

    async def start(self):
        if not self.starts:
            await asyncio.Event().wait()

    async def close(self, deadline):
        FakeSession.ended = True


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "Workers", FakeWorkers)
    monkeypatch.setattr(supervisor, "ClusterSession", FakeSession)
    monkeypatch.setattr(FakeSession, "starts", True)
    monkeypatch.setattr(FakeSession, "ended", False)

    def made(route, *, once=False, **daemon):
        settings = DaemonSettings(workers=1, state=tmp_path, http="", **daemon)
        clusters = {"c": ClusterSettings("c", bootstrap=("nowhere:1",))}
        return Supervisor(Configuration(tmp_path / "f.toml", settings, clusters, (route,)), once=once)

    yield made
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if number is signal.SIGTERM else signal.default_int_handler)


async def ends(running):
    async with asyncio.timeout(5):
        return await running


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("once", [False, True])
async def test_a_signal_ends_a_start_that_waits_for_a_cluster(make, monkeypatch, once):
    monkeypatch.setattr(FakeSession, "starts", False)
    running = asyncio.create_task(make(FakeRoute(), once=once).run())
    await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    summary = await ends(running)
    assert FakeSession.ended
    # A run with an end has not done what it was for.
    assert summary.complete is not once


async def test_a_look_that_a_signal_cuts_short_forgets_no_position(make, tmp_path):
    store = PositionStore(tmp_path / "positions.sqlite")
    store.store([("r", StoredPosition("quiet", 5, {}))])
    store.close()
    with sqlite3.connect(tmp_path / "positions.sqlite") as database:
        database.execute("UPDATE position SET updated = ?", (time.time() - ABSENCE - 1,))
    database.close()
    route = FakeRoute()
    running = asyncio.create_task(make(route).run())
    await asyncio.wait_for(route.looking.wait(), 5)
    os.kill(os.getpid(), signal.SIGTERM)
    await ends(running)
    store = PositionStore(tmp_path / "positions.sqlite")
    assert [position.source for position in store.stored("r")] == ["quiet"]
    store.close()


async def test_only_the_first_complete_look_of_a_route_is_its_first(make, monkeypatch):
    given = []

    def finder(self, stored, *, once):
        given.append(stored)
        return self

    monkeypatch.setattr(FakeRoute, "finder", finder)
    cut_short = FakeRoute()
    running = asyncio.create_task(make(cut_short).run())
    await asyncio.wait_for(cut_short.looking.wait(), 5)
    os.kill(os.getpid(), signal.SIGTERM)
    await ends(running)
    for _ in range(2):
        route = FakeRoute()
        route.looked.set()
        await ends(make(route, once=True).run())
    assert given == [None, None, []]


@pytest.mark.parametrize("found", [(), (Found("a", 0, {}, 0),)])
async def test_a_run_with_an_end_ends_when_all_sources_have(make, found):
    route = FakeRoute(found)
    made = make(route, once=True)
    running = asyncio.create_task(made.run())
    route.looked.set()
    await until(lambda: len(made._workers.told) == len(found))
    for assigned in made._workers.told:
        for assignment in assigned.assignments:
            made._received(0, SourceEnded("r", assignment.found.source, assignment.generation, "taken"))
    summary = await ends(running)
    assert summary.complete
    assert summary.routes[0].sources == len(found)


async def test_a_run_with_an_end_gives_up_on_a_source_that_can_not_be_read_again_and_again(make):
    route = FakeRoute((Found("a", 0, {"path": "/logs/a"}, 9),))
    made = make(route, once=True)
    running = asyncio.create_task(made.run())
    route.looked.set()
    await until(lambda: made._workers.told)
    for _ in range(2):
        made._received(0, SourceTroubled("r", "a", 1, "Input/output error"))
    await asyncio.sleep(0.01)
    assert not running.done()
    for _ in range(20):
        made._received(0, SourceTroubled("r", "a", 1, "Input/output error"))
    summary = await ends(running)
    assert not summary.complete
    assert summary.failures == ("r: /logs/a: Input/output error",)


async def test_a_second_signal_cuts_the_drain_short(make, monkeypatch):
    monkeypatch.setattr(FakeWorkers, "stuck", True)
    route = FakeRoute()
    made = make(route)
    running = asyncio.create_task(made.run())
    route.looked.set()
    await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(made._workers.draining.wait(), 5)
    assert not running.done()
    os.kill(os.getpid(), signal.SIGTERM)
    await ends(running)
    assert made._workers.abandoned.is_set()


async def test_a_run_with_an_end_gives_up_when_nothing_is_acknowledged_for_long(make, monkeypatch):
    monkeypatch.setattr(supervisor, "ONCE_START_TIMEOUT", 0.0)
    route = FakeRoute((Found("a", 0, {}, 9),))
    running = asyncio.create_task(make(route, once=True, once_patience=0.01).run())
    route.looked.set()
    summary = await ends(running)
    assert summary.failures[0] == "gave up: nothing was acknowledged for 0.01 s"
    assert not summary.complete


async def test_a_start_and_an_end_while_another_program_has_the_positions_locked(make, tmp_path):
    # A backup, or a `sqlite3` with an open transaction: the loop that feeds the watchdog and answers /healthz turns on.
    PositionStore(tmp_path / "positions.sqlite").close()
    backup = sqlite3.connect(tmp_path / "positions.sqlite", isolation_level=None)
    backup.execute("BEGIN IMMEDIATE")
    route = FakeRoute((Found("a", 7, {}),))
    route.looked.set()
    made = make(route)
    began = time.monotonic()
    running = asyncio.create_task(made.run())
    await until(lambda: made._workers.told)
    await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.01)
    assert time.monotonic() - began < 2
    assert not running.done()
    backup.execute("ROLLBACK")
    summary = await ends(running)
    assert summary.failures == ()
    store = PositionStore(tmp_path / "positions.sqlite")
    assert store.stored("r") == [StoredPosition("a", 7, {})]
    store.close()
    backup.close()


@pytest.mark.parametrize("end", ["the drain's deadline", "a second signal"])
async def test_the_end_waits_for_locked_positions_no_longer_than_a_drain_may_take(make, tmp_path, end):
    PositionStore(tmp_path / "positions.sqlite").close()
    backup = sqlite3.connect(tmp_path / "positions.sqlite", isolation_level=None)
    backup.execute("BEGIN IMMEDIATE")
    route = FakeRoute((Found("a", 7, {}),))
    route.looked.set()
    made = make(route, drain_timeout=0.2 if end == "the drain's deadline" else 30.0)
    running = asyncio.create_task(made.run())
    await until(lambda: made._workers.told)
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: made._draining)
    if end == "a second signal":
        os.kill(os.getpid(), signal.SIGTERM)
    summary = await ends(running)
    why = "positions can not be written: another program has it locked"
    assert summary.failures == (f"1 positions could not be stored: {tmp_path}/positions.sqlite: {why}",)
    backup.close()


async def test_a_source_that_can_not_be_read_is_logged_with_the_path_of_its_file(make):
    # What a read raises names no file: "[Errno 5] Input/output error".
    route = FakeRoute((Found("8-2a-1f", 0, {"path": "/logs/a"}),))
    route.looked.set()
    made = make(route)
    running = asyncio.create_task(made.run())
    await until(lambda: made._workers.told)
    with structlog.testing.capture_logs() as logs:
        made._received(0, SourceTroubled("r", "8-2a-1f", 1, "[Errno 5] Input/output error"))
    os.kill(os.getpid(), signal.SIGTERM)
    await ends(running)
    (said,) = logs
    assert (said["file"], said["reason"]) == ("/logs/a", "[Errno 5] Input/output error")
