"""Cooperative sticky: the assignment of sticky, while members go on with the partitions that they keep (KIP-429).

A partition that moves is first assigned to nobody. Its owner gives it up and joins again, and that rebalance assigns
it. So no partition ever has two owners.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ingestd.consumer.group.assignor import Assignment, RebalanceProtocol
from ingestd.consumer.group.assignors.retention import Claim, owners, retain

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ingestd.client.metadata import ClusterMetadata, TopicPartition
    from ingestd.consumer.group.assignor import Subscription

__all__ = ["CooperativeStickyAssignor", "without_claimed"]

NO_GENERATION: Final = -1
_INT32: Final = struct.Struct(">i")


class CooperativeStickyAssignor:
    """Kafka's "cooperative-sticky". What a member owns is in its subscription, its generation there or in user data."""

    name = "cooperative-sticky"
    rebalance_protocols = frozenset({RebalanceProtocol.eager, RebalanceProtocol.cooperative})

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def user_data(self, topics: Collection[str]) -> bytes | None:  # noqa: ARG002 - part of what an assignor is
        """The last generation, for leaders that do not read it from the subscription (before version 2 of it)."""
        return _INT32.pack(self._generation)

    def assign(self, cluster: ClusterMetadata, members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Assign the partitions. One that another member claims is left out until that member has given it up."""
        claims = {
            member: Claim(subscription.owned, _generation(subscription)) for member, subscription in members.items()
        }
        return without_claimed(retain(cluster, members, claims), claims)

    def on_assignment(self, assignment: Assignment, member_id: str, generation: int) -> None:  # noqa: ARG002 - as above
        """Remember the generation."""
        self._generation = generation


def without_claimed(assignments: Mapping[str, Assignment], claims: Mapping[str, Claim]) -> dict[str, Assignment]:
    """The assignments without the partitions that the new owner must wait for: those that another member claims.

    The owner of a partition (in `owners`) keeps it, whatever others claim. They will see that they have lost it.
    """
    owner = owners(claims)
    claimed = {partition for claim in claims.values() for partition in claim.partitions}
    free: dict[str, Assignment] = {}
    for member, assignment in assignments.items():
        partitions: tuple[TopicPartition, ...] = tuple(
            partition
            for partition in assignment.partitions
            if partition not in claimed or owner.get(partition) == member
        )
        free[member] = Assignment(partitions, assignment.user_data)
    return free


def _generation(subscription: Subscription) -> int:
    if subscription.generation != NO_GENERATION:
        return subscription.generation
    data = subscription.user_data
    return int(_INT32.unpack(data)[0]) if data is not None and len(data) == _INT32.size else NO_GENERATION
