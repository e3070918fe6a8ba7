"""Transactions: begins, commits and aborts them for one producer, one after the other."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

from ingestd.errors import (
    Closed,
    CommitOutcomeUnknown,
    DeadlineExceeded,
    ErrorCode,
    IngestdError,
    KafkaError,
    TransactionFailed,
    is_retriable,
)
from ingestd.producer.transaction_coordinator import fencing
from ingestd.producer.transaction_members import TransactionMembers
from ingestd.producer.transaction_state import TransactionState, TransactionStates
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from ingestd.client.group import GroupMember, OffsetAndMetadata
    from ingestd.client.metadata import TopicPartition
    from ingestd.producer.events import ProducerEvents
    from ingestd.producer.identity import ProducerIdentity
    from ingestd.producer.settings import ProducerSettings
    from ingestd.producer.transaction_coordinator import TransactionCoordinator
    from ingestd.tasks import TaskOwner

__all__ = ["Records", "TransactionEvents", "Transactions"]

_S = TransactionState

_NOTHING_OPEN: Final = frozenset(
    {ErrorCode.invalid_txn_state, ErrorCode.invalid_producer_id_mapping, ErrorCode.unknown_producer_id}
)
"""The answers to an abort from a coordinator that never heard of the transaction, or forgot the producer."""


class Records(Protocol):
    """What a transaction needs of the stages that hold its records."""

    async def flush(self, deadline: Deadline, doing: str) -> None:
        """Send all open batches, and wait until everything accepted is done. Raises `DeadlineExceeded`."""
        ...

    def give_up(self, error: IngestdError) -> None:
        """Fail everything that is not in flight, and try nothing again that is."""
        ...

    def fatal(self, error: IngestdError) -> None:
        """The producer cannot go on."""
        ...


class Transactions:
    """The life of one transactional id in one producer.

    Invariants
        A commit is sent only when every record of the transaction is acknowledged.
        Once a commit may have been sent, no abort is sent, and nobody is told of one. The outcome is asked for until it
        is known.
        Nothing of the next transaction is sent before the last one has ended and the epoch of the next one is known.
        One call at a time. Other calls wait for their turn. `end` ends them all.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        settings: ProducerSettings,
        tasks: TaskOwner,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called after every change of the state. `records` is set before anything is called."""
        assert settings.transactional_id is not None
        self._id = settings.transactional_id
        self._coordinator = coordinator
        self._states = TransactionStates(self._id, changed)
        self._turn = asyncio.Lock()
        self._identity: ProducerIdentity | None = None
        self._stale = False
        self._commit_sent = False
        self._scope: asyncio.Timeout | None = None
        self._closed = False
        self.members = TransactionMembers(coordinator, settings, tasks, self.failed)
        self.records: Records

    @property
    def state(self) -> TransactionState:
        """Where the producer stands."""
        return self._states.current

    @property
    def error(self) -> IngestdError | None:
        """What led to an error state."""
        return self._states.error

    def status(self) -> dict[str, str | int | bool | None]:
        """For bug reports."""
        identity = self._identity
        return {
            "state": self.state.value,
            "error": None if self.error is None else str(self.error),
            "producer_id": None if identity is None else identity.producer_id,
            "producer_epoch": None if identity is None else identity.epoch,
            "implicit": self.members.implicit,
            "commit_sent": self._commit_sent,
        }

    def require_open(self, doing: str) -> None:
        """Raise the reason if records are not accepted now."""
        if self.state is _S.ABORTABLE_ERROR:
            raise self._doomed()
        self._states.require(doing, _S.IN_TRANSACTION)

    # What the stages tell

    def failed(self, error: IngestdError) -> None:
        """A part of the transaction failed. It can only be aborted. After a fatal error it cannot even be aborted."""
        if isinstance(error, KafkaError) and error.fatal:
            self.records.fatal(error)
        elif self.state is _S.IN_TRANSACTION or (self.state is _S.COMMITTING and not self._commit_sent):
            self._states.enter(_S.ABORTABLE_ERROR, error)

    def ended(self, error: IngestdError) -> IngestdError:
        """The producer as a whole cannot go on. Returns the error to raise from now on."""
        if isinstance(error, KafkaError) and not error.detail.startswith(self._id):
            error = fencing(KafkaError(error.code, f"{self._id}: {error.detail}"))
        if self.state is not _S.FATAL_ERROR:
            self._states.enter(_S.FATAL_ERROR, error)
        return error

    # What the producer's user calls

    async def initialize(self, timeout: float) -> None:
        """Fence all earlier producers with this transactional id, and abort the transaction that one left open.

        Raises `DeadlineExceeded` (then it may be called again), `KafkaError`, `WrongTransactionState`.
        """
        deadline = Deadline.after(timeout)
        async with self._in_turn("init_transactions", deadline):
            self._states.require("init_transactions", _S.UNINITIALIZED)
            await self._initialize(deadline)

    async def _initialize(self, deadline: Deadline) -> None:
        self._states.enter(_S.INITIALIZING)
        try:
            self._identity = await self._coordinator.initialize(self._identity, deadline)
        except IngestdError as error:
            if is_retriable(error):
                self._states.enter(_S.UNINITIALIZED)
            else:
                self.records.fatal(error)
            raise
        except BaseException:
            self._states.enter(_S.UNINITIALIZED)
            raise
        self._stale = False
        self._states.enter(_S.READY)

    async def begin(self, timeout: float) -> None:
        """Open a transaction. Asks the cluster only to finish an abort, or for a new epoch after one.

        Raises `WrongTransactionState`, `DeadlineExceeded` (then it may be called again), `KafkaError`.
        """
        deadline = Deadline.after(timeout)
        async with self._in_turn("begin", deadline):
            if self.state is _S.ABORTING:
                await self._abort(deadline)
            if self._stale and self.state in (_S.READY, _S.UNINITIALIZED):
                await self._initialize(deadline)
            self._states.require("begin", _S.READY)
            assert self._identity is not None
            self.members.open(self._identity, implicit=self._coordinator.implicit)
            self._states.enter(_S.IN_TRANSACTION)

    async def add_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: GroupMember, timeout: float
    ) -> None:
        """Make offsets of a group visible with the transaction, and not without it.

        Raises `KafkaError`, `DeadlineExceeded`. After each of them, and after a cancellation, the transaction can only
        be aborted.
        """
        deadline = Deadline.after(timeout)
        async with self._in_turn("add_offsets", deadline):
            self.require_open("add_offsets")
            for partition, position in offsets.items():
                if position.offset < 0:
                    raise ValueError(f"{partition}: offset {position.offset}; expected 0 or more")
            if not offsets:
                return
            try:
                await self.members.add_offsets(offsets, member, deadline)
            except IngestdError as error:
                # Here the group's member may be fenced (by the successor of a static one), and not the producer.
                if isinstance(error, KafkaError) and error.code is ErrorCode.fenced_instance_id:
                    self._doom(error)
                else:
                    self.failed(error)
                raise
            except BaseException as error:
                self._doom(TransactionFailed(f"add_offsets was ended by {error!r}"))
                raise

    async def commit(self, timeout: float) -> None:
        """Wait until every record is acknowledged, then commit.

        Raises `TransactionFailed` (certainly not committed; now abort), `CommitOutcomeUnknown` (call it again),
        `ProducerFenced` (certainly not committed), `WrongTransactionState`.
        """
        deadline = Deadline.after(timeout)
        async with self._in_turn("commit", deadline):
            if self.state is not _S.COMMITTING:
                self.require_open("commit")
                self._states.enter(_S.COMMITTING)
                await self._acknowledge(deadline)
            await self._commit(deadline)

    async def _acknowledge(self, deadline: Deadline) -> None:
        """Wait for every record. No commit was sent yet. If anything goes wrong, none will be."""
        try:
            await self.records.flush(deadline, "committing: waiting for acknowledgements")
        except DeadlineExceeded as error:
            self.failed(error)
        except BaseException:
            self._doom(TransactionFailed("the commit was cancelled before it was sent"))
            raise
        if self.state is _S.ABORTABLE_ERROR:
            raise self._doomed() from self.error
        self._states.require("commit", _S.COMMITTING)

    async def _commit(self, deadline: Deadline) -> None:
        members = self.members
        assert members.identity is not None
        if members.empty:
            self._close(members.identity)
            return
        asked_before = self._commit_sent
        # Until there is an answer, also when this is cancelled.
        self._commit_sent = True
        try:
            await self._end(commit=True, deadline=deadline)
        except CommitOutcomeUnknown as unknown:
            self._outcome_unknown(unknown.__cause__)
            raise
        except IngestdError as error:
            if asked_before:
                self._outcome_unknown(error)
                raise CommitOutcomeUnknown(f"the commit was sent and its answer was lost; now: {error}") from error
            self._commit_sent = False
            self.failed(error)
            if self.state is _S.FATAL_ERROR:
                raise
            raise self._doomed() from error

    def _outcome_unknown(self, cause: BaseException | None) -> None:
        """The coordinator refuses to answer, so the outcome stays unknown. To call it aborted could be wrong."""
        if isinstance(cause, IngestdError) and not is_retriable(cause):
            self.records.fatal(cause)

    async def abort(self, timeout: float) -> None:
        """Abort the transaction: fail what is not sent, wait for what is, then ask for the abort.

        Raises `DeadlineExceeded` (call it again, or `begin`), `ProducerFenced`, `KafkaError`, `WrongTransactionState`.
        """
        deadline = Deadline.after(timeout)
        async with self._in_turn("abort", deadline):
            self._states.require("abort", _S.IN_TRANSACTION, _S.ABORTABLE_ERROR, _S.ABORTING)
            await self._abort(deadline)

    async def _abort(self, deadline: Deadline) -> None:
        if self.state is not _S.ABORTING:
            because = TransactionFailed("the transaction was aborted") if self.error is None else self._doomed()
            self._states.enter(_S.ABORTING)
            self.members.stop_adding()
            self.records.give_up(because)
        await self.records.flush(deadline, "aborting: waiting for what is in flight")
        self._states.require("abort", _S.ABORTING)
        members = self.members
        assert members.identity is not None
        if members.empty:
            self._close(members.identity)
            return
        try:
            await members.make_sure_of_start(deadline)
            await self._end(commit=False, deadline=deadline)
        except KafkaError as error:
            if error.code in _NOTHING_OPEN:
                # Asking for the next epoch tells whether the producer is fenced.
                members.hole = True
                self._close(members.identity)
                return
            if not is_retriable(error):
                self.records.fatal(error)
            raise

    async def _end(self, *, commit: bool, deadline: Deadline) -> None:
        members = self.members
        assert members.identity is not None
        try:
            ended = await self._coordinator.end(
                members.identity, commit=commit, implicit=members.implicit, deadline=deadline
            )
        except BaseException:
            # A lost request may arrive late, and would end the next transaction of the same epoch.
            members.hole = True
            raise
        members.hole = members.hole or ended.repeated
        self._close(ended.identity)

    def _close(self, following: ProducerIdentity) -> None:
        members = self.members
        self._stale = members.hole and following == members.identity
        self._identity = following
        self._commit_sent = members.hole = False
        members.close()
        self._states.enter(_S.READY)

    async def close(self, timeout: float) -> None:
        """End the open transaction, if the cluster lets us. A commit that may have been sent is repeated; else abort.

        Raises what `commit` and `abort` raise.
        """
        deadline = Deadline.after(timeout)
        async with self._in_turn("close", deadline):
            if self.state is _S.COMMITTING:
                await self._commit(deadline)
            elif self.state.open:
                await self._abort(deadline)
                # A block that goes on meanwhile must not end as if it had committed by itself.
                self._states.enter(_S.FATAL_ERROR, Closed("the producer was closed, its transaction aborted"))

    def end(self) -> None:
        """The producer is closed: the call that is under way, and every later one, ends with `Closed`."""
        self._closed = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    # How it is done

    def _doom(self, error: IngestdError) -> None:
        if self.state in (_S.IN_TRANSACTION, _S.COMMITTING):
            self._states.enter(_S.ABORTABLE_ERROR, error)

    def _doomed(self) -> TransactionFailed:
        return TransactionFailed(f"{self._id}: the transaction can only be aborted, because: {self.error}")

    @asynccontextmanager
    async def _in_turn(self, doing: str, deadline: Deadline) -> AsyncIterator[None]:
        await deadline.wait_for(self._turn.acquire(), f"{doing}: waiting for another call of the same producer")
        scope = asyncio.timeout(None)
        try:
            if self._closed:
                raise Closed(f"{doing}: the producer was closed")
            async with scope:
                self._scope = scope
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            if self._commit_sent:
                raise CommitOutcomeUnknown("the producer was closed before the commit was answered") from None
            raise Closed(f"{doing}: the producer was closed") from None
        finally:
            self._scope = None
            self._turn.release()


class TransactionEvents:
    """Passes the producer's events on, and tells the transaction of failures. See `ProducerEvents`."""

    def __init__(self, failed: Callable[[IngestdError], None], events: ProducerEvents | None) -> None:
        self._failed = failed
        self._events = events

    def acknowledged(self, topic: str, partition: int, records: int, size: int, seconds: float) -> None:
        """See `ProducerEvents`."""
        if self._events is not None:
            self._events.acknowledged(topic, partition, records, size, seconds)

    def retried(self, topic: str, partition: int, error: IngestdError) -> None:
        """See `ProducerEvents`."""
        if self._events is not None:
            self._events.retried(topic, partition, error)

    def failed(self, topic: str, partition: int, records: int, error: IngestdError) -> None:
        """See `ProducerEvents`."""
        self._failed(error)
        if self._events is not None:
            self._events.failed(topic, partition, records, error)

    def throttled(self, node: int, seconds: float) -> None:
        """See `ProducerEvents`."""
        if self._events is not None:
            self._events.throttled(node, seconds)
