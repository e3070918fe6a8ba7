"""Supervisor: a signal ends it at any moment, a look cut short forgets nothing, and runs with an end end."""

import asyncio
import errno
import gc
import os
import signal
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import structlog

from ingestd.client.metadata import ClusterMetadata, Node
from ingestd.daemon import supervisor
from ingestd.daemon.configuration import ClusterSettings, Configuration, DaemonSettings
from ingestd.daemon.control import (
    Answered,
    Asked,
    Assign,
    Conclude,
    Drained,
    Moved,
    PositionsReported,
    SourceEnded,
    SourceLost,
    SourceTroubled,
    StatisticsReported,
    Unacknowledged,
)
from ingestd.daemon.intake import ABSENCE
from ingestd.daemon.positions import PositionsDamaged, PositionStore, PositionsUnavailable
from ingestd.daemon.source import End, Found, Loss, StoredPosition, Words
from ingestd.daemon.statistics import RouteCounters, SourceGauges, WorkerStatistics
from ingestd.daemon.supervisor import TROUBLE_SAID_AGAIN, Supervisor
from ingestd.daemon.workers import EngineLost
from ingestd.errors import ConfigurationError


@dataclass(frozen=True)
class FakeRoute:
    """A route whose finder finds what it is told to, as soon as `looked` is set; and says what a test wants."""

    keeper: ClassVar = None
    waiting: ClassVar = 3
    found: tuple = ()
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    looking: asyncio.Event = field(default_factory=asyncio.Event)
    name: str = "r"
    cluster: str = "c"
    clusters: tuple = ("c",)
    fixed_topics: tuple = ("t",)
    writes_to: str = "t"
    words: Words = Words("file", "line", "file")  # noqa: RUF009 - a tuple
    loss_reasons: tuple = ("deleted", "truncated")
    said: list = field(default_factory=list)
    ends: list = field(default_factory=list)
    told_before: list = field(default_factory=list)

    def finder(self, stored, surroundings):
        return self

    async def scan(self, sources):
        self.said.append(sources)
        self.looking.set()
        await self.looked.wait()
        for found in self.found:
            sources.appeared(found)

    async def run(self, sources):
        await asyncio.Event().wait()

    async def rest(self):
        pass

    def moved(self):
        self.told_before.append(self.said[0].latest(self.found[0].source))

    def ended(self, found, end):
        self.ends.append((found, end))


class FakeWorkers:
    """Workers that are told things and do nothing; stuck ones drain until they are abandoned."""

    stuck = False
    left = Drained(0)

    def __init__(self, settings, routes, clusters, *, received, started, died, crashed, hire):
        self.count, self.restarts, self.told = 1, [0], []
        self.received, self.crashed = received, crashed
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
        return self.left

    def abandon(self):
        self.abandoned.set()

    async def close(self, deadline):
        pass


class FakeSession:
    """A cluster that is there at once, or never."""

    starts = True
    ended = False

    def __init__(self, settings, topics, daemon, push, reachable):
        self.settings, self.metadata, self.trouble, self.ready = settings, None, None, True
        self.silent_seconds = 0.0

    def has(self, topic):
        return self.ready

    async def start(self):
        if not self.starts:
            await asyncio.Event().wait()

    async def close(self, deadline):
        FakeSession.ended = True


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "Workers", FakeWorkers)
    monkeypatch.setattr(supervisor, "SupervisedCluster", FakeSession)
    monkeypatch.setattr(FakeSession, "starts", True)
    monkeypatch.setattr(FakeSession, "ended", False)

    def made(*routes, once=False, **daemon):
        settings = DaemonSettings(workers=1, state=tmp_path, http="", **daemon)
        clusters = {"c": ClusterSettings("c", bootstrap=("nowhere:1",))}
        return Supervisor(Configuration(tmp_path / "f.toml", settings, clusters, routes), once=once)

    return made


async def ends(running):
    async with asyncio.timeout(5):
        return await running


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def stored(tmp_path, route="r"):
    store = PositionStore(tmp_path / "positions.sqlite")
    try:
        return store.read()[route].positions
    finally:
        store.close()


