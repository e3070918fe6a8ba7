"""Aborted: which batches of a fetch answer are hidden from a reader of committed records."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ingestd.records.decode import ControlKind, decode_control

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.records.batch import BatchHeader

__all__ = ["AbortedFilter"]


class AbortedFilter:
    """Follows the batches of one answer in order of offset, and the transactions that the answer names as aborted.

    A producer's batches are hidden from the first offset of its aborted transaction up to the abort marker. There is
    one filter for each partition and answer: a broker names all aborted transactions among the answer's offsets.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted`: (producer id, first offset) as the answer has them."""
        self._coming = deque(sorted(aborted, key=lambda transaction: transaction[1]))
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether this batch, the next in order, is hidden from the reader: aborted, or a control batch.

        Raises `CorruptBatch` where an aborted transaction is open and the marker of a control batch can not be read.
        """
        if not self._coming and not self._open:
            return header.control
        while self._coming and self._coming[0][1] <= header.last_offset:
            self._open.add(self._coming.popleft()[0])
        if header.control:
            # If compaction took the marker, an empty batch is left. The transaction's records were taken before it.
            if header.producer_id in self._open and any(
                marker.kind is ControlKind.abort for marker in decode_control(batch)
            ):
                self._open.discard(header.producer_id)
            return True
        return header.transactional and header.producer_id in self._open
