"""Embedded broker's life: one process at a time, tried again and again, and none left behind when it does not start."""

import asyncio
import itertools
import os
from types import SimpleNamespace
from typing import ClassVar

import pytest

from ingestd.daemon import embedded_broker
from ingestd.daemon.configuration import ClusterSettings
from ingestd.daemon.embedded_broker import EmbeddedBroker
from ingestd.errors import ConfigurationError, DeadlineExceeded, IngestdError


class Child:
    """A process that listens, dies or hangs at once, as `plan` says; it has its end of the parent's channel."""

    plan: ClassVar = []
    made: ClassVar = []

    def __init__(self, descriptors, exited):
        self.pid = 1000 + len(self.made)
        self.alive = True
        self._channel = os.dup(descriptors[0])
        self._exited = exited
        self.made.append(self)
        does = self.plan.pop(0) if self.plan else "listen"
        if does == "listen":
            os.write(self._channel, b"ready 127.0.0.1 9092\n")
        elif does == "die":
            asyncio.get_running_loop().call_soon(self.die)

    def die(self):
        if self.alive:
            self.alive = False
            os.close(self._channel)
            self._exited("exit code 1")

    async def end(self, deadline, *, terminate):
        self.die()


@pytest.fixture
def broker(tmp_path, monkeypatch):
    Child.plan, Child.made = [], []
    spawned = []

    def spawn(module, arguments, descriptors):
        spawned.append(arguments)
        return descriptors

    monkeypatch.setattr(embedded_broker, "spawn", spawn)
    monkeypatch.setattr(embedded_broker, "ChildProcess", Child)
    settings = ClusterSettings(
        "local", embedded=True, data=tmp_path / "data", partitions=7, create_topics=False, flush="os"
    )
    daemon = SimpleNamespace(state=tmp_path, log_level="info", log_format="json")
    restarted = []
    made = EmbeddedBroker(settings, daemon, lambda: restarted.append(True))
    made._backoff.initial = made._backoff.maximum = 0.001
    made.restarts = restarted
    made.spawned = spawned
    return made


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_what_is_configured_reaches_the_broker(broker):
    await broker.start()
    (arguments,) = broker.spawned
    options = dict(itertools.pairwise(arguments))
    assert (options["--flush"], options["--default-partitions"]) == ("os", "7")
    assert "--no-auto-create-topics" in arguments
    assert "--insecure" not in arguments
    await broker.close(embedded_broker.Deadline.after(1))


async def test_a_broker_that_dies_while_it_is_restarted_is_restarted_by_one_alone(broker):
    await broker.start()
    Child.plan = ["die"] * 8
    Child.made[0].die()
    await until(lambda: broker.restarts)
    await asyncio.sleep(0.05)
    assert len(Child.made) == 10
    assert [child.alive for child in Child.made] == [False] * 9 + [True]
    assert len(broker.restarts) == 1
    await broker.close(embedded_broker.Deadline.after(1))
    assert not Child.made[-1].alive


async def test_a_broker_that_is_not_ready_in_time_is_ended_before_the_next_is_started(broker, monkeypatch):
    class Awaited(Child):
        """However the machine stalls, one that listens is ready in time."""

        def __init__(self, *arguments):
            monkeypatch.setattr(embedded_broker, "READY_TIMEOUT", 0.02 if self.plan else 60.0)
            super().__init__(*arguments)

    monkeypatch.setattr(embedded_broker, "ChildProcess", Awaited)
    Child.plan = ["hang"]
    with pytest.raises(DeadlineExceeded):
        await broker.start()
    assert not Child.made[0].alive
    await broker.start()
    Child.plan = ["hang", "hang"]
    Child.made[1].die()
    await until(lambda: broker.restarts)
    assert [child.alive for child in Child.made] == [False] * 4 + [True]
    await broker.close(embedded_broker.Deadline.after(1))


async def test_a_start_that_is_given_up_leaves_no_process(broker):
    Child.plan = ["hang"]
    starting = asyncio.create_task(broker.start())
    await until(lambda: Child.made)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not Child.made[0].alive


async def test_a_broker_that_dies_at_its_first_start_is_an_error(broker):
    Child.plan = ["die"]
    with pytest.raises(IngestdError, match="did not start: exit code 1"):
        await broker.start()
    assert len(Child.made) == 1


async def test_a_process_that_can_not_be_made_now_is_tried_again(broker, monkeypatch):
    await broker.start()
    failures = iter([OSError("no memory"), OSError("no memory")])

    def make(*arguments):
        error = next(failures, None)
        if error is not None:
            raise error
        return Child(*arguments)

    monkeypatch.setattr(embedded_broker, "ChildProcess", make)
    Child.made[0].die()
    await until(lambda: broker.restarts)
    await broker.close(embedded_broker.Deadline.after(1))


async def test_a_data_directory_that_can_not_be_created_is_a_fault_of_the_configuration(broker, tmp_path):
    # The daemon ended with 1, so that systemd started it again each second, for ever. Its `state` had the right code.
    (tmp_path / "data").touch()
    with pytest.raises(ConfigurationError, match=r"^clusters\.local\.data: /.*/data can not be created: File exists$"):
        await broker.start()
    assert not Child.made
