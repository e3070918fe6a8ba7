"""Handing over: who is ready, and the way back."""

import tomllib

import pytest

from ingestd.cli.mirrors import hand_over_remarks, hand_over_rows
from ingestd.errors import ConfigurationError, IngestdError
from ingestd.mirror.hand_over import GroupVerdict, HandOver, hand_over, way_back
from ingestd.mirror.route import MirrorRoute

READY = GroupVerdict("web", 2, 2, 7)
ACTIVE = GroupVerdict("billing", 2, 2, 0, ["it has 3 members at the source"])


@pytest.mark.parametrize(
    ("groups", "behind", "ready"),
    [((READY,), {}, True), ((READY, ACTIVE), {}, False), ((READY,), {"orders-1": 5}, False), ((), {}, False)],
    ids=["all", "one has members", "one partition is behind", "no group"],
)
def test_all_is_ready_or_nothing(groups, behind, ready):
    assert HandOver("m", 4, behind, groups, same_offsets=False).ready is ready


def test_a_table_for_people():
    handed = HandOver("m", 4, {"orders-1": 5}, [ACTIVE, READY], same_offsets=True)
    assert list(hand_over_rows(handed)) == [
        ("billing", 2, 2, 0, "it has 3 members at the source"),
        ("web", 2, 2, 7, "not before all is copied"),
    ]
    assert list(hand_over_remarks(handed)) == [
        "orders-1: not copied yet: 5 offsets",
        "the mirror must run meanwhile: does it?",
        "offsets are the same on both sides",
    ]


def test_what_keeps_records_back_and_groups_that_are_ahead_are_said():
    ahead = GroupVerdict("web", 2, 2, 7, (), 1)
    handed = HandOver("m", 4, {"orders-1": 5}, [ahead], same_offsets=False, held_back={"orders-1": 3})
    assert list(hand_over_remarks(handed)) == [
        "orders-1: not copied yet: 5 offsets",
        "orders-1: copied once an open transaction has ended: 3 offsets",
        "the mirror must run meanwhile: does it?",
        (
            "web: in 1 partition its offset on the target is further than it has read at the source: it has read on "
            "the target, or was set back at the source. The offset is left as it is"
        ),
    ]


def route(**keys):
    return MirrorRoute("ew", "east", "west", ("orders", "a\\.b"), **{"groups": ("web",), **keys})


@pytest.mark.parametrize("naming", ["prefix", "identity"])
def test_the_way_back_is_a_mirror_in_the_other_direction_that_begins_now(naming):
    table = tomllib.loads(way_back(route(naming=naming)))
    back = MirrorRoute("ew-back", **table["mirrors"]["ew-back"])
    assert (back.source, back.target, back.naming) == ("west", "east", naming)
    assert list(back.topics) == ["orders", "a\\.b"]
    assert back.start_time is not None


def test_the_way_back_has_every_key_that_is_set_but_those_about_one_target():
    keys = {
        "create_topics": False,
        "exclude_configs": ("retention.*",),
        "bandwidth": 1000,
        "on_undeliverable": "skip",
        "keys": ("k.*",),
        "headers": {"a b": "c"},
    }
    text = way_back(route(naming="identity", replication_factor=3, group="mine", refresh_interval=1.0, **keys))
    back = MirrorRoute("ew-back", **tomllib.loads(text)["mirrors"]["ew-back"])
    found = {key: getattr(back, key) for key in keys}
    assert found == {key: list(value) if isinstance(value, tuple) else value for key, value in keys.items()}
    assert (back.replication_factor, back.group, back.refresh_interval) == (-1, None, 1.0)
    assert "# group: set for west; left out here" in text.splitlines()


def test_a_template_has_no_way_back():
    with pytest.raises(IngestdError, match="has no way back"):
        way_back(route(naming="copy-of-{topic}"))


async def test_a_mirror_that_translates_no_groups_is_named():
    with pytest.raises(ConfigurationError, match=r"mirrors\.ew\.groups: expected patterns"):
        await hand_over(route(groups=()), None, None, timeout=1)
