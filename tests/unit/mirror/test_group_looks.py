"""GroupLooks: what fails is tried again and said once; what the source has removed is forgotten."""

import asyncio
from dataclasses import replace

import pytest

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.settings import Edge
from ingestd.daemon.source import Surroundings
from ingestd.errors import ConnectionLost
from ingestd.mirror import group_looks
from ingestd.mirror.group_looks import GroupLooks
from ingestd.mirror.route import MirrorRoute
from ingestd.retry import Deadline

HERE, THERE = TopicPartition("orders", 0), TopicPartition("east.orders", 0)


class Translations:
    """Those of one partition, which is asked for its log's start."""

    def __init__(self):
        self.pruned = []

    def several(self):
        return {HERE: THERE}

    def prune(self, to, start):
        self.pruned.append((to, start))


class Groups:
    """Stands for `GroupSync`: fails as often as it is told, then shows the pairs that it was asked for."""

    def __init__(self, route):
        self.failing, self.failures = 0, []

    async def sync(self, source, target, pairs, translator):
        self.failing -= 1
        if self.failing >= 0:
            raise ConnectionLost("away")
        return dict(pairs)


class Shown:
    def __init__(self):
        self.shown = asyncio.Queue()

    def show_groups(self, groups):
        self.shown.put_nowait(groups)


@pytest.fixture
def translations():
    return Translations()


@pytest.fixture
def looks(monkeypatch, translations):
    async def find_offsets(client, wanted):
        assert wanted == {HERE: Edge.earliest}
        return {HERE: 40}

    monkeypatch.setattr(group_looks, "GroupSync", Groups)
    monkeypatch.setattr(group_looks, "find_offsets", find_offsets)
    route = MirrorRoute("m", "east", "west", ("orders",), groups=(".*",), sync_groups_interval=0.001)
    return GroupLooks(
        route, Surroundings(once=False, others=(), client=lambda name: None, host="h"), translations, {THERE: HERE}
    )


async def test_the_second_look_does_not_wait_for_a_long_interval(looks):
    looks._route = replace(looks._route, sync_groups_interval=3600.0)
    heard = Shown()
    running = asyncio.create_task(looks.run(heard))
    async with asyncio.timeout(5):
        assert [await heard.shown.get() for _ in range(2)] == [{HERE: THERE}] * 2
    running.cancel()


async def test_a_look_that_fails_is_done_again_and_the_starts_of_logs_are_looked_at_once_a_minute(looks, translations):
    looks._groups.failing = 3
    heard = Shown()
    running = asyncio.create_task(looks.run(heard))
    async with asyncio.timeout(5):
        assert [await heard.shown.get() for _ in range(2)] == [{HERE: THERE}] * 2
    running.cancel()
    assert translations.pruned == [(THERE, 40)]


async def test_without_partitions_no_cluster_is_asked(looks):
    looks._taken.clear()
    looks._groups.failing = 1
    assert await looks.at_end(Deadline.after(5)) is None


async def test_at_the_end_it_is_said_why_groups_are_not_translated(looks):
    looks._groups.failures = ["group a: no", "group b: no"]
    assert await looks.at_end(Deadline.after(5)) == "group a: no; group b: no"
    looks._groups.failing = 1
    assert await looks.at_end(Deadline.after(5)) == "groups were not translated: away"
