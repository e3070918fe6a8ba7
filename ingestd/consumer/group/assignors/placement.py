"""Placement: what every assignor starts from: members in Java's order, partitions, and in which racks replicas are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.assignor import Assignment

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ingestd.client.metadata import ClusterMetadata, Node, TopicMetadata
    from ingestd.consumer.group.assignor import Subscription

__all__ = ["Shares", "SubscribedTopic", "ordered_members", "partition_racks", "prefers_racks", "subscribed_topics"]


class Shares(dict[str, list[TopicPartition]]):
    """The partitions of each member, by member id. At first nobody has any."""

    def __init__(self, members: Iterable[str]) -> None:
        super().__init__({member: [] for member in members})

    def assignments(self) -> dict[str, Assignment]:
        """Each member's part, in order of topics and partitions."""
        return {member: Assignment(tuple(sorted(partitions))) for member, partitions in self.items()}


@dataclass(frozen=True, slots=True)
class SubscribedTopic:
    """A topic that has subscribers and partitions."""

    name: str
    subscribers: tuple[str, ...]
    """Member ids, in `ordered_members`' order."""
    racks: tuple[frozenset[str], ...]
    """For each partition the racks of its replicas. Empty if no node has a rack."""

    @property
    def all_racks(self) -> frozenset[str]:
        """The racks that hold a replica of any partition."""
        return frozenset().union(*set(self.racks))

    @property
    def partitions(self) -> range:
        """The partitions' numbers."""
        return range(len(self.racks))


def ordered_members(members: Mapping[str, Subscription]) -> list[str]:
    """Member ids as Java's assignors order them: static members by their instance's name, then the others by id.

    Java compares strings by their UTF-16 units. Any order would do if all leaders had the same. With Java's order
    nothing moves when a Java client becomes the leader.
    """

    def order(member: str) -> tuple[bool, bytes, bytes]:
        instance = members[member].group_instance_id
        return instance is None, _utf16(instance or ""), _utf16(member)

    return sorted(members, key=order)


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def subscribed_topics(
    cluster: ClusterMetadata, members: Mapping[str, Subscription], order: Sequence[str]
) -> list[SubscribedTopic]:
    """The topics of all members that the cluster has, by name.

    Topics with the same subscribers have the same tuple of them.
    """
    # Members mostly subscribe to the same topics, so equal ones are computed once.
    alike: dict[frozenset[str], list[int]] = {}
    for position, member in enumerate(order):
        alike.setdefault(frozenset(members[member].topics), []).append(position)
    positions = list(alike.values())
    takers: dict[str, list[int]] = {}
    for number, topics in enumerate(alike):
        for topic in topics:
            takers.setdefault(topic, []).append(number)
    subscribers: dict[tuple[int, ...], tuple[str, ...]] = {}
    found = []
    replica_racks: dict[tuple[int, ...], frozenset[str]] = {}
    for name in sorted(takers):
        known = cluster.topics.get(name)
        if known is None or not known.partitions:
            continue
        who = tuple(takers[name])
        if who not in subscribers:
            subscribers[who] = tuple(order[place] for place in sorted(chain.from_iterable(positions[n] for n in who)))
        found.append(SubscribedTopic(name, subscribers[who], partition_racks(known, cluster.nodes, replica_racks)))
    return found


def partition_racks(
    topic: TopicMetadata, nodes: Mapping[int, Node], known: dict[tuple[int, ...], frozenset[str]]
) -> tuple[frozenset[str], ...]:
    """For each partition the racks of its replicas. `known` is a cache, by sets of nodes."""
    # There are far fewer sets of replicas than partitions.
    found = []
    for partition in topic.partitions:
        racks = known.get(partition.replicas)
        if racks is None:
            holding = (nodes.get(replica) for replica in partition.replicas)
            racks = known[partition.replicas] = frozenset(
                node.rack for node in holding if node is not None and node.rack is not None
            )
        found.append(racks)
    return tuple(found)


def prefers_racks(topic: SubscribedTopic, racks: Collection[str | None]) -> bool:
    """Whether it matters in which rack a subscriber is (KIP-881).

    It does not if no subscriber's rack has a replica, or if every rack has one of every partition.
    """
    held = topic.all_racks
    if held.isdisjoint(rack for rack in racks if rack is not None):
        return False
    return any(partition != held for partition in topic.racks)
