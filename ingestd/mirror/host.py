"""HostMember: this host in the group on the target whose members share a mirror's partitions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ingestd.consumer.group.classic import ClassicMembership
from ingestd.consumer.group.events import LoggedGroupEvents
from ingestd.consumer.group.manual import ManualAssignment
from ingestd.consumer.group.settings import GroupSettings
from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ingestd.client.client import Client
    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.group.membership import Membership, PartitionOwner

__all__ = ["SESSION_TIMEOUT", "HostMember"]

SESSION_TIMEOUT: Final = 15.0
"""Seconds after which the partitions of a host that was not heard of are given to the others."""


class HostMember(LoggedGroupEvents):
    """One for each mirror, in the supervisor. Troubles of the membership are logged.

    Invariant
        When the target has answered a heartbeat, `leased` is told until when this host keeps its partitions.
    """

    def __init__(self, group: str, leased: Callable[[float], None]) -> None:
        """`leased` gets the time of the monotonic clock until which the host's partitions are its own."""
        self.membership: Membership | None = None
        self.why = ""
        """What was tried again last, for people."""
        self._group = group
        self._leased = leased

    def member(self, target: Client, owner: PartitionOwner, host: str) -> Membership:
        """Be the member of this name. The membership is not started."""
        settings = GroupSettings(
            assignors=("cooperative-sticky",),
            session_timeout=SESSION_TIMEOUT,
            max_poll_interval=86400.0,
            group_instance_id=host,
        )
        self.membership = ClassicMembership(target, self._group, settings, owner, events=self)
        return self.membership

    def alone(self, target: Client, owner: PartitionOwner, partitions: Collection[TopicPartition]) -> Membership:
        """Have all of these partitions, as no member of the group. The membership is not started."""
        self.membership = ManualAssignment(target, self._group, GroupSettings(), owner, partitions=partitions)
        return self.membership

    def subscribe(self, topics: Collection[str]) -> None:
        """Subscribe to these topics from now on. Raises `IngestdError` if the membership has ended."""
        assert self.membership is not None, "joined before"
        ended = self.membership.end
        if ended is not None:
            raise IngestdError(f"group {self._group}: {ended.error or ended.reason.value}")
        self.membership.subscribe(topics)
        self.membership.progressed()

    def joined(self, group_id: str, generation: int, seconds: float) -> None:  # noqa: ARG002 - the event's signature
        """See `GroupEvents`."""
        self.why = ""
        self._renewed(seconds)

    def heartbeat(self, group_id: str, seconds: float) -> None:  # noqa: ARG002 - the event's signature
        """See `GroupEvents`."""
        self._renewed(seconds)

    def _renewed(self, seconds: float) -> None:
        """The target heard of this host at most `seconds` ago. It waits for the session's time since then."""
        self._leased(time.monotonic() - seconds + SESSION_TIMEOUT)

    def retried(self, group_id: str, doing: str, error: IngestdError) -> None:
        """See `GroupEvents`."""
        super().retried(group_id, doing, error)
        self.why = f"; {doing}: {error}"
