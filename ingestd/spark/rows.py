"""Rows: what Spark hands to a sink, as columns for record batches. The other way round than `arrow.py`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from ingestd.errors import ConfigurationError
from ingestd.records.columns import BinaryColumn, Columns, HeaderColumn
from ingestd.spark.read_options import Rows
from ingestd.spark.schemas import HEADERS, POSITION

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "TopicRows",
    "by_source",
    "by_topic",
    "check_rows",
    "columns_of_rows",
    "from_start",
    "values_of",
]

_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "batch": (BinaryType(),),
    "headers": (HEADERS,),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(),),
    "position": (POSITION,),
}
_NO_BYTES: Final = BinaryColumn(bytes(4), b"", None, 0)
_NO_HEADERS: Final = HeaderColumn(bytes(4), 0, _NO_BYTES, _NO_BYTES)


_NEEDED: Final = {Rows.records: ("value",), Rows.batches: ("batch", "partition")}
_USED: Final = {
    Rows.records: ("topic", "key", "value", "headers", "partition", "timestamp"),
    Rows.batches: ("topic", "batch", "partition"),
}


def check_rows(schema: StructType, rows: Rows, *, topic: str | None, position: bool) -> None:
    """Raise `ConfigurationError`, naming the column, unless rows of this schema can be written.

    `topic`: the topic of all rows, if the options say it. `position`: whether rows must say where they come from.
    """
    found = {field.name.lower(): field.dataType for field in schema.fields}
    needed = [*_NEEDED[rows]] + ["topic"] * (topic is None) + ["position"] * position
    for name in needed:
        if name not in found:
            instead = (
                " or the option topic" if name == "topic" else ", as includePosition adds it" * (name == "position")
            )
            raise ConfigurationError(f"ingestd sink: there is no column {name}; expected one{instead}")
    for name in (*_USED[rows], *["position"] * position):
        kinds = _TYPES[name]
        if name in found and not any(_same(found[name], kind) for kind in kinds):
            expected = " or ".join(kind.simpleString() for kind in kinds)
            raise ConfigurationError(
                f"ingestd sink: column {name} is {found[name].simpleString()}; expected {expected}"
            )


def _same(found: DataType, wanted: DataType) -> bool:
    """Whether the types are the same, but for what may be null."""
    return found.simpleString() == wanted.simpleString()


@dataclass(frozen=True, slots=True)
class TopicRows:
    """Rows for one topic, by name of the column. Columns that no sink knows may be among them."""

    topic: str
    rows: pa.RecordBatch

    def column(self, name: str) -> pa.Array | None:
        """A column; None if there is none of that name."""
        return _column(self.rows, name)


def by_topic(rows: pa.RecordBatch, topic: str | None) -> Iterator[TopicRows]:
    """The rows of each topic, in order. Raises `ConfigurationError` for a row without one."""
    if topic is not None:
        yield TopicRows(topic, rows)
        return
    topics = _column(rows, "topic")
    assert topics is not None, "check_rows asks for it"
    if topics.null_count:
        raise ConfigurationError("ingestd sink: a row has a null topic; expected a topic, or the option topic")
    for name in topics.unique().to_pylist():
        yield TopicRows(name, _chosen(rows, pc.equal(topics, name)))


def by_source(rows: pa.RecordBatch) -> Iterator[tuple[str, int, int, pa.RecordBatch]]:
    """The rows of each source partition, in order, with its topic, its number and their largest offset.

    Raises `ConfigurationError` for a row without a position.
    """
    position = _column(rows, "position")
    assert position is not None, "check_rows asks for it"
    topics, partitions, offsets = position.flatten()
    if topics.null_count or partitions.null_count or offsets.null_count:
        raise ConfigurationError("ingestd sink: a row has a null position; expected the one that it was read with")
    for topic in topics.unique().to_pylist():
        of_topic = pc.equal(topics, topic)
        for partition in partitions.filter(of_topic).unique().to_pylist():
            mask = pc.and_(of_topic, pc.equal(partitions, partition))
            yield topic, partition, pc.max(offsets.filter(mask)).as_py(), _chosen(rows, mask)


def _chosen(rows: pa.RecordBatch, mask: pa.Array) -> pa.RecordBatch:
    return rows if mask.false_count == 0 else rows.filter(mask)


def from_start(values: pa.Array) -> pa.Array:
    """The same values, from the start of their buffers on. A slice of others is copied."""
    return pa.concat_arrays([values]) if values.offset else values


def values_of(column: pa.Array) -> Iterator[memoryview]:
    """The bytes of each row, on Arrow's own buffer. Null is no bytes. Iterating the column itself copies each value."""
    values = pc.fill_null(column, b"") if column.null_count else column
    _, offsets, data = values.buffers()
    wide = pa.types.is_large_binary(values.type)
    edges = memoryview(offsets or b"").cast("q" if wide else "i")[values.offset : values.offset + len(values) + 1]
    whole = memoryview(data or b"")
    return (whole[start:end] for start, end in pairwise(edges))


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    for number, field in enumerate(rows.schema):
        if field.name.lower() == name:
            return rows.column(number)
    return None


def columns_of_rows(rows: TopicRows) -> Columns:
    """Keys, values, headers and timestamps, on Arrow's own buffers. Rows without a timestamp get the present one."""
    count = rows.rows.num_rows
    now = time.time_ns() // 1_000_000
    stamps = rows.column("timestamp")
    if stamps is None:
        milliseconds = pa.repeat(pa.scalar(now, pa.int64()), count)
    else:
        cast = stamps.cast(pa.timestamp("ms", stamps.type.tz), safe=False).cast(pa.int64())
        milliseconds = pc.fill_null(cast, now)
    keys = rows.column("key")
    return Columns(
        count,
        b"",
        from_start(milliseconds).buffers()[1],
        _binary(pa.nulls(count, pa.binary()) if keys is None else keys),
        _binary(rows.column("value")),
        _headers(rows.column("headers")),
    )


def _binary(values: Any) -> BinaryColumn:
    if pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.binary())
    validity, offsets, data = from_start(values).buffers()
    return BinaryColumn(offsets or bytes(4), data or b"", validity if values.null_count else None, values.null_count)


def _headers(headers: pa.Array | None) -> HeaderColumn:
    if headers is None:
        return _NO_HEADERS
    headers = from_start(headers)
    entries = headers.values
    if not len(entries):
        return _NO_HEADERS
    keys, values = entries.flatten()
    return HeaderColumn(headers.buffers()[1], len(entries), _binary(keys), _binary(values))