async def stops(running):
    os.kill(os.getpid(), signal.SIGTERM)
    return await ends(running)


TAKEN = End("taken", "/a", 0, 0)


@pytest.mark.parametrize("once", [False, True])
async def test_a_signal_ends_a_start_that_waits_for_a_cluster(make, monkeypatch, once):
    monkeypatch.setattr(FakeSession, "starts", False)
    running = asyncio.create_task(make(FakeRoute(), once=once).run())
    await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    summary = await ends(running)
    assert FakeSession.ended
    # A run with an end has not done what it was for. What stopped it was not said.
    assert summary.failures == (("stopped by SIGTERM before all sources were found",) if once else ())
    assert summary.complete is not once


async def test_a_run_with_an_end_says_which_signal_stopped_it(make):
    _, running = await started(make, FakeRoute((Found("a", 2, {}, 9),)), once=True)
    os.kill(os.getpid(), signal.SIGINT)
    assert (await ends(running)).failures == (
        "stopped by SIGINT before the end of 1 source (a): at least 7 bytes are not delivered",
    )


async def test_a_look_that_a_signal_cuts_short_forgets_no_position(make, tmp_path):
    store = PositionStore(tmp_path / "positions.sqlite")
    store.write([("r", StoredPosition("quiet", 5, {}))])
    store.note_missing("r", ["quiet"], ABSENCE)
    store.close()
    with sqlite3.connect(tmp_path / "positions.sqlite") as database:
        database.execute("UPDATE position SET missing = ?", (time.time() - ABSENCE - 1,))
    database.close()
    route = FakeRoute()
    running = asyncio.create_task(make(route).run())
    await asyncio.wait_for(route.looking.wait(), 5)
    os.kill(os.getpid(), signal.SIGTERM)
    await ends(running)
    assert [position.source for position in stored(tmp_path)] == ["quiet"]
    # A complete one does.
    route = FakeRoute()
    route.looked.set()
    made = make(route)
    running = asyncio.create_task(made.run())
    await until(lambda: not made._positions.read()["r"].positions)
    await stops(running)


async def test_a_daemon_that_can_have_no_workers_any_more_ends_and_says_why(make):
    made = make(FakeRoute())
    running = asyncio.create_task(made.run())
    await until(lambda: made._started)
    made._workers.crashed(EngineLost("Spark has ended"))
    with pytest.raises(EngineLost, match="Spark has ended"):
        await ends(running)
    assert FakeSession.ended


async def test_only_the_first_complete_look_of_a_route_is_its_first(make, monkeypatch):
    given = []

    def finder(self, stored, surroundings):
        given.append(surroundings.first_run)
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
    assert given == [True, True, False]


@pytest.mark.parametrize("found", [(), (Found("a", 0, {}, 0),)])
async def test_a_run_with_an_end_ends_when_all_sources_have(make, found):
    route = FakeRoute(found)
    made = make(route, once=True)
    running = asyncio.create_task(made.run())
    route.looked.set()
    await until(lambda: len(made._workers.told) == len(found))
    for assigned in made._workers.told:
        for assignment in assigned.assignments:
            made._received(0, SourceEnded("r", assignment.found.source, assignment.generation, TAKEN))
    summary = await ends(running)
    assert summary.complete
    assert summary.routes[0].sources == len(found)


async def test_a_run_with_an_end_gives_up_on_a_source_that_can_not_be_read_again_and_again(make):
    route = FakeRoute((Found("a", 0, {}, 9, label="/logs/a"),))
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


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
async def test_a_signal_that_means_nothing_is_said_to_change_nothing(make, number):
    # It ended the daemon on the spot, without a drain. Scripts of rotation send these to who writes the logs.
    with structlog.testing.capture_logs() as logs:
        made, running = await started(make, FakeRoute())
        os.kill(os.getpid(), number)
        await until(lambda: any(line["event"] == "signal ignored" for line in logs))
        assert not made._draining
        assert not running.done()
        await stops(running)


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


