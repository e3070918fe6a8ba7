"""Consumer group session: what a handler sees of its group, from the first assignment to the end of all claims."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from ingestd.consumer.group.claim import Claim
from ingestd.consumer.group.membership import EndReason, SessionEnd
from ingestd.consumer.group.settings import NoOffset
from ingestd.consumer.settings import Edge
from ingestd.errors import Closed, DeadlineExceeded, ErrorCode, IngestdError, KafkaError, is_retriable
from ingestd.retry import Backoff, Deadline
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence

    from ingestd.client.group import GroupMember, OffsetAndMetadata
    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.consumer import Consumer
    from ingestd.consumer.group.events import GroupEvents
    from ingestd.consumer.group.handler import ConsumerGroupHandler
    from ingestd.consumer.group.membership import CommitDone, Membership
    from ingestd.consumer.group.settings import GroupSettings
    from ingestd.consumer.settings import Start

__all__ = ["ConsumerGroupSession"]

_log = logging.getLogger(__name__)

_GRACE: Final = 0.5
"""Share of the time for ending, in which handlers may return by themselves. Half of the rest is for their cancellation.
Each hook gets half of what is then left, and the final commit the rest."""
_CANCELLED_IN: Final = 1.0
"""Seconds that a cancelled task has to end, at least."""
_NO_COMMIT: Final = frozenset({EndReason.lost, EndReason.poll_interval, EndReason.failed})
"""After these ends nothing can be committed: for the coordinator we are no member."""


class ConsumerGroupSession:
    """Made by `ConsumerGroup.consume`. A cooperative rebalance does not end it if a partition stays.

    Invariants
        A claim exists from the moment that its start is known until its partition is revoked or lost. Its handler runs
        in one task, which ends before the partition is given up.
        `setup` is called before every claim, `cleanup` after all. The final commit is sent after the end of the
        handlers, and before the partition is given up.
    """

    def __init__(
        self,
        member: Membership,
        consumer: Consumer,
        handler: ConsumerGroupHandler,
        settings: GroupSettings,
        events: GroupEvents,
        paused: Collection[TopicPartition],
    ) -> None:
        self._member = member
        self._consumer = consumer
        self._handler = handler
        self._settings = settings
        self._events = events
        self._paused = paused
        self._tasks = TaskOwner(self._fail)
        self._wanted: set[TopicPartition] = set()
        self._openers: dict[asyncio.Task[None], frozenset[TopicPartition]] = {}
        self._claims: dict[TopicPartition, Claim] = {}
        self._working: dict[TopicPartition, asyncio.Task[None]] = {}
        self._set_up = False
        self._open = False
        self._hooks = 0
        self.hook_seconds = 0.0
        """Seconds that `revoked`, `lost` or `cleanup` of the handler, which was called last, may take."""
        self._end: SessionEnd | None = None
        self._failure: BaseException | None = None
        self._time_to_end = settings.rebalance_timeout
        self._committing = asyncio.Lock()
        self._ending = asyncio.Event()
        self._finished = asyncio.Event()

    # What a handler sees

    @property
    def member(self) -> GroupMember:
        """The member as the coordinator knows it, for `AsyncProducer.add_offsets`."""
        return self._member.member

    @property
    def member_id(self) -> str:
        """As the coordinator knows this member."""
        return self._member.member.member_id

    @property
    def generation(self) -> int:
        """The group's generation, which grows while cooperative rebalances pass."""
        return self._member.member.generation

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions of this session. Known in `setup` already, before any claim has begun."""
        return frozenset(self._wanted)

    @property
    def claims(self) -> Mapping[TopicPartition, Claim]:
        """The claims that there are now."""
        return self._claims

    @property
    def end_reason(self) -> EndReason | None:
        """Why the session ends; None while it does not."""
        return None if self._end is None else self._end.reason

    def mark_offset(self, topic_partition: TopicPartition, offset: int, metadata: str = "") -> None:
        """See `Claim.mark_offset`. Does nothing if there is no such claim, or not any more."""
        if (claim := self._claims.get(topic_partition)) is not None:
            claim.mark_offset(offset, metadata)

    def reset_offset(self, topic_partition: TopicPartition, offset: int, metadata: str = "") -> None:
        """See `Claim.reset_offset`. Does nothing if there is no such claim, or not any more."""
        if (claim := self._claims.get(topic_partition)) is not None:
            claim.reset_offset(offset, metadata)

    async def commit(self, timeout: float | None = None) -> None:
        """Commit what is marked, and wait for it; runs the callbacks of finished commits first.

        Raises `KafkaError`, `DeadlineExceeded`, `Closed`.
        """
        self._member.run_callbacks()
        await self._commit(self._claims.values(), timeout)

    async def commit_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float | None = None
    ) -> None:
        """Commit these offsets (the next to read) and wait. Marks go on from there. Raises what `commit` raises."""
        self._member.run_callbacks()
        deadline = Deadline.after(self._settings.commit_timeout if timeout is None else timeout)
        await deadline.wait_for(self._committing.acquire(), "commit: waiting for the commits before it")
        try:
            await self._member.commit(offsets, deadline.remaining)
            for key, offset in offsets.items():
                if (claim := self._claims.get(key)) is not None:
                    claim.committed_by_hand(offset)
        finally:
            self._committing.release()

    def commit_later(self, done: CommitDone | None = None) -> None:
        """Commit what is marked without waiting.

        `done` is called later, when a handler marks or commits. This call does the same for earlier commits. Without
        `done`, errors are logged. Raises `BufferFull`, `Closed`.
        """
        self._member.run_callbacks()
        claims = dict(self._claims)

        def committed(offsets: Mapping[TopicPartition, OffsetAndMetadata], error: IngestdError | None) -> None:
            if error is None:
                for key, offset in offsets.items():
                    claims[key].committed(offset)
            elif done is None:
                _log.warning("offsets of %d partitions were not committed: %s", len(offsets), error)
            if done is not None:
                done(offsets, error)

        self._member.commit_later(_uncommitted(claims.values()), committed)

    def lag(self) -> dict[TopicPartition, int | None]:
        """See `Claim.lag`, of every claim."""
        return {key: claim.lag for key, claim in self._claims.items()}

    # What `ConsumerGroup` calls

    @property
    def progresses(self) -> bool:
        """Whether every handler has made progress since the last call."""
        stuck = [claim.key for claim in self._claims.values() if claim.stuck]
        return not stuck and not self._hooks

    async def run(self, first_assignment: Callable[[], Awaitable[Sequence[TopicPartition]]]) -> SessionEnd:
        """Run until something ends it. Raises what a handler raised, or the error that ended the membership."""
        try:
            self.assigned(await first_assignment())
            if self._end is None:
                self._set_up = True
                await self._hook(self._handler.setup(self))
            if self._end is None:
                self._open = True
                self._start_claims(sorted(self._wanted))
                if self._settings.auto_commit_interval is not None:
                    self._tasks.start(self._auto_commit(self._settings.auto_commit_interval), "commit marked offsets")
            await self._ending.wait()
        except asyncio.CancelledError:
            self.end(EndReason.cancelled)
            try:
                await self._finish()
            finally:
                if self._failure is not None:
                    _log.error("a failure while consuming was cancelled: %r", self._failure)
            raise
        except Exception as error:  # noqa: BLE001 - raised below, when the session has ended
            self._fail(error)
        await self._finish()
        if self._failure is not None:
            raise self._failure
        assert self._end is not None
        if self._end.error is not None:
            raise self._end.error
        return self._end

    def end(self, reason: EndReason, error: IngestdError | None = None, *, within: float | None = None) -> None:
        """End it `within` seconds, or by default within the rebalance timeout. The first reason counts."""
        if within is not None:
            self._time_to_end = min(self._time_to_end, within)
        if self._end is None:
            self._end = SessionEnd(reason, error)
            self._ending.set()

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These were assigned. Their claims begin as soon as their offsets are known."""
        self._wanted.update(partitions)
        if self._open and self._end is None:
            self._start_claims(partitions)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """End these claims and commit what they marked. With none left the session ends."""
        if not self._open:  # nothing was begun
            self._wanted.difference_update(partitions)
            return
        if self._wanted.issubset(partitions):
            self.end(EndReason.rebalance)
            await self._finished.wait()
            return
        deadline = Deadline.after(self._settings.rebalance_timeout)
        try:
            claims = await self._take_away(partitions)
            await self._end_handlers(claims, deadline)
            await self._last_hook("revoked", self._handler.revoked(self, sorted(partitions)), deadline)
            await self._final_commit(claims, deadline)
        finally:  # also if it was cancelled because its time is over: the partitions are not ours any more
            self._release(partitions)

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        """End these claims at once. With none left the session ends. If the member has ended, its reason counts."""
        if not self._open:
            self._wanted.difference_update(partitions)
            return
        if self._wanted.issubset(partitions):
            end = self._member.end or SessionEnd(EndReason.lost)
            self.end(end.reason, end.error)
            await self._finished.wait()
            return
        try:
            await self._end_handlers(await self._take_away(partitions), Deadline.after(0.0))
        finally:
            self._release(partitions)
        deadline = Deadline.after(self._settings.rebalance_timeout)
        await self._last_hook("lost", self._handler.lost(self, sorted(partitions)), deadline)

    # Claims

    def _start_claims(self, partitions: Sequence[TopicPartition], *, told: bool = False) -> None:
        if partitions:
            opener = self._tasks.start(self._open_claims(partitions, told=told), f"open {len(partitions)} claims")
            self._openers[opener] = frozenset(partitions)
            opener.add_done_callback(lambda done: self._openers.pop(done, None))

    async def _open_claims(self, partitions: Sequence[TopicPartition], *, told: bool) -> None:
        """Start a handler for each partition. Tried again while errors pass. Other errors end the session."""
        if not told:
            await self._hook(self._handler.assigned(self, partitions))
            if asyncio.current_task() not in self._openers:
                return  # it was cancelled meanwhile, and the hook swallowed that
        backoff = Backoff()
        while True:
            try:
                consumers = await self._consumer.consume_partitions(await self._starts(partitions))
                break
            except IngestdError as error:
                if not is_retriable(error):
                    raise
                self._events.retried(self._member.member.group_id, "start of claims", error)
            await asyncio.sleep(backoff.next_delay())
        for key, consumer in consumers.items():
            if key in self._paused:
                consumer.pause()
            claim = self._claims[key] = Claim(consumer, self._member.run_callbacks)
            self._working[key] = self._tasks.start(self._work(claim), f"claim of {key}")

    async def _starts(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Start]:
        policy = self._settings.no_offset
        edge = Edge.earliest if policy is NoOffset.earliest else Edge.latest
        starts: dict[TopicPartition, Start] = {}
        for key, committed in (await self._member.committed(partitions)).items():
            if committed is None and policy is NoOffset.error:
                raise KafkaError(ErrorCode.offset_out_of_range, f"{key}: the group has committed no offset")
            starts[key] = committed or edge
        return starts

    async def _work(self, claim: Claim) -> None:
        await self._handler.consume_claim(self, claim)
        if not claim.ended:
            self.end(EndReason.claim_returned)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        else:
            _log.error("another failure while the session ends: %r", error)
        self.end(EndReason.claim_failed)

    async def _take_away(self, partitions: Iterable[TopicPartition]) -> list[Claim]:
        """These are given up: stop opening them. Returns their claims."""
        gone = set(partitions)
        self._wanted -= gone
        for opener, opening in list(self._openers.items()):
            if opening & gone:
                self._openers.pop(opener, None)
                await self._cancel([opener])
                if rest := sorted(opening & self._wanted - self._claims.keys()):
                    self._start_claims(rest, told=True)
        return [self._claims[key] for key in gone if key in self._claims]

    async def _end_handlers(self, claims: Collection[Claim], deadline: Deadline) -> None:
        for claim in claims:
            claim.stop()
        working = {self._working.pop(claim.key) for claim in claims if claim.key in self._working}
        working.discard(asyncio.current_task())
        if working and deadline.remaining:
            _, working = await asyncio.wait(working, timeout=deadline.remaining * _GRACE)
        for task in working:
            _log.warning("%s has not returned and is cancelled", task.get_name())
        await self._cancel(working, deadline)

    async def _cancel(self, tasks: Collection[asyncio.Task[None]], deadline: Deadline | None = None) -> None:
        """Cancel the handler's tasks. One that swallows that is left behind, because it must not hold the group up."""
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        share = 0.0 if deadline is None else deadline.remaining * _GRACE
        _, left = await asyncio.wait(tasks, timeout=max(_CANCELLED_IN, share))
        for task in left:
            _log.error("%s swallows its cancellation and is left behind: %r", task.get_name(), task)

    def _release(self, partitions: Iterable[TopicPartition]) -> None:
        for key in partitions:
            if (claim := self._claims.pop(key, None)) is not None:
                claim.release()

    # Commits

    async def _commit(self, claims: Iterable[Claim], timeout: float | None) -> None:
        """Commit in turn. What was marked while another commit was under way is sent as one commit."""
        deadline = Deadline.after(self._settings.commit_timeout if timeout is None else timeout)
        await deadline.wait_for(self._committing.acquire(), "commit: waiting for the commits before it")
        try:
            by_key = {claim.key: claim for claim in claims}
            offsets = _uncommitted(by_key.values())
            if offsets:
                await self._member.commit(offsets, deadline.remaining)
            for key, offset in offsets.items():
                by_key[key].committed(offset)
        finally:
            self._committing.release()

    async def _auto_commit(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self._commit(self._claims.values(), None)
            except IngestdError as error:
                self._events.retried(self._member.member.group_id, "auto commit", error)

    async def _final_commit(self, claims: Collection[Claim], deadline: Deadline) -> None:
        if self._settings.auto_commit_interval is None:
            return
        try:
            await self._commit(claims, min(self._settings.commit_timeout, deadline.remaining))
        except IngestdError as error:
            _log.warning("the final commit failed, records since the last one will be processed again: %s", error)

    # The end

    async def _finish(self) -> None:
        assert self._end is not None
        reason = self._end.reason
        at_once = reason in (EndReason.lost, EndReason.poll_interval)
        deadline = Deadline.after(self._time_to_end)
        partitions = sorted(self._wanted)
        try:
            claims = await self._take_away(partitions)
            await self._end_handlers(claims, Deadline.after(0.0) if at_once else deadline)
            if reason in _NO_COMMIT:
                self._release(partitions)
            if self._open and partitions:
                if reason in _NO_COMMIT:
                    await self._last_hook("lost", self._handler.lost(self, partitions), deadline)
                else:
                    await self._last_hook("revoked", self._handler.revoked(self, partitions), deadline)
            if self._set_up:
                await self._last_hook("cleanup", self._handler.cleanup(self), deadline)
            if reason not in _NO_COMMIT:
                await self._final_commit(claims, deadline)
        finally:
            self._release(list(self._claims))
            try:
                await self._end_tasks()
            finally:
                self._finished.set()

    async def cut_short(self) -> None:
        """The time to close in is over: cancel the handler if it still runs."""
        if not self._finished.is_set():
            await self._end_tasks()

    async def _end_tasks(self) -> None:
        for task in await self._tasks.close(_CANCELLED_IN):
            _log.error("%s swallows its cancellation and is left behind: %r", task.get_name(), task)

    async def _hook(self, hook: Awaitable[None]) -> None:
        self._hooks += 1
        try:
            await hook
        finally:
            self._hooks -= 1

    async def _last_hook(self, name: str, hook: Coroutine[Any, Any, None], deadline: Deadline) -> None:
        """Call a hook at the end of claims. If it fails, or takes too long, the rest of the end goes on.

        The owner of the tasks gives its error to `_fail`.
        """
        doing = f"{name} of the handler"
        try:
            task = self._tasks.start(self._hook(hook), doing)
        except Closed:
            hook.close()
            _log.warning("%s is not called: there is no time left", doing)
            return
        seconds = self.hook_seconds = deadline.remaining * _GRACE
        try:
            if not (await asyncio.wait([task], timeout=seconds))[0]:
                self._fail(DeadlineExceeded(f"{doing}: not done within {seconds:g} s"))
                await self._cancel([task])
        finally:
            task.cancel()


def _uncommitted(claims: Iterable[Claim]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {claim.key: offset for claim in claims if (offset := claim.uncommitted) is not None}
