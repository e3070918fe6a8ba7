"""A member of a classic group: what it asked for, what it has, and who waits for its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from ingestd.broker.groups.classic_values import StoredMember

if TYPE_CHECKING:
    from ingestd.broker.groups.classic_values import Join

__all__ = ["NEW_MEMBER_TIMEOUT", "Member", "Ticket"]

Ticket: TypeAlias = object
"""Whoever waits for an answer. The group only hands it back."""

NEW_MEMBER_TIMEOUT: Final = 300.0
"""Seconds that a member has for its first join, as in Kafka (`group.new.member.join.timeout.ms`)."""


@dataclass(slots=True, eq=False)
class Member:
    """A member of the group. `joining` and `syncing` are who waits for the answer to its join or sync."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocols: tuple[tuple[str, bytes], ...]
    expires: float
    assignment: bytes = b""
    joining: Ticket | None = None
    syncing: Ticket | None = None
    new: bool = True
    """Whether it has not been in a generation yet."""

    @classmethod
    def joining_as(cls, member_id: str, asked: Join, expires: float) -> Self:
        """The member that asks for this."""
        return cls(
            member_id,
            asked.instance_id,
            asked.client_id,
            asked.client_host,
            asked.session_timeout,
            asked.rebalance_timeout,
            asked.protocols,
            expires,
        )

    @classmethod
    def restored(cls, kept: StoredMember, protocol: str | None, now: float) -> Self:
        """A member from the log. It has a session timeout from now on."""
        return cls(
            kept.id,
            kept.instance_id,
            kept.client_id,
            kept.client_host,
            kept.session_timeout,
            kept.rebalance_timeout,
            ((protocol or "", kept.subscription),),
            now + kept.session_timeout,
            kept.assignment,
            new=False,
        )

    def stored(self, protocol: str | None, assignment: bytes) -> StoredMember:
        """The member as the log keeps it."""
        return StoredMember(
            self.id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout,
            self.rebalance_timeout,
            self.metadata(protocol),
            assignment,
        )

    @property
    def may_expire(self) -> bool:
        """A client that waits for an answer sends no heartbeats. But a new one may have gone while it waits."""
        return self.new or (self.joining is None and self.syncing is None)

    def metadata(self, protocol: str | None) -> bytes:
        """What it said under this protocol; empty if it does not have it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")
