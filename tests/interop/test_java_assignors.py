"""Our assignors against Java's own, and the bytes between them, on groups at random."""

from __future__ import annotations

import base64
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from harness.java_programs import JavaProgram, java_program
from random_groups import Group, check_even, check_whole, far, loads, moved, rebalance

from ingestd.consumer.group.assignors import ASSIGNORS
from ingestd.consumer.group.assignors.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_subscription,
)
from ingestd.consumer.group.assignors.retention import Claim
from ingestd.consumer.group.assignors.sticky import encode_claim

if TYPE_CHECKING:
    from collections.abc import Iterator

    from random_groups import Members

    from ingestd.consumer.group.assignor import Subscription


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    """`tests/interop/java/Assignors.java`: one JVM for all cases."""
    with java_program("Assignors", tmp_path_factory.mktemp("java")) as running:
        yield running


def rebalance_by_java(oracle: JavaProgram, name: str, group: Group) -> Members:
    """What Java's assignor makes of our members' bytes; on the way it has to read them as they are meant."""
    outcome = oracle.ask(
        {
            "assignor": name,
            "nodes": {str(node.id): node.rack for node in group.cluster.nodes.values()},
            "topics": {
                topic.name: [list(partition.replicas) for partition in topic.partitions]
                for topic in group.cluster.topics.values()
            },
            "members": {
                member: {
                    "subscription": base64.b64encode(encode_subscription(subscription)).decode(),
                    "instance": subscription.group_instance_id,
                }
                for member, subscription in group.members.items()
            },
        }
    )
    for member, subscription in group.members.items():
        again = decode_subscription(base64.b64decode(outcome["subscriptions"][member]), subscription.group_instance_id)
        assert comparable(again) == comparable(subscription)
    return {
        member: frozenset(decode_assignment(base64.b64decode(assignment)).partitions)
        for member, assignment in outcome["assignments"].items()
    }


def comparable(subscription: Subscription) -> Subscription:
    """The same without an order of topics and partitions, which says nothing."""
    return replace(subscription, topics=sorted(subscription.topics), owned=sorted(subscription.owned))


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_the_assignment_is_the_one_that_java_makes(oracle: JavaProgram, name: str) -> None:
    rng = random.Random(848)
    for _ in range(2_000):
        group = Group.at_random(rng)
        assert rebalance(ASSIGNORS[name](), group) == rebalance_by_java(oracle, name, group)


def test_sticky_shares_are_at_least_as_even_as_javas_and_move_less(oracle: JavaProgram) -> None:
    rng = random.Random(54)
    ours_moved = javas_moved = ours_far = javas_far = 0
    for _ in range(500):
        group = Group.at_random(rng)
        had: Members = {}
        for generation in range(3):
            group = remembering("sticky", group, had, generation)
            ours = rebalance(ASSIGNORS["sticky"](), group)
            javas = rebalance_by_java(oracle, "sticky", group)
            check_whole(group, javas)
            check_whole(group, ours)
            check_even(group, ours)
            assert loads(ours) <= loads(javas)
            if loads(ours) == loads(javas):
                ours_moved += moved(had, ours)
                javas_moved += moved(had, javas)
                ours_far += far(group, ours)
                javas_far += far(group, javas)
            had, group = ours, group.changed_at_random(rng)
    assert ours_moved <= javas_moved
    assert ours_far <= 1.02 * javas_far  # neither seeks the nearest of all outcomes


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_java_reads_what_our_members_had_and_leaves_a_settled_group_as_it_is(oracle: JavaProgram, name: str) -> None:
    rng = random.Random(7)
    for _ in range(100):
        group = without_racks(Group.at_random(rng))
        had: Members = {}
        for generation in range(2):
            had = rebalance(ASSIGNORS[name](), remembering(name, group, had, generation))
        assert rebalance_by_java(oracle, name, remembering(name, group, had, 2)) == had


def remembering(name: str, group: Group, had: Members, generation: int) -> Group:
    """The same group, whose members tell what they have as the assignor wants to hear it."""
    if name == "cooperative-sticky":
        return claiming(group, had, generation)
    told = {member: encode_claim(Claim(tuple(partitions), generation)) for member, partitions in had.items()}
    return Group(
        group.cluster, {member: replace(one, user_data=told.get(member)) for member, one in group.members.items()}
    )


def test_leaders_of_both_kinds_in_turn_settle_a_cooperative_group(oracle: JavaProgram) -> None:
    rng = random.Random(429)
    for _ in range(200):
        group = without_racks(Group.at_random(rng))
        had: Members = {}
        for change in range(4):
            for rebalanced in range(4):
                group = claiming(group, had, 4 * change + rebalanced)
                ours_leads = rng.random() < 0.5 if rebalanced == 0 else change % 2
                has = (
                    rebalance(ASSIGNORS["cooperative-sticky"](), group)
                    if ours_leads
                    else rebalance_by_java(oracle, "cooperative-sticky", group)
                )
                for member, partitions in has.items():
                    for other, owned in had.items():
                        assert other == member or other not in has or not partitions & owned
                had = has
            check_whole(group, had)
            group = without_racks(group.changed_at_random(rng))


def without_racks(group: Group) -> Group:
    """The same without racks, by which Java's assignor may go on moving partitions."""
    return Group(group.cluster, {member: replace(told, rack=None) for member, told in group.members.items()})


def claiming(group: Group, had: Members, generation: int) -> Group:
    """The same group, whose members own what they have."""
    return Group(
        group.cluster,
        {
            member: replace(told, owned=tuple(had.get(member, ())), generation=generation if member in had else -1)
            for member, told in group.members.items()
        },
    )
