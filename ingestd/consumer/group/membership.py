"""Membership: a member's life in its group, whatever the protocol. It reads no record and knows no claim.

`ConsumerGroup` uses only this of `ClassicMembership` (classic.py), `NextGenerationMembership` (next_generation.py,
KIP-848) and `ManualAssignment` (manual.py: partitions chosen by the user, in no group).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ingestd.errors import IngestdError

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ingestd.client.group import GroupMember, OffsetAndMetadata
    from ingestd.client.metadata import TopicPartition

__all__ = [
    "CommitDone",
    "EndReason",
    "Membership",
    "PartitionOwner",
    "PollIntervalExceeded",
    "SessionEnd",
    "Topics",
]

Topics: TypeAlias = "Collection[str] | re.Pattern[str]"
"""What a member subscribes to: names, or a pattern that the whole name of a topic must match."""

CommitDone: TypeAlias = "Callable[[Mapping[TopicPartition, OffsetAndMetadata], IngestdError | None], None]"
"""Called with the offsets, and with the error if they were not committed."""


class PollIntervalExceeded(IngestdError):
    """Processing made no progress for `max_poll_interval` seconds, so the member left its group."""


class EndReason(Enum):
    """Why a session, or a membership, ended."""

    closed = "closed"
    """`close` was called."""
    rebalance = "rebalance"
    """The group shares its partitions anew."""
    claim_returned = "claim returned"
    """A handler was done with its claim."""
    claim_failed = "claim failed"
    """A handler raised."""
    cancelled = "cancelled"
    """Whoever consumed was cancelled."""
    lost = "lost"
    """The coordinator does not know the member any more. Others may own its partitions already."""
    poll_interval = "poll interval"
    """`PollIntervalExceeded`."""
    failed = "failed"
    """An error that another attempt does not help against: authorization, a fenced instance, another protocol…"""


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """Why a session, or a membership, ended, and the error if there is one."""

    reason: EndReason
    error: IngestdError | None = None


class PartitionOwner(Protocol):
    """Whoever works on a member's partitions. Its methods are called one at a time, from a task of the membership.

    What they raise ends the membership (`EndReason.failed`). A call may be cancelled when the membership is closed:
    what is still assigned is revoked then, by a call of its own.
    """

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These are ours now, beside those we have. Called after each rebalance, with none if nothing is new."""
        ...

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop working on these and commit them: they are ours until this returns.

        Cancelled at the rebalance timeout: then the coordinator gives them to others anyway.
        """
        ...

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These are not ours any more. Others may already work on them. They cannot be committed.

        Cancelled at the rebalance timeout.
        """
        ...


class Membership(Protocol):
    """A member of one group. Made for one `PartitionOwner`; belongs to one event loop.

    Invariants
        At any time every partition that was `assigned` and not `revoked` or `lost` since is in `assignment`.
        Every partition is revoked or lost before the membership has ended.
        Heartbeats do not depend on processing.
        A commit is sent with the member and generation of the moment it is sent.
        After `close` no task of the membership is left, whatever state the brokers are in.
    """

    @property
    def member(self) -> GroupMember:
        """The member, for commits from elsewhere (workers, transactions). Valid until the next `revoked`."""
        ...

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are ours."""
        ...

    @property
    def end(self) -> SessionEnd | None:
        """Why it ends or has ended; None while it lives. Known before the last partitions are revoked or lost."""
        ...

    def start(self, topics: Topics) -> None:
        """Join the group, and stay in it, in a task of its own, until `close` or an error that ends it.

        Errors that pass (no broker, coordinator moving or loading, a generation that ended) are tried again for ever,
        and reported to the events. Raises `Closed`.
        """
        ...

    def subscribe(self, topics: Topics) -> None:
        """Subscribe to other topics from now on. Joins again if they differ."""
        ...

    def rejoin(self, reason: str) -> None:
        """Join again. The group assigns anew if that changes anything.

        Afterwards the owner is told what is `assigned`, with no partitions if nothing is new.
        """
        ...

    def progressed(self) -> None:
        """Processing goes on. Not called for `max_poll_interval` seconds the member leaves, and the membership ends."""
        ...

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float | None = None) -> None:
        """Commit now. Tried again while errors pass.

        Raises `KafkaError` (a member or generation that ended among others), `DeadlineExceeded`, `Closed`.
        """
        ...

    def commit_later(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], done: CommitDone | None = None) -> None:
        """Commit without waiting. `done` (default: errors are logged) is called by the next `run_callbacks`."""
        ...

    def run_callbacks(self) -> None:
        """Call the callbacks of finished commits, in the caller's context. To be called before anything else."""
        ...

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None: there is none. Raises `KafkaError`, `DeadlineExceeded`."""
        ...

    async def wait_ended(self) -> SessionEnd:
        """Wait until the membership has ended. The reason."""
        ...

    async def close(self, timeout: float, *, leave: bool = True) -> None:
        """Revoke everything, leave the group (`leave=False`: stay its member until the session timeout) and end.

        Ends within `timeout` seconds, also with all brokers down. Safe to call twice.
        """
        ...