async def test_what_a_worker_asks_while_it_drains_is_answered(make, monkeypatch):
    # It was not: a mirror that was stopped before it had its producer id drained for 30 s, and delivered nothing.
    async def answer(route, question):
        return f"{question}, {route}"

    told = asyncio.Queue()
    monkeypatch.setattr(FakeWorkers, "stuck", True)
    monkeypatch.setattr(FakeWorkers, "get", lambda self, slot: SimpleNamespace(tell=told.put_nowait))
    route = FakeRoute()
    made = make(route)
    monkeypatch.setattr(made._finding, "answer", answer)
    running = asyncio.create_task(made.run())
    route.looked.set()
    await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(made._workers.draining.wait(), 5)
    made._workers.received(0, Asked(7, "r", "who"))
    assert await asyncio.wait_for(told.get(), 5) == Answered(7, "who, r")
    await stops(running)


async def test_a_run_with_an_end_that_looked_into_no_source_does_not_know_how_much_is_left(make):
    """It said that at least 0 bytes are not delivered."""
    route = FakeRoute((Found("a", 0, {}, None),))
    made = make(route, once=True, once_patience=0.01)
    running = asyncio.create_task(made.run())
    route.looked.set()
    summary = await ends(running)
    assert summary.failures[-1] == "stopped before the end of 1 source (a): how much is not delivered is not known"


async def test_a_run_with_an_end_gives_up_when_nothing_is_acknowledged_for_long(make, monkeypatch):
    route = FakeRoute((Found("a", 2, {}, 9),))
    made = make(route, once=True, once_patience=0.01)
    made._clusters["c"].trouble = "cluster c: nowhere:1: Connection refused"
    running = asyncio.create_task(made.run())
    route.looked.set()
    summary = await ends(running)
    assert summary.failures == (
        "gave up: nothing was acknowledged for 0.01 s",
        "cluster c: nowhere:1: Connection refused",
        "stopped before the end of 1 source (a): at least 7 bytes are not delivered",
    )
    assert not summary.complete


async def positions_move(made, running, *, seconds):
    """They do for as long as the daemon runs, and not longer than this."""
    until = time.monotonic() + seconds
    while not running.done() and time.monotonic() < until:
        made._received(0, PositionsReported([Moved("r", "a", 1, 3, {})]))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("once", [True, False])
async def test_a_run_with_an_end_gives_up_when_positions_can_not_be_stored_for_long(make, tmp_path, monkeypatch, once):
    # It delivered all that was there, for hours perhaps, and so did each run after it.
    full = f"{tmp_path}/positions.sqlite: positions can not be written: database or disk is full"

    def write(*arguments, **named):
        raise PositionsUnavailable(full)

    monkeypatch.setattr(PositionStore, "write", write)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096, f_blocks=9))
    made, running = await started(make, FakeRoute((Found("a", 2, {}, 9),)), once=once, once_patience=1)
    await positions_move(made, running, seconds=4 if once else 1.3)
    if not once:
        assert not running.done()
        assert full in made.not_ready()
        await stops(running)
        return
    assert running.done()
    summary = await ends(running)
    room = "0 KiB are free on its disk, 1024 KiB are needed"
    assert summary.failures == (
        "gave up: positions could not be stored for 1 s",
        f"daemon.state: not enough space in {tmp_path}: {room}; make room there",
        "stopped before the end of 1 source (a): at least 6 bytes are not delivered",
        f"1 position could not be stored: {full}",
    )


async def test_positions_that_can_be_stored_again_in_time_are_no_reason_to_give_up(make, monkeypatch):
    failures = [PositionsUnavailable("the disk is full")] * 2
    write = PositionStore.write

    def try_to_write(self, *arguments, **named):
        if failures:
            raise failures.pop()
        write(self, *arguments, **named)

    monkeypatch.setattr(PositionStore, "write", try_to_write)
    made, running = await started(make, FakeRoute((Found("a", 2, {}, 9),)), once=True, once_patience=2)
    await positions_move(made, running, seconds=3)
    made._received(0, SourceEnded("r", "a", 1, TAKEN))
    assert (await ends(running)).complete


