"""Transaction members: the partitions of the open transaction. Each is added before its first batch is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from ingestd.client.metadata import TopicPartition
from ingestd.errors import IngestdError
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingestd.client.group import GroupMember, OffsetAndMetadata
    from ingestd.producer.identity import ProducerIdentity
    from ingestd.producer.settings import ProducerSettings
    from ingestd.producer.transaction_coordinator import TransactionCoordinator
    from ingestd.tasks import TaskOwner

__all__ = ["Member", "TransactionMembers"]

_LAST_EXPLICIT_PRODUCE: Final = 11
"""From Produce version 12 on a batch adds its partition by itself (KIP-890)."""
_ANY_PRODUCE: Final = 0x7FFF


class Member(Protocol):
    """A partition's producer, as the transaction sees it."""

    topic: str
    partition: int

    def added(self, identity: ProducerIdentity) -> None:
        """It is part of the transaction: its batches may go, under this identity."""
        ...

    def doom(self, error: IngestdError) -> None:
        """Fail what is not in flight, and everything new until the transaction has ended."""
        ...

    def leave(self) -> None:
        """The transaction has ended; nothing is queued and nothing in flight."""
        ...


class TransactionMembers:
    """Knows which partitions belong to the open transaction, and adds them at the coordinator in time.

    Invariants
        No batch is sent before its partition was added, unless the broker adds it by itself (`implicit`).
        Partitions that come while a request is under way share the next one.
        `hole` is set if batches that may not be in the log have sequences of this epoch, or if a late request of this
        epoch may still arrive. Then the epoch can end this transaction, but cannot begin another.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        settings: ProducerSettings,
        tasks: TaskOwner,
        failed: Callable[[IngestdError], None],
    ) -> None:
        """`failed` is told when the coordinator refuses a partition."""
        self._coordinator = coordinator
        self._timeout = settings.transaction_timeout
        self._tasks = tasks
        self._failed = failed
        self._members: dict[Member, None] = {}
        self._doomed: dict[Member, None] = {}
        self._wanted: list[Member] = []
        self._adding: asyncio.Task[None] | None = None
        self.transactional_id = settings.transactional_id
        self.identity: ProducerIdentity | None = None
        self.implicit = False
        self.hole = False
        self.sent = False
        """Whether a batch of the transaction was sent."""
        self.started = False
        """Whether the coordinator certainly knows the transaction: a request about a part of it succeeded."""
        self._groups: dict[str, None] = {}

    @property
    def empty(self) -> bool:
        """Whether the coordinator has heard nothing of this transaction. Then there is nothing to end."""
        asked = self.sent if self.implicit else bool(self._members)
        return not asked and not self._groups

    @property
    def highest_produce(self) -> int:
        """The newest Produce version that batches of this transaction may travel in."""
        return _ANY_PRODUCE if self.implicit else _LAST_EXPLICIT_PRODUCE

    def open(self, identity: ProducerIdentity, *, implicit: bool) -> None:
        """A new transaction begins."""
        assert self.empty
        self.identity = identity
        self.implicit = implicit

    def add(self, member: Member) -> None:
        """Have `member.added` called as soon as its batches may go: at once if the broker adds it by itself."""
        assert self.identity is not None
        self._members[member] = None
        if self.implicit:
            member.added(self.identity)
            return
        self._wanted.append(member)
        if self._adding is None:
            self._adding = self._tasks.start(self._add(self.identity), f"{self.transactional_id}: add partitions")

    def doomed(self, member: Member) -> None:
        """`member` refuses everything until the transaction has ended. It is told of the end as well."""
        self._doomed[member] = None

    async def _add(self, identity: ProducerIdentity) -> None:
        deadline = Deadline.after(self._timeout)
        asked: list[Member] = []
        try:
            while self._wanted:
                asked, self._wanted = self._wanted, []
                partitions = [TopicPartition(member.topic, member.partition) for member in asked]
                if await self._coordinator.add_partitions(identity, partitions, deadline):
                    self.hole = True
                self.started = True
                for member in asked:
                    member.added(identity)
        except Exception as damage:  # noqa: BLE001 - whatever a coordinator raises, who waits is told
            error = damage if isinstance(damage, IngestdError) else IngestdError(repr(damage))
            self.hole = True
            refused, self._wanted = [*asked, *self._wanted], []
            self._failed(error)
            for member in refused:
                member.doom(error)
        finally:
            if self._adding is asyncio.current_task():
                self._adding = None

    def stop_adding(self) -> None:
        """The transaction ends. Those that are not added yet are not part of it."""
        self._wanted = []
        if self._adding is not None:
            # A request that is under way may take effect after the transaction's end.
            self.hole = True
            self._adding.cancel()
            # A task that is cancelled before its first step never comes to its `finally`.
            self._adding = None

    async def add_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: GroupMember, deadline: Deadline
    ) -> None:
        """Make offsets of a group part of the transaction. Raises as the coordinator does."""
        identity = self.identity
        assert identity is not None
        repeated = False
        new = member.group_id not in self._groups
        self._groups[member.group_id] = None
        try:
            if new and not self.implicit:
                repeated = await self._coordinator.add_group(identity, member.group_id, deadline)
                self.started = True
            repeated |= await self._coordinator.commit_offsets(
                identity, offsets, member, implicit=self.implicit, deadline=deadline
            )
        except BaseException:
            self.hole = True
            raise
        self.started = True
        self.hole = self.hole or repeated

    async def make_sure_of_start(self, deadline: Deadline) -> None:
        """Before an abort, if it is not known whether the coordinator knows the transaction: make sure that it does.

        If partitions add themselves, the markers of the transaction before may still be under way. Then the coordinator
        answers the abort of a transaction that it does not know with PRODUCER_FENCED.
        """
        if self.started or not self.implicit:
            return
        assert self.identity is not None
        if self._members:
            partitions = [TopicPartition(member.topic, member.partition) for member in self._members]
            await self._coordinator.add_partitions(self.identity, partitions, deadline)
        else:
            await self._coordinator.add_group(self.identity, next(iter(self._groups)), deadline)
        self.started = True

    def close(self) -> None:
        """The transaction has ended."""
        members = self._members | self._doomed
        self._members, self._doomed, self._groups = {}, {}, {}
        self.sent = self.started = False
        for member in members:
            member.leave()
