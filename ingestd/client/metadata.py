"""What is known of a cluster: nodes, topics, partitions and their leaders. Values, and where they come from."""

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

_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")


def require_topic_name(topic: str) -> None:
    """Refuse at once what no cluster can have, which would else be asked for until a timeout.

    Raises `KafkaError` (INVALID_TOPIC_EXCEPTION), `TypeError` for what is no string.
    """
    given: object = topic
    if not isinstance(given, str):
        raise TypeError(f"topic: {given!r}; expected a string")
    if not _TOPIC_NAME.fullmatch(given):
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
    """A topic's partitions, in order of partition number; or the error that stands in their place."""

    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionMetadata, ...]
    internal: bool = False
    error: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A snapshot: never changed, replaced by a newer one. `version` grows with every replacement.

    What is equal in two snapshots that follow each other is the same object: `nodes`, `topics`, each topic. Whoever
    compares with `is` spends nothing on what has not changed.
    """

    cluster_id: str | None = None
    controller_id: int = NO_LEADER
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    version: int = 0

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """The partition, or None where topic or partition is not known."""
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

    The producer, the consumer and the roles know only this, so that they are the same classes in a worker process,
    where nobody but the supervisor asks for metadata.
    """

    @property
    def snapshot(self) -> ClusterMetadata:
        """The newest metadata; empty before the first refresh."""
        ...

    @property
    def failure(self) -> IngestdError | None:
        """Why waiting for newer metadata is in vain, where it is: brokers refuse this client, or it is closed."""
        ...

    @property
    def last_error(self) -> IngestdError | None:
        """What the newest attempt to refresh failed with; None if it was answered, or if there was none yet."""
        ...

    def listen(
        self, changed: Callable[[ClusterMetadata], None], uses: Callable[[], Collection[str]] | None = None
    ) -> Callable[[], None]:
        """Call `changed` after every replacement of the snapshot; the returned function ends that.

        `uses` names the topics that the listener goes on using, when it is asked: others may be forgotten when nobody
        asks for them any more. A listener without it is taken to use every topic that there is.
        """
        ...

    def wanted(self, topics: Collection[str], reason: str, *, create: bool = False) -> None:
        """Say, without waiting, that these topics' metadata is missing or out of date; coalesced and rate-limited.

        `create`: a topic that is missing may be created, where the broker does that (`auto.create.topics.enable`).
        """
        ...

    def hint(self, topic: str, partition: int, leader: int, leader_epoch: int, node: Node | None = None) -> None:
        """Apply a leader that a produce or fetch answer named (KIP-951), if its epoch is newer.

        `node` is where the leader is, if the answer said so: it need not be in the snapshot yet.
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