async def test_a_route_that_is_given_up_is_a_failure_with_its_name_once(make):
    # It was "r: r: hosts run this mirror now".
    route = FakeRoute()
    running = asyncio.create_task(make(route, once=True).run())
    await asyncio.wait_for(route.looking.wait(), 5)
    route.said[0].given_up("hosts run this mirror now")
    route.looked.set()
    assert (await ends(running)).failures == ("r: hosts run this mirror now",)


async def test_a_run_with_an_end_that_finds_nothing_gives_up_after_its_patience_and_no_later(make):
    # It waited for what systemd is told after (15 s), and then for its patience twice.
    route = FakeRoute()
    made = make(route, once=True, once_patience=0.2)
    began = time.monotonic()
    summary = await ends(asyncio.create_task(made.run()))
    assert time.monotonic() - began >= 0.2
    assert summary.failures == (
        "gave up: nothing was found for 0.2 s of what is to be read by r",
        "stopped before all sources were found",
    )


async def test_the_patience_of_a_run_with_an_end_begins_again_with_each_source_that_is_found(make, monkeypatch):
    # Looking takes longer than the patience, and finds one source after the other.
    monkeypatch.setattr(supervisor, "READY_PATIENCE", 0.01)
    monkeypatch.setattr(supervisor, "FOUND_LOOK", 0.01)

    async def scan(_route, sources):
        for number in range(12):
            await asyncio.sleep(0.1)
            sources.appeared(Found(str(number), 0, {}, 9))

    monkeypatch.setattr(FakeRoute, "scan", scan)
    made = make(FakeRoute(), once=True, once_patience=1)
    summary = await ends(asyncio.create_task(made.run()))
    assert summary.failures == (
        "gave up: nothing was acknowledged for 1 s",
        "stopped before the end of 12 sources (0, 1, 2, 3, 4, …): at least 108 bytes are not delivered",
    )


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
    assert stored(tmp_path) == [StoredPosition("a", 7, {})]
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
    assert summary.failures == (f"1 position could not be stored: {tmp_path}/positions.sqlite: {why}",)
    backup.close()


async def test_a_source_that_can_not_be_read_is_logged_with_the_path_of_its_file(make):
    # What a read raises names no file: "[Errno 5] Input/output error".
    route = FakeRoute((Found("8-2a-1f", 0, {}, label="/logs/a"),))
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


async def test_a_trouble_that_lasts_is_logged_once_a_minute_and_another_one_at_once(make):
    # One a failed read: 52,000 lines in a minute, where 3,000 files had 64 descriptors.
    route = FakeRoute((Found("a", 0, {}, label="/logs/a"),))
    route.looked.set()
    made = make(route)
    running = asyncio.create_task(made.run())
    await until(lambda: made._workers.told)
    with structlog.testing.capture_logs() as logs:
        for reason in ["Input/output error"] * 50 + ["Permission denied"] * 2:
            made._received(0, SourceTroubled("r", "a", 1, reason))
        made._troubles["r", "a"]._said -= TROUBLE_SAID_AGAIN
        made._received(0, SourceTroubled("r", "a", 1, "Permission denied"))
    os.kill(os.getpid(), signal.SIGTERM)
    await ends(running)
    assert [said["reason"] for said in logs] == ["Input/output error", "Permission denied", "Permission denied"]


async def started(make, route, **settings):
    """A supervisor whose one route has found what is there, and the task that it runs in."""
    route.looked.set()
    made = make(route, **settings)
    running = asyncio.create_task(made.run())
    await until(lambda: not made._finding.unfinished)
    return made, running


async def test_a_route_whose_finder_hangs_keeps_no_other_from_being_read(make):
    dead, good = FakeRoute(name="dead"), FakeRoute((Found("a", 0, {}),), name="good")
    good.looked.set()
    made = make(dead, good)
    assert made.not_ready() == "sources are being found: dead, good"
    running = asyncio.create_task(made.run())
    await until(lambda: made._workers.told and made._finding.unfinished == ["dead"])
    assert made.not_ready() == "sources are being found: dead"
    assert not made.totals.ready
    dead.looked.set()
    await until(lambda: made.not_ready() is None)
    assert made.totals.ready
    await stops(running)


