"""Arrow: fetched record batches to pyarrow record batches of 20,000 to 40,000 rows, on the columns' own buffers.

No Python object is made per record. The types are exactly those that Spark expects of a Python data source: no non-null
fields, no large binary, timestamps in microseconds UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.consumer.decoding import columns_of
from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.records.columns import BinaryColumn, Columns, HeaderColumn

__all__ = ["BYTES", "MILLISECONDS", "POSITION", "ROWS", "arrow_schema", "in_microseconds", "record_batches"]

ROWS: Final = 20_000
"""So many rows make a batch, with what came beyond them. Smaller batches cost Python more."""
_MOST_ROWS: Final = 2 * ROWS

BYTES: Final = 16 * 1024 * 1024
"""Bytes of keys, values and headers that may wait for company: rows of a megabyte do not come by the 20,000."""

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS: Final = pa.list_(pa.field("element", _HEADER))
POSITION: Final = pa.struct(
    [pa.field("topic", pa.string()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64())]
)
MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")
_MOST: Final = (2**63 - 1) // 1_000
"""Milliseconds since 1970, before or after, that fit into 64 bits as microseconds: until the year 294247."""


def arrow_schema(*, include_headers: bool, include_position: bool = False) -> pa.Schema:
    """The columns of Spark's Kafka connector, and `position` where it is wanted, as Arrow has them."""
    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", _MICROSECONDS),
        pa.field("timestampType", pa.int32()),
    ]
    if include_headers:
        fields.append(pa.field("headers", _HEADERS))
    if include_position:
        fields.append(pa.field("position", POSITION))
    return pa.schema(fields)


