"""Reads a record batch: as columns, or as records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final

from ingestd.errors import CorruptBatch
from ingestd.records.batch import HEADER_BYTES, BatchHeader, read_header
from ingestd.records.codecs import decompress
from ingestd.records.columns import BinaryColumn, Columns, HeaderColumn
from ingestd.records.loops import Record, RecordCursor, make_records, parse_records
from ingestd.records.memory import take

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ingestd.records._decode_plain import BinaryBuffers

__all__ = [
    "LARGEST_RECORDS_BYTES",
    "ControlKind",
    "ControlMarker",
    "Record",
    "TimestampType",
    "decode_columns",
    "decode_control",
    "decode_records",
    "record_cursor",
]

LARGEST_RECORDS_BYTES: Final = 256 * 1024 * 1024
"""The most bytes of one batch's records when decompressed, unless the caller gives another limit."""


class TimestampType(IntEnum):
    """Which time a record's timestamp is: the one that the producer gave, or that of the append."""

    create_time = 0
    log_append_time = 1


class ControlKind(IntEnum):
    """What a transaction marker says about the transaction that it ends."""

    abort = 0
    commit = 1


@dataclass(frozen=True, slots=True)
class ControlMarker:
    """The end of a producer's transaction in one partition."""

    offset: int
    kind: ControlKind
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


_NO_END: Final = 2**63 - 1
_CONTROL_KEY: Final = Struct(">hh")
_CONTROL_VALUE: Final = Struct(">hi")


def decode_columns(batch: Buffer, *, header: BatchHeader | None = None, limit: int = LARGEST_RECORDS_BYTES) -> Columns:
    """The records of one whole batch as columns, also of a control batch. The caller checks the CRC (`check_crc`).

    `header` is the batch's header, if it was read before. Raises `CorruptBatch` if lengths or counts are wrong or the
    decompressed records have more than `limit` bytes, `UnsupportedCodec` for an unknown codec.
    """
    view = memoryview(batch)
    return _columns(header or read_header(view), view, limit)


def decode_records(
    batch: Buffer,
    *,
    topic: str = "",
    partition: int = -1,
    first: int = 0,
    end: int | None = None,
    header: BatchHeader | None = None,
    limit: int = LARGEST_RECORDS_BYTES,
) -> list[Record]:
    """The records of one whole batch with offsets from `first` up to, not including, `end`.

    `topic` and `partition` are given to each record. The records of a control batch are its markers, in Kafka's own
    form (see `decode_control`). The rest is as for `decode_columns`.
    """
    view = memoryview(batch)
    header = header or read_header(view)
    timestamp_type = TimestampType.log_append_time if header.log_append_time else TimestampType.create_time
    return make_records(
        _plain_records(header, view, limit),
        header.records,
        header.last_offset_delta,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if header.log_append_time else None,
        (topic, partition, header.leader_epoch, timestamp_type),
        first,
        _NO_END if end is None else end,
    )


def record_cursor(
    batch: Buffer,
    *,
    first: int = 0,
    end: int | None = None,
    kept: bytes | None = None,
    header: BatchHeader | None = None,
    limit: int = LARGEST_RECORDS_BYTES,
) -> RecordCursor:
    """The records of one whole batch with offsets from `first` up to, not including, `end`, to be copied into others.

    `kept`, if given, has a byte for each record of the batch: 0 for one that is left out. The rest is as for
    `decode_columns`.
    """
    view = memoryview(batch)
    header = header or read_header(view)
    return RecordCursor(
        _plain_records(header, view, limit),
        header.records,
        header.last_offset_delta,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if header.log_append_time else None,
        first,
        _NO_END if end is None else end,
        kept,
    )


def decode_control(batch: Buffer) -> list[ControlMarker]:
    """The transaction markers of a control batch; an empty list if it holds other markers (those of Raft).

    Raises `CorruptBatch`, also if it is no control batch.
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


def _plain_records(header: BatchHeader, batch: memoryview, limit: int) -> Buffer:
    """The batch's records, decompressed."""
    if header.size != len(batch):
        raise CorruptBatch(f"batch of {header.size} bytes in a buffer of {len(batch)}")
    return decompress(header.codec, batch[HEADER_BYTES:], limit)


def _columns(header: BatchHeader, batch: memoryview, limit: int) -> Columns:
    records = _plain_records(header, batch, limit)
    offsets, timestamps, keys, values, (header_offsets, header_keys, header_values) = parse_records(
        records,
        header.records,
        header.last_offset_delta,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if header.log_append_time else None,
        take(len(memoryview(records))),
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


def _column(buffers: BinaryBuffers) -> BinaryColumn:
    offsets, data, validity, nulls = buffers
    return BinaryColumn(offsets, data, validity if nulls else None, nulls)


def _text(column: BinaryColumn) -> BinaryColumn:
    """The column with U+FFFD in place of bytes that are not UTF-8, as Kafka's own reader has it."""
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
        # All of it is valid, and no value begins within a character. So each value is valid.
        if not any(offset < len(data) and data[offset] & 0xC0 == 0x80 for offset in offsets):
            return column
    pieces = [str(data[offsets[index] : offsets[index + 1]], "utf-8", "replace").encode() for index in range(count)]
    ends = bytearray(4 * (count + 1))
    target = memoryview(ends).cast("i")
    for index, piece in enumerate(pieces):
        target[index + 1] = target[index] + len(piece)
    target.release()
    return BinaryColumn(ends, b"".join(pieces), None, 0)
