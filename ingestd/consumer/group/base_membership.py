"""Base membership: what all kinds of membership have in common: the owner's partitions, commits, the end."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from ingestd.consumer.group.commits import Commits
from ingestd.consumer.group.coordinator import LEAVE, Action, GroupCoordinator
from ingestd.consumer.group.events import LoggedGroupEvents
from ingestd.consumer.group.membership import EndReason, PollIntervalExceeded, SessionEnd
from ingestd.consumer.group.poll_interval import PollInterval
from ingestd.errors import Closed, DeadlineExceeded, IngestdError, KafkaError
from ingestd.figures import in_count
from ingestd.retry import Backoff, Deadline
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ingestd.client.client import Client
    from ingestd.client.group import GroupMember, OffsetAndMetadata
    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.group.events import GroupEvents
    from ingestd.consumer.group.membership import CommitDone, PartitionOwner, Topics
    from ingestd.consumer.group.settings import GroupSettings

__all__ = ["BaseMembership"]

_log = logging.getLogger(__name__)

_LEAVE_SHARE: Final = 0.25
"""Share of the time to close in. The rest is for the partitions' owner."""
_SETTLE_SHARE: Final = 0.25
"""Share of the time to close in, for a rebalance that is under way."""
_OWNER_SHARE: Final = 0.85
"""Share of the time to close in. After that an owner that was told before the close is not waited for any more."""


