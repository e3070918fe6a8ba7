"""Commits: a group's offsets, written and read through its coordinator, one commit after the other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.coordinator import COMMIT, FETCH, Action
from ingestd.errors import BufferFull, Closed, DeadlineExceeded, ErrorCode, IngestdError, KafkaError
from ingestd.retry import Backoff, Deadline
from ingestd.wire.requests.groups import (
    CommittedOffset,
    offset_commit,
    offset_fetch,
    read_offset_commit,
    read_offset_fetch,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ingestd.client.group import GroupMember
    from ingestd.consumer.group.coordinator import GroupCoordinator
    from ingestd.consumer.group.events import GroupEvents
    from ingestd.consumer.group.membership import CommitDone
    from ingestd.consumer.group.settings import GroupSettings
    from ingestd.tasks import TaskOwner

__all__ = ["Commits", "Committer"]

_log = logging.getLogger(__name__)

_MOST_WAITING: Final = 10_000
"""Calls of `commit_later` whose callbacks have not run yet."""
_UNKNOWN_TOPIC_ATTEMPTS: Final = 4
"""The coordinator may not know a new topic yet. After so many attempts the topic counts as deleted."""

_OUT_OF_STEP: Final = frozenset({Action.rejoin, Action.new_generation, Action.new_member})


class Committer(Protocol):
    """The member that commits: what `Commits` asks of its membership."""

    @property
    def member(self) -> GroupMember:
        """The member as it is now. Asked for each attempt."""
        ...

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The member's partitions. Only these are committed again after a rebalance refused a commit."""
        ...

    def commit_refused(self, error: KafkaError, action: Action, member: GroupMember) -> bool:
        """The coordinator refused `member` itself. True: a rebalance is under way, and the commit may pass after it."""
        ...


class _Later:
    """One call of `commit_later`."""

    __slots__ = ("done", "offsets", "owned")

    def __init__(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        owned: frozenset[TopicPartition],
        done: CommitDone | None,
    ) -> None:
        self.offsets = offsets
        self.owned = owned
        self.done = done or _log_error


