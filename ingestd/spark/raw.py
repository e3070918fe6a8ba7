"""Raw: fetched record batches as rows, one for each, with their bytes. The other way round than `passing.py`."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from ingestd.mirror.passing import passage, units
from ingestd.records.batch import patch_offset, patch_producer, read_header
from ingestd.spark.arrow import MILLISECONDS, POSITION, ROWS, in_microseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ingestd.consumer.fetched import FetchedBatch

__all__ = ["raw_rows", "raw_schema"]

BYTES: Final = 4 * 1024 * 1024
"""Bytes of batches that are handed to Spark together. It copies them several times, and memory of this size is fast."""

_NOBODY: Final = -1
"""Producer id, epoch and sequence of a batch that was made anew."""


def raw_schema(*, include_position: bool = False) -> pa.Schema:
    """The columns of `source.spark_batch_schema`, as Arrow has them."""
    fields = [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("baseOffset", pa.int64()),
        pa.field("lastOffset", pa.int64()),
        pa.field("recordCount", pa.int32()),
        pa.field("maxTimestamp", pa.timestamp("us", tz="UTC")),
        pa.field("batch", pa.binary()),
    ]
    if include_position:
        fields.append(pa.field("position", POSITION))
    return pa.schema(fields)


def raw_rows(
    batches: Iterable[FetchedBatch], topic: str, partition: int, *, include_position: bool = False
) -> Iterator[pa.RecordBatch]:
    """The batches of one partition, in order, at most 4 MiB together, or one batch that is larger.

    A batch that is wanted in part is made anew of the records that are wanted. The position of a row is its last
    offset. Raises `CorruptBatch`, `UnsupportedCodec`.
    """
    schema = raw_schema(include_position=include_position)
    rows: list[_Row] = []
    size = 0
    for batch in batches:
        for row in _rows(batch):
            if rows and (size + len(row.data) > BYTES or len(rows) == ROWS):
                yield _record_batch(rows, topic, partition, schema)
                rows, size = [], 0
            rows.append(row)
            size += len(row.data)
    if rows:
        yield _record_batch(rows, topic, partition, schema)


class _Row(NamedTuple):
    base_offset: int
    last_offset: int
    records: int
    max_timestamp: int
    data: memoryview


def _rows(batch: FetchedBatch) -> Iterator[_Row]:
    if batch.whole:
        header = batch.header
        yield _Row(header.base_offset, header.last_offset, header.records, header.max_timestamp, batch.data)
        return
    for unit in units([passage(batch)]):
        for part in unit.parts():
            if part is None:
                continue
            first, (start, count) = part.offsets[0][0], part.offsets[-1]
            patch_offset(part.data, first, batch.header.leader_epoch)
            patch_producer(part.data, _NOBODY, _NOBODY, _NOBODY)
            yield _Row(first, start + count - 1, part.records, read_header(part.data).max_timestamp, part.data)


def _record_batch(rows: Sequence[_Row], topic: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    base, last, records, timestamps, data = zip(*rows, strict=True)
    topics = pa.repeat(pa.scalar(topic, pa.string()), len(rows))
    partitions = pa.repeat(pa.scalar(partition, pa.int32()), len(rows))
    first, end = pa.array(base, pa.int64()), pa.array(last, pa.int64())
    stamps = in_microseconds(pa.array(timestamps, MILLISECONDS), first, topic, partition)
    columns = [topics, partitions, first, end, pa.array(records, pa.int32()), stamps, _binary(data)]
    if "position" in schema.names:
        columns.append(pa.StructArray.from_arrays([topics, partitions, end], fields=list(POSITION)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _binary(values: Sequence[memoryview]) -> pa.Array:
    """`pa.array` moves what it has to a larger place again and again."""
    ends = array("i", accumulate(map(len, values), initial=0))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])
