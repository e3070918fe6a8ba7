"""Positions of a mirror: what is committed is understood again; what another program wrote is refused."""

import asyncio

import pytest

from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.daemon.source import StoredPosition
from ingestd.errors import ConnectionLost
from ingestd.mirror import positions
from ingestd.mirror.positions import GroupPositions, MirrorPosition, PositionsNotUnderstood
from ingestd.retry import Deadline

TO = TopicPartition("east.orders", 2)


class Member:
    """A member of a group that has one partition, and commits to offsets in memory; the coordinator may be away."""

    def __init__(self):
        self.offsets, self.commits, self.away = {}, [], False
        self.assignment, self.end, self.closed = frozenset([TO]), None, False

    async def committed(self, partitions, timeout=None):
        return {partition: self.offsets.get(partition) for partition in partitions}

    async def commit(self, offsets, timeout=None):
        if self.away:
            raise ConnectionLost("no broker answered")
        self.commits.append(dict(offsets))
        self.offsets.update(offsets)

    def progressed(self):
        pass

    async def close(self, timeout, *, leave=True):
        self.closed = True


@pytest.fixture
def group(monkeypatch):
    monkeypatch.setattr(positions, "COMMIT_INTERVAL", 0.01)
    return Member()


@pytest.fixture
async def keeper(group):
    made = GroupPositions("m", "g", "east")
    made.open(group)
    yield made
    await made.finish(Deadline.after(0))


def moved(offset, target_offset=-1):
    detail = {
        "topic": "orders",
        "partition": 2,
        "target_topic": "east.orders",
        "epoch": 4,
        "topic_id": "7c",
        "target_id": "9a",
    }
    return StoredPosition("orders-2", offset, {**detail, "target_offset": target_offset})


async def test_what_is_committed_is_read_again(group, keeper):
    keeper.remember(moved(700, 650))
    assert await keeper.finish(Deadline.after(5)) is None
    again = GroupPositions("m", "g", "east")
    again.open(group)
    assert await again.read([TO], 5) == {TO: MirrorPosition(700, 4, 650, "7c", "9a")}
    assert group.offsets[TO].offset == 650, "tools compare it with the end of the target's log"
    await again.finish(Deadline.after(5))


async def test_a_target_that_is_away_gets_the_newest_position_when_it_is_back(group, keeper):
    group.away = True
    keeper.remember(moved(10))
    await asyncio.sleep(0.05)
    keeper.remember(moved(20))
    group.away = False
    async with asyncio.timeout(5):
        while not group.commits:
            await asyncio.sleep(0.01)
    assert (await keeper.read([TO], 5))[TO].offset == 20


async def test_what_can_not_be_committed_at_the_end_is_said(group, keeper):
    group.away = True
    keeper.remember(moved(10))
    said = await keeper.finish(Deadline.after(0.05))
    assert said == "1 position could not be committed to group g: no broker answered"


async def test_what_went_to_another_host_is_not_committed(group, keeper):
    group.away = True
    keeper.remember(moved(10))
    await asyncio.sleep(0.02)
    group.assignment, group.away = frozenset(), False
    assert await keeper.finish(Deadline.after(5)) is None
    assert TO not in group.offsets
    assert group.closed


async def test_when_the_mirror_ran_first_stays_beside_its_positions(group, keeper):
    group.offsets = {TO: OffsetAndMetadata(5, -1, '{"cluster": "east", "offset": 5, "epoch": 1, "since": 1700}')}
    await keeper.read([TO], 5)
    keeper.remember(moved(10))
    assert await keeper.finish(Deadline.after(5)) is None
    assert '"since":1700' in group.offsets[TO].metadata


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "{}",
        "[]",
        "x",
        '{"cluster": "north", "offset": 1, "epoch": 1}',
        '{"cluster": "east", "offset": -1, "epoch": 1}',
    ],
)
async def test_offsets_of_another_program_are_refused(group, keeper, metadata):
    group.offsets = {TO: OffsetAndMetadata(5, -1, metadata)}
    with pytest.raises(PositionsNotUnderstood, match=r"group g, east\.orders-2: offset 5 has the metadata"):
        await keeper.read([TO], 5)
