"""Classic session: a member by JoinGroup, SyncGroup and Heartbeat; the leader among the members assigns."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from ingestd.client.group import GroupMember
from ingestd.consumer.group.assignor import Assignment, RebalanceProtocol, Subscription
from ingestd.consumer.group.assignors import agreed_rebalance_protocol, make_assignors
from ingestd.consumer.group.assignors.consumer_protocol import decode_assignment, encode_subscription
from ingestd.consumer.group.commits import Commits
from ingestd.consumer.group.coordinator import HEARTBEAT, JOIN, SYNC, Action, GroupCoordinator
from ingestd.consumer.group.events import NoGroupEvents
from ingestd.consumer.group.leader import lead, partition_counts
from ingestd.consumer.group.poll_interval import PollInterval
from ingestd.consumer.group.session import EndReason, PollIntervalExceeded, SessionEnd
from ingestd.consumer.group.topics import SubscribedTopics
from ingestd.errors import Closed, DeadlineExceeded, ErrorCode, IngestdError, KafkaError, raise_for_code
from ingestd.retry import Backoff, Deadline
from ingestd.tasks import TaskOwner
from ingestd.wire.requests.groups import (
    heartbeat,
    join_group,
    leave_group,
    read_joined,
    read_leave_errors,
    sync_group,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ingestd.client.client import Client
    from ingestd.client.group import OffsetAndMetadata
    from ingestd.client.metadata import ClusterMetadata, TopicPartition
    from ingestd.consumer.group.events import GroupEvents
    from ingestd.consumer.group.session import CommitDone, PartitionOwner, Topics
    from ingestd.consumer.group.settings import GroupSettings
    from ingestd.wire.requests.groups import Joined

__all__ = ["ClassicSession"]

_log = logging.getLogger(__name__)

_NO_GENERATION: Final = -1
_JOIN_GRACE: Final = 5.0
"""Seconds for the answer to a join, on top of the rebalance timeout that the coordinator waits for other members."""
_LONGEST_REASON: Final = 255
"""Bytes that a coordinator takes of the reason to join or leave (KIP-800)."""
_LEAVE_SHARE: Final = 0.25
"""Of the time to close in; the rest is for the partitions' owner."""


