"""What every assignor keeps to, on groups at random; and Kafka's own examples."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from counted import lines_run
from hypothesis import given, settings
from hypothesis import strategies as st
from random_groups import Group, check_even, check_whole, far, loads, moved, rebalance

from ingestd.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata, TopicPartition
from ingestd.consumer.group.assignor import Assignment, RebalanceProtocol, Subscription
from ingestd.consumer.group.assignors import (
    ASSIGNORS,
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    agreed_rebalance_protocol,
    make_assignors,
)
from ingestd.consumer.group.assignors.retention import Claim, owners
from ingestd.consumer.group.assignors.sticky import decode_claim, encode_claim
from ingestd.errors import ConfigurationError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from random_groups import Members

RANDOM = st.randoms(use_true_random=False)


def cluster(topics: Mapping[str, int], racks: Mapping[int, str | None] | None = None) -> ClusterMetadata:
    """Topics with so many partitions; partition n's only replica is on node n modulo the number of nodes."""
    nodes = racks or {0: None}
    return ClusterMetadata(
        nodes={node: Node(node, "localhost", 9092, rack) for node, rack in nodes.items()},
        topics={
            name: TopicMetadata(
                name,
                None,
                tuple(PartitionMetadata(number, 0, 0, (number % len(nodes),), ()) for number in range(partitions)),
            )
            for name, partitions in topics.items()
        },
    )


def names(members: Mapping[str, Collection[TopicPartition]]) -> dict[str, list[str]]:
    """Who has what, readable."""
    return {member: sorted(map(str, partitions)) for member, partitions in members.items()}


def owning(group: Group, members: Members, generation: int) -> Group:
    """The same group when these members have these partitions, each told in every way there is."""
    return Group(
        group.cluster,
        {
            member: replace(
                subscription,
                owned=tuple(members.get(member, ())),
                generation=generation if member in members else -1,
                user_data=encode_claim(Claim(tuple(members[member]), generation)) if member in members else None,
            )
            for member, subscription in group.members.items()
        },
    )


# Every assignor


@pytest.mark.parametrize("name", ASSIGNORS)
@given(rng=RANDOM)
@settings(max_examples=60, deadline=None)
def test_every_partition_goes_to_one_member_that_subscribed_to_its_topic(name: str, rng: random.Random) -> None:
    group = Group.at_random(rng)
    check_whole(group, rebalance(ASSIGNORS[name](), group))


