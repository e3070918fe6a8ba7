"""Overlaps: two mirrors that copy one topic into the same topic are found, once."""

from ingestd.mirror.overlaps import Copied, Overlaps


def copied(topic, source="E", target="W", copy=None):
    return Copied(source, topic, target, copy or f"east.{topic}")


def test_a_topic_that_two_mirrors_copy_into_one_is_found_once_by_the_mirror_that_looks_later():
    overlaps = Overlaps()
    assert overlaps.look("m", [copied("a"), copied("b")]) == {}
    assert overlaps.look("n", [copied("b"), copied("a"), copied("c")]) == {"m": ["a", "b"]}
    assert overlaps.look("m", [copied("a"), copied("b")]) == {}
    assert overlaps.look("m", [copied("a"), copied("b"), copied("c")]) == {"n": ["c"]}
    assert overlaps.look("n", [copied("a"), copied("b"), copied("c")]) == {}


def test_other_clusters_and_other_names_are_other_copies():
    overlaps = Overlaps()
    overlaps.look("m", [copied("a")])
    for number, other in enumerate([copied("a", source="X"), copied("a", target="X"), copied("a", copy="a")]):
        assert overlaps.look(f"n{number}", [other]) == {}


def test_what_a_mirror_does_not_take_any_more_is_no_overlap():
    overlaps = Overlaps()
    overlaps.look("m", [copied("a")])
    overlaps.look("m", [])
    assert overlaps.look("n", [copied("a")]) == {}
