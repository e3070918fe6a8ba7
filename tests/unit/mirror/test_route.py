"""MirrorRoute: what is wrong in a table is named."""

from datetime import UTC, datetime

import pytest

from ingestd.errors import WrongSetting
from ingestd.mirror.route import MirrorRoute


def route(**keys):
    return MirrorRoute(**{"name": "m", "source": "east", "target": "west", "topics": ("a",), **keys})


@pytest.mark.parametrize(
    ("keys", "key", "expected"),
    [
        ({"topics": ()}, "topics", "at least one regular expression"),
        ({"topics": ("a(",)}, "topics", "regular expressions, not 'a\\('"),
        ({"exclude": ("*",)}, "exclude", "regular expressions, not '\\*'"),
        ({"naming": "copy"}, "naming", '"prefix", "identity", or a template with {topic}'),
        ({"naming": "a/{topic}"}, "naming", "letters, digits"),
        ({"naming": "identity", "target": "east"}, "naming", "source and target are one cluster"),
        ({"start": "beginning"}, "start", '"earliest", "latest", or a time'),
        ({"start": "2026-01-31T08:00:00"}, "start", "a time with its zone"),
        ({"replication_factor": 0}, "replication_factor", "-1, or 1 to 32767"),
        ({"group": ""}, "group", "not an empty one"),
        ({"refresh_interval": 0.0}, "refresh_interval", "seconds, more than 0"),
    ],
)
def test_what_is_wrong_is_named(keys, key, expected):
    with pytest.raises(WrongSetting, match=expected.replace("{", "\\{")) as raised:
        route(**keys)
    assert raised.value.key == key


def test_a_start_may_be_a_time():
    assert route(start="2026-01-31T09:00:00+01:00").start_time == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert route(start="latest").start_time is None


def test_its_own_cluster_is_named_once():
    assert route().clusters == ("east", "west")
    assert route(target="east").clusters == ("east",)


def test_the_group_of_its_positions_has_its_name():
    assert route().positions_group == "ingestd-mirror-m"
    assert route(group="g").positions_group == "g"
