"""Transaction: a block of code whose records all become visible, or none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from ingestd.client.group import OffsetAndMetadata
from ingestd.errors import IngestdError
from ingestd.producer.transaction_state import TransactionState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from ingestd.client.group import GroupMember
    from ingestd.client.metadata import TopicPartition
    from ingestd.producer.transactions import Transactions
    from ingestd.records.decode import Record

__all__ = ["Transaction"]

_S = TransactionState


class Transaction:
    """Begins when the block is entered, and commits at its end. If an exception ends the block, it aborts.

    If the commit certainly failed (`TransactionFailed`), the transaction is aborted and the error is raised: the block
    may run again. `CommitOutcomeUnknown`: it may be committed. Then nothing is aborted, and `producer.commit` goes on
    asking. If the block itself committed or aborted, nothing more is done.
    """

    def __init__(self, transactions: Transactions, timeout: float) -> None:
        self._transactions = transactions
        self._timeout = timeout

    async def __aenter__(self) -> Self:
        await self._transactions.begin(self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._abort_because_of(error)
        elif self._transactions.state is not _S.READY:
            try:
                await self._transactions.commit(self._timeout)
            except BaseException as failed:
                await self._abort_because_of(failed)
                raise

    async def add_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: GroupMember) -> None:
        """See `AsyncProducer.add_offsets`."""
        await self._transactions.add_offsets(offsets, member, self._timeout)

    async def add_message(
        self, partition: TopicPartition, record: Record, member: GroupMember, *, metadata: str = ""
    ) -> None:
        """See `AsyncProducer.add_message`."""
        await self.add_offsets({partition: OffsetAndMetadata(record.offset + 1, metadata=metadata)}, member)

    async def _abort_because_of(self, error: BaseException) -> None:
        """Abort if that is possible. An abort that fails is noted on `error`, and the next `begin` finishes it."""
        if self._transactions.state not in (_S.IN_TRANSACTION, _S.ABORTABLE_ERROR, _S.ABORTING):
            return
        try:
            await self._transactions.abort(self._timeout)
        except IngestdError as trouble:
            error.add_note(f"the transaction was not aborted yet: {trouble}")
