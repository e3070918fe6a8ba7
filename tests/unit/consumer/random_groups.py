"""Groups at random: clusters with racks, members with equal or different subscriptions, and what happens to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ingestd.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata, TopicPartition
from ingestd.consumer.group.assignor import Subscription

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Mapping

    from ingestd.consumer.group.assignor import Assignor

__all__ = ["Group", "Members", "check_even", "check_whole", "far", "loads", "moved", "rebalance"]

RACKS = ("a", "b", "c")
# Java orders strings by UTF-16 units: the second of these is before the first there, behind it by code points.
NAMES = ("member-\uff5e", "member-\U0001f600", "Member", "member", "memBer-0", "", "ä")


@dataclass(frozen=True)
class Group:
    """A cluster, and the members of a group with what they subscribe to and own."""

    cluster: ClusterMetadata
    members: Mapping[str, Subscription]

    @classmethod
    def at_random(cls, rng: random.Random) -> Group:
        """A new group: nobody owns anything."""
        nodes = rng.randint(1, 6)
        racks = rng.choice([(), (), RACKS[:1], RACKS[:2], RACKS])
        topics = {f"topic-{number}": rng.choice([0, 1, 2, 3, 6, 6, 11]) for number in range(rng.randint(0, 6))}
        replicas = rng.randint(1, nodes)
        cluster = ClusterMetadata(
            nodes={
                node: Node(node, "localhost", 9092, rng.choice((*racks, None)) if racks else None)
                for node in range(nodes)
            },
            topics={
                name: TopicMetadata(
                    name,
                    None,
                    tuple(
                        PartitionMetadata(number, 0, 0, tuple(rng.sample(range(nodes), replicas)), ())
                        for number in range(partitions)
                    ),
                )
                for name, partitions in topics.items()
            },
        )
        wanted = (*topics, "not there")
        equal = tuple(rng.sample(wanted, rng.randint(1, len(wanted)))) if rng.random() < 0.5 else None
        names = rng.sample([*NAMES, *(f"m{number}" for number in range(8))], rng.randint(1, 8))
        members = {
            name: Subscription(
                topics=equal if equal is not None else tuple(rng.sample(wanted, rng.randint(1, len(wanted)))),
                rack=rng.choice((*racks, "elsewhere", None)) if racks else None,
                group_instance_id=rng.choice([None, None, f"instance {name}"]),
            )
            for name in names
        }
        return cls(cluster, members)

    def changed_at_random(self, rng: random.Random) -> Group:
        """The same group a little later: somebody left, came, or subscribes to something else; a topic grew."""
        members = dict(self.members)
        topics = dict(self.cluster.topics)
        happening = rng.choice(["left", "came", "subscribed", "grew", "nothing"])
        some = rng.choice(list(members))
        if happening == "left" and len(members) > 1:
            del members[some]
        elif happening == "came":
            members[f"new {len(members)}"] = replace(members[some], owned=(), group_instance_id=None)
        elif happening == "subscribed":
            wanted = (*topics, "not there")
            members[some] = replace(members[some], topics=tuple(rng.sample(wanted, rng.randint(1, len(wanted)))))
        elif happening == "grew" and topics:
            name = rng.choice(list(topics))
            more = tuple(
                replace(topics[name].partitions[0], partition=number)
                for number in range(len(topics[name].partitions), len(topics[name].partitions) + 3)
                if topics[name].partitions
            )
            topics[name] = replace(topics[name], partitions=topics[name].partitions + more)
        return Group(replace(self.cluster, topics=topics), members)


Members = dict[str, frozenset[TopicPartition]]
"""What each member has."""


def rebalance(assignor: Assignor, group: Group) -> Members:
    """Who has what after a rebalance."""
    assigned = assignor.assign(group.cluster, group.members)
    for assignment in assigned.values():
        assert len(set(assignment.partitions)) == len(assignment.partitions)
    return {member: frozenset(assignment.partitions) for member, assignment in assigned.items()}


def check_whole(
    group: Group, members: Mapping[str, Collection[TopicPartition]], *, but: Collection[TopicPartition] = ()
) -> None:
    """Every partition subscribed to has one owner, `but` those that have none; each owner subscribed to its topic."""
    assert set(members) == set(group.members)
    owned = Counter(partition for partitions in members.values() for partition in partitions)
    wanted = {topic for subscription in group.members.values() for topic in subscription.topics}
    there = {
        TopicPartition(name, partition.partition)
        for name, topic in group.cluster.topics.items()
        if name in wanted
        for partition in topic.partitions
    }
    assert set(owned) == there - set(but)
    assert not [partition for partition, owners in owned.items() if owners > 1]
    for member, partitions in members.items():
        assert {partition.topic for partition in partitions} <= set(group.members[member].topics)


def loads(members: Mapping[str, Collection[TopicPartition]]) -> list[int]:
    """How many partitions members have, the most first."""
    return sorted(map(len, members.values()), reverse=True)


def check_even(group: Group, members: Mapping[str, Collection[TopicPartition]]) -> None:
    """No member could pass a partition on, over however many others, to one that has at least two less."""
    topics = {member: {partition.topic for partition in partitions} for member, partitions in members.items()}
    for giver in members:
        reached = {giver}
        frontier = [giver]
        while frontier:
            held = topics[frontier.pop()]
            for member, subscription in group.members.items():
                if member not in reached and held & set(subscription.topics):
                    reached.add(member)
                    frontier.append(member)
        assert len(members[giver]) < min(len(members[member]) for member in reached) + 2


def moved(before: Mapping[str, Collection[TopicPartition]], after: Mapping[str, Collection[TopicPartition]]) -> int:
    """How many partitions left an owner that could have kept them, as one of the members afterwards."""
    return sum(len(set(partitions) - set(after[member])) for member, partitions in before.items() if member in after)


def far(group: Group, members: Mapping[str, Collection[TopicPartition]]) -> int:
    """How many partitions are read by a member in whose rack there is no replica."""
    count = 0
    for member, partitions in members.items():
        rack = group.members[member].rack
        for topic, number in partitions if rack is not None else ():
            replicas = group.cluster.topics[topic].partitions[number].replicas
            count += rack not in {group.cluster.nodes[replica].rack for replica in replicas}
    return count
