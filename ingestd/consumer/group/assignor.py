"""Assignor: decides which member gets which partition. It runs on the group's leader. Users may write their own.

The bytes that members exchange (Kafka's ConsumerProtocol) are made of these values by `assignors/consumer_protocol.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ingestd.client.metadata import ClusterMetadata, TopicPartition

__all__ = ["Assignment", "Assignor", "RebalanceProtocol", "Subscription"]


class RebalanceProtocol(IntEnum):
    """What members do with their partitions when the group rebalances (KIP-429).

    A group's members use the highest that every assignor of their configuration supports, as Java's do.
    """

    eager = 0
    """Every partition is given up before joining."""
    cooperative = 1
    """Partitions are kept. Those that another member gets are given up later, and the group joins again."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member tells the group's leader, through the coordinator."""

    topics: Collection[str]
    owned: Collection[TopicPartition] = ()
    """The partitions that it has while it joins. None with the eager protocol."""
    generation: int = -1
    """Its last generation, so that the claims of an old member do not count; -1: none."""
    rack: str | None = None
    user_data: bytes | None = None
    group_instance_id: str | None = None
    """The name of a static member (KIP-345). Not in the bytes: the coordinator's answer has it separately."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the leader tells one member."""

    partitions: Collection[TopicPartition]
    user_data: bytes | None = None


class Assignor(Protocol):
    """One way to assign partitions. An object belongs to one member, and may keep state between calls."""

    @property
    def name(self) -> str:
        """The name by which members agree on it: "range", "roundrobin", "sticky", "cooperative-sticky", or another."""
        ...

    @property
    def rebalance_protocols(self) -> frozenset[RebalanceProtocol]:
        """The rebalance protocols that its assignments fit. With `eager` alone a join keeps no partition."""
        ...

    def user_data(self, topics: Collection[str]) -> bytes | None:
        """User data of the subscription to `topics`, for the leader's assignor. Called before each join."""
        ...

    def assign(self, cluster: ClusterMetadata, members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Assign the partitions of all topics to the members that subscribed to them. Called on the leader only.

        `cluster` knows every topic of `members` that exists, with its replicas and the racks of nodes. The result must
        name every member. With the cooperative protocol an assignor need not care who owns a partition now: what
        another member still owns is taken out of the result. It should not raise.
        """
        ...

    def on_assignment(self, assignment: Assignment, member_id: str, generation: int) -> None:
        """This member's own part of a finished rebalance. Called before the owner is told."""
        ...
