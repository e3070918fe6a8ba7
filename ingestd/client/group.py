"""Values that groups, producers with transactions and administration share: a member of a group, a committed offset."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GroupMember", "OffsetAndMetadata"]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Who commits offsets, as the group's coordinator knows it; the coordinator refuses another generation's member.

    Without a member id (the default) offsets are committed from outside of the group's protocol, which a coordinator
    allows while the group has no members.
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
    """Of the last record read, so that a cut log is noticed (KIP-320); -1: not known."""
    metadata: str = ""
    """Anything that the committer wants to keep beside it."""
