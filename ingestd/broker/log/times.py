"""Finds batches of a log by their timestamps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.broker.log.partition_log import LogSlice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.broker.log.partition_log import PartitionLog
    from ingestd.records.batch import BatchHeader

__all__ = ["batches_from_timestamp", "batches_of_largest_timestamp"]


def batches_from_timestamp(log: PartitionLog, timestamp: int) -> Iterator[tuple[BatchHeader, LogSlice]]:
    """Batches with a record at or after `timestamp` (ms), in order of offsets. Raises `OSError`."""
    for segment in log.segments:
        if segment.index.largest_timestamp < timestamp:
            continue
        for position, header in segment.headers_from_timestamp(timestamp):
            if header.last_offset >= log.start_offset:
                yield header, LogSlice(segment, position, header.size, header.size)


def batches_of_largest_timestamp(log: PartitionLog) -> list[tuple[BatchHeader, LogSlice]]:
    """Batches that may have the first record with the largest timestamp, if any has one. Raises `OSError`.

    There are two if the log starts within a batch: its deleted records may have had its largest timestamp.
    """
    newest = max(log.segments, key=lambda segment: segment.index.largest_timestamp)
    offset = newest.index.largest_timestamp_batch
    if offset >= log.start_offset:
        position, header = next(newest.headers(offset))
        return [(header, LogSlice(newest, position, header.size, header.size))]
    # Deleted records had the largest timestamp, or no record has one: search the rest.
    cut, largest = [], None
    for found in batches_from_timestamp(log, 0):
        if found[0].base_offset < log.start_offset:
            cut.append(found)
        elif largest is None or found[0].max_timestamp > largest[0].max_timestamp:
            largest = found
    return cut if largest is None else [*cut, largest]
