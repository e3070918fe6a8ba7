"""Group records: the records of a group's member as one stream, one by one or many at once. Reading marks them."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from ingestd.checks import is_of, require_mapping, require_several
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.handler import ConsumerGroupHandler
from ingestd.consumer.group.membership import EndReason
from ingestd.consumer.group.turn import Turn
from ingestd.errors import Closed, ConfigurationError, DeadlineExceeded, ErrorCode, IngestdError, KafkaError
from ingestd.retry import Deadline
from ingestd.tasks import TaskOwner, end_task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import TracebackType

    from ingestd.consumer.group.claim import Claim
    from ingestd.consumer.group.consumer_group import ConsumerGroup
    from ingestd.consumer.group.consumer_group_session import ConsumerGroupSession
    from ingestd.consumer.group.membership import Topics
    from ingestd.consumer.settings import Start
    from ingestd.records.columns import Columns
    from ingestd.records.decode import Record

__all__ = ["GroupRecords", "most_of"]

_FAIR_BYTES: Final = 1024 * 1024
"""Bytes after which a reader that never has to wait lets other tasks run."""
_LEAVE_SECONDS: Final = 10.0
"""Seconds for the end of the session when the block is left, with its final commit."""


class GroupRecords(ConsumerGroupHandler):
    """Made by `ConsumerGroup.subscribe`. An async context manager, and an async iterator over records, for one task.

    `async for` gives records one by one. `take_chunks` and `take_columns` give many at once, by partition. `poll` waits
    for one record, with a timeout. Each goes on where the last one stopped. Records that were given count as processed
    when more is asked for, when `commit` is called, and when the block ends without an exception. All others are read
    again. Partitions take turns. A turn is what one fetch brought.

    An error that ends consuming is raised once. Asking again joins again.

    The end of the block ends the session, with the final commit. The group stays open for the next `subscribe`.

    Invariants
        A record that was not given is never marked.
        A rebalance waits for the reader to ask for more, within the rebalance timeout. If a partition goes to another
        member, its records that were not given yet are dropped.
        At most the batches of one fetch of each partition wait for the reader.
    """

    def __init__(self, group: ConsumerGroup, topics: Topics, *, check_crcs: bool) -> None:
        self._group = group
        self._topics = topics
        self._check_crcs = check_crcs
        self._tasks = TaskOwner(lambda _: None)  # the reader is told
        self._line: deque[Turn] = deque()
        self._news = asyncio.Event()
        self._turn: Turn | None = None
        """The turn whose records the reader gets now."""
        self._last: Record | None = None
        """Its last record that was given one by one."""
        self._following: deque[Turn] = deque()
        """The turns after it."""
        self._held: list[Turn] = []
        """The turns of which the reader got many records at once."""
        self._paused: set[TopicPartition] = set()
        self._sought: dict[TopicPartition, Start] = {}
        self._consuming: asyncio.Task[None] | None = None
        self._left = False

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish_reading(processed=kind is None)
        session = self._group.session
        try:
            if session is not None and session.claims and self._consuming is not None:
                session.end(EndReason.cancelled, within=_LEAVE_SECONDS)
                await asyncio.wait({self._consuming}, timeout=_LEAVE_SECONDS)
        finally:
            await self._tasks.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record. Raises what ended consuming: `KafkaError`, `PollIntervalExceeded`, `CorruptBatch`."""
        if (last := self._last) is not None and (turn := self._turn) is not None:
            turn.claim.mark(last)
            record = None if turn.claim.ended else next(turn.rest, None)
            self._last = record
            if record is not None:
                return record
        try:
            while True:
                await self.ready(None, 1)
                if (record := self.give_one()) is not None:
                    return record
        except Closed:
            raise StopAsyncIteration from None

    async def poll(self, timeout: float = 1.0) -> Record | None:
        """The next record; None: there was none for `timeout` seconds. Raises what `take_chunks` raises."""
        deadline = Deadline.after(timeout)
        while await self.ready(deadline, 1):
            if (record := self.give_one()) is not None:
                return record
        return None

    async def take_chunks(
        self, timeout: float = 1.0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """All records at hand, by partition, up to `max_records`. Other clients call this `getmany` or `consume`.

        Waits up to `timeout` seconds for the first one. Empty: there was none. Raises what ended consuming:
        `KafkaError`, `PollIntervalExceeded`, `CorruptBatch` (after the records before it). Raises `Closed` after the
        group's end.
        """
        most, deadline = most_of(max_records), Deadline.after(timeout)
        while await self.ready(deadline, most):
            if found := self.give_chunks(most):
                return found
        return {}

    async def take_columns(
        self, timeout: float = 1.0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Columns]]:
        """All records at hand as columns, by partition, one value for each record batch. Otherwise as `take_chunks`.

        The batches of one fetch of a partition are given together, so there may be more than `max_records`.
        """
        most, deadline = most_of(max_records), Deadline.after(timeout)
        while await self.ready(deadline, most):
            if found := self.give_columns():
                return found
        return {}

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit what was given, which counts as processed now; or commit `offsets`, the next ones to read.

        `timeout`: seconds; None: `GroupSettings.commit_timeout`. Raises `KafkaError`; it is REBALANCE_IN_PROGRESS if
        the partition was given up meanwhile (its new owner gets the records again). Raises `IngestdError` for a
        partition that is not assigned, `DeadlineExceeded`, `Closed`.
        """
        session = self._group.session
        if offsets is not None:
            require_mapping("offsets", offsets, '{("orders", 0): 42}')
            explicit = {TopicPartition(*key): _explicit(key, offset) for key, offset in offsets.items()}
            for key in explicit:
                self._claim(key)
            if session is not None:
                await session.commit_offsets(explicit, timeout)
            return
        given = [turn.claim for turn in self._held if turn.given is not None]
        if self._turn is not None and self._last is not None:
            given.append(self._turn.claim)
        for claim in given:
            if claim.released:
                raise KafkaError(ErrorCode.rebalance_in_progress, f"{claim.key} was given up before it was committed")
        self._mark_given()
        if session is not None:
            await session.commit(timeout)

    async def seek(self, partition: TopicPartition, start: Start) -> None:
        """Go on from another start in `partition`. Forgets records that were fetched, or given and not committed.

        The new offset counts as marked: the next commit commits it. Raises `IngestdError` for a partition that is not
        assigned, and what `PartitionConsumer.seek` raises.
        """
        claim = self._claim(partition)
        if claim is None:  # assigned, not begun
            self._sought[partition] = start
            return
        offset = await claim.seek(start)
        if self._turn is not None and self._turn.claim is claim:
            self._turn.end()
            self._turn = self._last = None
        for turn in (*self._line, *self._following, *self._held):
            if turn.claim is claim:
                turn.given = None
                turn.end()
        self._line = deque(turn for turn in self._line if turn.claim is not claim)
        self._following = deque(turn for turn in self._following if turn.claim is not claim)
        self._held = [turn for turn in self._held if turn.claim is not claim]
        claim.reset_offset(offset)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Give and fetch no records of these partitions until they are resumed. Causes no rebalance."""
        self._group.pause(partitions)
        self._paused.update(partitions)
        if (turn := self._turn) is not None and turn.claim.key in self._paused:
            if self._last is not None:
                turn.given = OffsetAndMetadata(self._last.offset + 1, self._last.leader_epoch)
                self._held.append(turn)
            self._turn = self._last = None
            turn.begun = False
            turn.claim.idle = True
            self._line.appendleft(turn)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Give these again."""
        self._group.resume(partitions)
        self._paused.difference_update(require_several("partitions", partitions))
        self._news.set()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """What `pause` paused."""
        return frozenset(self._paused)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are ours now. None before the first rebalance is done, and while all are given up."""
        session = self._group.session
        return frozenset() if session is None else session.assignment

    async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:  # noqa: ARG002 - a handler's
        """See `ConsumerGroupHandler`: puts the batches of each answer in line for the reader."""
        if (start := self._sought.pop(claim.key, None)) is not None:
            claim.reset_offset(await claim.seek(start))
        ended = asyncio.ensure_future(claim.wait_ended())
        try:
            while (batches := await claim.take()) is not None:
                turn = Turn(claim, batches, check_crcs=self._check_crcs)
                # Nobody works on it before its turn. The first in line waits only for the reader.
                claim.idle = self._turn is not None or bool(self._line) or claim.key in self._paused
                self._line.append(turn)
                self._news.set()
                await asyncio.wait({turn.done, ended}, return_when=asyncio.FIRST_COMPLETED)
                if turn.begun:
                    await turn.done
                elif claim.ended:
                    return
        finally:
            await end_task(ended)

    async def revoked(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        """See `ConsumerGroupHandler`."""
        self._forget_seeks(partitions)

    async def lost(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        """See `ConsumerGroupHandler`."""
        self._forget_seeks(partitions)

    def _forget_seeks(self, partitions: Sequence[TopicPartition]) -> None:
        for key in partitions:
            self._sought.pop(key, None)

    def finish_reading(self, *, processed: bool) -> None:
        """Nothing more is asked for. `processed`: whether the last records given are. Earlier ones always are."""
        self._left = True
        if processed:
            self._mark_given()
        elif self._last is not None and self._turn is not None:
            self._turn.claim.mark_offset(self._last.offset)
        self._last = None
        for turn in self._held:
            turn.given = None
        self._release()
        if self._turn is not None:
            self._turn.end()
            self._turn = None

    def _start(self) -> None:
        self._consuming = self._tasks.start(self._consume(), "consume for a subscription")
        self._consuming.add_done_callback(lambda _: self._news.set())

    async def _consume(self) -> None:
        while not self._left and (await self._group.consume(self._topics, self)).reason is not EndReason.closed:
            pass

    # What the reader calls: first `ready`, then a method that gives something and touches nothing of the loop

    async def ready(self, deadline: Deadline | None, most: int) -> bool:
        """What was given before is processed. Wait for something to give, up to `most` records at hand.

        False: there was nothing until the deadline, or a callback waits for the reader. Raises what ended consuming;
        `Closed`.
        """
        self._mark_given()
        self._release()
        if self._turn is not None and self._turn.opened_bytes >= _FAIR_BYTES:
            self._turn.opened_bytes = 0
            await asyncio.sleep(0)
            self._release()
        if self._turn is None and not await self._some(deadline):
            return False
        assert self._turn is not None
        left = most - self._turn.most
        while left > 0 and (turn := self._first_in_line()) is not None:
            self._following.append(turn)
            left -= turn.most
        return True

    def give_one(self) -> Record | None:
        """The next record at hand. Raises `CorruptBatch`."""
        turn = self._turn
        if turn is None or turn.claim.ended:
            return None
        record = next(turn.rest, None)
        if record is None and turn.open_next():
            record = next(turn.rest)
        if record is not None:
            self._last = record
        return record

    def give_chunks(self, most: int) -> dict[TopicPartition, list[Record]]:
        """Up to `most` records at hand. Raises `CorruptBatch`."""
        found: dict[TopicPartition, list[Record]] = {}
        left = most

        def give(turn: Turn) -> bool:
            nonlocal left
            while left and (records := turn.chunk(left)):
                found.setdefault(turn.claim.key, []).extend(records)
                left -= len(records)
            return left > 0

        self._give(found, give)
        return found

    def give_columns(self) -> dict[TopicPartition, list[Columns]]:
        """All that is at hand. Raises `CorruptBatch`."""
        found: dict[TopicPartition, list[Columns]] = {}

        def give(turn: Turn) -> bool:
            while (columns := turn.columns()) is not None:
                found.setdefault(turn.claim.key, []).append(columns)
            return True

        self._give(found, give)
        return found

    def _give(self, found: Mapping[TopicPartition, Any], give: Callable[[Turn], bool]) -> None:
        """Have `give` fill `found` from the reader's turns, until it says that this is enough."""
        while (turn := self._turn) is not None:
            self._held.append(turn)
            try:
                if not give(turn):
                    return
            except IngestdError:
                if not found:
                    raise
                return  # raised by the next call: the records before it are good
            self._turn = self._following.popleft() if self._following else None

    async def _some(self, deadline: Deadline | None) -> bool:
        """Wait for a turn, and take it. False: there was none until the deadline, or a callback waits for the reader.

        Raises what ended consuming; `Closed`.
        """
        while (turn := self._first_in_line()) is None:
            if self._consuming is None:
                raise IngestdError("records of a group are read in a block: async with group.subscribe(…) as records")
            if self._consuming.done():
                error = self._consuming.exception()
                if error is None:
                    raise Closed("the group is closed")
                if not isinstance(error, Closed):
                    self._start()
                raise error
            if self._called() or (deadline is not None and deadline.expired):
                return False
            self._news.clear()
            await self._wait(deadline)
        turn.claim.idle = False
        self._turn = turn
        return True

    async def _wait(self, deadline: Deadline | None) -> None:
        """Wait for news, or the deadline."""
        if deadline is None:
            await self._news.wait()
            return
        with suppress(DeadlineExceeded):
            await deadline.wait_for(self._news.wait(), "records of a group")

    def _called(self) -> bool:
        """Whether a callback waits for the reader."""
        return False

    def _first_in_line(self) -> Turn | None:
        """Begin the first turn in line that is neither given up nor paused."""
        found: Turn | None = None
        passed: list[Turn] = []
        while self._line and found is None:
            turn = self._line.popleft()
            if turn.claim.ended:
                turn.end()
            elif turn.claim.key in self._paused:
                passed.append(turn)
                turn.claim.idle = True
            else:
                found = turn
                turn.begun = True
        self._line.extendleft(reversed(passed))
        return found

    def _mark_given(self) -> None:
        """What was given is processed."""
        if self._last is not None:
            if self._turn is not None:
                self._turn.claim.mark(self._last)
            self._last = None
        for turn in self._held:
            turn.mark()

    def _release(self) -> None:
        """A rebalance does not wait any more for what was given."""
        if (turn := self._turn) is not None and (turn.claim.ended or not turn.left):
            turn.end()
            self._turn = None
        for turn in self._held:
            if turn.claim.ended or not turn.left:
                turn.end()
        self._held.clear()
        while self._following:  # the reader was interrupted before it got them
            turn = self._following.pop()
            turn.begun = False
            self._line.appendleft(turn)

    def _claim(self, partition: TopicPartition) -> Claim | None:
        """The claim of an assigned partition. None: it has not begun yet. Raises `IngestdError` for others."""
        session = self._group.session
        if session is None or partition not in session.assignment:
            ours = ", ".join(map(str, sorted(self.assignment))) or "none is"
            raise IngestdError(f"{partition} is not assigned to this member; assigned: {ours}")
        return session.claims.get(partition)


def most_of(max_records: int | None) -> int:
    """How many records that is. Raises `ConfigurationError`."""
    if max_records is None:
        return sys.maxsize
    if not is_of(max_records, int) or max_records < 1:
        raise ConfigurationError(f"max_records: {max_records!r}; expected 1 or more, or None")
    return max_records


def _explicit(key: TopicPartition, offset: int | OffsetAndMetadata) -> OffsetAndMetadata:
    one = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
    if not is_of(one.offset, int) or one.offset < 0:
        raise ConfigurationError(f"offsets: {offset!r} for {key}; expected an offset, 0 or more")
    return one
