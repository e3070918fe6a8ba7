"""The nodes of `--nodes`, and which of them has and leads each partition. A test aid: they share one storage.

Nothing is replicated: every node of a partition has the same log, so all of them are in sync. What is moved is moved
for the life of the broker. A start begins with the spread that topic and number give.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.broker.coordinator.placement import coordinating_partition
from ingestd.broker.topics import is_internal
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from ingestd.broker.node import Node
    from ingestd.broker.storage import Storage

__all__ = ["Cluster", "Placement"]


@dataclass(frozen=True, slots=True)
class Placement:
    """The ids of the nodes that have a partition, the preferred leader first, and of the one that leads it."""

    replicas: tuple[int, ...]
    leader: int


class Cluster:
    """The nodes, and the place of each partition among them.

    Invariants
        A partition has one leader, which is one of its replicas.
        A partition that gets another leader gets a new leader epoch, as in Kafka, before anybody is told.
    """

    def __init__(self, nodes: Iterable[Node], storage: Storage) -> None:
        self.nodes = tuple(nodes)
        self._storage = storage
        self._moved: dict[tuple[UUID, int], Placement] = {}

    @property
    def controller(self) -> Node:
        """The node that clients send administration to. Any other one does it too."""
        return self.nodes[0]

    def node(self, node_id: int) -> Node:
        """The node with this id. Raises `KeyError`."""
        return {node.id: node for node in self.nodes}[node_id]

    def placement(self, topic: str, partition: int) -> Placement:
        """Where a partition is. Raises `KafkaError` (UNKNOWN_TOPIC_OR_PARTITION)."""
        found = self._storage.topics.named(topic)
        if found is None or partition >= found.partitions:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"{topic}-{partition}")
        moved = self._moved.get((found.topic_id, partition))
        if moved is not None:
            return moved
        first = (zlib.crc32(topic.encode()) + partition) % len(self.nodes)
        in_order = (*self.nodes[first:], *self.nodes[:first])
        copies = len(in_order) if is_internal(topic) else found.replication
        replicas = tuple(node.id for node in in_order[:copies])
        return Placement(replicas, replicas[0])

    def leads(self, node: Node, topic: str, partition: int) -> bool:
        """Whether the node leads a partition that exists."""
        return len(self.nodes) == 1 or self.placement(topic, partition).leader == node.id

    def check_leader(self, node: Node, topic: str, partition: int) -> None:
        """Raise `KafkaError` (NOT_LEADER_OR_FOLLOWER) unless the node leads the partition."""
        if not self.leads(node, topic, partition):
            leader = self.placement(topic, partition).leader
            raise KafkaError(ErrorCode.not_leader_or_follower, f"{topic}-{partition} is led by node {leader}")

    def check_replica(self, node: Node, topic: str, partition: int) -> None:
        """Raise `KafkaError` (NOT_LEADER_OR_FOLLOWER) unless the node has the partition."""
        replicas = self.placement(topic, partition).replicas
        if node.id not in replicas:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"{topic}-{partition} is on nodes {list(replicas)}")

    def coordinator(self, topic: str, key: str) -> Node:
        """The node that leads the partition of an internal topic where this group or transactional id is."""
        found = self._storage.topics.named(topic)
        if found is None:
            return self.controller
        return self.node(self.placement(topic, coordinating_partition(key, found.partitions)).leader)

    def coordinates(self, node: Node, topic: str, key: str) -> bool:
        """Whether the node coordinates this group or transactional id."""
        return len(self.nodes) == 1 or self.coordinator(topic, key) is node

    def check_coordinator(self, node: Node, topic: str, key: str) -> None:
        """Raise `KafkaError` (NOT_COORDINATOR) unless the node coordinates this group or transactional id."""
        if not self.coordinates(node, topic, key):
            raise KafkaError(ErrorCode.not_coordinator, f"{key!r} has another coordinator")

    def check_nodes(self, replicas: Sequence[int]) -> None:
        """Raise `KafkaError` (INVALID_REPLICA_ASSIGNMENT) unless these are nodes, each once."""
        known = [node.id for node in self.nodes]
        if not replicas or len(set(replicas)) < len(replicas) or not set(replicas) <= set(known):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment, f"replicas {list(replicas)}: expected some of {known}, each once"
            )

    def assign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Say where a new partition is, before anybody knows of it. `check_nodes` has passed."""
        self._keep(topic, partition, Placement(tuple(replicas), replicas[0]))

    def move(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Give a partition other replicas. Its leader stays if it is one of them. Raises `KafkaError`."""
        self.check_nodes(replicas)
        before = self.placement(topic, partition)
        leader = before.leader if before.leader in replicas else replicas[0]
        self._place(topic, partition, Placement(tuple(replicas), leader))

    def lead(self, topic: str, partition: int, node_id: int) -> None:
        """Let one of a partition's replicas lead it. Raises `KafkaError`."""
        before = self.placement(topic, partition)
        if node_id not in before.replicas:
            raise KafkaError(ErrorCode.invalid_replica_assignment, f"node {node_id} is not one of {before.replicas}")
        self._place(topic, partition, Placement(before.replicas, node_id))

    def elect(self, topic: str, partition: int, *, preferred: bool) -> None:
        """Let the preferred replica lead; if not `preferred`, let any lead that is there, which is always one.

        Raises `KafkaError`, also ELECTION_NOT_NEEDED.
        """
        before = self.placement(topic, partition)
        if not preferred or before.leader == before.replicas[0]:
            raise KafkaError(ErrorCode.election_not_needed, "there is a leader, and it is the one that is preferred")
        self._place(topic, partition, Placement(before.replicas, before.replicas[0]))

    def _place(self, topic: str, partition: int, placement: Placement) -> None:
        changed = placement.leader != self.placement(topic, partition).leader
        if changed:
            self._storage.begin_leader_epoch(topic, partition)
        self._keep(topic, partition, placement)
        if changed:
            self._storage.wake_readers(topic, partition)

    def _keep(self, topic: str, partition: int, placement: Placement) -> None:
        found = self._storage.topics.named(topic)
        assert found is not None, "a partition of it exists"
        self._moved[found.topic_id, partition] = placement
