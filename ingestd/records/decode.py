"""A record batch read: as columns for machines, as records for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise, repeat
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ingestd.errors import CorruptBatch
from ingestd.records.batch import HEADER_BYTES, BatchHeader, read_header
from ingestd.records.codecs import decompress
from ingestd.records.columns import BinaryColumn, Columns, HeaderColumn
from ingestd.records.loops import parse_records

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "LARGEST_RECORDS_BYTES",
    "ControlKind",
    "ControlMarker",
    "Record",
    "TimestampType",
    "decode_columns",
    "decode_control",
    "decode_records",
]

LARGEST_RECORDS_BYTES: Final = 256 * 1024 * 1024
"""How large the records of one batch may be when decompressed, unless the caller says otherwise."""


class TimestampType(IntEnum):
    """Who stamped a record."""

    create_time = 0
    log_append_time = 1


class ControlKind(IntEnum):
    """What a transaction marker says of the transaction that it ends."""

    abort = 0
    commit = 1


class Record(NamedTuple):
    """One record as a consumer sees it. `timestamp_ms` is -1 for none.

    A tuple, because millions are made a second: a frozen dataclass takes twice as long.
    """

    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class ControlMarker:
    """The end of a producer's transaction in one partition."""

    offset: int
    kind: ControlKind
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


_CONTROL_KEY: Final = Struct(">hh")
_CONTROL_VALUE: Final = Struct(">hi")


def decode_columns(batch: Buffer, *, limit: int = LARGEST_RECORDS_BYTES) -> Columns:
    """The records of one whole batch as columns, a control batch's too. The CRC is the caller's affair (`check_crc`).

    Raises `CorruptBatch` for whatever does not add up and for records of more than `limit` bytes when decompressed,
    `UnsupportedCodec` for an unknown codec.
    """
    view = memoryview(batch)
    return _columns(read_header(view), view, limit)


def decode_records(batch: Buffer, *, limit: int = LARGEST_RECORDS_BYTES) -> list[Record]:
    """The records of one whole batch. A control batch's are its markers, in Kafka's own form (`decode_control`).

    Errors as for `decode_columns`.
    """
    view = memoryview(batch)
    header = read_header(view)
    columns = _columns(header, view, limit)
    timestamp_type = TimestampType.log_append_time if header.log_append_time else TimestampType.create_time
    return list(
        map(
            Record._make,
            zip(
                memoryview(columns.offsets).cast("q").tolist(),
                memoryview(columns.timestamps).cast("q").tolist(),
                repeat(timestamp_type),
                _values(columns.keys, columns.count),
                _values(columns.values, columns.count),
                _headers(columns),
                strict=False,
            ),
        )
    )


def decode_control(batch: Buffer) -> list[ControlMarker]:
    """The transaction markers of a control batch; none for one that holds other markers (Raft's own).

    Raises `CorruptBatch` also when it is no control batch.
    """
    view = memoryview(batch)
    header = read_header(view)
    if not header.control:
        raise CorruptBatch(f"the batch at offset {header.base_offset} holds records, not markers")
    markers = []
    for record in decode_records(view):
        if record.key is None or len(record.key) < _CONTROL_KEY.size:
            raise CorruptBatch(f"offset {record.offset}: a marker without a type")
        _version, kind = _CONTROL_KEY.unpack_from(record.key)
        if kind not in (ControlKind.abort, ControlKind.commit):
            continue
        if record.value is None or len(record.value) < _CONTROL_VALUE.size:
            raise CorruptBatch(f"offset {record.offset}: a marker without a coordinator epoch")
        _version, coordinator_epoch = _CONTROL_VALUE.unpack_from(record.value)
        markers.append(
            ControlMarker(
                record.offset, ControlKind(kind), header.producer_id, header.producer_epoch, coordinator_epoch
            )
        )
    return markers


def _columns(header: BatchHeader, batch: memoryview, limit: int) -> Columns:
    if header.size != len(batch):
        raise CorruptBatch(f"batch of {header.size} bytes in a buffer of {len(batch)}")
    records = decompress(header.codec, batch[HEADER_BYTES:], limit)
    offsets, timestamps, keys, values, (header_offsets, header_keys, header_values) = parse_records(
        records,
        header.records,
        header.last_offset_delta,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if header.log_append_time else None,
    )
    entries = len(header_keys[0]) // 4 - 1
    return Columns(
        header.records,
        offsets,
        timestamps,
        _column(keys),
        _column(values),
        HeaderColumn(header_offsets, entries, _text(_column(header_keys)), _column(header_values)),
    )


def _column(buffers: tuple[bytearray, bytearray, bytearray, int]) -> BinaryColumn:
    offsets, data, validity, nulls = buffers
    return BinaryColumn(offsets, data, validity if nulls else None, nulls)


def _text(column: BinaryColumn) -> BinaryColumn:
    """The column with what is not UTF-8 replaced by U+FFFD, as Kafka's own reader does."""
    data = memoryview(column.data)
    if not data:
        return column
    offsets = memoryview(column.offsets).cast("i")
    count = len(offsets) - 1
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        pass
    else:
        # Valid as a whole, and no value begins within a character: each is valid by itself.
        if not any(offset < len(data) and data[offset] & 0xC0 == 0x80 for offset in offsets):
            return column
    pieces = [str(data[offsets[index] : offsets[index + 1]], "utf-8", "replace").encode() for index in range(count)]
    ends = bytearray(4 * (count + 1))
    target = memoryview(ends).cast("i")
    for index, piece in enumerate(pieces):
        target[index + 1] = target[index] + len(piece)
    target.release()
    return BinaryColumn(ends, b"".join(pieces), None, 0)


def _values(column: BinaryColumn, count: int) -> list[bytes | None]:
    if column.nulls == count:
        return [None] * count
    data = bytes(column.data)
    values: list[bytes | None] = [
        data[start:end] for start, end in pairwise(memoryview(column.offsets).cast("i").tolist())
    ]
    if column.validity is not None:
        validity = memoryview(column.validity)
        for index in range(count):
            if not validity[index >> 3] >> (index & 7) & 1:
                values[index] = None
    return values


def _headers(columns: Columns) -> list[tuple[tuple[str, bytes | None], ...]]:
    headers = columns.headers
    if not headers.count:
        return [()] * columns.count
    names = [str(name or b"", "utf-8") for name in _values(headers.keys, headers.count)]
    entries = list(zip(names, _values(headers.values, headers.count), strict=True))
    offsets = memoryview(headers.offsets).cast("i").tolist()
    return [tuple(entries[offsets[index] : offsets[index + 1]]) for index in range(columns.count)]
