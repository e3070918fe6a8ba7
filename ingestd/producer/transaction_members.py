"""Transaction members: the partitions of the open transaction. Each is added before its first batch goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ingestd.client.metadata import TopicPartition
from ingestd.errors import IngestdError
from ingestd.retry import Deadline

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

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
        """Fail what is not in flight, and all that comes until the transaction has ended."""
        ...

    def leave(self) -> None:
        """The transaction has ended; nothing is queued and nothing in flight."""
        ...


class TransactionMembers:
    """Knows who belongs to the open transaction, and has the coordinator told in time.

    Invariants
        No batch goes before its partition was added, unless the broker adds it by itself (`implicit`).
        Partitions that are touched while a question is under way share the next one.
        `hole` is set when sequences of this epoch were given to batches that may not be in the log, or when a late
        request of this epoch may still arrive: the epoch can end this transaction, and begin no other.
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
        self.groups = 0
        """Questions about offsets of groups."""

    @property
    def empty(self) -> bool:
        """Whether the coordinator has heard nothing of this transaction: there is nothing to end."""
        return not self._members and not self.groups

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
        """Have `member.added` called as soon as its batches may go: at once where the broker adds it by itself."""
        assert self.identity is not None
        self._members[member] = None
        if self.implicit:
            member.added(self.identity)
            return
        self._wanted.append(member)
        if self._adding is None:
            self._adding = self._tasks.start(self._add(self.identity), f"{self.transactional_id}: add partitions")

    def doomed(self, member: Member) -> None:
        """`member` refuses everything until the transaction has ended, and is told that as well."""
        self._doomed[member] = None

    async def _add(self, identity: ProducerIdentity) -> None:
        deadline = Deadline.after(self._timeout)
        asked: list[Member] = []
        try:
            while self._wanted:
                asked, self._wanted = self._wanted, []
                partitions = [TopicPartition(member.topic, member.partition) for member in asked]
                await self._coordinator.add_partitions(identity, partitions, deadline)
                for member in asked:
                    member.added(identity)
        except IngestdError as error:
            self.hole = True
            refused, self._wanted = [*asked, *self._wanted], []
            self._failed(error)
            for member in refused:
                member.doom(error)
        finally:
            self._adding = None

    def stop_adding(self) -> None:
        """The transaction ends without those that are not added yet."""
        self._wanted = []
        if self._adding is not None:
            # What was asked may take effect after the transaction's end.
            self.hole = True
            self._adding.cancel()

    def close(self) -> None:
        """The transaction has ended."""
        members = self._members | self._doomed
        self._members, self._doomed = {}, {}
        self.groups = 0
        for member in members:
            member.leave()
