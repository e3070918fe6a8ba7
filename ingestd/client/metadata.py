"""Metadata: what is known of a cluster (nodes, topics, partitions, leaders), and where that comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from ingestd.errors import IngestdError

__all__ = [
    "TOPIC_NAME",
    "ClusterMetadata",
    "MetadataSource",
    "NewLeader",
    "Node",
    "PartitionMetadata",
    "TopicMetadata",
    "TopicPartition",
    "require_topic_name",
]

NO_LEADER = -1

TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""What Kafka takes for the whole name of a topic."""


def require_topic_name(topic: str) -> None:
    """Refuse a name that no topic can have. Otherwise it would be asked for until a timeout.

    Raises `KafkaError` (INVALID_TOPIC_EXCEPTION), `TypeError` if it is not a string.
    """
    given: object = topic
    if not isinstance(given, str):
        raise TypeError(f"topic: {given!r}; expected a string")
    if not TOPIC_NAME.fullmatch(given):
        rule = "a topic's name is 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', and neither '.' nor '..'"
        raise KafkaError(ErrorCode.invalid_topic_exception, f"{given!r}: {rule}")


class TopicPartition(NamedTuple):
    """A topic's name and a partition's number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Node:
    """One broker's address as the cluster advertises it."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition's leader and replicas, as node ids. `leader` is -1 when there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    error: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic's partitions, in order of partition number, or an error instead."""

    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionMetadata, ...]
    internal: bool = False
    error: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A snapshot. It never changes; a newer one replaces it. `version` grows with every replacement.

    What is equal in two successive snapshots is the same object: `nodes`, `topics`, each topic. So comparing with `is`
    costs nothing for what has not changed.
    """

    cluster_id: str | None = None
    controller_id: int = NO_LEADER
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    version: int = 0

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """The partition. None if the topic or the partition is not known."""
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        return known.partitions[partition]

    def leader(self, topic: str, partition: int) -> Node | None:
        """The leader's node, or None where it is not known or there is none."""
        known = self.partition(topic, partition)
        return None if known is None else self.nodes.get(known.leader)


class NewLeader(NamedTuple):
    """A leader that a produce or fetch answer named (KIP-951); `node` is where it is, if the answer said so."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    node: Node | None = None


class MetadataSource(Protocol):
    """Where a client's metadata comes from: its own refreshes, or what a supervisor pushes.

    Producer and consumer know only this. So the same classes work in a worker process of the daemon, where only the
    supervisor asks for metadata.
    """

    @property
    def snapshot(self) -> ClusterMetadata:
        """The newest metadata; empty before the first refresh."""
        ...

    @property
    def failure(self) -> IngestdError | None:
        """Why there will be no newer metadata: brokers refuse this client, or it is closed. None: there may be."""
        ...

    @property
    def last_error(self) -> IngestdError | None:
        """The error of the last attempt to refresh. None if it was answered, or if there was none yet."""
        ...

    def listen(
        self, changed: Callable[[ClusterMetadata], None], uses: Callable[[], Collection[str]] | None = None
    ) -> Callable[[], None]:
        """Call `changed` after every replacement of the snapshot; the returned function ends that.

        `uses()` names the topics that the listener still uses. Others may be forgotten if nobody asks for them any
        more. A listener without `uses` counts as using all topics.
        """
        ...

    def wanted(self, topics: Collection[str], reason: str, *, create: bool = False) -> None:
        """Say that the metadata of these topics is missing or old. Does not wait. Many calls become one request.

        `create`: a missing topic may be created, if the broker allows that (`auto.create.topics.enable`).
        """
        ...

    def hint(self, topic: str, partition: int, leader: int, leader_epoch: int, node: Node | None = None) -> None:
        """Apply a leader that a produce or fetch answer named (KIP-951), if its epoch is newer.

        `node` is the leader's address, if the answer gave it. It need not be in the snapshot yet.
        """
        ...

    def hints(self, leaders: Sequence[NewLeader]) -> None:
        """Apply all the leaders that an answer named, as `hint` does, in one replacement of the snapshot."""
        ...

    async def refresh(self, topics: Collection[str] | None, timeout: float, *, create: bool = False) -> ClusterMetadata:
        """Refresh (None: every topic known) and return the new snapshot; `create` as with `wanted`.

        Raises `DeadlineExceeded` when no broker answered.
        """
        ...