class BaseMembership(ABC):
    """See `Membership`. A protocol says how to stay a member and how to leave.

    Invariants
        One task talks to the partitions' owner: `_stay_member`, and after its end `_finish`.
        After `_stay_member` the partitions are revoked or lost, then the group is left, then the end is told.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        settings: GroupSettings,
        owner: PartitionOwner,
        *,
        events: GroupEvents | None = None,
    ) -> None:
        self._client = client
        self._group_id = group_id
        self._settings = settings
        self._owner = owner
        self._events = events or LoggedGroupEvents()
        self._tasks = TaskOwner(self._crashed)
        self._coordinator = GroupCoordinator(client, group_id, settings.request_timeout)
        self._commits = Commits(self._coordinator, self, settings, self._tasks, self._events)
        self._poll = PollInterval(settings.max_poll_interval, self._poll_interval_exceeded)
        self._assignment: frozenset[TopicPartition] = frozenset()
        self._life: asyncio.Task[None] | None = None
        self._handing_back: asyncio.Task[None] | None = None
        self._ending: SessionEnd | None = None
        self._end: SessionEnd | None = None
        self._ended = asyncio.Event()
        self._closing: Deadline | None = None
        self._leave_on_close = True

    # What a protocol says

    @property
    @abstractmethod
    def member(self) -> GroupMember:
        """See `Membership`."""

    @abstractmethod
    def rejoin(self, reason: str) -> None:
        """See `Membership`."""

    @abstractmethod
    def subscribe(self, topics: Topics) -> None:
        """See `Membership`."""

    @abstractmethod
    def commit_refused(self, error: KafkaError, action: Action, member: GroupMember) -> bool:
        """See `Committer`."""

    @abstractmethod
    def _begin(self, topics: Topics) -> None:
        """Before the first task of the membership."""

    @abstractmethod
    async def _stay_member(self) -> None:
        """Join and stay a member. What it raises ends the membership."""

    @abstractmethod
    def _is_member(self) -> bool:
        """Whether the member may still commit its partitions."""

    async def _settle(self, deadline: Deadline) -> None:  # noqa: B027 - for most there is nothing to wait for
        """Before a close: wait for what the last commit needs, until the deadline at most."""

    @abstractmethod
    async def _leave(self, end: SessionEnd, timeout: float) -> None:
        """Stop heartbeats, and leave the group if the member shall leave. Raises any error."""

    # What `Membership` says

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """See `Membership`."""
        return self._assignment

    @property
    def end(self) -> SessionEnd | None:
        """See `Membership`."""
        return self._end or self._ending

    def start(self, topics: Topics) -> None:
        """See `Membership`."""
        if self._closing is not None or self._life is not None:
            raise Closed(f"group {self._group_id}: the membership was started already")
        self._begin(topics)
        self._poll.start()
        self._life = self._tasks.start(self._stay_member(), f"member of {self._group_id}")
        self._tasks.start(self._finish(self._life), f"end of a member of {self._group_id}")

    def progressed(self) -> None:
        """See `Membership`."""
        self._poll.progressed()

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float | None = None) -> None:
        """See `Membership`."""
        self._check_live()
        await self._commits.commit(offsets, timeout)

    def commit_later(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], done: CommitDone | None = None) -> None:
        """See `Membership`."""
        self._check_live()
        self._commits.commit_later(offsets, done)

    def run_callbacks(self) -> None:
        """See `Membership`."""
        self._commits.run_callbacks()

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """See `Membership`."""
        self._check_live()
        return await self._commits.committed(partitions, timeout)

    async def wait_ended(self) -> SessionEnd:
        """See `Membership`."""
        await self._ended.wait()
        assert self._end is not None
        return self._end

    async def close(self, timeout: float, *, leave: bool = True) -> None:
        """See `Membership`."""
        deadline = Deadline.after(timeout)
        if self._closing is None:
            self._leave_on_close = leave
        if self._closing is None or deadline.at < self._closing.at:
            self._closing = deadline
        try:
            if self._life is not None and self._end is None:
                await self._settle(Deadline.after(self._closing.remaining * _SETTLE_SHARE))
                self._end_with(SessionEnd(EndReason.closed))
                await self._wait_ended_by(self._closing)
        finally:
            await self._tasks.close()
            self._commits.give_up()
            self._set_end(SessionEnd(EndReason.closed))

    async def _wait_ended_by(self, deadline: Deadline) -> None:
        doing = f"group {self._group_id}: closing"
        try:
            await Deadline.after(deadline.remaining * _OWNER_SHARE).wait_for(self._ended.wait(), doing)
        except DeadlineExceeded:
            if self._handing_back is not None:
                self._handing_back.cancel()  # it began before `close`; the rest of the time is for leaving
        try:
            await deadline.wait_for(self._ended.wait(), doing)
        except DeadlineExceeded as error:
            _log.warning("%s", error)

    # Partitions and their owner

    async def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        if not partitions:
            return
        deadline = Deadline.after(self._settings.rebalance_timeout)
        if self._closing is not None:
            deadline = Deadline.after(self._closing.remaining * (1 - _LEAVE_SHARE))
        try:
            doing = f"group {self._group_id}: giving up {in_count(len(partitions), 'partition')}"
            await deadline.wait_for(self._owner.revoked(sorted(partitions)), doing)
        except DeadlineExceeded as error:
            _log.warning("%s; they are given up all the same", error)
            self._events.retried(self._group_id, "revoke", error)
        self._assignment -= partitions
        self._events.revoked(self._group_id, partitions)

    async def _assign(self, partitions: frozenset[TopicPartition]) -> None:
        came = sorted(partitions)
        self._assignment |= partitions
        self._events.assigned(self._group_id, came)
        await self._owner.assigned(came)

    async def _lose(self) -> None:
        partitions, self._assignment = self._assignment, frozenset()
        if not partitions:
            return
        self._events.lost(self._group_id, partitions)
        try:
            doing = f"group {self._group_id}: taking {len(partitions)} lost partitions from their owner"
            await Deadline.after(self._settings.rebalance_timeout).wait_for(self._owner.lost(sorted(partitions)), doing)
        except DeadlineExceeded as error:
            _log.warning("%s; the member goes on all the same", error)
            self._events.retried(self._group_id, "lose", error)

    # The end

    def _poll_interval_exceeded(self) -> None:
        seconds = self._settings.max_poll_interval
        error = PollIntervalExceeded(
            f"group {self._group_id}: processing made no progress for {seconds:g} s (max_poll_interval); "
            "the member leaves, so that others get its partitions"
        )
        self._end_with(SessionEnd(EndReason.poll_interval, error))

    def _end_with(self, end: SessionEnd) -> None:
        if self._ending is None and self._life is not None:
            self._ending = end
            self._life.cancel()

    async def _finish(self, life: asyncio.Task[None]) -> None:
        """After the member's life: hand back or lose the partitions, leave the group, say why."""
        await asyncio.wait([life])
        error = None if life.cancelled() else life.exception()
        end = self._ending or SessionEnd(EndReason.closed)
        if error is not None:
            end = self._failure("what was told of an assignment failed", error)
        self._ending = end
        try:
            self._handing_back = self._tasks.start(self._hand_back(end), f"partitions of a member of {self._group_id}")
            await asyncio.wait([self._handing_back])
            failed = None if self._handing_back.cancelled() else self._handing_back.exception()
            if failed is not None:  # which must not keep the member from leaving
                failure = self._failure("giving up partitions failed", failed)
                end = end if end.error is not None else failure
            self._commits.give_up()
            await self._leave_in_time(end, self._closing or Deadline.after(self._settings.request_timeout))
        except IngestdError as failed:
            _log.debug("group %s: leaving it failed, its session timeout ends the member: %s", self._group_id, failed)
        finally:
            self._coordinator.release()
            self._poll.stop()
            self._set_end(end)

    async def _hand_back(self, end: SessionEnd) -> None:
        if end.reason is EndReason.closed and self._is_member():
            await self._revoke(self._assignment)
        await self._lose()

    async def _leave_in_time(self, end: SessionEnd, deadline: Deadline) -> None:
        """Leave; again where a coordinator moves or loads, since others wait for a member that has not left."""
        backoff = Backoff()
        while True:
            try:
                await self._leave(end, deadline.remaining)
            except KafkaError as error:
                action = self._coordinator.action(LEAVE, error)
                pause = backoff.next_delay()
                if action not in (Action.retry, Action.find_coordinator) or pause >= deadline.remaining:
                    raise
                await asyncio.sleep(pause)
            else:
                return

    def _failure(self, what: str, error: BaseException) -> SessionEnd:
        if isinstance(error, IngestdError):
            return SessionEnd(EndReason.failed, error)
        _log.error("group %s: %s", self._group_id, what, exc_info=error)
        failure = IngestdError(f"group {self._group_id}: {error!r}")
        failure.__cause__ = error
        return SessionEnd(EndReason.failed, failure)

    def _set_end(self, end: SessionEnd) -> None:
        if self._end is None:
            self._end = end
            self._ended.set()

    def _check_live(self) -> None:
        if self._end is not None:
            raise Closed(
                f"group {self._group_id}: the membership has ended: {self._end.error or self._end.reason.value}"
            )

    def _crashed(self, error: BaseException) -> None:
        # A defect in a task of ours: the partitions' owner must not be left believing in a member that is none.
        # What ends `_stay_member` is `_finish`'s to tell.
        if self._life is None or not self._life.done():
            self._end_with(SessionEnd(EndReason.failed, IngestdError(f"group {self._group_id} failed: {error!r}")))
