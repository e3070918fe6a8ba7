"""Group partition: the groups of one partition of `__consumer_offsets`. What changes is in its log first.

Here events from clients and timers reach the groups, and what the groups want done is done. Nothing waits here: whoever
asks gets a future.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from ingestd.broker.coordinator.records import CommitKey, Committed, GroupEntry, GroupKey
from ingestd.broker.groups.classic_group import ClassicGroup, Reply
from ingestd.broker.groups.classic_values import GroupState, Joined, Synced
from ingestd.broker.groups.group import Group
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ingestd.broker.clock import Clock
    from ingestd.broker.coordinator.coordinator_log import CoordinatorLog
    from ingestd.broker.coordinator.records import CoordinatorRecord
    from ingestd.broker.groups.classic_group import Action, Store
    from ingestd.broker.groups.classic_values import Join, Sync
    from ingestd.broker.groups.group import TopicPartition

__all__ = ["GroupPartition"]


class GroupPartition:
    """Groups by id, and the way of their changes into the log.

    Invariants
        Nothing is answered before `load` is through.
        An offset can be fetched when it is in the log, and on the disk with `Flush.always`. So it never goes back.
        A group's timer goes off at its deadline, or before.
    """

    def __init__(self, log: CoordinatorLog, clock: Clock, initial_delay: float) -> None:
        self.refusal: ErrorCode | None = ErrorCode.coordinator_load_in_progress
        """Why nothing is answered now; None if it is."""
        self._log = log
        self._clock = clock
        self._initial_delay = initial_delay
        self._groups: dict[str, Group] = {}
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
        entries: dict[str, GroupEntry] = {}
        offsets: dict[str, dict[TopicPartition, Committed]] = {}
        try:
            async for record in self._log.replay():
                _replay(record, entries, offsets)
        except BaseException:
            self.refusal = ErrorCode.coordinator_not_available
            raise
        now = self._clock.monotonic()
        for group_id in {**entries, **offsets}:
            entry = entries.get(group_id)
            group = self._made(group_id)
            group.offsets = offsets.get(group_id, {})
            if entry is not None:
                group.classic = ClassicGroup.restored(entry.stored, now, self._initial_delay)
                group.since = entry.since
            self._schedule(group)
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
        group = group or self._made(group_id)
        self._do(group, group.classic.join(asked, waiting, self._clock.monotonic()))
        return waiting

    def sync(self, group_id: str, asked: Sync) -> asyncio.Future[Synced]:
        """Done when the assignment is in the log."""
        waiting: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        group = self._groups.get(group_id)
        if group is None:
            waiting.set_result(Synced(ErrorCode.unknown_member_id))
        else:
            self._do(group, group.classic.sync(asked, waiting, self._clock.monotonic()))
        return waiting

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """The answer to a heartbeat."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        return group.classic.heartbeat(member_id, instance_id, generation, self._clock.monotonic())

    def leave(
        self, group_id: str, leaving: Sequence[tuple[str, str | None]]
    ) -> list[tuple[str, str | None, ErrorCode]]:
        """Remove members, each (member id, instance id). Returns them with what became of each."""
        group = self._groups.get(group_id)
        if group is None:
            return [(member_id, instance_id, ErrorCode.unknown_member_id) for member_id, instance_id in leaving]
        results, actions = group.classic.leave(leaving, self._clock.monotonic())
        self._do(group, actions)
        return results

    # Offsets.

    def commit(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        offsets: Mapping[TopicPartition, Committed],
    ) -> asyncio.Future[ErrorCode]:
        """Done when the offsets are in the log. `member`: member id, instance id, generation. Raises `KafkaError`."""
        group = self._groups.get(group_id)
        if group is None and member[2] >= 0:
            raise KafkaError(ErrorCode.group_id_not_found, group_id)
        group = group or self._made(group_id)
        group.classic.check_commit(*member, self._clock.monotonic())
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
            (CommitKey(group.id, topic, number), None) for topic, number in group.known_partitions
        ]
        if group.since is not None:
            records.append((GroupKey(group.id), None))
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
            vacant = group.classic.state is GroupState.empty and not group.classic.pending
            if vacant and gone == group.known_partitions:
                self.delete_group(group)
            elif gone:
                self.delete_offsets(group, gone)

    # What groups want done.

    def _made(self, group_id: str) -> Group:
        group = self._groups[group_id] = Group(group_id, ClassicGroup(self._initial_delay))
        return group

    def _do(self, group: Group, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                waiting = action.ticket
                assert isinstance(waiting, asyncio.Future)
                if not waiting.done():  # else its client is gone
                    waiting.set_result(action.answer)
            else:
                entry = GroupEntry(action.group, self._now_ms())
                self._append([(GroupKey(group.id), entry)], partial(self._stored, group, action, entry.since))
        self._schedule(group)
        self._forget_if_bare(group)

    def _stored(self, group: Group, store: Store, since: int, error: ErrorCode) -> None:
        if error is ErrorCode.none:
            group.since = since
        self._do(group, group.classic.stored(store, error, self._clock.monotonic()))

    def _append(
        self, records: Sequence[CoordinatorRecord], done: Callable[[ErrorCode], None]
    ) -> asyncio.Future[ErrorCode]:
        """Done, after `done`, when the records are in the log."""
        waiting: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settle(error: ErrorCode) -> None:
            done(error)
            if not waiting.done():
                waiting.set_result(error)

        if records:
            self._log.append(records, self._now_ms(), settle)
        else:
            settle(ErrorCode.none)
        return waiting

    def _forget_if_bare(self, group: Group) -> None:
        """Forget a group that was never stored. Others are forgotten when `expire` has deleted them."""
        if group.bare and group.since is None and self._groups.get(group.id) is group:
            self._forget(group)

    def _forget(self, group: Group) -> None:
        del self._groups[group.id]
        self._cancel(group)

    def _schedule(self, group: Group) -> None:
        deadline = group.classic.deadline
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
        self._do(group, group.classic.expire(self._clock.monotonic()))

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)


def _replay(
    record: CoordinatorRecord, entries: dict[str, GroupEntry], offsets: dict[str, dict[TopicPartition, Committed]]
) -> None:
    key, value = record
    if isinstance(key, GroupKey):
        if isinstance(value, GroupEntry):
            entries[key.group] = value
        else:
            entries.pop(key.group, None)
        return
    committed = offsets.setdefault(key.group, {})
    if isinstance(value, Committed):
        committed[key.topic, key.partition] = value
        return
    committed.pop((key.topic, key.partition), None)
    if not committed:
        del offsets[key.group]
