"""Turn: the batches that one answer brought of a claim. The reader of `GroupRecords` takes them in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING

from ingestd.client.group import OffsetAndMetadata
from ingestd.consumer.decoding import columns_of, records_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.consumer.group.claim import Claim
    from ingestd.records.columns import Columns
    from ingestd.records.decode import Record

__all__ = ["Turn"]


class Turn:
    """Decodes when the reader asks, in the form that it asks for. Each form goes on where the last one stopped.

    Invariants
        A batch that cannot be decoded raises each time. The records before it were given.
    """

    __slots__ = ("_batches", "_check_crcs", "_open", "begun", "claim", "done", "given", "opened_bytes", "rest")

    def __init__(self, claim: Claim, batches: Sequence[FetchedBatch], *, check_crcs: bool) -> None:
        self.claim = claim
        self.begun = False
        """Whether the reader reads it now. A rebalance waits until it is done."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.given: OffsetAndMetadata | None = None
        """The offset after the records that the reader got many at once. They are processed when it asks for more."""
        self.rest: Iterator[Record] = iter(())
        """The records of the open batch that were not given yet."""
        self.opened_bytes = 0
        """Bytes of the batches that were opened since the reader last let others run."""
        self._batches = deque(batches)
        self._open: FetchedBatch | None = None
        self._check_crcs = check_crcs

    @property
    def left(self) -> bool:
        """Whether there is something to give yet."""
        return length_hint(self.rest) > 0 or bool(self._batches)

    @property
    def most(self) -> int:
        """How many records that is at most."""
        return length_hint(self.rest) + sum(batch.header.records for batch in self._batches)

    def open_next(self) -> bool:
        """Decode the next batch that has records into `rest`; False: there is none. Raises `CorruptBatch`."""
        while self._batches:
            records = records_of(self._batches[0], self.claim.key, check_crc=self._check_crcs)
            self._open = self._batches.popleft()
            self.opened_bytes += len(self._open.data)
            if records:
                self.rest = iter(records)
                return True
        return False

    def chunk(self, most: int) -> list[Record]:
        """Up to `most` records of one batch; none: nothing is left. Raises `CorruptBatch`."""
        if not length_hint(self.rest) and not self.open_next():
            return []
        records = list(islice(self.rest, most))
        self.given = OffsetAndMetadata(records[-1].offset + 1, records[-1].leader_epoch)
        return records

    def columns(self) -> Columns | None:
        """What is left of one batch, as columns; None: nothing is left. Raises `CorruptBatch`."""
        self._close_open()
        while self._batches:
            batch = self._batches[0]
            columns = columns_of(batch, check_crc=self._check_crcs)
            self._batches.popleft()
            self.given = OffsetAndMetadata(batch.next_offset, batch.header.leader_epoch)
            if columns.count:
                return columns
        return None

    def mark(self) -> None:
        """The reader has processed the records that it got many at once."""
        if self.given is not None:
            self.claim.mark_offset(self.given.offset, leader_epoch=self.given.leader_epoch)
            self.given = None

    def end(self) -> None:
        """The reader is done with it."""
        if not self.done.done():
            self.done.set_result(None)

    def _close_open(self) -> None:
        """Put the rest of the open batch back, to be given in another form."""
        following = next(self.rest, None)
        if following is not None and self._open is not None:
            self._batches.appendleft(self._open._replace(first=following.offset))
        self.rest = iter(())
