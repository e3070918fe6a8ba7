"""MirrorRoute: what is wrong in a table is named."""

from datetime import UTC, datetime

import pytest

from ingestd.daemon.configuration import ClusterSettings
from ingestd.daemon.configuration_file import load
from ingestd.daemon.tables import FaultyConfiguration
from ingestd.mirror.route import MirrorRoute

NEEDED = {"source": "'east'", "target": "'west'", "topics": "['a']"}


def route(**keys):
    return MirrorRoute(**{"name": "m", "source": "east", "target": "west", "topics": ("a",), **keys})


@pytest.fixture
def faults(tmp_path):
    """What is wrong with a file that has a mirror `m` with these lines, and what follows."""

    def faults(lines, following=""):
        file = tmp_path / "ingestd.toml"
        needed = "".join(f"{key} = {value}\n" for key, value in NEEDED.items() if f"{key} =" not in lines)
        file.write_text(
            "clusters.east.bootstrap = ['e:1']\nclusters.west.bootstrap = ['w:1']\n"
            f"[mirrors.m]\n{needed}{lines}\n{following}"
        )
        try:
            load(file, {"mirrors": MirrorRoute})
        except FaultyConfiguration as faulty:
            return [str(fault).removeprefix(f"{file}: mirrors.") for fault in faulty.faults]
        return []

    return faults


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("topics = []", "topics = []: expected at least one regular expression"),
        ("topics = ['b', 'a(']", 'topics[1] = "a(": expected a regular expression: missing )'),
        ("exclude = ['*']", 'exclude[0] = "*": expected a regular expression: nothing to repeat'),
        ("keys = ['a(']", 'keys[0] = "a(": expected a regular expression: missing )'),
        (
            "headers.region = '(?!eu).*'",
            'headers.region = "(?!eu).*": expected a regular expression: (?!: RE2 has no look-around',
        ),
        ("headers = ['a']", 'headers = ["a"]: expected a table'),
        ("headers.region = 'a('", 'headers.region = "a(": expected a regular expression: missing )'),
        ("naming = 'copy'", 'naming = "copy": expected "prefix", "identity", or a template with {topic}'),
        ("naming = 'a/{topic}'", 'naming = "a/{topic}": expected letters, digits'),
        (
            "naming = 'identity'\ntarget = 'east'",
            'naming = "identity": expected another one than identity, since source and target are one cluster',
        ),
        ("target = 'wst'", "target = \"wst\": no such [clusters.NAME] (east, west); did you mean 'west'?"),
        (
            "start = 'beginning'",
            'start = "beginning": expected "earliest", "latest", "mirrormaker2", or a time with its zone',
        ),
        (
            "start = '2026-01-31T08:00:00'",
            'start = "2026-01-31T08:00:00": expected "earliest", "latest", "mirrormaker2", or a time',
        ),
        ("replication_factor = 0", "replication_factor = 0: expected -1, or 1 to 32767"),
        ("group = ''", 'group = "": expected a group\'s name, not an empty one'),
        ("refresh_interval = 0", "refresh_interval = 0: expected seconds, more than 0, at most 86400"),
    ],
)
def test_what_is_wrong_is_named(faults, lines, fault):
    (found,) = faults(lines)
    assert found.startswith(f"m.{fault}")


def test_two_mirrors_do_not_keep_their_positions_in_one_group(faults):
    # Each would have taken the other's positions for its own.
    other = "[mirrors.n]\nsource = 'east'\ntarget = 'west'\ntopics = ['b']\ngroup = 'ingestd-mirror-m'"
    said = 'n.group = "ingestd-mirror-m": [mirrors.m] takes "ingestd-mirror-m" too; expected one of its own'
    assert faults("", other) == [said]
    assert faults("group = 'g'", other) == []