async def test_systemd_does_not_wait_for_ever_for_a_route_whose_finder_hangs(make, monkeypatch):
    monkeypatch.setattr(supervisor, "READY_PATIENCE", 0.0)
    said = []
    monkeypatch.setattr(supervisor.Notifier, "ready", lambda self, text: said.append(text))
    made = make(FakeRoute(name="dead"))
    running = asyncio.create_task(made.run())
    await until(lambda: said)
    assert said == ["0 sources, 1 worker; sources are being found: dead"]
    await stops(running)


async def test_what_is_said_in_one_turn_is_stored_before_the_worker_hears_of_it(make, tmp_path):
    # A rotation: the file is stored under its new name, and what took its place begins.
    route = FakeRoute((Found("1", 5, {"path": "/logs/a"}, group="a"),))
    made, running = await started(make, route)
    (sources,) = route.said
    made._workers.told.clear()
    sources.conclude("1")
    sources.appeared(Found("2", 0, {"path": "/logs/a"}, group="a", rank=7))
    sources.store(StoredPosition("0", 9, {"path": "/logs/a.2"}))
    assert made._workers.told == []
    assert stored(tmp_path) == [StoredPosition("1", 5, {"path": "/logs/a"})]
    await until(lambda: len(made._workers.told) == 2)
    assert [row.source for row in stored(tmp_path)] == ["0", "1", "2"]
    conclude, assign = made._workers.told
    assert conclude == Conclude("r", ["1"])
    assert assign.assignments[0].found.rank == 7
    await stops(running)


async def test_a_detail_that_changed_is_stored_and_known_to_the_finder(make, tmp_path):
    route = FakeRoute((Found("1", 5, {"path": "/logs/a"}),))
    made, running = await started(make, route)
    made._received(0, PositionsReported([Moved("r", "1", 1, 5, {"path": "/logs/a.1"})]))
    assert route.said[0].latest("1") == Found("1", 5, {"path": "/logs/a.1"})
    assert route.told_before == [Found("1", 5, {"path": "/logs/a"})]
    await stops(running)
    assert stored(tmp_path) == [StoredPosition("1", 5, {"path": "/logs/a.1"})]


async def test_the_finder_of_a_source_that_ended_says_what_becomes_of_its_position(make, tmp_path):
    route = FakeRoute((Found("1", 0, {}), Found("2", 0, {})))
    made, running = await started(make, route)
    end = End("deleted", "/logs/a", 9, 9)
    made._received(0, PositionsReported([Moved("r", "1", 1, 9, {"n": 1}), Moved("r", "2", 2, 3, {"n": 2})]))
    made._received(0, SourceEnded("r", "1", 1, end))
    made._received(0, SourceEnded("r", "2", 1, end))  # an older generation's word
    assert route.ends == [(Found("1", 9, {"n": 1}), end)]
    route.said[0].forget("1")
    await stops(running)
    assert stored(tmp_path) == [StoredPosition("2", 3, {"n": 2})]


async def test_a_loss_is_counted_and_shown_and_no_success_of_a_run_with_an_end(make):
    route = FakeRoute((Found("1", 0, {}, 9),))
    made, running = await started(make, route, once=True)
    assert made.totals.losses.counts.keys() == {("r", "deleted"), ("r", "truncated")}
    route.said[0].lost(Loss("/logs/a", "deleted", 100, 50, exact=True))
    route.said[0].lost(Loss("/logs/b", "truncated", 0, 7, exact=False, why="it is cut off"))
    (shown,) = made.status().routes
    assert [(loss.file, loss.reason, loss.bytes) for loss in shown.losses] == [
        ("/logs/a", "deleted", 50),
        ("/logs/b", "truncated", 7),
    ]
    made._received(0, SourceEnded("r", "1", 1, TAKEN))
    summary = await ends(running)
    assert summary.failures == (
        "r: /logs/a: data lost: deleted, 50 bytes from 100 on",
        "r: /logs/b: data lost: truncated (it is cut off), at least 7 bytes from 0 on",
    )
    assert not summary.complete


