"""Range: each subscriber gets a run of each topic's partitions, and the same run of every topic.

The same assignment as Java's RangeAssignor. With racks (KIP-881) members first get partitions with a replica in their
rack, as many as their run has. Topics with the same subscribers and the same number of partitions are assigned
together. So partitions of the same number stay together (for joins of co-partitioned topics).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.assignor import RebalanceProtocol
from ingestd.consumer.group.assignors.placement import Shares, ordered_members, prefers_racks, subscribed_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ingestd.client.metadata import ClusterMetadata
    from ingestd.consumer.group.assignor import Assignment, Subscription
    from ingestd.consumer.group.assignors.placement import SubscribedTopic

__all__ = ["RangeAssignor"]


class RangeAssignor:
    """Kafka's "range"."""

    name = "range"
    rebalance_protocols = frozenset({RebalanceProtocol.eager})

    def user_data(self, topics: Collection[str]) -> bytes | None:  # noqa: ARG002 - part of what an assignor is
        """Nothing: the subscription says it all."""
        return None

    def assign(self, cluster: ClusterMetadata, members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Share the partitions of all topics among the members that subscribed to them."""
        order = ordered_members(members)
        shares = Shares(order)
        racks: dict[tuple[str, ...], list[str | None]] = {}
        drafts = []
        for topic in subscribed_topics(cluster, members, order):
            if topic.subscribers not in racks:
                racks[topic.subscribers] = [members[member].rack or None for member in topic.subscribers]
            drafts.append(_Draft(topic, racks[topic.subscribers]))
        if any(draft.prefers_racks for draft in drafts):
            _assign_by_rack(drafts)
        for draft in drafts:
            draft.assign_rest()
            for position, partitions in draft.assigned.items():
                name = draft.topic.name
                shares[draft.topic.subscribers[position]] += [TopicPartition(name, number) for number in partitions]
        return shares.assignments()

    def on_assignment(self, assignment: Assignment, member_id: str, generation: int) -> None:
        """Nothing is kept from one rebalance to the next."""


class _Draft:
    """One topic while its partitions are handed out. Subscribers are known by their position in the topic's order."""

    def __init__(self, topic: SubscribedTopic, racks: Sequence[str | None]) -> None:
        self.topic = topic
        self.racks = racks
        self.prefers_racks = prefers_racks(topic, racks)
        self.assigned: dict[int, list[int]] = {}
        self._free = bytearray(b"\x01") * len(topic.racks)
        self._each, self._extra = divmod(len(topic.racks), len(topic.subscribers))

    def room(self, position: int) -> int:
        """How many more partitions a subscriber may get; it never grows."""
        return max(0, self._each + (self._extra > 0) - len(self.assigned.get(position, ())))

    def assign(self, position: int, partitions: Iterable[int]) -> None:
        """Give partitions to a subscriber that has room for them."""
        held = self.assigned.setdefault(position, [])
        for partition in partitions:
            held.append(partition)
            self._free[partition] = 0
        if len(held) > self._each:
            self._extra -= 1

    def assign_matching(self) -> None:
        """Give each subscriber in turn what has a replica in its rack, as far as there is room."""
        waiting: dict[str | None, deque[int]] = {}
        for position, rack in enumerate(self.racks):
            if rack not in waiting:
                waiting[rack] = deque(
                    partition
                    for partition in self.topic.partitions
                    if rack is None or rack in self.topic.racks[partition]
                )
            self._assign_first(position, waiting[rack])

    def assign_rest(self) -> None:
        """Give each subscriber in turn what is left, as far as there is room."""
        waiting = deque(partition for partition in self.topic.partitions if self._free[partition])
        for position in range(len(self.racks)):
            if not waiting:
                break
            self._assign_first(position, waiting)

    def _assign_first(self, position: int, waiting: deque[int]) -> None:
        taken: list[int] = []
        room = self.room(position)
        while waiting and len(taken) < room:
            partition = waiting.popleft()
            if self._free[partition]:
                taken.append(partition)
        if taken:
            self.assign(position, taken)


def _assign_by_rack(drafts: Iterable[_Draft]) -> None:
    alike: dict[tuple[tuple[str, ...], int], list[_Draft]] = {}
    for draft in drafts:
        alike.setdefault((draft.topic.subscribers, len(draft.topic.racks)), []).append(draft)
    for together in alike.values():
        if len(together) > 1:
            _assign_together(together)
        elif together[0].prefers_racks:
            together[0].assign_matching()


def _assign_together(drafts: Sequence[_Draft]) -> None:
    """Give each partition number to the first subscriber with room whose rack holds that partition of every topic.

    The drafts have the same subscribers and as many partitions, so that room in one is room in all.
    """
    first = drafts[0]
    waiting: dict[str | None, deque[int]] = {}
    for position, rack in enumerate(first.racks):
        waiting.setdefault(rack, deque()).append(position)
    for partition in first.topic.partitions:
        common = frozenset.intersection(*(draft.topic.racks[partition] for draft in drafts))
        candidates: list[int] = []
        for rack in (None, *common):
            queue = waiting.get(rack)
            while queue and not first.room(queue[0]):
                queue.popleft()
            if queue:
                candidates.append(queue[0])
        if candidates:
            position = min(candidates)
            for draft in drafts:
                draft.assign(position, (partition,))