class _NotYet(Exception):
    """An attempt at joining did not succeed; another may."""

    def __init__(self, error: IngestdError, *, at_once: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.at_once = at_once


class ClassicSession:
    """See `CoordinatorSession`.

    Invariants
        One task joins, rejoins and talks to the partitions' owner; another one sends heartbeats, from the moment that
        there is a generation until the next join is sent, whatever the owner does meanwhile.
        Partitions are revoked before the join that gives them up is sent; they are lost when the coordinator has
        forgotten our generation.
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
        self._events = events or NoGroupEvents()
        self._assignors = {assignor.name: assignor for assignor in make_assignors(settings.assignors)}
        self._protocol = agreed_rebalance_protocol(tuple(self._assignors.values()))
        self._tasks = TaskOwner(self._crashed)
        self._coordinator = GroupCoordinator(client, group_id, settings.request_timeout)
        self._commits = Commits(self._coordinator, self, settings, self._tasks, self._events)
        self._poll = PollInterval(settings.max_poll_interval, self._poll_interval_exceeded)
        self._topics: SubscribedTopics | None = None
        self._member_id = ""
        self._generation = _NO_GENERATION
        self._assignment: frozenset[TopicPartition] = frozenset()
        self._joining = False
        self._needs_join = asyncio.Event()
        self._reason = ""
        self._led_partitions: Mapping[str, int] = {}
        self._heartbeats: asyncio.Task[None] | None = None
        self._life: asyncio.Task[SessionEnd] | None = None
        self._ending: SessionEnd | None = None
        self._end: SessionEnd | None = None
        self._ended = asyncio.Event()
        self._closing: Deadline | None = None
        self._leave_on_close = True
        self._stop_listening = client.metadata.listen(self._metadata_changed, self._used_topics)

    # What `CoordinatorSession` says

    @property
    def member(self) -> GroupMember:
        """See `CoordinatorSession`."""
        return GroupMember(self._group_id, self._generation, self._member_id, self._settings.group_instance_id)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """See `CoordinatorSession`."""
        return self._assignment

    @property
    def end(self) -> SessionEnd | None:
        """See `CoordinatorSession`."""
        return self._end

    def start(self, topics: Topics) -> None:
        """See `CoordinatorSession`."""
        if self._closing is not None or self._life is not None:
            raise Closed(f"group {self._group_id}: the session was started already")
        self._subscribe(topics)
        self._ask_to_join("the member is new")
        self._poll.start()
        self._life = self._tasks.start(self._stay_member(), f"member of {self._group_id}")
        self._tasks.start(self._finish(self._life), f"end of a member of {self._group_id}")

    def subscribe(self, topics: Topics) -> None:
        """See `CoordinatorSession`."""
        if self._topics is not None and not self._topics.same(topics):
            self._subscribe(topics)
            self._ask_to_join("the subscription has changed")

    def rejoin(self, reason: str) -> None:
        """See `CoordinatorSession`."""
        self._ask_to_join(reason)

    def progressed(self) -> None:
        """See `CoordinatorSession`."""
        self._poll.progressed()

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float | None = None) -> None:
        """See `CoordinatorSession`."""
        self._check_live()
        await self._commits.commit(offsets, timeout)

    def commit_later(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], done: CommitDone | None = None) -> None:
        """See `CoordinatorSession`."""
        self._check_live()
        self._commits.commit_later(offsets, done)

    def run_callbacks(self) -> None:
        """See `CoordinatorSession`."""
        self._commits.run_callbacks()

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """See `CoordinatorSession`."""
        self._check_live()
        return await self._commits.committed(partitions, timeout)

    async def wait_ended(self) -> SessionEnd:
        """See `CoordinatorSession`."""
        await self._ended.wait()
        assert self._end is not None
        return self._end

    async def close(self, timeout: float, *, leave: bool = True) -> None:
        """See `CoordinatorSession`."""
        if self._closing is None:
            self._closing = Deadline.after(timeout)
            self._leave_on_close = leave
        if self._life is not None and self._end is None:
            self._end_with(SessionEnd(EndReason.closed))
            try:
                await self._closing.wait_for(self._ended.wait(), f"group {self._group_id}: closing")
            except DeadlineExceeded as error:
                _log.warning("%s", error)
        await self._tasks.close()
        self._stop()
        self._set_end(SessionEnd(EndReason.closed))

    # Joining

    async def _stay_member(self) -> SessionEnd:
        """Join whenever there is a reason to; until an error that ends the session, which is returned."""
        backoff = Backoff()
        try:
            while True:
                await self._needs_join.wait()
                try:
                    await self._rebalance()
                except _NotYet as failed:
                    if not failed.at_once:
                        self._events.retried(self._group_id, "join", failed.error)
                        await asyncio.sleep(backoff.next_delay())
                    continue
                backoff.reset()
        except IngestdError as error:
            return SessionEnd(EndReason.failed, error)
        except Exception as error:  # noqa: BLE001 - whatever an owner or an assignor raises ends the session, which says so
            _log.exception("group %s: what was told of an assignment failed", self._group_id)
            failure = IngestdError(f"group {self._group_id}: {error!r}")
            failure.__cause__ = error
            return SessionEnd(EndReason.failed, failure)

    async def _rebalance(self) -> None:
        """One attempt at joining, from giving up what must be given up to what came of it."""
        assert self._topics is not None
        started = time.monotonic()
        reason = self._reason
        self._events.rebalancing(self._group_id, reason)
        topics = self._topics
        try:
            await topics.look(self._settings.request_timeout)
        except IngestdError as error:
            self._passes(JOIN, error)
        await self._give_up(topics.names)
        self._stop_heartbeats()
        self._joining = True
        # What asks for a join from here on is not answered by this one.
        self._needs_join.clear()
        try:
            joined = await self._join(topics.names, reason)
            assignment = await self._sync(joined)
        except BaseException:
            self._needs_join.set()
            raise
        finally:
            self._joining = False
        self._start_heartbeats()
        await self._take(joined, assignment, topics.names, time.monotonic() - started)

    async def _give_up(self, topics: frozenset[str]) -> None:
        """Hand back what is not kept over the join: everything, or (cooperative) what is not subscribed any more."""
        if self._generation != _NO_GENERATION:
            eager = self._protocol is RebalanceProtocol.eager
            await self._revoke(frozenset(key for key in self._assignment if eager or key.topic not in topics))
        if self._generation == _NO_GENERATION:  # or it ended while we revoked
            await self._lose()

    async def _join(self, topics: frozenset[str], reason: str) -> Joined:
        settings = self._settings
        build = join_group(
            self._group_id,
            [(name, self._subscription(name, topics)) for name in self._assignors],
            member_id=self._member_id,
            group_instance_id=settings.group_instance_id,
            session_timeout_ms=int(settings.session_timeout * 1000),
            rebalance_timeout_ms=int(settings.rebalance_timeout * 1000),
            reason=reason[:_LONGEST_REASON],
        )
        joined: Joined | None = None
        try:
            wait = settings.rebalance_timeout + _JOIN_GRACE
            joined = read_joined(await self._coordinator.request_held(build, wait))
            raise_for_code(joined.error, f"group {self._group_id}")
        except IngestdError as error:
            self._join_refused(error, joined)
            raise
        self._member_id = joined.member_id
        if joined.protocol not in self._assignors:
            raise KafkaError(ErrorCode.inconsistent_group_protocol, f"group {self._group_id} chose {joined.protocol!r}")
        return joined

    def _subscription(self, assignor: str, topics: frozenset[str]) -> bytes:
        names = sorted(topics)
        return encode_subscription(
            Subscription(
                names,
                owned=sorted(self._assignment),
                generation=self._generation,
                rack=self._settings.rack,
                user_data=self._assignors[assignor].user_data(names),
            )
        )

    def _join_refused(self, error: IngestdError, answer: Joined | None) -> None:
        action = self._coordinator.action(JOIN, error)
        if action is Action.take_member_id and answer is not None:
            self._member_id = answer.member_id
            raise _NotYet(error, at_once=True)
        self._passes(JOIN, error)

    async def _sync(self, joined: Joined) -> Assignment:
        self._led_partitions = {}
        assignments: Mapping[str, bytes] = {}
        try:
            if joined.leader == joined.member_id:
                assignments = await self._lead(joined)
            build = sync_group(
                self._group_id,
                generation=joined.generation,
                member_id=joined.member_id,
                group_instance_id=self._settings.group_instance_id,
                protocol=joined.protocol,
                assignments=assignments,
            )
            answer = await self._coordinator.request_held(build, self._settings.rebalance_timeout + _JOIN_GRACE)
            raise_for_code(answer.error_code, f"group {self._group_id}")
        except IngestdError as error:
            self._passes(SYNC, error)
            raise
        self._generation = joined.generation
        return decode_assignment(answer.assignment) if answer.assignment else Assignment(())

    async def _lead(self, joined: Joined) -> Mapping[str, bytes]:
        led = await lead(
            self._client,
            self._assignors[joined.protocol],
            joined.members,
            self._settings.request_timeout,
            skip_assignment=joined.skip_assignment,
        )
        self._led_partitions = led.partitions
        return led.assignments

    async def _take(self, joined: Joined, assignment: Assignment, topics: frozenset[str], seconds: float) -> None:
        """Make the assignment ours: what went is given up first, then what came is told."""
        self._assignors[joined.protocol].on_assignment(assignment, self._member_id, self._generation)
        self._events.joined(self._group_id, self._generation, seconds)
        new = frozenset(key for key in assignment.partitions if key.topic in topics)
        gone = self._assignment - new
        if gone:
            await self._revoke(gone)
            self._ask_to_join(f"{len(gone)} partitions were given up")
        if self._generation != joined.generation:
            return  # the generation ended meanwhile, and what came with it
        came = sorted(new - self._assignment)
        self._assignment = new
        self._events.assigned(self._group_id, came)
        await self._owner.assigned(came)

    def _passes(self, table: Mapping[ErrorCode, Action], error: IngestdError) -> None:
        """Take back what the error says is over. Raises `_NotYet`, or the error itself where it does not pass."""
        action = self._coordinator.action(table, error)
        if action is Action.fail:
            raise error
        if action in (Action.new_generation, Action.new_member):
            self._forget_generation(action)
        raise _NotYet(error, at_once=action is Action.rejoin) from error

    # Partitions and their owner

    async def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        if not partitions:
            return
        deadline = self._closing or Deadline.after(self._settings.rebalance_timeout)
        if self._closing is not None:
            deadline = Deadline.after(deadline.remaining * (1 - _LEAVE_SHARE))
        try:
            doing = f"group {self._group_id}: giving up {len(partitions)} partitions"
            await deadline.wait_for(self._owner.revoked(sorted(partitions)), doing)
        except DeadlineExceeded as error:
            _log.warning("%s; they are given up all the same", error)
            self._events.retried(self._group_id, "revoke", error)
        self._assignment -= partitions
        self._events.revoked(self._group_id, partitions)

    async def _lose(self) -> None:
        partitions, self._assignment = self._assignment, frozenset()
        if partitions:
            self._events.lost(self._group_id, partitions)
            await self._owner.lost(sorted(partitions))

    def _forget_generation(self, action: Action) -> None:
        self._generation = _NO_GENERATION
        if action is Action.new_member:
            self._member_id = ""

    # Heartbeats

    def _start_heartbeats(self) -> None:
        self._stop_heartbeats()
        self._heartbeats = self._tasks.start(self._beat(), f"heartbeats of {self._group_id}")

    def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            self._heartbeats = None

    async def _beat(self) -> None:
        backoff = Backoff()
        delay = self._settings.heartbeat_interval
        while self._generation != _NO_GENERATION:
            await asyncio.sleep(delay)
            delay = self._settings.heartbeat_interval
            started = time.monotonic()
            try:
                answer = await self._coordinator.request(
                    heartbeat(
                        self._group_id,
                        generation=self._generation,
                        member_id=self._member_id,
                        group_instance_id=self._settings.group_instance_id,
                    ),
                    min(self._settings.request_timeout, self._settings.session_timeout),
                )
                raise_for_code(answer.error_code, f"group {self._group_id}")
            except IngestdError as error:
                if self._heartbeat_refused(error):
                    delay = min(delay, backoff.next_delay())
                continue
            backoff.reset()
            self._events.heartbeat(self._group_id, time.monotonic() - started)

    def _heartbeat_refused(self, error: IngestdError) -> bool:
        """Whether the next one shall be sent soon."""
        action = self._coordinator.action(HEARTBEAT, error)
        if action is Action.fail:
            self._end_with(SessionEnd(EndReason.failed, error))
        elif action is Action.rejoin:
            self._ask_to_join("the group rebalances")
        elif action in (Action.new_generation, Action.new_member):
            self._forget_generation(action)
            self._ask_to_join(str(error))
        else:
            self._events.retried(self._group_id, "heartbeat", error)
            return True
        return False

    # Reasons to join again

    def _ask_to_join(self, reason: str) -> None:
        if not self._needs_join.is_set():
            self._reason = reason
            self._needs_join.set()

    def _subscribe(self, topics: Topics) -> None:
        if self._topics is not None:
            self._topics.stop()
        self._topics = SubscribedTopics(
            self._client,
            topics,
            interval=self._settings.pattern_interval,
            changed=lambda: self._ask_to_join("other topics match the pattern"),
            retried=lambda doing, error: self._events.retried(self._group_id, doing, error),
        )
        self._topics.start(self._tasks)

    def _used_topics(self) -> Collection[str]:
        return self._led_partitions.keys()

    def _metadata_changed(self, snapshot: ClusterMetadata) -> None:
        if self._led_partitions and not self._joining:
            now = partition_counts(snapshot, self._led_partitions)
            if now != self._led_partitions:
                changed = next(topic for topic, count in now.items() if count != self._led_partitions[topic])
                self._led_partitions = now
                self._ask_to_join(f"topic {changed} has {now[changed]} partitions")

    def commit_refused(self, error: KafkaError, action: Action, member: GroupMember) -> bool:
        """See `Committer`: what a refused commit says of the member."""
        if self._joining or member != self.member:
            return not error.fatal
        if action is Action.rejoin:
            self._ask_to_join("a commit met a rebalance")
            return True
        if error.fatal:
            self._end_with(SessionEnd(EndReason.failed, error))
        else:
            self._forget_generation(action)
            self._ask_to_join(str(error))
        return False

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

    async def _finish(self, life: asyncio.Task[SessionEnd]) -> None:
        """After the member's life: hand back or lose the partitions, leave the group, say why."""
        await asyncio.wait([life])
        end = self._ending or SessionEnd(EndReason.closed)
        if not life.cancelled() and life.exception() is None:
            end = life.result()
        try:
            if end.reason is EndReason.closed and self._generation != _NO_GENERATION:
                await self._revoke(self._assignment)
            await self._lose()
        except Exception as error:  # noqa: BLE001 - an owner's failure must not keep the member from leaving
            _log.exception("group %s: giving up partitions failed", self._group_id)
            if end.error is None:
                end = SessionEnd(EndReason.failed, IngestdError(f"group {self._group_id}: {error!r}"))
        try:
            self._stop_heartbeats()
            self._commits.give_up()
            if self._leaves(end):
                await self._leave(end)
            self._stop()
        finally:
            self._set_end(end)

    def _leaves(self, end: SessionEnd) -> bool:
        if not self._member_id or (end.reason is EndReason.closed and not self._leave_on_close):
            return False
        return not (isinstance(end.error, KafkaError) and end.error.fatal)

    async def _leave(self, end: SessionEnd) -> None:
        timeout = self._settings.request_timeout
        if self._closing is not None:
            timeout = min(timeout, self._closing.remaining)
        build = leave_group(
            self._group_id,
            [(self._member_id, self._settings.group_instance_id)],
            reason=(str(end.error) if end.error else end.reason.value)[:_LONGEST_REASON],
        )
        try:
            for code in read_leave_errors(await self._coordinator.request(build, timeout)):
                raise_for_code(code, f"group {self._group_id}")
        except IngestdError as error:
            _log.debug("group %s: leaving it failed, its session timeout ends the member: %s", self._group_id, error)

    def _stop(self) -> None:
        self._poll.stop()
        self._stop_listening()
        if self._topics is not None:
            self._topics.stop()

    def _set_end(self, end: SessionEnd) -> None:
        if self._end is None:
            self._end = end
            self._ended.set()

    def _check_live(self) -> None:
        if self._end is not None:
            raise Closed(f"group {self._group_id}: the session has ended: {self._end.error or self._end.reason.value}")

    def _crashed(self, error: BaseException) -> None:
        # A defect in a task of ours: the partitions' owner must not be left believing in a member that is none.
        self._end_with(SessionEnd(EndReason.failed, IngestdError(f"group {self._group_id} failed: {error!r}")))
