"""What a classic group is asked, what it answers, and what the log keeps of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.errors import ErrorCode

__all__ = ["GroupState", "Join", "Joined", "StoredGroup", "StoredMember", "Sync", "Synced"]


class GroupState(Enum):
    """The states of a group, with the names that ListGroups gives."""

    empty = "Empty"
    preparing_rebalance = "PreparingRebalance"
    completing_rebalance = "CompletingRebalance"
    stable = "Stable"


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request. `member_id` is empty for a new member. Timeouts are seconds.

    `new_member_id` is what a new member is called. `must_know_id`: it must join again with that id (KIP-394).
    `can_skip_assignment`: the client knows that a leader may be told not to assign (KIP-814).
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    new_member_id: str
    must_know_id: bool = False
    can_skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a join. `members` are (member id, instance id, metadata), for the leader alone."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request. `assignments`, by member id, count if they come from the leader."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to a sync."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member as the log keeps it."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A generation as the log keeps it."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    members: tuple[StoredMember, ...]
