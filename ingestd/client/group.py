"""Values that groups, transactions and administration share: a member of a group, a committed offset."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GroupMember", "OffsetAndMetadata"]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """The member that commits offsets. The coordinator refuses one of another generation.

    Without a member id (the default) offsets are committed from outside the group. A coordinator allows that while the
    group has no members.
    """

    group_id: str
    generation: int = -1
    """The generation of the classic protocol, or the member epoch of KIP-848."""
    member_id: str = ""
    group_instance_id: str | None = None
    """The name of a static member (KIP-345)."""


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: where a group goes on reading a partition."""

    offset: int
    """The next offset to read."""
    leader_epoch: int = -1
    """The leader epoch of the last record read, so that a cut log is noticed (KIP-320); -1: not known."""
    metadata: str = ""
    """Any text that the committer wants to keep with it."""
