"""Range: each topic's partitions in pieces, one per member; equal numbers of all topics together. As Java's "range"."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from ingestd.broker.groups.assignors.subscriber import Subscriber
    from ingestd.broker.groups.consumer_values import TopicIdPartition

__all__ = ["assign_ranges"]


def assign_ranges(
    members: Mapping[str, Subscriber], partitions: Mapping[UUID, int]
) -> dict[str, frozenset[TopicIdPartition]]:
    """Share the partitions of each topic among its subscribers: static members first, then by id."""
    readers = Counter(topic for member in members.values() for topic in member.topics)
    begins: Counter[UUID] = Counter()
    served: Counter[UUID] = Counter()
    assigned: dict[str, frozenset[TopicIdPartition]] = {}
    for member_id in sorted(members, key=lambda name: _place(name, members[name])):
        mine: list[TopicIdPartition] = []
        for topic in members[member_id].topics:
            least, more = divmod(partitions[topic], readers[topic])
            begin = begins[topic]
            begins[topic] += least + (served[topic] < more)
            served[topic] += 1
            mine += [(topic, number) for number in range(begin, begins[topic])]
        assigned[member_id] = frozenset(mine)
    return assigned


def _place(member_id: str, member: Subscriber) -> tuple[bool, bytes]:
    # Java orders strings by their UTF-16 units.
    name = member_id if member.instance_id is None else member.instance_id
    return member.instance_id is None, name.encode("utf-16-be", "surrogatepass")
