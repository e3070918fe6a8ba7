"""Round robin: all partitions of all topics in turn, to the next member that subscribed to their topic.

The same assignment as Java's RoundRobinAssignor.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.assignor import RebalanceProtocol
from ingestd.consumer.group.assignors.placement import Shares, ordered_members, subscribed_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ingestd.client.metadata import ClusterMetadata
    from ingestd.consumer.group.assignor import Assignment, Subscription

__all__ = ["RoundRobinAssignor"]


class RoundRobinAssignor:
    """Kafka's "roundrobin"."""

    name = "roundrobin"
    rebalance_protocols = frozenset({RebalanceProtocol.eager})

    def user_data(self, topics: Collection[str]) -> bytes | None:  # noqa: ARG002 - part of what an assignor is
        """Nothing: the subscription says it all."""
        return None

    def assign(self, cluster: ClusterMetadata, members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Share the partitions of all topics among the members that subscribed to them."""
        order = ordered_members(members)
        place = {member: position for position, member in enumerate(order)}
        shares = Shares(order)
        turn = 0
        for topic in subscribed_topics(cluster, members, order):
            places = [place[member] for member in topic.subscribers]
            following = bisect_left(places, turn)
            for partition in topic.partitions:
                following %= len(places)
                shares[topic.subscribers[following]].append(TopicPartition(topic.name, partition))
                turn = places[following] + 1
                following += 1
        return shares.assignments()

    def on_assignment(self, assignment: Assignment, member_id: str, generation: int) -> None:
        """Nothing is kept from one rebalance to the next."""