async def test_what_a_worker_lost_counts_unless_an_older_generation_says_so(make):
    made, running = await started(make, FakeRoute((Found("1", 0, {}, 9),)), once=True)
    loss = Loss("orders-0", "retention", 40, 60, exact=True, unit="offsets")
    made._received(0, SourceLost("r", "1", 0, loss))
    made._received(0, SourceLost("r", "1", 1, loss))
    made._received(0, SourceEnded("r", "1", 1, TAKEN))
    summary = await ends(running)
    assert summary.failures == ("r: orders-0: data lost: retention, 60 offsets from 40 on",)


async def test_a_loss_fails_no_daemon(make):
    route = FakeRoute()
    _, running = await started(make, route)
    route.said[0].lost(Loss("/logs/a", "deleted", 100, 50, exact=True))
    assert (await stops(running)).failures == ()


async def test_what_was_not_acknowledged_is_said_by_route(make, monkeypatch):
    monkeypatch.setattr(FakeWorkers, "left", Drained(3, {"r": Unacknowledged(2, 700)}))
    _, running = await started(make, FakeRoute())
    with structlog.testing.capture_logs() as logs:
        summary = await stops(running)
    (said,) = [entry for entry in logs if entry["event"] == "data not acknowledged"]
    assert (said["log_level"], said["route"], said["sources"], said["bytes"]) == ("warning", "r", 2, 700)
    assert said["then"] == "read and sent again at the next start"
    assert summary.unacknowledged == 3
    assert (summary.routes[0].unacknowledged_sources, summary.routes[0].unacknowledged_bytes) == (2, 700)


async def test_deleted_files_that_end_with_the_run_are_named(make, monkeypatch):
    left = {f"/logs/{number}": 10 for number in range(7)}
    monkeypatch.setattr(FakeWorkers, "left", Drained(0, {"r": Unacknowledged(deleted=left)}))
    _, running = await started(make, FakeRoute())
    with structlog.testing.capture_logs() as logs:
        summary = await stops(running)
    (said,) = [entry for entry in logs if entry["event"] == "deleted files not delivered"]
    # It was an error at each stop in an outage, also where the next start found all of it compressed.
    assert (said["log_level"], said["route"], said["files"], said["bytes"]) == ("warning", "r", 7, 70)
    assert "`data lost`" in said["then"]
    assert "others may be there" in said["paths"]
    assert said["of"] == {f"/logs/{number}": 10 for number in range(5)}
    assert not [entry for entry in logs if entry["event"] == "data not acknowledged"]
    assert not summary.complete
    assert summary.routes[0].deleted == left


async def test_status_shows_what_people_call_a_source_and_where_its_bytes_are(make):
    route = FakeRoute((Found("1", 0, {"path": "/pods/a/0.log"}, label="/containers/a.log"), Found("2", 0, {})))
    made, running = await started(make, route)
    gauges = {("r", name): SourceGauges(label, 3, 5) for name, label in (("1", "/containers/a.log"), ("2", "2"))}
    made._received(0, StatisticsReported(WorkerStatistics(0, 1, sources=gauges)))
    (shown,) = made.status().routes
    assert [(source.label, source.path) for source in shown.sources] == [
        ("/containers/a.log", "/pods/a/0.log"),
        ("2", ""),
    ]
    made._received(0, SourceEnded("r", "1", 1, TAKEN))  # its worker still shows it, without a path
    (shown,) = made.status().routes
    assert [source.label for source in shown.sources] == ["2"]
    await stops(running)


async def test_status_shows_what_is_gone_and_how_many_files_wait(make):
    # The log alone named what was gone; what may be a copy was in no list.
    route = FakeRoute((Found("1", 0, {}),))
    made, running = await started(make, route)
    route.said[0].gone([("/logs/a", 9), ("/logs/b", 0)])
    (shown,) = made.status().routes
    assert [(each.file, each.position) for each in shown.gone] == [("/logs/a", 9), ("/logs/b", 0)]
    assert shown.waiting == 3
    await stops(running)


