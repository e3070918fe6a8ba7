"""Which batches of a log, read in order, belong to aborted transactions, and which markers have no batches any more."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ingestd.records.decode import ControlKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.broker.log.transactions import AbortedTransaction
    from ingestd.records.batch import BatchHeader
    from ingestd.records.decode import ControlMarker

__all__ = ["EndedTransactions"]


class EndedTransactions:
    """Told every batch from some offset on, in order. `aborted`: the transactions that were aborted from there on."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = deque(sorted(aborted, key=lambda one: one.first_offset))
        self._aborting: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()

    def aborted(self, header: BatchHeader) -> bool:
        """Whether a batch of records belongs to an aborted transaction."""
        self._begin(header)
        if not header.transactional:
            return False
        self._seen.add(header.producer_id)
        return header.producer_id in self._aborting

    def ended(self, header: BatchHeader, marker: ControlMarker) -> tuple[bool, AbortedTransaction | None]:
        """Whether batches of the transaction that a marker ends were seen; and the transaction, if it was aborted."""
        self._begin(header)
        seen = marker.producer_id in self._seen
        self._seen.discard(marker.producer_id)
        transaction = self._aborting.pop(marker.producer_id, None) if marker.kind is ControlKind.abort else None
        return seen, transaction

    def _begin(self, header: BatchHeader) -> None:
        while self._waiting and self._waiting[0].first_offset <= header.last_offset:
            one = self._waiting.popleft()
            self._aborting[one.producer_id] = one
