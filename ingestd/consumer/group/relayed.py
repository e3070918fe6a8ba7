"""Relayed: a group's records for another thread. Callbacks are called in that thread too."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from ingestd.consumer.group.group_records import GroupRecords
from ingestd.tasks import end_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.group.consumer_group import ConsumerGroup
    from ingestd.consumer.group.consumer_group_session import ConsumerGroupSession
    from ingestd.consumer.group.membership import Topics
    from ingestd.records.decode import Record

__all__ = ["Callback", "Relayed", "RelayedCall"]

Callback: TypeAlias = "Callable[[Sequence[TopicPartition]], object]"
"""Called with partitions that were assigned, revoked or lost."""

_PATIENCE: Final = 0.5
"""Share of the time for the callback in which the reader must come for it, after what it processes now."""


class RelayedCall:
    """A callback that waits for the reader's thread."""

    __slots__ = ("begun", "callback", "done", "partitions")

    def __init__(self, callback: Callback, partitions: Sequence[TopicPartition]) -> None:
        self.callback = callback
        self.partitions = partitions
        self.begun = asyncio.Event()
        self.done = asyncio.Event()


class Relayed(GroupRecords):
    """Made by `SyncConsumerGroup`. Its thread calls `ready` on the loop, and the methods that give records directly.

    Invariants
        Callbacks are called in the order in which their causes came.
        A rebalance waits for the callback to begin, for a share of the rebalance timeout, and then for its end. If the
        reader does not come in time for `revoked`, `lost` is called later.
    """

    def __init__(
        self,
        group: ConsumerGroup,
        topics: Topics,
        callbacks: tuple[Callback | None, Callback | None, Callback | None],
        *,
        check_crcs: bool,
    ) -> None:
        super().__init__(group, topics, check_crcs=check_crcs)
        self._on_assigned, self._on_revoked, self._on_lost = callbacks
        self._closing: asyncio.Task[None] | None = None
        self.calls: deque[RelayedCall] = deque()
        """The callbacks that the reader's thread must call, the oldest first."""

    # As `ConsumerGroupHandler`

    async def assigned(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        """Wait for the reader to have been told."""
        if self._on_assigned is not None:
            await self._relay(self._on_assigned, partitions).done.wait()

    async def revoked(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        """Wait until the reader was told. If it does not come, it has lost the partitions."""
        self._forget_seeks(partitions)
        if self._on_revoked is None:
            return
        call = self._relay(self._on_revoked, partitions)
        coming = asyncio.ensure_future(call.begun.wait())
        try:
            await asyncio.wait({coming}, timeout=session.hook_seconds * _PATIENCE)
            if call.begun.is_set():
                await call.done.wait()
        finally:
            await end_task(coming)
            if not call.begun.is_set():
                call.callback = self._on_lost or self._on_revoked

    async def lost(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        """Tell the reader later, and wait for nothing."""
        self._forget_seeks(partitions)
        callback = self._on_lost or self._on_revoked
        if callback is not None:
            self._relay(callback, partitions)

    def _relay(self, callback: Callback, partitions: Sequence[TopicPartition]) -> RelayedCall:
        call = RelayedCall(callback, partitions)
        self.calls.append(call)
        self._news.set()
        return call

    def _called(self) -> bool:
        return bool(self.calls)

    # For the reader's thread

    def at_hand(self) -> Record | None:
        """The next record, if there is one at hand. Does not ask the loop."""
        turn = self._turn
        if turn is None or self._held or self.calls or turn.claim.ended:
            return None
        record = next(turn.rest, None)
        if record is None:
            return self.give_one()
        self._last = record
        return record

    # On the loop

    def take_call(self) -> RelayedCall:
        """The next callback to call. After it `end_call` must be called."""
        call = self.calls.popleft()
        call.begun.set()
        return call

    def end_call(self, call: RelayedCall) -> None:
        """The call was made."""
        call.done.set()

    def begin_close(self, timeout: float, *, processed: bool) -> None:
        """Close the group within `timeout` seconds, in a task. `processed`: whether the last records given are."""
        self.finish_reading(processed=processed)
        self._closing = self._tasks.start(self._group.close(timeout), "close a group")
        self._closing.add_done_callback(lambda _: self._news.set())

    async def closed_or_called(self) -> bool:
        """Wait for the group's end. False: a callback must be called first. Raises what closing raised."""
        assert self._closing is not None
        while not self._closing.done():
            if self.calls:
                return False
            self._news.clear()
            await self._news.wait()
        self._closing.result()
        return not self.calls