async def test_garbage_is_not_collected_until_all_is_found(make):
    # To look through all that a start makes, again and again, held HTTP up for a tenth of a second each time.
    route = FakeRoute((Found("1", 0, {}),))
    running = asyncio.create_task(make(route).run())
    await route.looking.wait()
    assert not gc.isenabled()
    route.looked.set()
    async with asyncio.timeout(5):
        while not gc.isenabled():
            await asyncio.sleep(0.01)
    assert gc.get_freeze_count()
    await stops(running)
    assert not gc.get_freeze_count()


@pytest.mark.parametrize("cluster_answers", [True, False])
async def test_a_damaged_row_is_an_error_whether_the_cluster_answers_or_not(
    make, tmp_path, monkeypatch, cluster_answers
):
    monkeypatch.setattr(FakeSession, "starts", cluster_answers)
    store = PositionStore(tmp_path / "positions.sqlite")
    store.write([("r", StoredPosition("a", 5, {}))])
    store.close()
    with sqlite3.connect(tmp_path / "positions.sqlite") as database:
        database.execute("UPDATE position SET position = -5")
    database.close()
    with pytest.raises(PositionsDamaged, match="route 'r', source 'a': position is not a whole number of 0 or more"):
        await ends(asyncio.create_task(make(FakeRoute()).run()))
    assert FakeSession.ended


async def test_a_failed_route_hears_no_more_of_what_its_finder_says(make, tmp_path):
    route = FakeRoute((Found("1", 5, {}),))
    made, running = await started(make, route)
    made._route_failed("r", "RECORD_TOO_LARGE")
    made._workers.told.clear()
    sources = route.said[0]
    sources.appeared(Found("2", 0, {}))
    sources.conclude("1")
    sources.forget("1")
    sources.store(StoredPosition("3", 0, {}))
    await stops(running)
    assert not [message for message in made._workers.told if isinstance(message, Assign | Conclude)]
    assert stored(tmp_path) == [StoredPosition("1", 5, {})]


async def test_a_route_that_failed_is_no_reason_to_restart_the_daemon(make):
    # A liveness probe restarted it, for ever, for one record that a broker does not take.
    made, running = await started(make, FakeRoute())
    made._workers.get = lambda slot: object()
    assert (made.unhealthy(), made.not_ready()) == (None, None)
    assert made.totals.stopped == {"r": False}
    made._route_failed("r", "MESSAGE_TOO_LARGE")
    assert made.unhealthy() is None
    assert made.not_ready() == "route r stopped: MESSAGE_TOO_LARGE"
    assert made.totals.stopped == {"r": True}
    made._workers.get = lambda slot: None
    assert made.status().routes[0].stopped == "MESSAGE_TOO_LARGE"
    assert made.unhealthy() == "workers between two lives: [0]"
    await stops(running)


async def test_each_reason_why_it_is_not_ready_has_a_line(make):
    # All were in one line, with semicolons between and within them.
    made, running = await started(make, FakeRoute())
    made._route_failed("r", "MESSAGE_TOO_LARGE; raise it")
    made._clusters["c"].trouble, made._clusters["c"].ready = "cluster c: nowhere:1: Connection refused", False
    assert made.not_ready().splitlines() == [
        "route r stopped: MESSAGE_TOO_LARGE; raise it",
        "waiting for cluster c: nowhere:1: Connection refused",
    ]
    await stops(running)


async def test_a_cluster_that_does_not_answer_for_long_is_named_though_nothing_waits_for_it(make):
    made, running = await started(make, FakeRoute())
    session = made._clusters["c"]
    session.trouble = "cluster c: nowhere:1: Connection refused"
    for seconds, said in (
        (9.0, None),
        (20.0, "cluster c: nowhere:1: Connection refused (for 20 s now)"),
    ):
        session.silent_seconds = seconds
        assert made.not_ready() == said
    await stops(running)


