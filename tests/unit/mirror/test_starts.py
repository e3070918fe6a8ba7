"""Starts: a start is chosen once, and committed; a topic that was made again begins anew."""

import pytest

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.settings import AtTime, Edge
from ingestd.errors import ErrorCode, KafkaError
from ingestd.mirror import starts
from ingestd.mirror.positions import CanNotBegin, MirrorPosition
from ingestd.mirror.route import MirrorRoute
from ingestd.mirror.starts import Starts
from ingestd.mirror.topic_ids import TopicIds

HERE, THERE = TopicPartition("orders", 0), TopicPartition("east.orders", 0)
OURS = {THERE: HERE}
EARLIEST, LATEST, BY_TIME, TARGET_END = 10, 90, 50, 7


class Keeper:
    """The positions that are committed; and whether the mirror has run before."""

    def __init__(self):
        self.committed, self.commits, self.ran, self.refuses = {}, [], None, None

    async def read(self, partitions, timeout):
        return {to: at for to, at in self.committed.items() if to in partitions}

    async def commit(self, positions, timeout):
        if self.refuses is not None:
            raise self.refuses
        self.commits.append(dict(positions))
        self.committed |= positions

    async def first_run(self, target, timeout):
        return self.ran

    async def any(self, target, timeout):
        return self.ran is not None


@pytest.fixture
def make(monkeypatch):
    async def find_offsets(cluster, wanted):
        places = {Edge.earliest: EARLIEST, Edge.latest: LATEST if cluster == "source" else TARGET_END}
        return {
            one: BY_TIME if isinstance(at, AtTime) else at if isinstance(at, int) else places[at]
            for one, at in wanted.items()
        }

    async def read_offsets(target, alias, timeout):
        return {HERE: 33} if alias == "east" else {}

    monkeypatch.setattr(starts, "find_offsets", find_offsets)
    monkeypatch.setattr(starts, "read_offsets", read_offsets)

    def start(*, once=False, source="east", **keys):
        ids = TopicIds()
        ids.source = {"orders": "s"}
        ids.look({"east.orders": "t"})
        keeper = Keeper()
        return Starts(MirrorRoute("m", source, "west", ("orders",), **keys), keeper, ids, once=once), keeper

    return start


def beginning(offset, target_offset=TARGET_END):
    return MirrorPosition(offset, -1, target_offset, "s", "t")


@pytest.mark.parametrize(
    ("keys", "offset"),
    [
        ({}, EARLIEST),
        ({"start": "latest"}, LATEST),
        ({"start": "2026-01-01T00:00:00Z"}, BY_TIME),
        ({"start": "mirrormaker2"}, 33),
    ],
    ids=str,
)
async def test_a_partition_without_a_position_begins_where_start_says_and_that_is_committed(make, keys, offset):
    made, keeper = make(**keys)
    assert await made.positions(OURS, "source", "target") == ({THERE: beginning(offset)}, {THERE})
    assert keeper.commits == [{THERE: beginning(offset)}]
    assert await made.positions(OURS, "source", "target") == ({THERE: beginning(offset)}, set())
    assert len(keeper.commits) == 1, "it is chosen once"


async def test_what_comes_after_the_first_run_of_a_mirror_of_the_latest_is_not_left_out(make):
    made, keeper = make(start="latest")
    keeper.ran = 1000
    positions, _ = await made.positions(OURS, "source", "target")
    assert positions[THERE].offset == BY_TIME, "what was there when the mirror first ran"


async def test_partitions_that_this_host_has_made_begin_at_their_beginning(make):
    made, keeper = make(start="latest")
    keeper.ran = 1000
    await made.begin_made(OURS, "source", first_run=False)
    assert keeper.commits == [{THERE: beginning(EARLIEST, 0)}]
    keeper.committed.clear()  # the commit failed, say
    positions, _ = await made.positions(OURS, "source", "target")
    assert positions[THERE].offset == EARLIEST


async def test_in_the_first_run_what_is_made_begins_where_start_says(make):
    made, keeper = make(start="latest")
    await made.begin_made(OURS, "source", first_run=True)
    assert keeper.commits == []
    positions, _ = await made.positions(OURS, "source", "target")
    assert positions[THERE].offset == LATEST


async def test_a_topic_that_was_made_again_at_the_source_begins_at_its_beginning_behind_what_is_there(make):
    made, keeper = make()
    keeper.committed = {THERE: MirrorPosition(60, 3, 55, "old", "t")}
    assert await made.positions(OURS, "source", "target") == ({THERE: beginning(EARLIEST, 55)}, set())


async def test_a_topic_that_was_made_again_on_the_target_begins_as_in_the_first_run(make):
    made, keeper = make()
    keeper.committed = {THERE: MirrorPosition(60, 3, 55, "s", "old")}
    assert await made.positions(OURS, "source", "target") == ({THERE: beginning(EARLIEST)}, {THERE})


async def test_a_position_without_ids_counts(make):
    made, keeper = make()
    keeper.committed = {THERE: MirrorPosition(60, 3, 55)}
    assert await made.positions(OURS, "source", "target") == (keeper.committed, set())
    assert keeper.commits == []


async def test_a_run_with_an_end_commits_and_says_so_where_hosts_run_the_mirror(make):
    made, keeper = make(once=True)
    positions, _ = await made.positions(OURS, "source", "target")
    assert keeper.commits == [positions]
    keeper.refuses = KafkaError(ErrorCode.unknown_member_id, "group")
    with pytest.raises(CanNotBegin, match="group ingestd-mirror-m has members: hosts run this mirror now"):
        await made.positions(OURS, "source", "target")
    keeper.refuses = KafkaError(ErrorCode.group_authorization_failed, "group")
    with pytest.raises(KafkaError):
        await made.positions(OURS, "source", "target")


async def test_a_target_without_offsets_of_mirrormaker2_is_refused_but_once_the_mirror_has_run(make):
    made, keeper = make(source="elsewhere", start="mirrormaker2")
    with pytest.raises(CanNotBegin, match=r"expected them in the topic mm2-offsets\.elsewhere\.internal"):
        await made.positions(OURS, "source", "target")
    keeper.ran = 1000
    positions, _ = await made.positions(OURS, "source", "target")
    assert positions[THERE].offset == EARLIEST
