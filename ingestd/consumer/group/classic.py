"""Classic membership: by JoinGroup, SyncGroup and Heartbeat. The leader among the members assigns."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from ingestd.client.group import GroupMember
from ingestd.consumer.group.assignor import Assignment, RebalanceProtocol, Subscription
from ingestd.consumer.group.assignors import agreed_rebalance_protocol, make_assignors
from ingestd.consumer.group.assignors.consumer_protocol import decode_assignment, encode_subscription
from ingestd.consumer.group.base_membership import BaseMembership
from ingestd.consumer.group.coordinator import HEARTBEAT, JOIN, SYNC, Action
from ingestd.consumer.group.leader import SharedTopics, lead
from ingestd.consumer.group.membership import EndReason, SessionEnd
from ingestd.consumer.group.topics import SubscribedTopics
from ingestd.consumer.group.unassigned import unassigned
from ingestd.errors import DeadlineExceeded, ErrorCode, IngestdError, KafkaError, raise_for_code
from ingestd.figures import in_count
from ingestd.retry import Backoff, Deadline
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
    from ingestd.client.metadata import ClusterMetadata
    from ingestd.consumer.group.events import GroupEvents
    from ingestd.consumer.group.membership import PartitionOwner, Topics
    from ingestd.consumer.group.settings import GroupSettings
    from ingestd.wire.requests.groups import Joined

__all__ = ["ClassicMembership"]

_log = logging.getLogger(__name__)

_NO_GENERATION: Final = -1
_JOIN_GRACE: Final = 5.0
"""Seconds for the answer to a join, on top of the rebalance timeout that the coordinator waits for other members."""
_LONGEST_REASON: Final = 255
"""A coordinator takes so many characters of the reason to join or leave (KIP-800)."""


class _NotYet(Exception):
    """An attempt to join did not succeed. Another one may."""

    def __init__(self, error: IngestdError, *, at_once: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.at_once = at_once


class ClassicMembership(BaseMembership):
    """See `Membership`.

    Invariants
        One task joins, rejoins and talks to the partitions' owner. Another one sends heartbeats, from the moment that
        there is a generation until the next join is sent, whatever the owner does meanwhile.
        Partitions are revoked before the join that gives them up is sent. They are lost if the coordinator has
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
        super().__init__(client, group_id, settings, owner, events=events)
        self._assignors = {assignor.name: assignor for assignor in make_assignors(settings.assignors)}
        self._protocol = agreed_rebalance_protocol(tuple(self._assignors.values()))
        self._topics: SubscribedTopics | None = None
        self._member_id = ""
        self._generation = _NO_GENERATION
        self._assigned_in = _NO_GENERATION
        """The generation of our assignment. If two members claim a partition, the newer generation has it."""
        self._rebalancing = False
        self._join_ended = asyncio.Event()
        self._join_ended.set()
        self._needs_join = asyncio.Event()
        self._reason = ""
        self._shared: SharedTopics | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._stop_listening = client.metadata.listen(self._metadata_changed, self._used_topics)

    @property
    def member(self) -> GroupMember:
        """See `Membership`."""
        return GroupMember(self._group_id, self._generation, self._member_id, self._settings.group_instance_id)

    def subscribe(self, topics: Topics) -> None:
        """See `Membership`."""
        if self._topics is not None and not self._topics.same(topics):
            self._subscribe(topics)
            self._ask_to_join("the subscription has changed")

    def rejoin(self, reason: str) -> None:
        """See `Membership`."""
        self._ask_to_join(reason)

    def _begin(self, topics: Topics) -> None:
        self._subscribe(topics)
        self._ask_to_join("the member is new")

    @property
    def _joining(self) -> bool:
        return not self._join_ended.is_set()

    def _is_member(self) -> bool:
        return self._generation != _NO_GENERATION

    async def _settle(self, deadline: Deadline) -> None:
        """The coordinator may be one generation ahead, and then refuses commits of the one before."""
        if self._assignment:
            try:
                await deadline.wait_for(self._join_ended.wait(), f"group {self._group_id}: the rebalance under way")
            except DeadlineExceeded as error:
                _log.warning("%s; the last commit may be refused", error)

    # Joining

    async def _stay_member(self) -> None:
        """Join whenever there is a reason to. Raises errors that another attempt does not help against."""
        backoff = Backoff()
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

    async def _rebalance(self) -> None:
        """One attempt to join: give up what must be given up, join, and take the assignment."""
        assert self._topics is not None
        started = time.monotonic()
        topics, reason = self._topics, self._reason
        comes_back = not self._member_id and self._settings.group_instance_id is not None
        self._events.rebalancing(self._group_id, reason)
        self._needs_join.clear()  # a reason to join that comes after this needs another join
        self._rebalancing = True
        try:
            await self._look(topics)
            await self._give_up(topics.names)
            self._stop_heartbeats()
            self._join_ended.clear()
            joined = await self._join(topics.names, reason)
            assignment = await self._sync(joined)
        except BaseException:
            self._needs_join.set()
            raise
        finally:
            self._rebalancing = False
            self._join_ended.set()
        self._start_heartbeats()
        self._metadata_changed(self._client.metadata.snapshot)  # topics may have changed since the assignment was made
        await self._take(joined, assignment, topics.names, time.monotonic() - started)
        if comes_back:
            await self._see_that_all_is_assigned(topics.names)

    async def _look(self, topics: SubscribedTopics) -> None:
        try:
            await topics.look(self._settings.request_timeout)
        except IngestdError as error:
            self._passes(JOIN, error)

    async def _give_up(self, topics: frozenset[str]) -> None:
        """Give back what the join does not keep: everything, or (cooperative) what is not subscribed any more."""
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
        # From here on the coordinator refuses the generation before, whether the sync succeeds or not.
        self._member_id, self._generation = joined.member_id, joined.generation
        if joined.protocol not in self._assignors:
            raise KafkaError(ErrorCode.inconsistent_group_protocol, f"group {self._group_id} chose {joined.protocol!r}")
        return joined

    def _subscription(self, assignor: str, topics: frozenset[str]) -> bytes:
        names = sorted(topics)
        return encode_subscription(
            Subscription(
                names,
                owned=sorted(self._assignment),
                generation=self._assigned_in,
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
        self._shared = None
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
        self._assigned_in = joined.generation
        return decode_assignment(answer.assignment) if answer.assignment else Assignment(())

    async def _lead(self, joined: Joined) -> Mapping[str, bytes]:
        led = await lead(
            self._client,
            self._assignors[joined.protocol],
            joined.members,
            self._settings.request_timeout,
            skip_assignment=joined.skip_assignment,
        )
        self._shared = led.topics
        return led.assignments

    async def _take(self, joined: Joined, assignment: Assignment, topics: frozenset[str], seconds: float) -> None:
        """Make the assignment ours: first give up what is gone, then tell the owner what is new."""
        self._assignors[joined.protocol].on_assignment(assignment, self._member_id, self._generation)
        self._events.joined(self._group_id, self._generation, seconds)
        new = frozenset(key for key in assignment.partitions if key.topic in topics)
        gone = self._assignment - new
        if gone:
            await self._revoke(gone)
            self._ask_to_join(f"{in_count(len(gone), 'partition')} given up")
        if self._generation != joined.generation:
            return  # the generation ended meanwhile, and its assignment with it
        await self._assign(new - self._assignment)

    async def _see_that_all_is_assigned(self, topics: frozenset[str]) -> None:
        """A static member that comes back has its old assignment, without a rebalance (KIP-345).

        While it was away, topics may have got partitions, or it may have been configured with other topics. If it
        leads, or is the only one that subscribes to them, nobody else asks for a rebalance.
        """
        try:
            nobodys = await unassigned(self._client, self._coordinator, topics, self._settings.request_timeout)
        except IngestdError as error:
            self._ask_to_join(f"what the group has assigned is not known: {error}")
            return
        if nobodys:
            self._ask_to_join(f"no member has {nobodys[0]} and {len(nobodys) - 1} more")

    def _passes(self, table: Mapping[ErrorCode, Action], error: IngestdError) -> None:
        """Forget what the error says is over. Raises `_NotYet`, or the error itself if it does not pass."""
        action = self._coordinator.action(table, error)
        if action is Action.fail:
            raise error
        if action in (Action.new_generation, Action.new_member):
            self._forget_generation(action)
        raise _NotYet(error, at_once=action is Action.rejoin) from error

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
            if self._shared is not None and (missing := self._shared.missing):
                # Waiting for the age of metadata takes too long for a topic that is created after its readers.
                self._client.metadata.wanted(missing, f"group {self._group_id} subscribes to it")

    def _heartbeat_refused(self, error: IngestdError) -> bool:
        """Whether to send the next one soon."""
        action = self._coordinator.action(HEARTBEAT, error)
        if action is Action.fail:
            self._end_with(SessionEnd(EndReason.failed, error))
            return False
        if action is Action.rejoin:
            reason = "the group rebalances"
        elif action in (Action.new_generation, Action.new_member):
            self._forget_generation(action)
            reason = str(error)
        else:
            self._events.retried(self._group_id, "heartbeat", error)
            return True
        if not self._rebalancing:  # else the join that comes is the answer
            self._ask_to_join(reason)
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
        return self._shared.names if self._shared is not None else ()

    def _metadata_changed(self, snapshot: ClusterMetadata) -> None:
        if self._shared is not None and not self._joining and (change := self._shared.change(snapshot)):
            self._ask_to_join(change)

    def commit_refused(self, error: KafkaError, action: Action, member: GroupMember) -> bool:
        """See `Committer`: what a refused commit says about the member."""
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

    async def _leave(self, end: SessionEnd, timeout: float) -> None:
        self._stop_heartbeats()
        self._stop_listening()
        if self._topics is not None:
            self._topics.stop()
        stays = end.reason is EndReason.closed and not self._leave_on_close
        fenced = isinstance(end.error, KafkaError) and end.error.fatal
        if stays or fenced or not self._member_id:
            return
        build = leave_group(
            self._group_id,
            [(self._member_id, self._settings.group_instance_id)],
            reason=(str(end.error) if end.error else end.reason.value)[:_LONGEST_REASON],
        )
        for code in read_leave_errors(await self._coordinator.request(build, timeout)):
            raise_for_code(code, f"group {self._group_id}")
