"""What a group of KIP-848 is asked, what it answers, and what the log keeps of it. Epochs are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from ingestd.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

__all__ = [
    "JOINING",
    "LEAVING",
    "LEAVING_FOR_NOW",
    "ClassicSide",
    "ConsumerGroupState",
    "GroupEpoch",
    "HeartbeatAnswer",
    "HeartbeatAsked",
    "Held",
    "MatchedTopics",
    "MemberState",
    "Profile",
    "TargetEpoch",
    "TopicIdPartition",
]

TopicIdPartition: TypeAlias = "tuple[UUID, int]"
"""A partition by its topic's id. A topic that is made again under its name has other partitions."""

JOINING: Final = 0
"""The member epoch of a member that joins, or joins again."""
LEAVING: Final = -1
"""The member epoch of a member that leaves."""
LEAVING_FOR_NOW: Final = -2
"""The member epoch of a static member that leaves, and comes back within its session timeout."""


class ConsumerGroupState(Enum):
    """The states of a group, with the names that ListGroups gives."""

    empty = "Empty"
    assigning = "Assigning"
    reconciling = "Reconciling"
    stable = "Stable"


class MemberState(Enum):
    """How far a member is on its way to its target, with Kafka's numbers."""

    stable = 0
    unrevoked_partitions = 1
    unreleased_partitions = 2


@dataclass(frozen=True, slots=True)
class HeartbeatAsked:
    """A ConsumerGroupHeartbeat request. None: the same as in the last one. `rebalance_timeout` is seconds.

    `owned` are the partitions that the member has now.
    """

    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout: float | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: frozenset[TopicIdPartition] | None = None

    @property
    def full(self) -> bool:
        """Whether it says everything, as a member does that did not get the last answer."""
        subscribed = self.topics is not None or self.pattern is not None
        return self.rebalance_timeout is not None and subscribed and self.owned is not None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The answer to a heartbeat. `assigned` is None if nothing is different. `interval` is seconds."""

    error: ErrorCode = ErrorCode.none
    member_id: str | None = None
    epoch: int = 0
    interval: float = 0.0
    assigned: frozenset[TopicIdPartition] | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """What a member has that speaks the classic protocol. `session_timeout` is seconds, protocols are (name, metadata).

    Such a member's epoch is its generation.
    """

    session_timeout: float
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """What a member said of itself. `rebalance_timeout` is seconds.

    `pattern` is a regular expression for topics, `assignor` the one that it votes for.
    """

    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    rebalance_timeout: float = -0.001
    assignor: str | None = None
    classic: ClassicSide | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What a member has. `assigned` and `revoking` say in which epoch a partition was assigned to it.

    It has both. It is asked to give up those that are `revoking`.
    """

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Mapping[TopicIdPartition, int]
    revoking: Mapping[TopicIdPartition, int]


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """A group's epoch, and the hash of the topics that its members subscribed to."""

    epoch: int
    topics_hash: int


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """The group epoch that the target assignments are for, and when they were made: milliseconds since the epoch."""

    epoch: int
    made: int


@dataclass(frozen=True, slots=True)
class MatchedTopics:
    """The topics that matched a regular expression. `made`: milliseconds since the epoch."""

    topics: frozenset[str]
    version: int
    made: int
