"""Group partition: the groups of one partition of `__consumer_offsets`. What changes is in its log first.

Here events from clients and timers reach the groups, and what the groups want done is done. Nothing waits here: whoever
asks gets a future.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ingestd.broker.coordinator.records import CommitKey, GroupEntry, GroupKey
from ingestd.broker.groups.classic_group import ClassicGroup, Reply, Store
from ingestd.broker.groups.classic_values import Joined, Synced
from ingestd.broker.groups.consumer_group import ConsumerGroup
from ingestd.broker.groups.consumer_state import ConsumerState
from ingestd.broker.groups.consumer_values import JOINING, HeartbeatAnswer
from ingestd.broker.groups.group import Group
from ingestd.broker.groups.migration import downgraded, upgraded
from ingestd.broker.groups.mixed_group import ClassicMembers
from ingestd.broker.groups.pending_offsets import PendingOffsets
from ingestd.broker.groups.replayed import ReplayedGroups
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ingestd.broker.clock import Clock
    from ingestd.broker.coordinator.coordinator_log import CoordinatorLog
    from ingestd.broker.coordinator.records import Committed, CoordinatorRecord
    from ingestd.broker.groups.classic_group import Action
    from ingestd.broker.groups.classic_values import Join, Sync
    from ingestd.broker.groups.consumer_group import Answer, ConsumerRules, Removal, Save
    from ingestd.broker.groups.consumer_state import Topics
    from ingestd.broker.groups.consumer_values import HeartbeatAsked
    from ingestd.broker.groups.group import TopicPartition

__all__ = ["GroupPartition"]


class GroupPartition:
    """Groups by id, and the way of their changes into the log.

    Invariants
        Nothing is answered before `load` is through.
        An offset can be fetched when it is in the log, and on the disk with `Flush.always`. So it never goes back.
        A group's timer goes off at its deadline, or before.
    """

    def __init__(
        self,
        log: CoordinatorLog[CoordinatorRecord],
        clock: Clock,
        initial_delay: float,
        topics: Topics,
        rules: ConsumerRules,
    ) -> None:
        self.refusal: ErrorCode | None = ErrorCode.coordinator_load_in_progress
        """Why nothing is answered now; None if it is."""
        self._log = log
        self._clock = clock
        self._initial_delay = initial_delay
        self._topics = topics
        self._rules = rules
        self._groups: dict[str, Group] = {}
        self._pending = PendingOffsets()
        self._timers: dict[Group, asyncio.TimerHandle] = {}
        self._closed = False

    def __iter__(self) -> Iterator[Group]:
        return iter(tuple(self._groups.values()))

    def get(self, group_id: str) -> Group | None:
        """The group; None if there is none."""
        return self._groups.get(group_id)

    # Its life.

    async def load(self) -> None:
        """Take the groups from the log. Raises `IngestdError`, `OSError`; then nothing is answered."""
        replayed = ReplayedGroups()
        try:
            async for batch in self._log.replay():
                replayed.take(batch)
        except BaseException:
            self.refusal = ErrorCode.coordinator_not_available
            raise
        now = self._clock.monotonic()
        for group_id, known in replayed.groups.items():
            if known.gone:
                continue
            group = self._made(group_id)
            group.offsets = known.offsets
            state = known.consumer_state(group_id, self._topics)
            if state is not None:
                group.consumer = ConsumerGroup.restored(state, self._rules, now)
            elif known.entry is not None:
                group.classic = ClassicGroup.restored(known.entry.stored, now, self._initial_delay)
                group.since = known.entry.since
            self._schedule(group)
        self._pending = replayed.pending
        for key in self._pending:
            group = self._groups.get(key.group) or self._made(key.group)
            group.writing[key.topic, key.partition] += 1
        self.refusal = None

    def close(self) -> None:
        """Stop the timers, and set no more. An fsync may still end."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # Members.

    def join(self, group_id: str, asked: Join) -> asyncio.Future[Joined]:
        """Done when the join phase is over."""
        waiting: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        group = self._groups.get(group_id)
        if group is None and asked.member_id:
            waiting.set_result(Joined(ErrorCode.unknown_member_id, asked.member_id))
            return waiting
        if group is None:
            group = self._made(group_id)
            self._keep(group)
        consumer = group.consumer
        if consumer is not None and not group.vacant:
            before = consumer.kept.epoch
            saves = ClassicMembers(consumer).join(asked, waiting, self._clock.monotonic(), self._now_ms())
            self._do_consumer(group, consumer, saves, rebalance=consumer.kept.epoch != before)
            return waiting
        if consumer is not None:
            self._make_classic(group, consumer)
        self._do(group, group.classic.join(asked, waiting, self._clock.monotonic()))
        return waiting

    def sync(self, group_id: str, asked: Sync) -> asyncio.Future[Synced]:
        """Done when the assignment is in the log."""
        waiting: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        group = self._groups.get(group_id)
        if group is None:
            waiting.set_result(Synced(ErrorCode.unknown_member_id))
        elif group.consumer is not None:
            self._do(group, ClassicMembers(group.consumer).sync(asked, waiting, self._clock.monotonic()))
        else:
            self._do(group, group.classic.sync(asked, waiting, self._clock.monotonic()))
        return waiting

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """The answer to a heartbeat."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        now = self._clock.monotonic()
        if group.consumer is None:
            return group.classic.heartbeat(member_id, instance_id, generation, now)
        answer = ClassicMembers(group.consumer).heartbeat(member_id, instance_id, generation, now)
        self._schedule(group)
        return answer

    def leave(self, group_id: str, leaving: Sequence[tuple[str, str | None]]) -> asyncio.Future[list[Removal]]:
        """Remove members, each (member id, instance id). Done with what became of each."""
        waiting: asyncio.Future[list[Removal]] = asyncio.get_running_loop().create_future()
        group = self._groups.get(group_id)
        if group is None:
            waiting.set_result([(*one, ErrorCode.unknown_member_id) for one in leaving])
        elif group.consumer is not None:
            self._do_consumer(group, group.consumer, group.consumer.remove(leaving, waiting))
        else:
            results, actions = group.classic.leave(leaving, self._clock.monotonic())
            waiting.set_result(results)
            self._do(group, actions)
        return waiting

    def consumer_heartbeat(self, group_id: str, asked: HeartbeatAsked) -> asyncio.Future[HeartbeatAnswer]:
        """A heartbeat of KIP-848. Done when what it changes is in the log."""
        waiting: asyncio.Future[HeartbeatAnswer] = asyncio.get_running_loop().create_future()
        group = self._groups.get(group_id)
        try:
            consumer = self._consumer(group_id, group, asked)
        except KafkaError as refused:
            waiting.set_result(HeartbeatAnswer(refused.code, message=refused.detail))
            return waiting
        saves = consumer.heartbeat(asked, waiting, self._clock.monotonic(), self._now_ms())
        if group is not None and group.consumer is consumer:
            self._do_consumer(group, consumer, saves)
        elif saves[0].refused:
            _answer(waiting, saves[0].answer)
        else:
            group = group or self._made(group_id)
            self._do(group, self._make_consumer(group, consumer, saves))
        return waiting

    def _consumer(self, group_id: str, group: Group | None, asked: HeartbeatAsked) -> ConsumerGroup:
        """The group that is asked, or what it would be. Raises `KafkaError` (GROUP_ID_NOT_FOUND)."""
        if group is not None and group.consumer is not None:
            return group.consumer
        if asked.epoch != JOINING:
            why = (
                f"Consumer group {group_id} not found."
                if group is None
                else f"Group {group_id} is not a consumer group."
            )
            raise KafkaError(ErrorCode.group_id_not_found, why)
        if group is None or not group.classic.members:
            return ConsumerGroup(ConsumerState(group_id, self._topics), self._rules)
        return upgraded(group_id, group.classic, self._topics, self._rules, self._clock.monotonic())

    def _make_consumer(self, group: Group, consumer: ConsumerGroup, saves: list[Save]) -> list[Save]:
        """Make a classic group this one. Returns the actions that store it."""
        for reply in group.classic.dissolve():
            _answer(reply.ticket, reply.answer)
        stored = group.since is not None or group.classic.generation > 0
        group.classic, group.since, group.consumer = ClassicGroup(self._initial_delay), None, consumer
        gone, group.unremoved = group.unremoved, {}
        if stored:
            gone[GroupKey(group.id)] = None
        return [replace(saves[0], records=[*gone.items(), *saves[0].records]), *saves[1:]]

    def _make_classic(self, group: Group, consumer: ConsumerGroup) -> None:
        """Make a group of KIP-848 without members a classic one. If that is not stored, its next generation says it."""
        group.consumer = None
        self._keep(group, consumer.kept.tombstones())

    def _keep(self, group: Group, before: Sequence[CoordinatorRecord] = ()) -> None:
        """Store a classic group that nobody is in yet: as in Kafka, it is there from the first that asks to join."""
        entry = GroupEntry(group.classic.to_store(), self._now_ms())
        group.since = entry.since
        self._append_group(group, [*before, (GroupKey(group.id), entry)], lambda _error: None)

    # Offsets.

    def commit(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        offsets: Mapping[TopicPartition, Committed],
        version: int = 9,
    ) -> asyncio.Future[ErrorCode]:
        """Done when the offsets are in the log. Raises `KafkaError`.

        `member`: member id, instance id, generation or member epoch. `version`: that of OffsetCommit.
        """
        group = self._groups.get(group_id)
        if group is None and member[2] >= 0:
            raise KafkaError(ErrorCode.group_id_not_found, group_id)
        group = group or self._made(group_id)
        group.check_commit(member, offsets, self._clock.monotonic(), version)
        group.writing.update(offsets.keys())
        return self._append(
            [(CommitKey(group_id, topic, number), committed) for (topic, number), committed in offsets.items()],
            partial(self._committed, group, offsets),
        )

    def _committed(self, group: Group, offsets: Mapping[TopicPartition, Committed], error: ErrorCode) -> None:
        group.writing -= Counter(offsets.keys())
        if error is ErrorCode.none:
            group.offsets.update(offsets)
        self._forget_if_bare(group)

    def commit_in_transaction(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        transaction: tuple[int, int],
        offsets: Mapping[TopicPartition, Committed],
    ) -> asyncio.Future[ErrorCode]:
        """Done when the offsets are in the log. They count when their transaction is committed. Raises `KafkaError`.

        `member`: as in `commit`. `transaction`: producer id and epoch.
        """
        group = self._groups.get(group_id)
        if group is None and member[2] >= 0:
            raise KafkaError(ErrorCode.illegal_generation, f"{group_id!r} has no members")
        group = group or self._made(group_id)
        try:
            group.check_commit(member, offsets, self._clock.monotonic(), None)
            pending = {CommitKey(group_id, *partition): committed for partition, committed in offsets.items()}
            self._log.write(list(pending.items()), self._now_ms(), transaction)
        except KafkaError:
            self._forget_if_bare(group)
            raise
        group.writing.update((key.topic, key.partition) for key in self._pending.add(transaction[0], pending))
        waiting: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._log.when_written(partial(_answer, waiting))
        return waiting

    def transaction_ended(self, producer_id: int, *, commits: bool) -> None:
        """The marker is in the log: the offsets of the transaction count from now on, or never."""
        if self.refusal is not None:
            return  # `load` finds the marker.
        offsets, settled = self._pending.end(producer_id, commits=commits)
        for key, committed in offsets.items():
            self._groups[key.group].offsets[key.topic, key.partition] = committed
        self._not_pending(settled)

    def _not_pending(self, settled: Iterable[CommitKey]) -> None:
        for key in settled:
            group = self._groups.get(key.group)
            if group is not None:  # else it is being deleted
                group.writing -= Counter([(key.topic, key.partition)])
                self._forget_if_bare(group)

    def unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an offset of this partition hangs on an open transaction."""
        return self._pending.unstable(group_id, *partition)

    def delete_offsets(self, group: Group, partitions: Iterable[TopicPartition]) -> asyncio.Future[ErrorCode]:
        """Delete committed offsets. Done when that is in the log."""
        gone = group.known_partitions.intersection(partitions)
        return self._append(
            [(CommitKey(group.id, topic, number), None) for topic, number in gone],
            partial(self._offsets_deleted, group, gone),
        )

    def _offsets_deleted(self, group: Group, gone: Iterable[TopicPartition], error: ErrorCode) -> None:
        if error is ErrorCode.none:
            for partition in gone:
                group.offsets.pop(partition, None)

    def delete_group(self, group: Group) -> asyncio.Future[ErrorCode]:
        """Delete a group without members. Done when that is in the log."""
        records: list[CoordinatorRecord] = [
            *group.unremoved.items(),
            *((CommitKey(group.id, topic, number), None) for topic, number in group.known_partitions),
        ]
        if group.since is not None:
            records.append((GroupKey(group.id), None))
        if group.consumer is not None:
            records += group.consumer.kept.tombstones()
        # Now: whoever asks for this group from here on gets a new one, whose records are behind these.
        self._forget(group)
        return self._append(records, partial(self._group_deleted, group))

    def _group_deleted(self, group: Group, error: ErrorCode) -> None:
        if error is not ErrorCode.none:
            self._groups.setdefault(group.id, group)

    def expire(self, now_ms: int, retention_ms: int) -> None:
        """Delete offsets that nobody needs any more, and groups that have nothing else."""
        for group in self:
            gone = set(group.expired(now_ms, retention_ms))
            if group.vacant and gone == group.known_partitions:
                self.delete_group(group)
            elif gone:
                self.delete_offsets(group, gone)

    # What groups want done.

    def _made(self, group_id: str) -> Group:
        group = self._groups[group_id] = Group(group_id, ClassicGroup(self._initial_delay))
        return group

    def _do(self, group: Group, actions: Iterable[Action | Save]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                _answer(action.ticket, action.answer)
            elif isinstance(action, Store):
                entry = GroupEntry(action.group, self._now_ms())
                group.since = entry.since
                self._append_group(group, [(GroupKey(group.id), entry)], partial(self._stored, group, action))
            else:
                self._save(group, action)
        self._schedule(group)
        self._forget_if_bare(group)

    def _do_consumer(
        self, group: Group, consumer: ConsumerGroup, saves: Sequence[Save], *, rebalance: bool = True
    ) -> None:
        """Do what a group of KIP-848 wants. If all its members are classic by now, it is a classic group."""
        if not consumer.classic_alone:
            self._do(group, saves)
            return
        now = self._clock.monotonic()
        classic = downgraded(consumer.kept, now, self._initial_delay)
        entry = GroupEntry(classic.to_store(), self._now_ms())
        gone: dict[Any, Any] = dict(record for save in saves for record in save.records)
        gone.update(consumer.kept.tombstones())
        group.consumer, group.classic, group.since = None, classic, entry.since
        self._append_group(group, [*gone.items(), (GroupKey(group.id), entry)], partial(self._downgraded, saves))
        self._do(group, classic.rebalance(now) if rebalance else ())

    def _downgraded(self, saves: Sequence[Save], error: ErrorCode) -> None:
        for save in saves:
            _answer(save.ticket, save.answer if error is ErrorCode.none else _failed(save.answer, error))

    def _save(self, group: Group, save: Save) -> None:
        assert group.consumer is not None
        if not save.records and not group.saving:
            _answer(save.ticket, save.answer)
            return
        group.saving += 1
        done = partial(self._saved, group, group.consumer, save)
        if save.records:
            self._log.append(save.records, self._now_ms(), done)
        else:
            self._log.when_written(done)

    def _saved(self, group: Group, consumer: ConsumerGroup, save: Save, error: ErrorCode) -> None:
        group.saving -= 1
        if error is ErrorCode.none:
            _answer(save.ticket, save.answer)
        else:
            consumer.not_saved(save)
            _answer(save.ticket, _failed(save.answer, error))

    def _stored(self, group: Group, store: Store, error: ErrorCode) -> None:
        self._do(group, group.classic.stored(store, error, self._clock.monotonic()))

    def _append_group(
        self, group: Group, records: Sequence[CoordinatorRecord], done: Callable[[ErrorCode], None]
    ) -> None:
        """As `_append`. What these records were to remove, and did not for want of room, goes with the group's next."""
        gone, group.unremoved = group.unremoved, {}

        def settle(error: ErrorCode) -> None:
            if error is not ErrorCode.none:
                gone.update((key, None) for key, value in records if value is None)
                group.unremoved = {**gone, **group.unremoved}
            done(error)

        self._append([*gone.items(), *records], settle)

    def _append(
        self, records: Sequence[CoordinatorRecord], done: Callable[[ErrorCode], None]
    ) -> asyncio.Future[ErrorCode]:
        """Done, after `done`, when the records are in the log."""
        waiting: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settle(error: ErrorCode) -> None:
            done(error)
            if not waiting.done():
                waiting.set_result(error)

        if not records:
            settle(ErrorCode.none)
            return waiting
        try:
            self._log.write(records, self._now_ms())
        except KafkaError as refused:
            settle(refused.code)
            return waiting
        self._not_pending(self._pending.replace(key for key, _value in records if isinstance(key, CommitKey)))
        self._log.when_written(settle)
        return waiting

    def _forget_if_bare(self, group: Group) -> None:
        """Forget a group that was never to be stored. Others are forgotten when `expire` has deleted them."""
        if group.bare and group.since is None and self._groups.get(group.id) is group:
            self._forget(group)

    def _forget(self, group: Group) -> None:
        del self._groups[group.id]
        self._cancel(group)

    def _schedule(self, group: Group) -> None:
        deadline = group.deadline
        # A timer that goes off too early is set again then. So a heartbeat costs none.
        if deadline is None or deadline >= group.wakes or self._closed:
            return
        self._cancel(group)
        group.wakes = deadline
        delay = max(0.0, deadline - self._clock.monotonic())
        self._timers[group] = self._clock.call_later(delay, partial(self._wake, group))

    def _cancel(self, group: Group) -> None:
        group.wakes = math.inf
        timer = self._timers.pop(group, None)
        if timer is not None:
            timer.cancel()

    def _wake(self, group: Group) -> None:
        self._cancel(group)
        now = self._clock.monotonic()
        if group.consumer is None:
            self._do(group, group.classic.expire(now))
        else:
            self._do_consumer(group, group.consumer, group.consumer.expire(now))

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)


def _answer(ticket: object, answer: object) -> None:
    if isinstance(ticket, asyncio.Future) and not ticket.done():  # else its client is gone
        ticket.set_result(answer)


def _failed(answer: Answer | None, error: ErrorCode) -> Answer:
    if isinstance(answer, list):
        return [(member_id, instance_id, code or error) for member_id, instance_id, code in answer]
    if isinstance(answer, Joined):
        return Joined(error, answer.member_id)
    return Synced(error) if isinstance(answer, Synced) else HeartbeatAnswer(error)
