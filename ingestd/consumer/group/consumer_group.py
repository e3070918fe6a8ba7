"""Consumer group: a member that has a handler process each partition that it is assigned."""

from __future__ import annotations

import asyncio
import logging
import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from ingestd.checks import is_text, require_client, require_settings, require_several
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.group.classic import ClassicMembership
from ingestd.consumer.group.consumer_group_session import ConsumerGroupSession
from ingestd.consumer.group.events import LoggedGroupEvents
from ingestd.consumer.group.group_records import GroupRecords
from ingestd.consumer.group.manual import ManualAssignment
from ingestd.consumer.group.membership import EndReason
from ingestd.consumer.group.next_generation import NextGenerationMembership
from ingestd.consumer.group.settings import GroupProtocol, GroupSettings, NoOffset
from ingestd.consumer.settings import OutOfRange, Recreation, Truncation
from ingestd.errors import Closed, ConfigurationError, IngestdError
from ingestd.retry import Deadline
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from types import TracebackType

    from ingestd.client.client import Client
    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.events import ConsumerEvents
    from ingestd.consumer.group.base_membership import BaseMembership
    from ingestd.consumer.group.claim import Claim
    from ingestd.consumer.group.events import GroupEvents
    from ingestd.consumer.group.handler import ConsumerGroupHandler
    from ingestd.consumer.group.membership import Membership, SessionEnd, Topics
    from ingestd.consumer.settings import ConsumerSettings

__all__ = ["ConsumerGroup", "several"]

_log = logging.getLogger(__name__)

_MEMBERSHIPS: Final[Mapping[GroupProtocol, type[BaseMembership]]] = {
    GroupProtocol.classic: ClassicMembership,
    GroupProtocol.consumer: NextGenerationMembership,
}
_LOOKS_PER_POLL_INTERVAL: Final = 10
"""How often, in each `max_poll_interval`, the progress of handlers is checked."""
_ENDED_BY_US: Final = frozenset({EndReason.claim_returned, EndReason.claim_failed, EndReason.cancelled})
"""Sessions that ended so are still members for the coordinator. Consuming again joins anew."""
_MEMBER_SHARE: Final = 0.5
"""Share of the time to close in. The rest is for the end of the claims."""