async def test_a_route_of_which_nothing_is_acknowledged_is_said_once_and_so_is_its_end(make):
    # Brokers whose own addresses are not reached, where `bootstrap` is: the cluster answers, and takes nothing.
    made = make(FakeRoute())
    made.totals.retried["r"] = "connection_lost"
    session = made._clusters["c"]
    session.metadata = ClusterMetadata(nodes={number: Node(number, f"kafka-{number}", 9092) for number in range(9)})
    with structlog.testing.capture_logs() as said:
        session.silent_seconds = 60.0
        made._delivery.tell({"r": 55.0})  # that is said of the cluster
        session.silent_seconds = 0.0
        for seconds in (9.0, 10.5, 11.5, 60.0, 0.0, 0.0):
            made._delivery.tell({"r": seconds})
    assert said == [
        {
            "event": "nothing acknowledged",
            "log_level": "warning",
            "route": "r",
            "seconds": 10.5,
            "brokers": [f"kafka-{number}:9092" for number in range(5)],
            "last_retry": "connection_lost",
        },
        {"event": "acknowledged again", "log_level": "info", "route": "r"},
    ]


async def test_a_route_of_which_nothing_is_acknowledged_for_long_is_named(make):
    # The embedded broker's disk was full: nothing was delivered, and nothing but the broker's log said so.
    made, running = await started(make, FakeRoute())
    for seconds, said in (
        (9.0, None),
        (20.0, "route r: nothing was acknowledged for 20 s (last retry: kafka_storage_error)"),
    ):
        routes = {"r": RouteCounters(retries={"kafka_storage_error": 4})}
        statistics = WorkerStatistics(0, 0, routes=routes, waiting={"r": seconds})
        made._received(0, StatisticsReported(statistics))
        assert made.not_ready() == said
    await stops(running)


async def test_a_route_whose_topic_is_missing_waits_and_is_said_once(make):
    # Nothing was read, so nothing waited in a worker: every metric said that all was well.
    made, running = await started(make, FakeRoute())
    session = made._clusters["c"]
    session.ready, session.trouble = False, "cluster c: tail r: topic t is missing"
    made._delivery.note_blocked()
    made.totals._blocked["r"] -= 60
    made._delivery.note_blocked()
    assert made.totals.waiting()["r"] >= 60
    assert made.not_ready() == "waiting for cluster c: tail r: topic t is missing"
    with structlog.testing.capture_logs() as said:
        made._delivery.tell(made.totals.waiting())
        session.ready = True
        made._delivery.note_blocked()
        made._delivery.tell(made.totals.waiting())
    assert not said
    assert made.totals.waiting() == {"r": 0.0}
    assert made.not_ready() is None
    await stops(running)


async def test_a_state_that_is_removed_is_noticed_while_nothing_moves(make, tmp_path):
    # The daemon was "ok" and ended with 0, and the next start sent everything again without a word.
    made, running = await started(make, FakeRoute())
    (tmp_path / "positions.sqlite").unlink()
    await until(lambda: "the file is not there any more" in (made.not_ready() or ""))
    assert made.totals.routes()["r"].errors["positions"]
    summary = await stops(running)
    assert "the file is not there any more" in summary.failures[0]


async def test_what_is_acknowledged_of_a_route_after_it_failed_is_stored(make, tmp_path):
    # Another worker had it with its producer: it was sent again at the next start.
    made, running = await started(make, FakeRoute((Found("1", 5, {}),)))
    shard = made._shards.get("r", "1")
    made._route_failed("r", "RECORD_TOO_LARGE")
    made._received(0, PositionsReported([Moved("r", "1", shard.generation, 8, {"at": 8})]))
    await stops(running)
    assert stored(tmp_path) == [StoredPosition("1", 8, {"at": 8})]


def test_a_daemon_keeps_its_name_among_other_hosts(tmp_path):
    name = supervisor._host_id(tmp_path)
    assert supervisor._host_id(tmp_path) == name


def test_a_name_among_other_hosts_that_does_not_fit_on_the_disk_is_said_with_its_file(tmp_path, monkeypatch):
    # All that was said was "[Errno 28] No space left on device".
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/host'"):
        supervisor._host_id(tmp_path)


@pytest.mark.parametrize("damaged", [b"", b"\xff\xfe", b"\n", b"two words"])
def test_a_damaged_name_of_the_host_is_refused_with_its_file_and_a_remedy(tmp_path, damaged):
    (tmp_path / "host").write_bytes(damaged)
    with pytest.raises(ConfigurationError, match=r"/host: expected this daemon's name .* delete it for a new one"):
        supervisor._host_id(tmp_path)
