"""Cleans the segments of one log: finds the latest offset of each key, then writes what stays into new segments."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ingestd.broker.cleaner.batch_cleaning import BatchCleaning
from ingestd.broker.cleaner.ended_transactions import EndedTransactions
from ingestd.broker.cleaner.job import Cleaned
from ingestd.broker.cleaner.latest_offsets import LatestOffsets
from ingestd.broker.log.headers import scan_headers
from ingestd.broker.log.index import SegmentIndex
from ingestd.broker.log.recent import RecentlyUsed
from ingestd.errors import CorruptBatch
from ingestd.records.batch import check_crc, read_header
from ingestd.records.decode import decode_control, decode_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.broker.cleaner.job import Cleaning, Group, Source
    from ingestd.records.batch import BatchHeader

__all__ = ["clean_log"]

_BUFFER_BYTES: Final = 1 << 20
_FILE_MODE: Final = 0o600


def clean_log(cleaning: Cleaning) -> Iterator[Cleaned]:
    """Clean one group of segments after the other. A group is on the disk when it is yielded.

    Raises `OSError`, and `CorruptBatch` for a damaged batch.
    """
    latest, end = _find_latest(cleaning)
    writer = _GroupWriter(cleaning, BatchCleaning(cleaning, latest), end)
    for number, group in enumerate(cleaning.groups):
        if group.first < end:
            yield writer.write(number, group)


def _find_latest(cleaning: Cleaning) -> tuple[LatestOffsets, int]:
    """The latest offsets of the keys from the first dirty record on, and up to where all keys had room."""
    latest = LatestOffsets(cleaning.map_bytes)
    transactions = EndedTransactions(one for one in cleaning.aborted if one.last_offset >= cleaning.first_dirty)
    for group in cleaning.groups:
        if group.end <= cleaning.first_dirty:
            continue
        for source in group.sources:
            for batch, header in _batches(source):
                if header.last_offset < cleaning.first_dirty:
                    continue
                if latest.full:
                    return latest, header.base_offset
                if header.control:
                    for marker in decode_control(batch):
                        transactions.ended(header, marker)
                elif not transactions.aborted(header):
                    latest.add(decode_records(batch, header=header))
    return latest, cleaning.groups[-1].end


def _batches(source: Source) -> Iterator[tuple[memoryview, BatchHeader]]:
    descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = 0
        for position, header in scan_headers(descriptor, 0, source.size):
            batch = memoryview(os.pread(descriptor, header.size, position))
            check_crc(batch, header)
            yield batch, header
            end = position + header.size
        if end != source.size:
            raise CorruptBatch(f"{source.path}: batches end at byte {end} of {source.size}")
    finally:
        os.close(descriptor)


class _GroupWriter:
    """Writes groups in their order. Batches from `end` on are copied as they are."""

    def __init__(self, cleaning: Cleaning, batches: BatchCleaning, end: int) -> None:
        self._cleaning = cleaning
        self._batches = batches
        self._end = end
        self._transactions = EndedTransactions(cleaning.aborted)

    def write(self, number: int, group: Group) -> Cleaned:
        """Write one group's files. Raises `OSError`, `CorruptBatch`."""
        index = SegmentIndex(self._cleaning.index_interval, RecentlyUsed(0))
        size = before = after = 0
        descriptor = os.open(group.cleaned, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        with os.fdopen(descriptor, "wb", _BUFFER_BYTES) as file:
            for source in group.sources:
                for batch, header in _batches(source):
                    before += header.records
                    left = self._left(batch, header, index)
                    if left is not None:
                        cleaned = header if left is batch else read_header(left)
                        after += cleaned.records
                        index.add(header.base_offset, size, cleaned.max_timestamp)
                        size += file.write(left)
            file.flush()
            os.fsync(descriptor)
            os.utime(descriptor, (group.modified, group.modified))
        index.write(group.index, size, group.end)
        return Cleaned(number, self._end, sum(source.size for source in group.sources), size, before, after)

    def _left(self, batch: memoryview, header: BatchHeader, index: SegmentIndex) -> memoryview | None:
        beyond = header.base_offset >= self._end
        if not header.control:
            aborted = self._transactions.aborted(header)
            return batch if beyond else self._batches.records(batch, header, aborted=aborted)
        needed = beyond
        for marker in decode_control(batch):
            seen, transaction = self._transactions.ended(header, marker)
            needed = needed or seen
            if needed and transaction is not None:
                index.add_aborted(transaction)
        return self._batches.marker(batch, header, needed=needed)
