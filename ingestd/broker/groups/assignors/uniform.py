"""Uniform: as even as subscriptions allow, then with as little movement as can be. What Java's "uniform" promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from ingestd.broker.groups.assignors.subscriber import Subscriber
    from ingestd.broker.groups.consumer_values import TopicIdPartition

__all__ = ["assign_uniformly"]


def assign_uniformly(
    members: Mapping[str, Subscriber], partitions: Mapping[UUID, int]
) -> dict[str, frozenset[TopicIdPartition]]:
    """Share all partitions evenly among the members that read their topics. Each keeps what it had as far as it may."""
    # Only brokers with such groups need this.
    from ingestd.consumer.group.assignors.balance import Balance, Kind  # noqa: PLC0415

    order = list(members)
    readers: dict[UUID, int] = {}
    for place, member_id in enumerate(order):
        for topic in members[member_id].topics:
            readers[topic] = readers.get(topic, 0) | 1 << place
    topics = sorted(readers)
    kind_of = {topic: number for number, topic in enumerate(topics)}
    owned: list[dict[int, list[int]]] = []
    for member_id in order:
        member = members[member_id]
        mine: dict[int, list[int]] = {}
        for topic, number in sorted(member.had):
            if topic in member.topics and number < partitions[topic]:
                mine.setdefault(kind_of[topic], []).append(number)
        owned.append(mine)
    balance = Balance(
        [Kind(partitions[topic], readers[topic], readers[topic]) for topic in topics],
        [{kind: len(numbers) for kind, numbers in mine.items()} for mine in owned],
    )
    balance.settle()
    shares = _named(balance.held, owned, [partitions[topic] for topic in topics])
    return {
        member_id: frozenset((topics[kind], number) for kind, number in share)
        for member_id, share in zip(order, shares, strict=True)
    }


def _named(
    held: Sequence[Mapping[int, int]], owned: Sequence[Mapping[int, Sequence[int]]], partitions: Sequence[int]
) -> list[list[tuple[int, int]]]:
    """Partitions for the counts, each as (kind, number): first what a member had, then what nobody kept."""
    shares: list[list[tuple[int, int]]] = []
    free = [dict.fromkeys(range(count)) for count in partitions]
    for mine, counts in zip(owned, held, strict=True):
        kept = [(kind, number) for kind, count in counts.items() for number in mine.get(kind, ())[:count]]
        for kind, number in kept:
            del free[kind][number]
        shares.append(kept)
    for share, mine, counts in zip(shares, owned, held, strict=True):
        for kind, count in counts.items():
            for _ in range(count - len(mine.get(kind, ())[:count])):
                number = next(iter(free[kind]))
                del free[kind][number]
                share.append((kind, number))
    return shares
