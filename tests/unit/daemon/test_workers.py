"""Workers: a slot whose worker died gets another, whatever goes wrong meanwhile, and none is left at the end."""

import asyncio
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ingestd.daemon import worker_process, workers
from ingestd.daemon.configuration import DaemonSettings
from ingestd.daemon.control import Drain, Drained, Unacknowledged
from ingestd.daemon.worker_process import fork_worker, spawn_worker
from ingestd.daemon.workers import EngineLost, Workers
from ingestd.retry import Deadline


class Fleet:
    """Every process made, with what is in store for those to come."""

    def __init__(self):
        self.made = []
        self.failures = []
        self.wire_failures = []
        self.connecting = asyncio.Event()
        self.connecting.set()

    def make(self, configure, new, received, exited):
        if self.failures:
            raise self.failures.pop(0)
        process = FakeProcess(self, configure, new, exited)
        self.made.append(process)
        return process


class NewProcess:
    """A worker nobody talks to yet."""

    def __init__(self):
        self.discarded = False

    def discard(self):
        self.discarded = True


class FakeProcess:
    """A worker process that does nothing but live."""

    def __init__(self, fleet, configure, new, exited):
        self.new = new
        self.slot, self.incarnation = configure.slot, configure.incarnation
        self.process = SimpleNamespace(pid=100 + len(fleet.made), kill=self.die, alive=True)
        self.drained = asyncio.get_running_loop().create_future()
        self.last_sign = float("inf")
        self.told, self.wired = [], []
        self._fleet, self._exited = fleet, exited

    @property
    def alive(self):
        return self.process.alive

    async def connect(self):
        await self._fleet.connecting.wait()

    def tell(self, message):
        self.told.append(message)
        if isinstance(message, Drain):
            self.drained.set_result(Drained(0))

    def wire(self, other):
        assert other.alive
        if self._fleet.wire_failures:
            raise self._fleet.wire_failures.pop(0)
        self.wired.append(other.slot)

    def die(self):
        if self.alive:
            self.process.alive = False
            if not self.drained.done():
                self.drained.set_result(Drained(1))
            self._exited(self, "killed")

    async def end(self, deadline):
        self.die()


@pytest.fixture
async def fleet(monkeypatch):
    fleet = Fleet()
    monkeypatch.setattr(workers, "spawn_worker", lambda arena_bytes: NewProcess())
    monkeypatch.setattr(workers, "WorkerProcess", fleet.make)
    return fleet


@pytest.fixture
def slots():
    events = []
    settings = DaemonSettings(workers=2, restart_backoff=0.001, restart_backoff_maximum=0.002)
    made = Workers(
        settings,
        (),
        {},
        received=lambda *_: None,
        started=lambda slot: events.append(("started", slot)),
        died=lambda slot: events.append(("died", slot)),
        crashed=lambda error: events.append(("crashed", error)),
    )
    made.events = events
    return made


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_worker_that_can_not_be_made_now_is_tried_again(fleet, slots):
    await slots.start()
    fleet.failures = [OSError("no memory"), OSError("no descriptors")]
    fleet.made[0].die()
    await until(lambda: slots.get(0) is not None)
    assert slots.get(0).wired == [1]
    assert slots.events == [("started", 0), ("started", 1), ("died", 0), ("started", 0)]
    await slots.close(Deadline.after(1))
    assert not any(process.alive for process in fleet.made)


@pytest.mark.parametrize("error", [EngineLost("Spark has ended"), ZeroDivisionError("a defect")])
async def test_an_empty_slot_that_nothing_fills_is_told_once(fleet, slots, error):
    # It was logged once, or again and again, and the daemon went on without the worker for ever.
    await slots.start()
    fleet.failures = [OSError("no memory"), error]
    fleet.made[0].die()
    await until(lambda: slots.events[-1] == ("crashed", error))
    await asyncio.sleep(0.02)
    assert len(fleet.made) == 2
    assert slots.events[3:] == [("crashed", error)]
    await slots.close(Deadline.after(1))


async def test_the_wait_for_a_worker_is_no_time_that_it_lived(fleet, slots, monkeypatch):
    # On Spark one may wait for a core for minutes. Then it died at once, and its slot's backoff began again.
    monkeypatch.setattr(workers, "STEADY", 0.1)
    await slots.start()
    slots._backoffs[0].next_delay()
    fleet.connecting.clear()
    fleet.made[0].die()
    await until(lambda: len(fleet.made) == 3)
    before = slots._backoffs[0].attempts
    await asyncio.sleep(0.2)
    fleet.connecting.set()
    await until(lambda: slots.get(0) is fleet.made[2])
    fleet.made[2].die()
    assert slots._backoffs[0].attempts == before + 1
    await slots.close(Deadline.after(1))


async def test_a_worker_that_dies_before_it_can_be_told_things_has_one_successor(fleet, slots):
    await slots.start()
    fleet.connecting.clear()
    fleet.made[0].die()
    await until(lambda: len(fleet.made) == 3)
    fleet.made[2].die()
    fleet.connecting.set()
    await until(lambda: len(fleet.made) == 4 and slots.get(0) is fleet.made[3])
    await asyncio.sleep(0.02)
    assert len(fleet.made) == 4
    assert slots.events[2:] == [("died", 0), ("died", 0), ("started", 0)]
    await slots.close(Deadline.after(1))


async def test_a_worker_that_can_not_be_joined_with_the_others_is_not_left_beside_its_successor(fleet, slots):
    await slots.start()
    fleet.wire_failures = [OSError("no descriptors")]
    fleet.made[0].die()
    await until(lambda: slots.get(0) is not None)
    await asyncio.sleep(0.02)
    assert [process.slot for process in fleet.made if process.alive] == [1, 0]
    assert slots.get(0).wired == [1]
    await slots.close(Deadline.after(1))
    assert not any(process.alive for process in fleet.made)


