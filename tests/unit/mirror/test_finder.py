"""MirrorFinder: what the group gives a host is read once, and not any more once it goes."""

import asyncio
from types import SimpleNamespace

import pytest
import structlog

from ingestd.client.metadata import TopicPartition
from ingestd.daemon.source import Surroundings
from ingestd.mirror.finder import MirrorFinder
from ingestd.mirror.overlaps import Copied
from ingestd.mirror.positions import CanNotBegin, MirrorPosition
from ingestd.mirror.route import MirrorRoute

HERE, THERE = TopicPartition("orders", 0), TopicPartition("east.orders", 0)


class Sources:
    """Hears what appears; a withdrawal ends when the test says so."""

    def __init__(self):
        self.appeared_, self.withdrawn, self.may_end = [], [], asyncio.Event()
        self.looks, self.given_up_ = [], []

    def looked(self, problem):
        self.looks.append(problem)

    def given_up(self, reason):
        self.given_up_.append(reason)

    def appeared(self, found):
        self.appeared_.append(found.source)

    async def withdraw(self, sources):
        self.withdrawn += sources
        await self.may_end.wait()


class Keeper:
    async def flush(self, timeout):
        pass


@pytest.fixture
def finder():
    route = MirrorRoute("m", "east", "west", ("orders",))
    made = MirrorFinder(route, Surroundings(once=False, others=(), client=lambda name: None, host="h"))
    made.keeper = Keeper()
    made._sources = Sources()
    made._ready = {THERE: HERE}
    made._ours = {THERE}
    made._taken[THERE] = HERE
    return made


@pytest.mark.parametrize("how", ["revoked", "lost"])
async def test_a_partition_that_goes_is_not_taken_again_by_a_look_meanwhile(finder, how):
    # It was: two hosts copied it then, and 7,710 of 93,106 records came twice without any kill.
    going = asyncio.create_task(getattr(finder, how)([THERE]))
    while not finder._sources.withdrawn:
        await asyncio.sleep(0)
    await finder._take()
    finder._sources.may_end.set()
    await going
    await finder._take()
    assert finder._sources.withdrawn == ["orders-0"]
    assert finder._sources.appeared_ == []


async def test_a_topic_that_was_deleted_on_the_target_is_given_up_once(finder):
    # A broker that has not heard of it yet may name the old topic again: that is no second deletion.
    finder._sources.may_end.set()
    deleted = [await finder._note_deleted({"east.orders": name}, finder._sources) for name in ("a", "b", "a", "b")]
    assert deleted == [set(), {"east.orders"}, set(), set()]
    assert finder._sources.withdrawn == ["orders-0"]
    assert finder._taken == {}
    assert finder._ours == {THERE}
    assert finder._ids.on_target("east.orders") == "b"


async def test_a_position_in_a_topic_that_is_deleted_while_it_is_taken_is_none_in_the_new_topic(finder):
    # It was stored with the new topic's id: the mirror went on there, and what came before was lost.
    asked, may_go_on = asyncio.Event(), asyncio.Event()

    async def refresh(topics, timeout):
        pass

    async def positions(ours, source, target):
        asked.set()
        await may_go_on.wait()
        return {THERE: MirrorPosition(2700, -1, 2700, "s", "a")}, ()

    client = SimpleNamespace(metadata=SimpleNamespace(refresh=refresh))
    finder._surroundings = Surroundings(once=False, others=(), client=lambda name: client, host="h")
    finder._starts = SimpleNamespace(positions=positions)
    finder._ids.source = {"orders": "s"}
    finder._taken.clear()
    finder._sources.may_end.set()
    seen = []
    finder._sources.appeared = lambda found: seen.append(found.detail["target_id"])
    await finder._note_deleted({"east.orders": "a"}, finder._sources)
    taking = asyncio.create_task(finder._take())
    await asked.wait()
    noting = asyncio.create_task(finder._note_deleted({"east.orders": "b"}, finder._sources))
    await asyncio.sleep(0)
    may_go_on.set()
    await taking
    assert await noting == {"east.orders"}
    assert seen == ["a"]
    assert finder._sources.withdrawn == ["orders-0"]


@pytest.mark.parametrize("once", [True, False])
async def test_a_mirror_that_can_not_begin_ends_a_run_with_an_end_at_once_and_is_said_once(once):
    """The log said `topic not taken` of a topic with the mirror's name, and that the group had given no share yet."""

    async def refresh(topics, timeout):
        pass

    async def positions(ours, source, target):
        raise CanNotBegin("hosts run this mirror now")

    client = SimpleNamespace(metadata=SimpleNamespace(refresh=refresh))
    route = MirrorRoute("m", "east", "west", ("orders",), refresh_interval=0.001)
    finder = MirrorFinder(route, Surroundings(once=once, others=(), client=lambda name: client, host="h"))
    finder._sources, finder._ready = Sources(), {THERE: HERE}
    finder._starts = SimpleNamespace(positions=positions)
    for _ in range(2):
        await finder.assigned([THERE])
    assert await finder._has_its_share() is once
    assert finder._sources.given_up_ == (["hosts run this mirror now"] if once else [])
    assert finder._sources.looks == ([] if once else ["hosts run this mirror now"] * 2)


def test_copies_within_one_cluster_that_are_left_out_are_said_once(finder):
    with structlog.testing.capture_logs() as logs:
        for copies in (["east.a"], ["east.a"], ["east.a", "east.b", "east.c"], ["east.b"]):
            finder._say_copies(copies)
    assert [(line["event"], line["topics"], line["first"]) for line in logs] == [
        ("topics left out", 1, ["east.a"]),
        ("topics left out", 2, ["east.b", "east.c"]),
    ]


def test_a_topic_that_two_mirrors_of_one_daemon_copy_is_warned_of_once(finder):
    # 10 records were 20 on the target, and nothing was said.
    later = MirrorRoute("later", "east", "west", ("orders.*",))
    other = MirrorFinder(later, Surroundings(once=False, others=(finder,), client=lambda name: None, host="h"))
    with structlog.testing.capture_logs() as logs:
        for one in (other, finder, other, finder):
            one._say_overlaps([Copied("E", "orders", "W", "east.orders")])
    (line,) = logs
    assert (line["log_level"], line["event"]) == ("warning", "topics copied by two mirrors")
    assert (line["route"], line["other"], line["first"]) == ("m", "later", ["orders"])
