"""MirrorFinder: what the group gives a host is read once, and not any more once it goes."""

import asyncio

import pytest

from ingestd.client.metadata import TopicPartition
from ingestd.daemon.source import Surroundings
from ingestd.mirror.finder import MirrorFinder
from ingestd.mirror.route import MirrorRoute

HERE, THERE = TopicPartition("orders", 0), TopicPartition("east.orders", 0)


class Sources:
    """Hears what appears; a withdrawal ends when the test says so."""

    def __init__(self):
        self.appeared_, self.withdrawn, self.may_end = [], [], asyncio.Event()

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
    made._taken = {THERE: HERE}
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