@pytest.mark.parametrize("name", ASSIGNORS)
def test_no_order_of_members_or_topics_changes_an_assignment(name: str) -> None:
    rng = random.Random(3)
    for _ in range(50):
        group = Group.at_random(rng)
        shuffled = Group(
            replace(group.cluster, topics=dict(reversed(group.cluster.topics.items()))),
            dict(reversed(group.members.items())),
        )
        assert rebalance(ASSIGNORS[name](), group) == rebalance(ASSIGNORS[name](), shuffled)


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize(
    "shape", ["equal subscriptions", "own subscriptions", "a topic for each partition", "one owns all"]
)
def test_the_work_for_ten_thousand_partitions_and_a_hundred_members_is_bounded(name: str, shape: str) -> None:
    rng = random.Random(1)
    topics = (
        {f"t{number}": 1 for number in range(10_000)} if "topic for" in shape else {f"t{n}": 100 for n in range(100)}
    )
    every = tuple(topics)
    members = {
        f"m{number:03}": Subscription(
            every if "equal" in shape or not number else tuple(rng.sample(every, len(every) // 5)),
            rack=f"r{number % 3}",
        )
        for number in range(100)
    }
    group = Group(cluster(topics, {0: "r0", 1: "r1", 2: "r2"}), members)
    if shape == "one owns all":
        every_one = frozenset(TopicPartition(topic, number) for topic in topics for number in range(100))
        group = owning(group, {"m000": every_one}, 1)
    lines, assigned = lines_run(lambda: rebalance(ASSIGNORS[name](), group))
    assert lines < 10_000_000  # 0.1 to 5.6 million, 0.2 CPU seconds, when this was written; were it quadratic, 100
    if name == "cooperative-sticky" and shape == "one owns all":
        assert loads(assigned) == [100] + 99 * [0]  # the others wait for what is given up
    else:
        assert sum(loads(assigned)) == 10_000


# Range and round robin


def test_range_gives_each_member_a_run_of_each_topic_and_the_first_ones_the_rest() -> None:
    group = Group(cluster({"t0": 3, "t1": 3}), {"C0": Subscription(("t0", "t1")), "C1": Subscription(("t0", "t1"))})
    assert names(rebalance(RangeAssignor(), group)) == {
        "C0": ["t0-0", "t0-1", "t1-0", "t1-1"],
        "C1": ["t0-2", "t1-2"],
    }


def test_range_orders_static_members_by_their_instance_before_all_others() -> None:
    subscribed = Subscription(("t",))
    group = Group(
        cluster({"t": 3}),
        {
            "a": subscribed,
            "b": replace(subscribed, group_instance_id="two"),
            "c": replace(subscribed, group_instance_id="one"),
        },
    )
    assert names(rebalance(RangeAssignor(), group)) == {"a": ["t-2"], "b": ["t-1"], "c": ["t-0"]}


def test_range_prefers_a_members_rack_and_keeps_partitions_of_one_number_together() -> None:
    subscribed = ("t0", "t1")
    group = Group(
        cluster({"t0": 6, "t1": 6}, {0: "a", 1: "b", 2: "c"}),
        {rack: Subscription(subscribed, rack=rack) for rack in ("c", "b", "a")},
    )
    assigned = rebalance(RangeAssignor(), group)
    assert names(assigned) == {
        "a": ["t0-0", "t0-3", "t1-0", "t1-3"],
        "b": ["t0-1", "t0-4", "t1-1", "t1-4"],
        "c": ["t0-2", "t0-5", "t1-2", "t1-5"],
    }
    assert far(group, assigned) == 0


def test_round_robin_goes_on_with_the_next_member_from_topic_to_topic() -> None:
    group = Group(
        cluster({"t0": 1, "t1": 2, "t2": 3}),
        {"C0": Subscription(("t0",)), "C1": Subscription(("t0", "t1")), "C2": Subscription(("t0", "t1", "t2"))},
    )
    assert names(rebalance(RoundRobinAssignor(), group)) == {
        "C0": ["t0-0"],
        "C1": ["t1-0"],
        "C2": ["t1-1", "t2-0", "t2-1", "t2-2"],
    }


# Sticky


@given(rng=RANDOM)
@settings(max_examples=100, deadline=None)
def test_sticky_shares_stay_whole_and_even_and_settled_whatever_happens_to_the_group(rng: random.Random) -> None:
    group = Group.at_random(rng)
    had: Members = {}
    for generation in range(4):
        group = owning(group, had, generation)
        has = rebalance(StickyAssignor(), group)
        check_whole(group, has)
        check_even(group, has)
        assert rebalance(StickyAssignor(), owning(group, has, generation + 1)) == has
        had, group = has, group.changed_at_random(rng)


def test_sticky_evens_out_over_a_member_in_between_where_no_single_move_helps() -> None:
    group = Group(
        cluster({"t1": 6, "t2": 3}),
        {"A": Subscription(("t1",)), "B": Subscription(("t1", "t2")), "C": Subscription(("t2",))},
    )
    had = {
        "A": frozenset(TopicPartition("t1", number) for number in range(4)),
        "B": frozenset([TopicPartition("t1", 4), TopicPartition("t1", 5), TopicPartition("t2", 0)]),
        "C": frozenset([TopicPartition("t2", 1), TopicPartition("t2", 2)]),
    }
    has = rebalance(StickyAssignor(), owning(group, had, 1))
    assert loads(has) == [3, 3, 3]
    assert moved(had, has) == 2


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_when_a_member_leaves_nobody_else_loses_a_partition(name: str) -> None:
    group = Group(
        cluster({"t0": 7, "t1": 9}), {member: Subscription(("t0", "t1")) for member in ("a", "b", "c", "d", "e")}
    )
    had = rebalance(ASSIGNORS[name](), group)
    del group.members["c"]  # type: ignore[attr-defined]
    has = rebalance(ASSIGNORS[name](), owning(group, had, 1))
    check_whole(group, has)
    assert loads(has) == [4, 4, 4, 4]
    assert moved(had, has) == 0


def test_when_a_member_comes_only_its_share_moves() -> None:
    group = Group(cluster({"t0": 7, "t1": 9}), {member: Subscription(("t0", "t1")) for member in ("a", "b", "c")})
    had = rebalance(StickyAssignor(), group)
    group.members["d"] = Subscription(("t0", "t1"))  # type: ignore[index]
    has = rebalance(StickyAssignor(), owning(group, had, 1))
    assert loads(has) == [4, 4, 4, 4]
    assert moved(had, has) == 4


def test_a_member_near_a_replica_is_preferred_but_never_at_the_price_of_evenness() -> None:
    group = Group(
        cluster({"t": 9}, {0: "a", 1: "b", 2: "b"}),
        {rack: Subscription(("t",), rack=rack) for rack in ("a", "b")},
    )
    has = rebalance(StickyAssignor(), group)
    assert loads(has) == [5, 4]
    assert far(group, has) == 1
    assert len(has["b"]) == 5


def test_the_claim_of_the_newest_generation_counts_and_two_of_one_generation_do_not() -> None:
    one, two, three = (TopicPartition("t", number) for number in range(3))
    assert owners({"a": Claim((one, two, three), 7), "b": Claim((two,), 8), "c": Claim((three,), 7)}) == {
        one: "a",
        two: "b",
    }
    assert owners({"a": Claim((one,), 7), "b": Claim((one,), 7), "c": Claim((one,), 8)}) == {one: "c"}


def test_a_claim_that_is_not_readable_counts_for_nothing() -> None:
    group = Group(
        cluster({"t": 4}), {"a": Subscription(("t",), user_data=b"\x7f\xff\xff\xff"), "b": Subscription(("t",))}
    )
    check_whole(group, rebalance(StickyAssignor(), group))


def test_what_sticky_tells_the_next_leader_is_its_last_assignment_as_java_writes_it() -> None:
    assignor = StickyAssignor()
    assert assignor.user_data(("t",)) is None
    assignor.on_assignment(Assignment((TopicPartition("t", 0), TopicPartition("t", 2))), "me", 5)
    told = assignor.user_data(("t",))
    assert told == bytes.fromhex("00000001 0001 74 00000002 00000000 00000002 00000005")
    assert decode_claim(told) == Claim((TopicPartition("t", 0), TopicPartition("t", 2)), 5)
    assert decode_claim(told[:-4]) == Claim((TopicPartition("t", 0), TopicPartition("t", 2)), -1)  # version 0


@pytest.mark.parametrize("cut", range(23))
def test_a_claim_cut_anywhere_is_a_protocol_error_or_of_no_generation(cut: int) -> None:
    whole = encode_claim(Claim((TopicPartition("t", 0), TopicPartition("t", 2)), 5))
    try:
        assert decode_claim(whole[:cut]).generation == -1
    except ProtocolError:
        assert cut < len(whole) - 4


# Cooperative sticky


@given(rng=RANDOM)
@settings(max_examples=60, deadline=None)
def test_a_partition_moves_only_after_its_owner_gave_it_up_and_two_rebalances_settle_it(rng: random.Random) -> None:
    group = Group.at_random(rng)
    had: Members = {}
    for generation in range(0, 12, 3):
        for rebalanced in range(3):
            group = owning(group, had, generation + rebalanced)
            has = rebalance(CooperativeStickyAssignor(), group)
            given_up = {
                partition
                for member, partitions in had.items()
                if member in has
                for partition in partitions - has[member]
            }
            for member, partitions in has.items():
                others = {partition for other in had if other != member and other in has for partition in had[other]}
                assert not partitions & others
            if not given_up and has == had:
                break
            check_whole(
                group, has, but={p for p in given_up if not any(p in mine for mine in has.values())} & wanted(group)
            )
            had = has
        else:
            pytest.fail("not settled after two rebalances")
        check_whole(group, has)
        check_even(group, has)
        group = group.changed_at_random(rng)


def wanted(group: Group) -> set[TopicPartition]:
    """What the group reads."""
    topics = {topic for subscription in group.members.values() for topic in subscription.topics}
    return {
        TopicPartition(name, partition.partition)
        for name, topic in group.cluster.topics.items()
        if name in topics
        for partition in topic.partitions
    }


def test_what_two_members_claim_is_nobodys_until_both_gave_it_up() -> None:
    both = (TopicPartition("t", 0),)
    subscribed = Subscription(("t",), owned=both, generation=3)
    group = Group(cluster({"t": 1}), {"a": subscribed, "b": subscribed})
    assert rebalance(CooperativeStickyAssignor(), group) == {"a": frozenset(), "b": frozenset()}


def test_a_late_members_claim_does_not_take_a_partition_from_its_owner() -> None:
    both = (TopicPartition("t", 0),)
    group = Group(
        cluster({"t": 1}),
        {"a": Subscription(("t",), owned=both, generation=2), "b": Subscription(("t",), owned=both, generation=3)},
    )
    assert rebalance(CooperativeStickyAssignor(), group) == {"a": frozenset(), "b": frozenset(both)}


def test_the_generation_is_told_in_the_user_data_and_read_from_there_where_the_subscription_has_none() -> None:
    both = (TopicPartition("t", 0),)
    assignor = CooperativeStickyAssignor()
    assert assignor.user_data(("t",)) == b"\xff\xff\xff\xff"
    assignor.on_assignment(Assignment(both), "b", 3)
    late = Subscription(("t",), owned=both, user_data=(2).to_bytes(4, "big"))
    current = Subscription(("t",), owned=both, user_data=assignor.user_data(("t",)))
    group = Group(cluster({"t": 1}), {"a": late, "b": current})
    assert rebalance(assignor, group) == {"a": frozenset(), "b": frozenset(both)}


# Chosen by name, and the user's own


@dataclass
class FirstTakesAll:
    """The smallest assignor that somebody may write."""

    name: str = "first takes all"
    rebalance_protocols: frozenset[RebalanceProtocol] = frozenset({RebalanceProtocol.eager})

    def user_data(self, topics: Collection[str]) -> bytes | None:
        return None

    def assign(self, cluster: ClusterMetadata, members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        everything = [
            TopicPartition(topic.name, partition.partition)
            for topic in cluster.topics.values()
            for partition in topic.partitions
        ]
        return {member: Assignment(() if place else everything) for place, member in enumerate(sorted(members))}

    def on_assignment(self, assignment: Assignment, member_id: str, generation: int) -> None: ...


def test_assignors_are_chosen_by_name_and_users_objects_are_taken_as_they_are() -> None:
    own = FirstTakesAll()
    chosen = make_assignors(("cooperative-sticky", own, "range"))
    assert [assignor.name for assignor in chosen] == ["cooperative-sticky", "first takes all", "range"]
    assert chosen[1] is own
    assert make_assignors(("sticky",))[0] is not make_assignors(("sticky",))[0]  # each member's has its own memory
    group = Group(cluster({"t": 2}), {"a": Subscription(("t",)), "b": Subscription(("t",))})
    assert loads(rebalance(own, group)) == [2, 0]


def test_an_unknown_assignor_and_two_of_one_name_are_refused_by_name() -> None:
    with pytest.raises(
        ConfigurationError, match="'stick'; expected one of range, roundrobin, sticky, cooperative-sticky"
    ):
        make_assignors(("stick",))
    with pytest.raises(ConfigurationError, match="two named 'range'"):
        make_assignors(("range", RangeAssignor()))


def test_members_rebalance_cooperatively_only_where_all_their_assignors_can() -> None:
    assert agreed_rebalance_protocol(make_assignors(("cooperative-sticky",))) is RebalanceProtocol.cooperative
    assert agreed_rebalance_protocol(make_assignors(("range", "cooperative-sticky"))) is RebalanceProtocol.eager
    strict = FirstTakesAll(rebalance_protocols=frozenset({RebalanceProtocol.cooperative}))
    with pytest.raises(ConfigurationError, match="range, first takes all have no rebalance protocol in common"):
        agreed_rebalance_protocol((RangeAssignor(), strict))