async def test_workers_are_not_killed_for_a_silence_of_the_supervisor(fleet, slots, monkeypatch):
    # All of the daemon was frozen (a paused container), or the supervisor waited for a disk: what workers said
    # meanwhile has yet to be read. One that says nothing after that is silent indeed.
    monkeypatch.setattr(workers, "SILENCE", 0.2)
    await slots.start()
    speaking, silent = fleet.made
    speaking.last_sign = silent.last_sign = time.monotonic()
    await asyncio.sleep(0)
    time.sleep(0.5)  # noqa: ASYNC251 - the loop stands still: that is the case
    for _ in range(3):
        await asyncio.sleep(0)
    speaking.last_sign = float("inf")
    await until(lambda: not silent.alive)
    assert speaking.alive
    await slots.close(Deadline.after(1))


async def test_a_worker_that_is_being_started_when_all_drain_is_given_nothing_and_ends(fleet, slots):
    await slots.start()
    fleet.connecting.clear()
    fleet.made[0].die()
    await until(lambda: len(fleet.made) == 3)
    draining = asyncio.create_task(slots.drain(Deadline.after(30)))
    await asyncio.sleep(0.01)
    fleet.connecting.set()
    async with asyncio.timeout(5):
        await draining
    assert slots.events[2:] == [("died", 0)]
    await slots.close(Deadline.after(1))
    assert not any(process.alive for process in fleet.made)


async def test_workers_that_do_not_answer_lengthen_a_drain_no_more_than_one_does(fleet, monkeypatch):
    # Each was given a second of its own behind the deadline: with as many as there are cores, systemd lost patience.
    monkeypatch.setattr(workers, "DRAIN_GRACE", 0.2)
    raised = []
    news = {"received": lambda *_: None, "started": lambda _: None, "died": lambda _: None, "crashed": raised.append}
    slots = Workers(DaemonSettings(workers=20), (), {}, **news)
    await slots.start()
    for process in fleet.made:
        process.tell = process.told.append
    began = time.monotonic()
    assert await slots.drain(Deadline.after(0)) == Drained(20)
    assert time.monotonic() - began < 2
    await slots.close(Deadline.after(1))
    assert raised == []


async def test_what_workers_are_left_with_is_added_up(fleet, slots):
    await slots.start()
    for process in fleet.made:
        process.tell = process.told.append
    slots.drained(0, Drained(2, {"r": Unacknowledged(1, 10, {"/a": 1}), "s": Unacknowledged(1, 5)}))
    slots.drained(1, Drained(1, {"r": Unacknowledged(1, 30, {"/a": 2, "/b": 3})}))
    left = await slots.drain(Deadline.after(30))
    assert left == Drained(3, {"r": Unacknowledged(2, 40, {"/a": 3, "/b": 3}), "s": Unacknowledged(1, 5)})
    await slots.close(Deadline.after(1))


async def test_a_process_that_can_not_be_made_leaves_no_descriptor(monkeypatch):
    def fail(*arguments):
        raise OSError("no memory")

    monkeypatch.setattr(worker_process, "spawn", fail)
    monkeypatch.setattr(worker_process, "fork", fail)
    before = open_descriptors()
    for make in (spawn_worker, fork_worker):
        with pytest.raises(OSError, match="no memory"):
            make(1 << 20)
    assert open_descriptors() == before


async def test_a_process_that_can_not_be_watched_leaves_no_descriptor_and_no_process(monkeypatch, slots):
    def fail(*arguments):
        raise OSError("too many open files")

    made = []
    monkeypatch.setattr(workers, "spawn_worker", lambda size: made.append(spawn_worker(size)) or made[-1])
    monkeypatch.setattr(worker_process, "ChildProcess", fail)
    before = open_descriptors()
    with pytest.raises(OSError, match="too many open files"):
        await slots.start()
    assert open_descriptors() == before
    assert [new.process.returncode for new in made] == [-signal.SIGKILL]


async def test_forked_workers_are_the_first_and_those_that_were_never_started_are_ended(fleet, slots, monkeypatch):
    forked = []
    monkeypatch.setattr(workers, "can_fork", lambda: True)
    monkeypatch.setattr(workers, "fork_worker", lambda size: forked.append(NewProcess()) or forked[-1])
    slots.fork()
    assert len(forked) == 2
    fleet.failures = [OSError("no memory")]
    with pytest.raises(OSError, match="no memory"):
        await slots.start()
    assert [new.discarded for new in forked] == [False, True]
    await slots.start()
    assert [process.new in forked for process in fleet.made] == [True, False]
    slots.fork()
    await slots.close(Deadline.after(1))
    assert [new.discarded for new in forked] == [False, True, True, True]


async def test_a_fork_that_fails_leaves_no_process_and_one_that_can_not_be_is_none(fleet, slots, monkeypatch):
    forked = []

    def fork(size):
        if forked:
            raise OSError("no memory")
        forked.append(NewProcess())
        return forked[-1]

    monkeypatch.setattr(workers, "fork_worker", fork)
    monkeypatch.setattr(workers, "can_fork", lambda: False)
    slots.fork()
    assert not forked
    monkeypatch.setattr(workers, "can_fork", lambda: True)
    with pytest.raises(OSError, match="no memory"):
        slots.fork()
    assert forked[0].discarded
    await slots.start()
    await slots.close(Deadline.after(1))
