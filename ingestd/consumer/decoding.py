"""Decoding: makes records, or columns, for the reader out of a fetched batch."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ingestd.records.batch import check_crc as check_batch_crc
from ingestd.records.columns import BinaryColumn, Columns, HeaderColumn
from ingestd.records.decode import decode_columns, decode_records

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.records.decode import Record

__all__ = ["columns_of", "records_of", "slice_columns"]


def records_of(batch: FetchedBatch, key: TopicPartition, *, check_crc: bool) -> list[Record]:
    """The records of a batch from its first wanted offset up to its end. Raises `CorruptBatch`, `UnsupportedCodec`."""
    if check_crc:
        check_batch_crc(batch.data, batch.header)
    return decode_records(
        batch.data, topic=key.topic, partition=key.partition, first=batch.first, end=batch.end, header=batch.header
    )


def columns_of(batch: FetchedBatch, *, check_crc: bool) -> Columns:
    """The same as columns. They may be empty. Raises `CorruptBatch`, `UnsupportedCodec`."""
    if check_crc:
        check_batch_crc(batch.data, batch.header)
    columns = decode_columns(batch.data, header=batch.header)
    if batch.whole:
        return columns
    offsets = memoryview(columns.offsets).cast("B").cast("q")
    start = bisect_left(offsets, batch.first)
    stop = columns.count if batch.end is None else bisect_left(offsets, batch.end)
    return slice_columns(columns, start, max(start, stop))


def slice_columns(columns: Columns, start: int, stop: int) -> Columns:
    """Records `start` to `stop` (their indices). Data is shared, not copied; only validity bits are moved."""
    count = stop - start
    headers = columns.headers
    return Columns(
        count,
        _bytes(columns.offsets)[8 * start : 8 * stop],
        _bytes(columns.timestamps)[8 * start : 8 * stop],
        _slice(columns.keys, start, stop),
        _slice(columns.values, start, stop),
        # Entries stay where they are: the lists' offsets still point at them.
        HeaderColumn(_bytes(headers.offsets)[4 * start : 4 * (stop + 1)], headers.count, headers.keys, headers.values),
    )


def _slice(column: BinaryColumn, start: int, stop: int) -> BinaryColumn:
    offsets = _bytes(column.offsets)[4 * start : 4 * (stop + 1)]
    if column.validity is None:
        return BinaryColumn(offsets, column.data, None, 0)
    count = stop - start
    valid = (int.from_bytes(column.validity, "little") >> start) & ((1 << count) - 1)
    nulls = count - valid.bit_count()
    return BinaryColumn(offsets, column.data, valid.to_bytes((count + 7) // 8, "little") if nulls else None, nulls)


def _bytes(buffer: Buffer) -> memoryview:
    return memoryview(buffer).cast("B")