@pytest.mark.parametrize(
    ("lines", "others", "refused"),
    [
        ("", "topics = ['b', 'a']", True),
        ("exclude = ['b']", "topics = ['a']\nexclude = ['b']\nstart = 'latest'", True),
        ("naming = '{source}.{topic}'", "topics = ['a']", True),
        ("", "topics = ['a.*']", False),  # not certain: the log says it if both find a topic
        ("", "topics = ['a']\nexclude = ['b']", False),
        ("", "topics = ['a']\nnaming = 'identity'", False),
        ("keys = ['eu']", "topics = ['a']\nexclude_keys = ['eu']", False),
        ("headers.region = 'eu'", "topics = ['a']\nheaders.region = 'us'", False),
    ],
)
def test_two_mirrors_do_not_copy_the_same_twice(faults, lines, others, refused):
    found = faults(lines, f"[mirrors.n]\nsource = 'east'\ntarget = 'west'\n{others}")
    said = '[mirrors.m] takes "a" of east for west under the same names too; expected one of its own'
    assert [fault.partition(": ")[2] for fault in found] == [said] * refused


def test_whether_two_mirrors_copy_the_same_is_not_said_while_a_naming_is_wrong(faults):
    (fault,) = faults("naming = 'copy'", "[mirrors.n]\nsource = 'east'\ntarget = 'west'\ntopics = ['a']")
    assert fault.startswith("m.naming")


@pytest.mark.parametrize(
    ("topics", "keys", "warned"),
    [
        (("ab.*", "a.*"), {}, True),
        (("b.*",), {}, False),
        ((".*",), {"exclude": ("a",)}, False),
        ((".*",), {"naming": "identity"}, False),
        ((".*",), {"source": "south"}, False),
    ],
)
def test_check_warns_of_a_topic_that_is_named_in_one_mirror_and_matched_in_another(topics, keys, warned):
    said = list(MirrorRoute.warnings([route(name="other", topics=topics, **keys), route()]))
    expected = "mirrors.m.topics: a is taken here and in [mirrors.other], under one name on west"
    assert [one.partition(": records")[0] for one in said] == [expected] * warned


def test_a_start_may_be_a_time():
    assert route(start="2026-01-31T09:00:00+01:00").start_time == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert route(start="latest").start_time is None


def test_its_own_cluster_is_named_once():
    assert route().clusters == ("east", "west")
    assert route(target="east").clusters == ("east",)


def test_with_one_name_source_and_target_are_one_cluster():
    assert route(target="east").selection.one_cluster
    assert not route().selection.one_cluster


def test_the_group_of_its_positions_has_its_name():
    assert route().positions_group == "ingestd-mirror-m"
    assert route(group="g").positions_group == "g"


def cluster(**keys):
    return ClusterSettings("c", **keys)


@pytest.mark.parametrize(
    ("naming", "east", "west", "key"),
    [
        ("prefix", {"bootstrap": ("a:1",)}, {"embedded": True}, None),
        ("identity", {"bootstrap": ("a:1", "b:1")}, {"bootstrap": ("b:1",)}, "naming"),
        ("prefix", {"bootstrap": ("a:1",)}, {"bootstrap": ("a:1",)}, None),
        ("identity", {"embedded": True}, {"bootstrap": ("b:1",)}, None),
    ],
)
def test_what_does_not_fit_to_its_clusters_is_named(naming, east, west, key):
    found = dict(route(naming=naming).unfit({"east": cluster(**east), "west": cluster(**west)}))
    assert set(found) == ({key} if key else set())


@pytest.mark.parametrize(
    ("naming", "send_back", "said"), [("identity", True, 1), ("identity", False, 0), ("prefix", True, 0)]
)
def test_mirrors_that_copy_each_others_records_for_ever_are_warned_of(naming, send_back, said):
    keys = {"naming": naming, "send_back": send_back}
    there, back = route(**keys), route(name="b", source="west", target="east", **keys)
    warned = list(MirrorRoute.warnings([there, back, route(name="c", **keys)]))
    assert len([one for one in warned if "go round for ever" in one]) == said * 2
