"""Retention: who keeps which partitions, from what members claim to own, by a `Balance` of the whole group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.assignors.balance import Balance, Kind
from ingestd.consumer.group.assignors.placement import Shares, ordered_members, prefers_racks, subscribed_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ingestd.client.metadata import ClusterMetadata
    from ingestd.consumer.group.assignor import Assignment, Subscription
    from ingestd.consumer.group.assignors.placement import SubscribedTopic

__all__ = ["Claim", "owners", "retain"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a member says it owns, and the generation of that (-1: not known)."""

    partitions: Collection[TopicPartition]
    generation: int = -1


def owners(claims: Mapping[str, Claim]) -> dict[TopicPartition, str]:
    """Who owns each partition that is claimed: the claim of the highest generation counts (KIP-54).

    If two members claim a partition with the same generation, nobody owns it: it is not known which of them is wrong.
    """
    found: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, claim in claims.items():
        generation = claim.generation
        for partition in set(claim.partitions):
            other = found.get(partition)
            if other is None or generation > other[0]:
                found[partition] = (generation, member)
            elif generation == other[0]:
                found[partition] = (generation, None)
    return {partition: member for partition, (_, member) in found.items() if member is not None}


def retain(
    cluster: ClusterMetadata, members: Mapping[str, Subscription], claims: Mapping[str, Claim]
) -> dict[str, Assignment]:
    """Assign the partitions evenly, then near, and let members keep what they own as far as possible."""
    order = ordered_members(members)
    place = {member: position for position, member in enumerate(order)}
    groups = _groups(subscribed_topics(cluster, members, order), members, place)
    owned = _owned(groups, owners(claims), place)
    balance = Balance(
        [group.kind for group in groups],
        [{kind: len(partitions) for kind, partitions in kinds.items()} for kinds in owned],
    )
    balance.settle()
    return _named(order, groups, owned, balance).assignments()


@dataclass(frozen=True, slots=True)
class _Group:
    """Partitions of one topic that are alike: the kind that a balance knows, and which they are."""

    topic: str
    partitions: Sequence[int]
    kind: Kind


def _groups(
    topics: Sequence[SubscribedTopic], members: Mapping[str, Subscription], place: Mapping[str, int]
) -> list[_Group]:
    groups = []
    # Topics mostly have the same subscribers, and partitions few sets of racks.
    everybody: dict[tuple[str, ...], int] = {}
    racks: dict[tuple[str, ...], dict[str | None, int]] = {}
    for topic in topics:
        if topic.subscribers not in everybody:
            in_rack: dict[str | None, int] = {}
            for member in topic.subscribers:
                rack = members[member].rack or None
                in_rack[rack] = in_rack.get(rack, 0) | 1 << place[member]
            racks[topic.subscribers] = in_rack
            everybody[topic.subscribers] = sum(in_rack.values())
        subscribers = everybody[topic.subscribers]
        in_rack = racks[topic.subscribers]
        if not prefers_racks(topic, in_rack):
            groups.append(_Group(topic.name, topic.partitions, Kind(len(topic.racks), subscribers, subscribers)))
            continue
        alike: dict[frozenset[str], list[int]] = {}
        for partition, held in enumerate(topic.racks):
            alike.setdefault(held, []).append(partition)
        for held, partitions in alike.items():
            near = sum(those for rack, those in in_rack.items() if rack is None or rack in held)
            groups.append(_Group(topic.name, partitions, Kind(len(partitions), subscribers, near or subscribers)))
    return groups


def _owned(
    groups: Sequence[_Group], owner: Mapping[TopicPartition, str], place: Mapping[str, int]
) -> list[dict[int, list[int]]]:
    """For each member, by kind, the partitions that it owns and may keep: they exist and it subscribes to them."""
    owned: list[dict[int, list[int]]] = [{} for _ in place]
    for number, group in enumerate(groups):
        subscribers = group.kind.subscribers
        for partition in group.partitions:
            name = owner.get(TopicPartition(group.topic, partition))
            if name is not None and subscribers >> place[name] & 1:
                owned[place[name]].setdefault(number, []).append(partition)
    return owned


def _named(
    order: Sequence[str], groups: Sequence[_Group], owned: Sequence[Mapping[int, Sequence[int]]], balance: Balance
) -> Shares:
    """Choose partitions for the counts: first each member's own, then others of the kind."""
    shares = Shares(order)
    kept: list[set[int]] = [set() for _ in groups]
    short: list[list[tuple[int, int]]] = [[] for _ in groups]
    for member, held in enumerate(balance.held):
        for number, count in held.items():
            mine = owned[member].get(number, ())[:count]
            shares[order[member]] += [TopicPartition(groups[number].topic, partition) for partition in mine]
            kept[number].update(mine)
            if count > len(mine):
                short[number].append((member, count - len(mine)))
    for number, group in enumerate(groups):
        left: Iterator[int] = (partition for partition in group.partitions if partition not in kept[number])
        for member, count in short[number]:
            shares[order[member]] += [TopicPartition(group.topic, next(left)) for _ in range(count)]
    return shares