class ConsumerGroup:
    """A member of a group: reads the partitions that it is assigned and commits their offsets. Shares a client.

    Example:
        settings = GroupSettings(no_offset="earliest")
        async with Client(["kafka-1:9092"]) as client:
            async with ConsumerGroup(client, "billing", settings) as group, group.subscribe(["orders"]) as records:
                async for record in records:
                    print(record.topic, record.partition, record.offset, record.value)

    A record counts as processed when the next one is asked for. Processed records are committed every
    `auto_commit_interval` seconds, when their partition goes to another member, and at the end. For many records at
    once there are `GroupRecords.take_chunks` and `take_columns`. For threads without an event loop there is
    `SyncConsumerGroup`.

    For more control, derive from `ConsumerGroupHandler`. Its `consume_claim` runs in a task for each partition:
    `async for record in claim: …; claim.mark(record)`. Then call `await group.consume(topics, handler)` in a loop. Each
    turn of the loop is one `ConsumerGroupSession`. Between turns, and while handlers are slow, the member stays in the
    group, up to `max_poll_interval`.

    What most programs set, in `GroupSettings`: `no_offset` (where to begin without a committed offset: the default is
    "latest"), `protocol` ("consumer" is KIP-848's, for Kafka 4.0 and later), `group_instance_id`, and `consumer`, the
    `ConsumerSettings`. If no coordinator is reached, it waits, and each failed attempt is a warning in the log.

    Invariants
        One session at a time; the member outlives it.
        After `close` no task of the group is left, whatever state the brokers are in. The exception is a handler that
        swallows cancellation: an error in the log names it.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        settings: GroupSettings | None = None,
        *,
        events: GroupEvents | None = None,
        consumer_events: ConsumerEvents | None = None,
    ) -> None:
        """Joins with the first `consume` or `subscribe`. Dropped unclosed after that, it says so (ResourceWarning).

        For metrics: `events` hears of rebalances and commits, `consumer_events` of fetches. Raises
        `ConfigurationError`.
        """
        require_client(client)
        if not is_text(group_id):
            raise ConfigurationError(f"group_id: {group_id!r}; expected a name")
        self._client = client
        self._group_id = group_id
        self._settings = require_settings(settings, GroupSettings)
        self._events = events or LoggedGroupEvents()
        self._consumer = Consumer(client, _fetching(self._settings), events=consumer_events)
        self._tasks = TaskOwner()
        self._member: Membership | None = None
        self._partitions = _Partitions()
        self._chosen: frozenset[TopicPartition] | None = None
        self._consuming = False
        self._last_end: EndReason | None = None
        self._paused: set[TopicPartition] = set()
        self._closed = False
        self._stop_status = client.add_status(f"group {group_id}", self.status)

    async def consume(self, topics: Topics, handler: ConsumerGroupHandler) -> SessionEnd:
        """Join (again), and have `handler` process the partitions that come, until the session ends.

        Returns why it ended if the caller may consume again: a rebalance, a handler that returned, partitions that were
        lost, `close`. Raises what a handler raised, `PollIntervalExceeded`, `Closed`, and `KafkaError` for an error
        that another attempt does not help against. Cancelling it ends the session, with cleanup and final commit.
        """
        _require_handler(handler)
        return await self._consume(several(topics), None, handler)

    async def consume_assigned(
        self, partitions: Collection[TopicPartition], handler: ConsumerGroupHandler
    ) -> SessionEnd:
        """The same for partitions that the caller chose. Offsets are committed, but it is no member of the group.

        Raises what `consume` raises.
        """
        _require_handler(handler)
        return await self._consume((), frozenset(require_several("partitions", partitions)), handler)

    def subscribe(self, topics: Topics) -> GroupRecords:
        """The simple way to read: `async with group.subscribe(topics) as records: async for record in records: …`.

        Each record is marked when the next one is asked for. Leaving the block commits and leaves the group open.
        """
        return GroupRecords(self, several(topics), check_crcs=self._settings.consumer.check_crcs)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these no more until they are resumed, in this session and later ones. Causes no rebalance."""
        self._paused.update(require_several("partitions", partitions))
        for claim in self._claims_of(partitions):
            claim.pause()

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these again."""
        self._paused.difference_update(require_several("partitions", partitions))
        for claim in self._claims_of(partitions):
            claim.resume()

    def pause_all(self) -> None:
        """Pause every partition that is claimed now."""
        if self._partitions.session is not None:
            self.pause(list(self._partitions.session.claims))

    def resume_all(self) -> None:
        """Resume every partition that is paused."""
        self.resume(list(self._paused))

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions, whether they are claimed now or not."""
        return frozenset(self._paused)

    @property
    def session(self) -> ConsumerGroupSession | None:
        """The session of the `consume` that runs now."""
        return self._partitions.session

    def status(self) -> dict[str, Any]:
        """What the member does now, for bug reports, in values that JSON can hold. Part of `Client.status`."""
        member, session = self._member, self._partitions.session
        lag = {} if session is None else session.lag()
        return {
            "protocol": GroupProtocol(self._settings.protocol).value,
            "member": None if member is None else member.member.member_id,
            "generation": None if member is None else member.member.generation,
            "assignment": [] if member is None else [str(key) for key in sorted(member.assignment)],
            "ended": None if member is None or member.end is None else member.end.reason.value,
            "consuming": session is not None,
            "lag": {str(key): records for key, records in lag.items()},
            "paused": [str(key) for key in sorted(self._paused)],
        }

    async def close(self, timeout: float = 10.0) -> None:
        """End the session with cleanup and final commit, leave the group (static members stay) and end.

        Ends within `timeout` seconds, also with all brokers down. A handler that swallows cancellation costs a second
        or two more. Safe to call twice. A handler must not call it.
        """
        if self._closed:
            return
        self._closed = True
        self._stop_status()
        deadline = Deadline.after(timeout)
        session, member = self._partitions.session, self._member
        if session is not None:
            session.end(EndReason.closed, within=timeout * (1 - _MEMBER_SHARE))
        try:
            if member is not None:
                await member.close(deadline.remaining, leave=self._settings.group_instance_id is None)
                member.run_callbacks()
        finally:  # also if it was cancelled, or a callback raised
            self._partitions.known.set()
            await self._tasks.close()
            if session is not None:
                await session.cut_short()
            await self._consumer.close(max(0.1, deadline.remaining))

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._member is not None:
            warnings.warn(
                f"unclosed consumer group {self._group_id!r}: it neither committed at its end nor left",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # Membership

    async def _consume(
        self, topics: Topics, chosen: frozenset[TopicPartition] | None, handler: ConsumerGroupHandler
    ) -> SessionEnd:
        if self._closed:
            raise Closed(f"group {self._group_id} is closed")
        if self._consuming:
            raise IngestdError(f"group {self._group_id} is consuming already; expected one call at a time")
        self._consuming = True
        try:
            member = await self._joined(topics, chosen)
            session = self._partitions.session = ConsumerGroupSession(
                member, self._consumer, handler, self._settings, self._events, self._paused
            )
            watching = self._tasks.start(self._watch(member, session), f"progress in {self._group_id}")
            try:
                member.run_callbacks()
                return await session.run(self._partitions.first)
            finally:
                watching.cancel()
                self._partitions.session = None
                self._last_end = session.end_reason
        finally:
            self._consuming = False

    async def _joined(self, topics: Topics, chosen: frozenset[TopicPartition] | None) -> Membership:
        """The member from before if it still is one, else a new one."""
        member = self._member
        if member is not None and (member.end is not None or chosen != self._chosen):
            await member.close(self._settings.request_timeout)
            if self._closed:
                raise Closed(f"group {self._group_id} is closed")
            member = None
        if member is None:
            self._partitions.begin()
            self._chosen = chosen
            member = self._make_member(chosen)
            member.start(topics)
            self._member = member
            self._tasks.start(self._follow(member), f"end of the member of {self._group_id}")
            return member
        member.progressed()
        member.subscribe(topics)
        if self._last_end in _ENDED_BY_US:
            self._partitions.known.clear()
            member.rejoin(f"consumes again after: {self._last_end.value}")
        return member

    def _make_member(self, chosen: frozenset[TopicPartition] | None) -> Membership:
        client, settings = self._client, self._settings
        if chosen is not None:
            return ManualAssignment(
                client, self._group_id, settings, self._partitions, partitions=chosen, events=self._events
            )
        membership = _MEMBERSHIPS[GroupProtocol(settings.protocol)]
        return membership(client, self._group_id, settings, self._partitions, events=self._events)

    async def _follow(self, member: Membership) -> None:
        end = await member.wait_ended()
        if self._partitions.session is not None:
            self._partitions.session.end(end.reason, end.error)
        elif end.error is not None:
            _log.warning("%s", end.error)
        self._partitions.known.set()

    async def _watch(self, member: Membership, session: ConsumerGroupSession) -> None:
        while True:
            await asyncio.sleep(self._settings.max_poll_interval / _LOOKS_PER_POLL_INTERVAL)
            if session.progresses:
                member.progressed()

    def _claims_of(self, partitions: Collection[TopicPartition]) -> list[Claim]:
        session = self._partitions.session
        return [] if session is None else [session.claims[key] for key in partitions if key in session.claims]


def _require_handler(handler: object) -> None:
    if not all(callable(getattr(handler, name, None)) for name in ("setup", "consume_claim", "cleanup")):
        raise ConfigurationError(f"handler: {handler!r}; expected a ConsumerGroupHandler")


def several(topics: Topics) -> Topics:
    """Names of topics, or a pattern. Raises `ConfigurationError` for one name by itself."""
    if not isinstance(topics, re.Pattern):
        require_several("topics", topics)
    return topics


def _fetching(settings: GroupSettings) -> ConsumerSettings:
    """How partitions are fetched. The group's policy decides for all cases, as in Java."""
    rack = settings.consumer.rack or settings.rack or ""
    if settings.no_offset is NoOffset.error:
        return replace(settings.consumer, rack=rack)
    return replace(
        settings.consumer,
        rack=rack,
        out_of_range=OutOfRange(NoOffset(settings.no_offset).value),
        truncation=Truncation.rewind,
        recreation=Recreation.earliest,
    )


class _Partitions:
    """The member's partitions: told to the current session, and kept for the next one. See `PartitionOwner`."""

    def __init__(self) -> None:
        self.session: ConsumerGroupSession | None = None
        self.known = asyncio.Event()
        """An assignment is known, or it is known that there will be none."""
        self._owned: set[TopicPartition] = set()

    def begin(self) -> None:
        """Of a new member."""
        self.known.clear()
        self._owned.clear()

    async def first(self) -> Sequence[TopicPartition]:
        """Wait for the first assignment."""
        await self.known.wait()
        return sorted(self._owned)

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """See `PartitionOwner`."""
        self._owned.update(partitions)
        self.known.set()
        if self.session is not None:
            self.session.assigned(partitions)

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """See `PartitionOwner`."""
        self._owned.difference_update(partitions)
        if not self._owned:
            self.known.clear()
        if self.session is not None:
            await self.session.revoked(partitions)

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """See `PartitionOwner`."""
        self._owned.difference_update(partitions)
        if not self._owned:
            self.known.clear()
        if self.session is not None:
            await self.session.lost(partitions)