def record_batches(
    batches: Iterable[FetchedBatch],
    topic: str,
    partition: int,
    *,
    include_headers: bool,
    include_position: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The records of one partition's batches, in order. Raises `CorruptBatch`, `UnsupportedCodec`, `IngestdError`."""
    rows = _Rows(topic, partition, include_headers=include_headers, include_position=include_position)
    for batch in batches:
        rows.append(columns_of(batch, check_crc=True), int(batch.header.log_append_time))
        if rows.count >= ROWS or rows.size >= BYTES:
            yield from rows.take()
    yield from rows.take()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Keys, values, offsets, timestamps and, where wanted, headers of some rows that share a timestamp type."""

    columns: tuple[pa.Array, ...]
    timestamp_type: int

    @property
    def count(self) -> int:
        return len(self.columns[0])

    def part(self, start: int, length: int) -> _Piece:
        return _Piece(tuple(column.slice(start, length) for column in self.columns), self.timestamp_type)


class _Rows:
    """Gathers pieces until there are enough rows for a batch."""

    def __init__(self, topic: str, partition: int, *, include_headers: bool, include_position: bool) -> None:
        self.count = 0
        self.size = 0
        self._include_headers = include_headers
        self._include_position = include_position
        self._schema = arrow_schema(include_headers=include_headers, include_position=include_position)
        self._pieces: list[_Piece] = []
        self._name, self._number = topic, partition
        self._repeat(0)

    def _repeat(self, count: int) -> None:
        """Make what is the same in so many rows. Batches take slices of it."""
        self._topic = pa.repeat(pa.scalar(self._name, pa.string()), count)
        self._partition = pa.repeat(pa.scalar(self._number, pa.int32()), count)
        self._timestamp_types = [pa.repeat(pa.scalar(kind, pa.int32()), count) for kind in (0, 1)]

    def append(self, columns: Columns, timestamp_type: int) -> None:
        if not columns.count:
            return
        arrays = [
            _binary(columns.keys, columns.count, pa.binary()),
            _binary(columns.values, columns.count, pa.binary()),
            pa.Array.from_buffers(pa.int64(), columns.count, [None, pa.py_buffer(columns.offsets)]),
            pa.Array.from_buffers(MILLISECONDS, columns.count, [None, pa.py_buffer(columns.timestamps)]),
        ]
        if self._include_headers:
            arrays.append(_headers(columns.headers, columns.count))
        self._pieces.append(_Piece(tuple(arrays), timestamp_type))
        self.count += columns.count
        # Headers that nobody wants are let go, but not those that wait with their rows.
        headers = (columns.headers.keys, columns.headers.values) if self._include_headers else ()
        self.size += sum(memoryview(column.data).nbytes for column in (columns.keys, columns.values, *headers))

    def take(self) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of `_MOST_ROWS` at most. Those of several pieces are copied, once."""
        pieces, self._pieces = self._pieces, []
        self.count = self.size = 0
        for run in _runs(pieces):
            whole = _concatenated(run)
            length = -(-whole.count // -(-whole.count // _MOST_ROWS))
            for start in range(0, whole.count, length):
                yield self._batch(whole.part(start, length))

    def _batch(self, rows: _Piece) -> pa.RecordBatch:
        count = rows.count
        if count > len(self._topic):
            self._repeat(count if count < ROWS else _MOST_ROWS)  # small ranges have one batch
        key, value, offset, timestamp, *headers = rows.columns
        columns = [
            key,
            value,
            self._topic.slice(0, count),
            self._partition.slice(0, count),
            offset,
            in_microseconds(timestamp, offset, self._name, self._number),
            self._timestamp_types[rows.timestamp_type].slice(0, count),
        ]
        columns += map(_null_where_empty, headers)
        if self._include_position:
            columns.append(pa.StructArray.from_arrays([columns[2], columns[3], offset], fields=list(POSITION)))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def in_microseconds(timestamps: pa.Array, offsets: pa.Array, topic: str, partition: int) -> pa.Array:
    """Timestamps as Spark wants them. `offsets`: of the rows. Raises `IngestdError` for one that does not fit."""
    try:
        return timestamps.cast(_MICROSECONDS)
    except pa.ArrowInvalid as error:
        milliseconds = timestamps.cast(pa.int64())
        first = pc.index(pc.or_(pc.greater(milliseconds, _MOST), pc.less(milliseconds, -_MOST)), value=True).as_py()
        offset = offsets[first].as_py()
        raise IngestdError(
            f"ingestd source: the timestamp at offset {offset} of {topic}-{partition}, {milliseconds[first]} ms, can "
            "not be told in microseconds, as Spark has it. To go on behind it, begin that partition at "
            f"offset {offset + 1}, with a new checkpoint (startingOffsets, or --from of a pipeline)"
        ) from error


def _runs(pieces: list[_Piece]) -> list[list[_Piece]]:
    """Neighbours of one timestamp type together; a topic has two only where its configuration was changed."""
    runs: list[list[_Piece]] = []
    for piece in pieces:
        if runs and runs[-1][0].timestamp_type == piece.timestamp_type:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return runs


def _concatenated(run: list[_Piece]) -> _Piece:
    if len(run) == 1:
        return run[0]
    columns = zip(*(piece.columns for piece in run), strict=True)
    return _Piece(tuple(pa.concat_arrays(column) for column in columns), run[0].timestamp_type)


def _binary(column: BinaryColumn, count: int, kind: pa.DataType) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, count, buffers, null_count=column.nulls)


def _headers(column: HeaderColumn, count: int) -> pa.Array:
    entries = pa.Array.from_buffers(
        _HEADER,
        column.count,
        [None],
        children=[
            _binary(column.keys, column.count, pa.string()),
            _binary(column.values, column.count, pa.binary()),
        ],
    )
    return pa.Array.from_buffers(_HEADERS, count, [None, pa.py_buffer(column.offsets)], children=[entries])


def _null_where_empty(headers: pa.Array) -> pa.Array:
    """Spark's connector gives null, not an empty list, for a record without headers."""
    if not len(headers.flatten()):
        return pa.nulls(len(headers), _HEADERS)
    return pc.if_else(pc.greater(pc.list_value_length(headers), 0), headers, pa.scalar(None, _HEADERS))
