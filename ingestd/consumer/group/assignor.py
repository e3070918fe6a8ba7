"""Assignor: decides, on the group's leader, who reads which partition. What every assignor is, ours or the user's.

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
    """Partitions are kept; those that another member shall have are given up afterwards, and the group joins again."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member tells the group's leader, through the coordinator."""

    topics: Collection[str]
    owned: Collection[TopicPartition] = ()
    """Partitions it holds while it joins; none with the eager protocol."""
    generation: int = -1
    """The last generation it was a member of, so that a late member's claims do not count; -1: none."""
    rack: str | None = None
    user_data: bytes | None = None
    group_instance_id: str | None = None
    """Of a static member (KIP-345). Not in the bytes: the coordinator's answer has it beside them."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the leader tells one member."""

    partitions: Collection[TopicPartition]
    user_data: bytes | None = None


class Assignor(Protocol):
    """One way to share partitions. An object belongs to one member, and may keep state between its calls."""

    @property
    def name(self) -> str:
        """As members agree on it: "range", "roundrobin", "sticky", "cooperative-sticky", or the user's own."""
        ...

    @property
    def rebalance_protocols(self) -> frozenset[RebalanceProtocol]:
        """Which ways of rebalancing its assignments are fit for. With `eager` alone nothing is kept over a join."""
        ...

    def user_data(self, topics: Collection[str]) -> bytes | None:
        """What goes with the subscription to `topics`, for the leader's assignor; called before each join."""
        ...

    def assign(self, cluster: ClusterMetadata, members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Share the partitions of all topics among the members that subscribed to them; on the leader only.

        `cluster` knows every topic of `members` that exists (replicas and nodes' racks with it). The answer names
        every member. With the cooperative protocol the member takes out of it what another member still
        owns: an assignor need not. Raises nothing that is expected.
        """
        ...

    def on_assignment(self, assignment: Assignment, member_id: str, generation: int) -> None:
        """This member's own part of a finished rebalance; before anybody is told of it."""
        ...
