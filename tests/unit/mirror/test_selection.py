"""Selection: which topics are taken, and what they are called on the target."""

import pytest

from ingestd.mirror.selection import NAMING, Selection


def selection(include=(".*",), exclude=(), naming="prefix"):
    return Selection("east", "west", include, exclude, NAMING.get(naming, naming))


@pytest.mark.parametrize(
    ("pattern", "topic", "taken"),
    [
        ("orders", "orders", True),
        ("orders", "orders-2", False),
        ("orders", "my-orders", False),
        ("orders.*", "orders-2", True),
        ("a|b", "b", True),
        ("a|b", "ab", False),
    ],
)
def test_a_pattern_matches_whole_names(pattern, topic, taken):
    assert selection([pattern]).takes(topic) is taken


def test_an_exclude_wins():
    chosen = selection(["orders.*"], [".*-private"])
    assert chosen.takes("orders-public")
    assert not chosen.takes("orders-private")


def test_what_came_from_the_target_is_not_sent_back():
    # east has west.orders, from the mirror in the other direction: copied, it would be east.west.orders, and so on.
    assert not selection().takes("west.orders")
    assert selection().takes("westward.orders")
    assert selection(naming="identity").takes("west.orders"), "no prefix says where it came from"


@pytest.mark.parametrize(
    ("naming", "name"),
    [("prefix", "east.orders"), ("identity", "orders"), ("copy-of-{topic}", "copy-of-orders")],
)
def test_topics_are_named_by_the_template(naming, name):
    assert selection(naming=naming).renamed("orders") == name


def test_a_name_that_kafka_does_not_take_is_refused():
    assert selection().renamed("t" * 244)
    with pytest.raises(ValueError, match="and it has 250 characters; expected at most 249"):
        selection().renamed("t" * 245)
