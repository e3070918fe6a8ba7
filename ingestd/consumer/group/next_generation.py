"""Next-generation membership: by ConsumerGroupHeartbeat (KIP-848). The coordinator assigns.

No join waits for other members. The coordinator tells a member of a partition as soon as the last owner has given it
up. Members say in their heartbeats what they have. So the coordinator learns what was given up.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.client.group import GroupMember
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.base_membership import BaseMembership
from ingestd.consumer.group.coordinator import HEARTBEAT, Action
from ingestd.consumer.group.membership import EndReason, SessionEnd
from ingestd.consumer.group.topic_names import TopicNames
from ingestd.errors import (
    ConfigurationError,
    DeadlineExceeded,
    ErrorCode,
    IngestdError,
    KafkaError,
    is_retriable,
    raise_for_code,
)
from ingestd.retry import Backoff, Deadline
from ingestd.wire.requests.next_generation_groups import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    consumer_group_heartbeat,
    read_group_heartbeat,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from ingestd.client.client import Client
    from ingestd.consumer.group.events import GroupEvents
    from ingestd.consumer.group.membership import PartitionOwner, Topics
    from ingestd.consumer.group.settings import GroupSettings
    from ingestd.wire.requests import Build
    from ingestd.wire.requests.next_generation_groups import GroupHeartbeat

__all__ = ["NextGenerationMembership"]

_ACTIONS: Final = {
    **HEARTBEAT,
    ErrorCode.fenced_member_epoch: Action.new_generation,
    ErrorCode.unreleased_instance_id: Action.retry,
}
_SHORTEST_INTERVAL: Final = 0.05
"""Seconds between heartbeats, at least, whatever a broker says."""
_REGEX_FLAGS: Final = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}
_NOT_IN_REGEX: Final = re.VERBOSE | re.ASCII | re.LOCALE


@dataclass(frozen=True, slots=True)
class _Subscribed:
    """A subscription as the coordinator wants it: names, or a regular expression."""

    topics: frozenset[str]
    regex: str = ""


@dataclass(frozen=True, slots=True)
class _Told:
    """What a heartbeat told the coordinator. The next one says only what is different."""

    subscribed: _Subscribed
    owned: frozenset[tuple[UUID, int]]


class NextGenerationMembership(BaseMembership):
    """See `Membership`.

    Invariants
        One task sends heartbeats, whatever the partitions' owner does. Another one makes the newest assignment ours
        (`_stay_member`).
        A partition is in `_owned`, and so in heartbeats, from before its owner hears of it until the owner has given it
        up. It is added only while no heartbeat that said otherwise is unanswered.
        A member that was fenced joins again only after its partitions' owner was told that they are lost.
        After a heartbeat whose outcome is unknown, or was an error, the next one says everything.
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
        # The member's for life, over fencing and joining again.
        self._member_id = str(uuid.uuid4())
        self._epoch = JOIN_EPOCH
        self._names = TopicNames(client)
        self._subscribed = _Subscribed(frozenset())
        self._owned: frozenset[tuple[UUID, int]] = frozenset()
        self._target: frozenset[tuple[UUID, int]] | None = None
        self._reached: frozenset[tuple[UUID, int]] | None = None
        """The last target that the owner was told of."""
        self._told: _Told | None = None
        self._pattern_told = False
        self._fenced = False
        self._memberships = 0
        """How often the coordinator has forgotten us."""
        self._interval = settings.heartbeat_interval
        self._heartbeats: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        """Set for `_stay_member`: there is an assignment, or we were fenced."""
        self._hurry = asyncio.Event()
        """Set to send a heartbeat now, before the interval is over."""
        self._answered = asyncio.Event()
        """Set while the last heartbeat that said what we have is answered."""
        self._may_join = asyncio.Event()
        self._unreleased: Deadline | None = None

    # What `Membership` says

    @property
    def member(self) -> GroupMember:
        """See `Membership`. The generation is the member epoch."""
        epoch = self._epoch if self._epoch > JOIN_EPOCH else -1
        return GroupMember(self._group_id, epoch, self._member_id, self._settings.group_instance_id)

    def subscribe(self, topics: Topics) -> None:
        """See `Membership`."""
        subscribed = _subscribed(topics)
        if subscribed != self._subscribed:
            self._subscribed = subscribed
            self._hurry.set()

    def rejoin(self, reason: str) -> None:
        """See `Membership`. Sends a heartbeat now. The coordinator decides when to assign anew.

        The owner is told `assigned` once more, with nothing new.
        """
        self._events.rebalancing(self._group_id, reason)
        self._reached = None
        self._hurry.set()
        self._news.set()

    def commit_refused(self, error: KafkaError, action: Action, member: GroupMember) -> bool:
        """See `Committer`: what a refused commit says about the member."""
        if error.fatal:
            self._end_with(SessionEnd(EndReason.failed, error))
            return False
        if member == self.member and action is Action.new_member:
            self._forget_membership(error)
        self._hurry.set()
        # STALE_MEMBER_EPOCH: the coordinator is ahead of us, the next heartbeat brings its epoch.
        return not self._fenced

    # Heartbeats

    def _begin(self, topics: Topics) -> None:
        self._subscribed = _subscribed(topics)
        self._may_join.set()
        self._events.rebalancing(self._group_id, "the member is new")
        self._heartbeats = self._tasks.start(self._beat(), f"heartbeats of {self._group_id}")

    async def _beat(self) -> None:
        backoff = Backoff()
        while True:
            await self._may_join.wait()
            self._hurry.clear()
            telling = _Told(self._subscribed, self._owned)
            if self._told is None or self._told.owned != telling.owned:
                self._answered.clear()
            membership = self._memberships
            heard = await self._tell(telling)
            if membership != self._memberships:
                continue  # meanwhile a commit learned that the coordinator has forgotten the member of this heartbeat
            if isinstance(heard, IngestdError):
                self._told = None
                if not self._refused(heard):
                    return
                await asyncio.sleep(backoff.next_delay())
            else:
                self._told = telling
                backoff.reset()
                self._take(heard)
                self._answered.set()
                await _wait(self._hurry, self._interval)

    async def _tell(self, telling: _Told) -> GroupHeartbeat | IngestdError:
        started = time.monotonic()
        try:
            answer = await self._coordinator.request(self._heartbeat(telling), self._settings.request_timeout)
            heard = read_group_heartbeat(answer)
            raise_for_code(heard.error, f"group {self._group_id}: {heard.error_message}")
        except IngestdError as error:
            return error
        self._events.heartbeat(self._group_id, time.monotonic() - started)
        return heard

    def _heartbeat(self, telling: _Told) -> Build:
        """Everything if the coordinator may not know it, else only what has changed since the last heartbeat."""
        told = self._told
        settings = self._settings
        subscribed = telling.subscribed
        same = told is not None and told.subscribed == subscribed
        # An earlier pattern has to be withdrawn. Without one, nothing is said: older coordinators know no patterns.
        self._pattern_told = self._pattern_told or bool(subscribed.regex)
        regex = subscribed.regex if self._pattern_told else None
        return consumer_group_heartbeat(
            self._group_id,
            member_id=self._member_id,
            member_epoch=self._epoch,
            group_instance_id=settings.group_instance_id,
            rack=settings.rack if told is None else None,
            rebalance_timeout_ms=int(settings.rebalance_timeout * 1000) if told is None else -1,
            topics=None if same else subscribed.topics,
            regex=None if same else regex,
            assignor=settings.remote_assignor if told is None else None,
            owned=None if told is not None and told.owned == telling.owned else _by_topic(telling.owned),
        )

    def _take(self, heard: GroupHeartbeat) -> None:
        self._unreleased = None
        self._member_id = heard.member_id or self._member_id
        self._epoch = heard.member_epoch
        self._interval = max(heard.interval, _SHORTEST_INTERVAL)
        if heard.assignment is not None:
            self._target = frozenset(
                (topic_id, partition) for topic_id, numbers in heard.assignment.items() for partition in numbers
            )
            self._news.set()

    def _refused(self, error: IngestdError) -> bool:
        """Handle the error. False: the membership ends."""
        action = self._coordinator.action(_ACTIONS, error)
        if isinstance(error, KafkaError) and error.code is ErrorCode.unreleased_instance_id:
            # The name is in use by a predecessor that was killed. Its session timeout releases the name.
            self._unreleased = self._unreleased or Deadline.after(self._settings.session_timeout)
            if self._unreleased.expired:
                action = Action.fail
        if action is Action.fail:
            self._end_with(SessionEnd(EndReason.failed, error))
            return False
        if action in (Action.new_generation, Action.new_member):
            self._forget_membership(error)
        else:
            self._events.retried(self._group_id, "heartbeat", error)
        return True

    def _forget_membership(self, error: IngestdError) -> None:
        """The coordinator does not know us any more: others may have our partitions."""
        self._events.rebalancing(self._group_id, str(error))
        self._epoch = JOIN_EPOCH
        self._told = None
        self._target = None
        self._fenced = True
        self._memberships += 1
        self._answered.set()
        self._may_join.clear()
        self._news.set()

    # Assignments

    async def _stay_member(self) -> None:
        backoff = Backoff()
        while True:
            await self._news.wait()
            self._news.clear()
            if self._fenced:
                self._owned = frozenset()
                await self._lose()
                self._fenced = False
                self._may_join.set()
            elif self._target is not None:
                if await self._reconcile(self._target):
                    backoff.reset()
                else:
                    await _wait(self._news, backoff.next_delay())
                    self._news.set()

    async def _reconcile(self, target: frozenset[tuple[UUID, int]]) -> bool:
        """Give up what is not in `target`, tell the coordinator, begin with what is new. False: not all of it yet."""
        started = time.monotonic()
        gone = self._owned - target
        if gone:
            await self._revoke(self._named(gone))
            self._owned -= gone
            self._hurry.set()
        unknown = await self._unknown_topics({topic_id for topic_id, _ in target})
        # A heartbeat under way may say that we do not have it. Then another member may get it.
        await self._answered.wait()
        if self._target is not target:
            return True  # there is newer news
        came = frozenset(key for key in target - self._owned if key[0] not in unknown)
        # A topic that was created again: its name is in use until the coordinator takes the old topic from us.
        came = frozenset(key for key in came if self._name(key) not in self._assignment)
        self._owned |= came
        if came:
            self._hurry.set()
        if came or target is not self._reached:
            self._reached = target
            self._events.joined(self._group_id, self._epoch, time.monotonic() - started)
            await self._assign(self._named(came))
        return not unknown

    async def _unknown_topics(self, topic_ids: set[UUID]) -> set[UUID]:
        """Those whose name is not known yet. A broker may learn of a topic later than the coordinator."""
        error: IngestdError | None = None
        try:
            await self._names.find(topic_ids, self._settings.request_timeout)
        except IngestdError as failed:
            if not is_retriable(failed) and not isinstance(failed, KafkaError):
                raise
            error = failed
        unknown = self._names.missing(topic_ids)
        if unknown:
            error = error or KafkaError(ErrorCode.unknown_topic_id, ", ".join(map(str, unknown)))
            self._events.retried(self._group_id, "topic names", error)
        return unknown

    def _name(self, key: tuple[UUID, int]) -> TopicPartition:
        return TopicPartition(self._names[key[0]], key[1])

    def _named(self, keys: Iterable[tuple[UUID, int]]) -> frozenset[TopicPartition]:
        return frozenset(map(self._name, keys))

    # The end

    def _is_member(self) -> bool:
        return self._epoch > JOIN_EPOCH and not self._fenced

    async def _leave(self, end: SessionEnd, timeout: float) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        stays = end.reason is EndReason.closed and not self._leave_on_close
        static = self._settings.group_instance_id is not None
        fenced = isinstance(end.error, KafkaError) and end.error.fatal
        if fenced or (stays and not static):
            return
        build = consumer_group_heartbeat(
            self._group_id,
            member_id=self._member_id,
            member_epoch=LEAVE_STATIC_EPOCH if stays else LEAVE_EPOCH,
            group_instance_id=self._settings.group_instance_id,
        )
        heard = read_group_heartbeat(await self._coordinator.request(build, timeout))
        raise_for_code(heard.error, f"group {self._group_id}: {heard.error_message}")


def _subscribed(topics: Topics) -> _Subscribed:
    if not isinstance(topics, re.Pattern):
        return _Subscribed(frozenset(topics))
    if topics.flags & _NOT_IN_REGEX:
        raise ConfigurationError(f"pattern {topics.pattern!r}: the coordinator matches it, and has no such flag")
    flags = "".join(letter for flag, letter in _REGEX_FLAGS.items() if topics.flags & flag)
    return _Subscribed(frozenset(), f"(?{flags}){topics.pattern}" if flags else topics.pattern)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event, or so long."""
    try:
        await Deadline.after(seconds).wait_for(event.wait(), "an event")
    except DeadlineExceeded:
        return


def _by_topic(owned: Iterable[tuple[UUID, int]]) -> Mapping[UUID, list[int]]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, partition in owned:
        topics.setdefault(topic_id, []).append(partition)
    return topics
