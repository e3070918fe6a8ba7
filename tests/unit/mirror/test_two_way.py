"""Two ways: how far a group has read what was written on the target, by positions of the mirror that copies back."""

import orjson
import pytest

from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.mirror import two_way
from ingestd.mirror.two_way import TwoWay

ONE = TopicPartition("orders", 0)
IDS = {ONE: "west-id"}


def position(source, target, topic_id="west-id"):
    return {ONE: OffsetAndMetadata(source, -1, orjson.dumps({"offset": target, "topic_id": topic_id}).decode())}


def test_the_newest_position_that_a_group_is_past_says_what_it_has_read():
    seen = TwoWay()
    for source, target in ((10, 100), (20, 150), (20, 150), (40, 300)):
        seen.note(position(source, target), IDS)
    assert [seen.read(ONE, offset) for offset in (9, 10, 39, 40, 99)] == [None, 100, 150, 300, 300]


@pytest.mark.parametrize("metadata", ["", "x", "[]", "{}", '{"offset": 5}', '{"offset": "5", "topic_id": "west-id"}'])
def test_other_groups_offsets_are_no_such_positions(metadata):
    seen = TwoWay()
    seen.note({ONE: OffsetAndMetadata(3, -1, metadata)}, IDS)
    seen.note(position(10, 100, "another"), IDS)
    seen.note(position(10, 100, ""), {ONE: ""})
    assert not seen.concerns(ONE)


def test_what_was_seen_before_a_mirror_was_set_back_is_forgotten():
    seen = TwoWay()
    for source, target in ((10, 100), (40, 300), (30, 200)):
        seen.note(position(source, target), IDS)
    assert [seen.read(ONE, offset) for offset in (10, 30, 50)] == [None, 200, 200]


def test_old_positions_are_thinned_out_and_those_left_are_right():
    seen = TwoWay()
    for number in range(1000):
        seen.note(position(10 * number, 100 * number), IDS)
    assert len(seen._seen[ONE]) <= two_way.MOST_KEPT
    assert seen.read(ONE, 9990) == 99900
    assert all((seen.read(ONE, offset) or 0) <= 10 * offset for offset in range(0, 9990, 7))