class Commits:
    """Commits offsets for a member, and fetches committed ones.

    Invariants
        One commit is under way at a time, in the order of the calls. So a repeated attempt never overtakes a newer one.
        Calls of `commit_later` that wait meanwhile are sent as one.
        Every call of `commit_later` gets its callback exactly once, from `run_callbacks`.
        A commit that a rebalance refused is repeated only while its partitions are still the member's.
        Nothing is sent, or repeated, for a partition that was given up since the call: another member may have
        committed more of it by now.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        committer: Committer,
        settings: GroupSettings,
        tasks: TaskOwner,
        events: GroupEvents,
    ) -> None:
        self._coordinator = coordinator
        self._committer = committer
        self._settings = settings
        self._tasks = tasks
        self._events = events
        self._turn = asyncio.Lock()
        self._waiting: list[_Later] = []
        self._sender: asyncio.Task[None] | None = None
        # Filled by whichever thread finishes a commit, emptied by whoever calls `run_callbacks`: a deque's ends are
        # safe between threads.
        self._finished: deque[tuple[_Later, IngestdError | None]] = deque()
        self._calling = False

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float | None = None) -> None:
        """See `Membership.commit`."""
        if not offsets:
            return
        owned = self._owned(offsets)
        deadline = Deadline.after(self._settings.commit_timeout if timeout is None else timeout)
        await deadline.wait_for(self._turn.acquire(), "commit: waiting for the commits before it")
        try:
            before, self._waiting = self._waiting, []
            try:
                await self._send(before, deadline)
            except BaseException:
                self._put_back(before)  # they have more time than this one
                raise
            await self._commit(offsets, owned, deadline)
        finally:
            self._turn.release()

    def commit_later(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], done: CommitDone | None = None) -> None:
        """See `Membership.commit_later`. Raises `BufferFull` when thousands wait already, `Closed`."""
        if len(self._waiting) + len(self._finished) >= _MOST_WAITING:
            raise BufferFull(f"commit: {_MOST_WAITING} commits are waiting for the coordinator or their callbacks")
        self._waiting.append(_Later(dict(offsets), self._owned(offsets), done))
        self._start_sender()

    def _start_sender(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = self._tasks.start(self._send_later(), f"commit offsets of {self._coordinator.group_id}")

    def _put_back(self, waiting: Sequence[_Later]) -> None:
        self._waiting[:0] = waiting
        try:
            if waiting:
                self._start_sender()
        except Closed:
            self.give_up()

    def run_callbacks(self) -> None:
        """Call the callbacks of finished commits. Raises what a callback raises."""
        if self._calling:
            return  # a callback that marks or commits must not run the next callbacks within itself
        self._calling = True
        try:
            while self._finished:
                later, error = self._finished.popleft()
                later.done(later.offsets, error)
        finally:
            self._calling = False

    def give_up(self) -> None:
        """Send nothing more. The callbacks of waiting commits get `Closed`."""
        waiting, self._waiting = self._waiting, []
        error = Closed("the membership was closed before the commit was answered")
        self._finished.extend((later, error) for later in waiting)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """See `Membership.committed`. Offsets that an open transaction may still change are waited for."""
        deadline = Deadline.after(self._settings.commit_timeout if timeout is None else timeout)
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        if not partitions:
            return found
        missing: Collection[TopicPartition] = partitions
        last: IngestdError | None = None
        async for _ in Backoff().attempts_until(deadline):
            try:
                last = await self._fetch(missing, found, deadline)
            except IngestdError as error:
                last = error
                if self._coordinator.action(FETCH, error) is Action.fail:
                    raise
            if last is None:
                return found
            missing = [key for key in missing if key not in found]
            self._events.retried(self._coordinator.group_id, "fetch committed offsets", last)
        raise DeadlineExceeded(f"committed offsets: not found within {deadline.shown} s ({last})") from last

    async def _fetch(
        self,
        partitions: Collection[TopicPartition],
        found: dict[TopicPartition, OffsetAndMetadata | None],
        deadline: Deadline,
    ) -> IngestdError | None:
        """Ask once, and fill `found`. Returns the last retriable error, and raises any other."""
        build = offset_fetch(self._coordinator.group_id, partitions, require_stable=True)
        timeout = min(self._settings.request_timeout, deadline.remaining)
        error, offsets = read_offset_fetch(await self._coordinator.request(build, timeout))
        if error is not ErrorCode.none:
            raise KafkaError(error, self._coordinator.group_id)
        last: IngestdError | None = None
        for one in offsets:
            key = TopicPartition(one.topic, one.partition)
            if one.error is not ErrorCode.none:
                last = KafkaError(one.error, f"committed offset of {key}")
                if self._coordinator.action(FETCH, last) is Action.fail:
                    raise last
            else:
                found[key] = None if one.offset < 0 else OffsetAndMetadata(one.offset, one.leader_epoch, one.metadata)
        return last

    async def _send_later(self) -> None:
        while self._waiting:
            async with self._turn:
                waiting, self._waiting = self._waiting, []
                try:
                    await self._send(waiting, Deadline.after(self._settings.commit_timeout))
                except DeadlineExceeded as error:
                    self._finished.extend((later, error) for later in waiting)
                except BaseException:
                    self._waiting[:0] = waiting
                    self.give_up()
                    raise

    async def _send(self, waiting: Sequence[_Later], deadline: Deadline) -> None:
        """Send these as one. Raises `DeadlineExceeded`: then none of them is finished. Other errors finish them."""
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        owned: frozenset[TopicPartition] = frozenset()
        refused = [self._given_up(later.owned) for later in waiting]
        for later, gone in zip(waiting, refused, strict=True):
            if gone is None:
                offsets.update(later.offsets)
                owned |= later.owned
        error: IngestdError | None = None
        try:
            if offsets:
                await self._commit(offsets, owned, deadline)
        except DeadlineExceeded:
            raise
        except IngestdError as failed:
            error = failed
        self._finished.extend((later, gone or error) for later, gone in zip(waiting, refused, strict=True))

    def _owned(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> frozenset[TopicPartition]:
        return self._committer.assignment.intersection(offsets)

    def _given_up(self, owned: frozenset[TopicPartition]) -> KafkaError | None:
        gone = owned - self._committer.assignment
        if not gone:
            return None
        return KafkaError(ErrorCode.rebalance_in_progress, f"{min(gone)} was given up before it was committed")

    async def _commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        owned: frozenset[TopicPartition],
        deadline: Deadline,
    ) -> None:
        started = time.monotonic()
        left = dict(offsets)
        last: IngestdError | None = None
        async for attempt in Backoff().attempts_until(deadline):
            if (gone := self._given_up(owned)) is not None:
                raise gone from last
            last = await self._attempt(left, attempt, deadline)
            if last is None:
                self._events.committed(self._coordinator.group_id, len(offsets), time.monotonic() - started)
                return
            self._events.retried(self._coordinator.group_id, "commit", last)
        raise DeadlineExceeded(f"commit: not done within {deadline.shown} s ({last})") from last

    async def _attempt(
        self, left: dict[TopicPartition, OffsetAndMetadata], attempt: int, deadline: Deadline
    ) -> IngestdError | None:
        """Send one request, and remove what is committed from `left`.

        Returns the last error that may pass, and raises any other.
        """
        member = self._committer.member
        build = offset_commit(
            self._coordinator.group_id,
            [
                CommittedOffset(key.topic, key.partition, one.offset, one.leader_epoch, one.metadata)
                for key, one in left.items()
            ],
            generation=member.generation,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
        )
        try:
            answer = await self._coordinator.request(build, min(self._settings.request_timeout, deadline.remaining))
        except IngestdError as error:
            if self._coordinator.action(COMMIT, error) is Action.fail:
                raise
            return error
        refusals: dict[ErrorCode, KafkaError] = {}  # one for each code: a member is refused for all partitions
        for topic, partition, code in read_offset_commit(answer):
            if code is ErrorCode.none:
                left.pop(TopicPartition(topic, partition), None)
            else:
                refusals[code] = KafkaError(code, f"group {member.group_id}: commit of {topic}-{partition}")
        for refusal in refusals.values():
            if not self._goes_on(refusal, member, attempt, left):
                raise refusal
        return next(iter(refusals.values()), None)

    def _goes_on(
        self, error: KafkaError, member: GroupMember, attempt: int, left: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> bool:
        """Whether a later attempt may pass. Tells the membership if the member itself was refused."""
        action = self._coordinator.action(COMMIT, error)
        if action in _OUT_OF_STEP or error.fatal:
            passes = self._committer.commit_refused(error, action, member)
            return passes and self._committer.assignment.issuperset(left)
        if error.code is ErrorCode.unknown_topic_or_partition:
            return attempt + 1 < _UNKNOWN_TOPIC_ATTEMPTS
        return action is not Action.fail


def _log_error(offsets: Mapping[TopicPartition, OffsetAndMetadata], error: IngestdError | None) -> None:
    if error is not None:
        _log.warning("offsets of %d partitions were not committed: %s", len(offsets), error)
