"""Selection: which topics are taken, and what they are called on the target."""

from types import SimpleNamespace

import pytest

from ingestd.errors import ErrorCode
from ingestd.mirror.selection import NAMING, REGISTRY_TOPIC, Selection


def selection(include=(".*",), exclude=(), naming="prefix", *, target="west", one_cluster=False):
    return Selection("east", target, include, exclude, NAMING.get(naming, naming), one_cluster)


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


def test_the_registry_of_producer_ids_is_about_one_cluster():
    assert not selection(["ingestd.*"]).takes(REGISTRY_TOPIC)


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


def topic(name, error=ErrorCode.none):
    return SimpleNamespace(name=name, error=error, partitions=() if error else (0,))


def test_a_topic_that_can_not_be_copied_is_named_with_why_and_the_others_are_taken():
    topics = {name: topic(name) for name in ("orders", "t" * 245, "other")}
    topics["orders-away"] = topic("orders-away", ErrorCode.leader_not_available)
    wanted, problems = selection(["orders.*", "t+", "bills"]).wanted(topics)
    assert wanted == {"east.orders": topics["orders"]}
    assert problems.keys() == {"orders-away", "t" * 245, "bills"}
    assert problems["orders-away"] == "the source says LEADER_NOT_AVAILABLE"
    assert problems["bills"] == "matches no topic of the source yet, or none that this account may see"


def test_of_two_topics_with_one_name_on_the_target_the_first_is_taken():
    wanted, problems = selection(naming="all").wanted({name: topic(name) for name in ("a", "b")})
    assert wanted["all"].name == "a"
    assert problems == {"b": "it would be called all on the target, as a is"}


# Source and target are one cluster: what the mirror makes there are topics of its source.


def topics_in_the_end(chosen, *names):
    """All topics of the one cluster once looks find no new ones, and how many looks found some."""
    topics = {name: topic(name) for name in names}
    for looks in range(10):
        made = chosen.wanted(topics)[0].keys() - topics.keys()
        if not made:
            return sorted(topics), looks
        topics |= {name: topic(name) for name in made}
    raise AssertionError(f"no end: {sorted(topics)}")


@pytest.mark.parametrize(
    ("include", "naming", "target", "copy"),
    [
        ("logs.*", "logs.{topic}", "east", "logs.logs-1"),  # it was logs.logs.logs.…, one more with each look
        (".*", "{topic}.copy", "east", "logs-1.copy"),
        (".*", "{topic}-{source}-{topic}", "east", "logs-1-east-logs-1"),
        (".*", "prefix", "east", "east.logs-1"),
        (".*", "prefix", "west", "east.logs-1"),  # one cluster under two names
    ],
)
def test_within_one_cluster_no_copy_is_copied_again(include, naming, target, copy):
    chosen = selection([include], naming=naming, target=target, one_cluster=True)
    assert topics_in_the_end(chosen, "logs-1") == (sorted(["logs-1", copy]), 1)
    assert chosen.copies(["logs-1", copy]) == [copy]


def test_within_one_cluster_a_copy_is_known_by_its_name_although_its_original_is_gone():
    assert not selection(["logs.*"], naming="logs.{topic}", one_cluster=True).takes("logs.logs-1")


def test_within_one_cluster_a_topic_that_is_only_called_like_a_copy_is_taken():
    # No topic `a` fits the pattern, so the mirror did not make logs.a.
    chosen = selection(["logs.*"], naming="logs.{topic}", one_cluster=True)
    assert topics_in_the_end(chosen, "logs.a") == (["logs.a", "logs.logs.a"], 1)


def test_between_two_clusters_a_topic_may_be_called_like_a_copy():
    chosen = selection(["logs.*"], naming="logs.{topic}")
    assert chosen.takes("logs.logs-1")
    assert chosen.copies(["logs.logs-1"]) == []
