"""GroupSync on scripted clusters: what is committed on the target, and what is said of what is not."""

from types import SimpleNamespace

import pytest

from ingestd.client.admin.group_offsets import GroupOffsets
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.daemon.status import GroupStatus
from ingestd.errors import ConnectionLost, ErrorCode, KafkaError
from ingestd.mirror.groups import ACTIVE, GroupSync
from ingestd.mirror.route import MirrorRoute

ONE, TO = TopicPartition("orders", 0), TopicPartition("east.orders", 0)
OTHER, OTHER_TO = TopicPartition("orders", 1), TopicPartition("east.orders", 1)


class Cluster:
    """The groups of a cluster. A group that is in `refusing` takes no commit."""

    def __init__(self, **groups):
        self.offsets = {name.replace("_", "-"): dict(offsets) for name, offsets in groups.items()}
        self.refusing, self.unreadable, self.nodes_away, self.metadata = {}, {}, {}, {}

    async def list_groups(self, **_):
        items = [SimpleNamespace(group_id=name, protocol_type="consumer") for name in self.offsets]
        return SimpleNamespace(items=[*items, SimpleNamespace(group_id="web-connect", protocol_type="connect")],
                               errors=self.nodes_away)  # fmt: skip

    async def list_group_offsets(self, asked, **_):
        found = []
        for name in asked:
            said = self.metadata.get(name, "m")
            offsets = {one: OffsetAndMetadata(at, 3, said) for one, at in self.offsets.get(name, {}).items()}
            found.append(GroupOffsets(name, offsets, {}, self.unreadable.get(name)))
        return found

    async def alter_group_offsets(self, group, offsets, **_):
        error = self.refusing.get(group)
        if error is None:
            self.offsets.setdefault(group, {}).update({one: at.offset for one, at in offsets.items()})
        return [SimpleNamespace(error=error) for _ in offsets]


class Tenth:
    """Offsets on the target are 10 smaller; nothing is known of the first 100. Partitions in `gone` are not held."""

    def __init__(self, *gone):
        self.gone = set(gone)

    def holds(self, to):
        return to not in self.gone

    def translate(self, to, offset):
        return offset - 10 if offset >= 100 else None

    def known_from(self, to):
        assert to not in self.gone
        return 100

    def target_id(self, to):
        assert to not in self.gone
        return "west-id"

    def uncovered(self, to, target):
        return target + 5


async def sync(source, target, *patterns, sync=None):
    sync = sync or GroupSync(MirrorRoute("m", "east", "west", ("orders",), groups=patterns or ("web-.*",)))
    return await sync.sync(source, target, {ONE: TO, OTHER: OTHER_TO}, Tenth())


async def test_offsets_are_translated_for_the_groups_that_match_and_the_partitions_of_this_host():
    elsewhere = TopicPartition("audit", 0)
    source = Cluster(web_1={ONE: 200, OTHER: 300, elsewhere: 7}, other={ONE: 200}, web_2={elsewhere: 7})
    target = Cluster()
    assert await sync(source, target) == [GroupStatus("web-1", 2, 2)]
    assert target.offsets == {"web-1": {TO: 190, OTHER_TO: 290}}


async def test_partitions_that_another_host_takes_during_a_look_are_left_to_it():
    # The look before it asked for what was known of them, and the daemon ended.
    translator, source, target = Tenth(OTHER_TO), Cluster(web_1={ONE: 99, OTHER: 99}), Cluster()
    listed = source.list_group_offsets

    async def meanwhile(asked, **limits):
        translator.gone.add(TO)
        return await listed(asked, **limits)

    source.list_group_offsets = meanwhile
    one = GroupSync(MirrorRoute("m", "east", "west", ("orders",), groups=("web-.*",)))
    assert await one.sync(source, target, {ONE: TO, OTHER: OTHER_TO}, translator) == []


async def test_no_offset_goes_back():
    target = Cluster(web_1={TO: 191, OTHER_TO: 289})
    assert await sync(Cluster(web_1={ONE: 200, OTHER: 300}), target) == [GroupStatus("web-1", 2, 2, ahead=1)]
    assert target.offsets["web-1"] == {TO: 191, OTHER_TO: 290}


async def test_a_group_with_members_on_the_target_is_left_alone_and_the_others_are_not_held_up():
    source, target = Cluster(web_1={ONE: 200}, web_2={ONE: 300}), Cluster()
    target.refusing["web-1"] = KafkaError(ErrorCode.unknown_member_id, "web-1")
    assert await sync(source, target) == [GroupStatus("web-1", 1, 0, ACTIVE), GroupStatus("web-2", 1, 1)]
    assert target.offsets == {"web-2": {TO: 290}}


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_group_that_can_not_be_read_is_named_and_the_others_are_not_held_up(side):
    clusters = {"source": Cluster(web_1={ONE: 200}, web_2={ONE: 300}), "target": Cluster()}
    clusters[side].unreadable["web-1"] = ConnectionLost("no coordinator")
    failed, done = await sync(**clusters)
    assert failed.problem is not None
    assert "no coordinator" in failed.problem
    assert side in failed.problem
    assert done == GroupStatus("web-2", 1, 1)


async def test_what_was_copied_before_it_was_known_is_not_guessed():
    target = Cluster()
    (status,) = await sync(Cluster(web_1={ONE: 99, OTHER: 100}), target)
    assert (status.partitions, status.translated) == (2, 1)
    assert "orders-0 went is known from offset 100 on" in status.problem
    assert target.offsets == {"web-1": {OTHER_TO: 90}}


async def test_a_node_that_does_not_list_its_groups_is_named():
    source = Cluster(web_1={ONE: 200})
    source.nodes_away = {2: ConnectionLost("away")}
    done, away = await sync(source, Cluster())
    assert done == GroupStatus("web-1", 1, 1)
    assert away.problem == "they can not be listed: away"


async def test_where_both_sides_write_a_group_goes_on_before_what_it_may_not_have_read():
    source = Cluster(web_1={ONE: 300, OTHER: 300}, web_2={ONE: 149}, ingestd_mirror_back={ONE: 150})
    source.metadata["ingestd-mirror-back"] = '{"offset": 200, "topic_id": "west-id"}'
    target = Cluster()
    first, second = await sync(source, target)
    assert target.offsets == {"web-1": {TO: 205, OTHER_TO: 290}}
    assert first == GroupStatus("web-1", 2, 2)
    assert second.problem == "both sides write orders-0, and it is before what was last copied back from the target"


def test_positions_of_mirrors_are_no_consumers():
    made = GroupSync(MirrorRoute("m", "east", "west", ("orders",), groups=(".*",)))
    assert made.takes("web-1")
    assert not made.takes("ingestd-mirror-m")
