"""Fetched: one partition's part of an answer, cut into the whole batches that the reader may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ingestd.consumer.aborted import AbortedFilter
from ingestd.consumer.settings import Isolation
from ingestd.errors import IngestdError
from ingestd.records.batch import read_header
from ingestd.records.message_set import batches_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ingestd.records.batch import BatchHeader

__all__ = ["Fetched", "FetchedBatch", "cut"]

_MADE_BYTES = 16 * 1024 * 1024
"""Bytes of batches that are made of the old messages of one answer. Later messages are fetched again."""
_PINNED_SHARE = 4
"""A view keeps the memory of the whole answer. So a part smaller than this fraction of it is copied."""


class FetchedBatch(NamedTuple):
    """A whole record batch, as the broker keeps it or made of its old messages.

    Records below `first` or from `end` on are not for the reader.
    """

    header: BatchHeader
    data: memoryview
    first: int
    end: int | None

    @property
    def whole(self) -> bool:
        """Whether every record of the batch is for the reader."""
        header = self.header
        return self.first <= header.base_offset and (self.end is None or header.last_offset < self.end)

    @property
    def next_offset(self) -> int:
        """The offset after the batch, or the end that the reader asked for."""
        after = self.header.last_offset + 1
        return after if self.end is None else min(after, self.end)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The batches for the reader, their bytes in memory, and the offset after the last one (hidden ones included).

    `leader_epoch` is the epoch of the leader that appended the last one. From `epoch_start` on all batches have that
    epoch. Both are -1 if no batch came, or if batches do not say.
    """

    batches: Sequence[FetchedBatch]
    size: int
    next_offset: int
    leader_epoch: int = -1
    epoch_start: int = -1


def cut(
    records: memoryview,
    answer_bytes: int,
    *,
    position: int,
    end: int | None,
    isolation: Isolation,
    aborted: Iterable[tuple[int, int]],
) -> Fetched:
    """Cut a partition's part of an answer of `answer_bytes` into batches from `position` up to `end`.

    Control batches are left out, and aborted ones if only committed records are read. Messages of old formats become
    batches. Raises `CorruptBatch`, `UnsupportedCodec`.
    """
    if len(records) * _PINNED_SHARE < answer_bytes:
        records = memoryview(bytearray(records))  # writable, as the answer is
    hidden = AbortedFilter(aborted if isolation is Isolation.read_committed else ())
    batches = []
    next_offset = position
    leader_epoch = epoch_start = -1
    size = 0
    try:
        for data in batches_of(records):
            header = read_header(data)
            last_offset = header.last_offset
            wanted = last_offset >= position and header.records > 0 and (end is None or header.base_offset < end)
            if not hidden.hides(header, data) and wanted:
                batches.append(FetchedBatch(header, data, position, end))
            if last_offset >= next_offset:
                next_offset = last_offset + 1
            if header.leader_epoch != leader_epoch:
                leader_epoch, epoch_start = header.leader_epoch, header.base_offset
            size += len(data)
            if size > len(records) and size >= _MADE_BYTES:  # batches made of old messages: they are larger
                break
    except IngestdError:
        if next_offset == position:
            raise
        # The batches before are good. The next fetch begins with the bad one, and raises.
    return Fetched(batches, max(size, len(records)), next_offset, leader_epoch, epoch_start)
