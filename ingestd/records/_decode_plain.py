"""The hot loops of decoding in Python: the twin of `_decode_compiled`, for machines without a compiler.

Same functions, same results. A record's fields are described in `_encode_plain`; `loops` says which twin is in use.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from ingestd.errors import CorruptBatch

if TYPE_CHECKING:
    from typing_extensions import Buffer

    BinaryBuffers: TypeAlias = tuple[bytearray, bytearray, bytearray, int]
    HeaderBuffers: TypeAlias = tuple[bytearray, BinaryBuffers, BinaryBuffers]
    ParsedRecords: TypeAlias = tuple[bytearray, bytearray, BinaryBuffers, BinaryBuffers, HeaderBuffers]

__all__ = ["parse_records"]

NAME: Final[str] = "plain"

_SMALLEST_RECORD: Final = 7
_LONGEST_COLUMN: Final = 2**31 - 1
_INT32: Final = Struct("=i")
_INT64: Final = Struct("=q")
_SMALLEST_INT64: Final = -(2**63)
_LARGEST_INT64: Final = 2**63 - 1


def parse_records(
    records: Buffer,
    count: int,
    last_offset_delta: int,
    base_offset: int,
    base_timestamp: int,
    append_timestamp: int | None,
) -> ParsedRecords:
    """Parse `count` records that fill `records` exactly into the buffers of Arrow columns.

    Returns (offsets int64, timestamps int64, keys, values, headers). A binary column is (int32 offsets, data, validity
    bitmap, number of nulls); headers are (int32 offsets into the header lists, header keys, header values).
    `append_timestamp`, where given, is every record's timestamp. Raises `CorruptBatch` for whatever does not add up.
    """
    data = memoryview(records).tobytes()
    if count < 0 or count * _SMALLEST_RECORD > len(data):
        raise CorruptBatch(f"{count} records in {len(data)} bytes")
    if len(data) > _LONGEST_COLUMN:
        raise CorruptBatch(f"{len(data)} bytes of records are more than a column holds")
    if base_offset < 0 or base_offset > _LARGEST_INT64 - last_offset_delta:
        raise CorruptBatch(f"base offset {base_offset} with last offset delta {last_offset_delta}")
    reader = _Reader(data)
    offsets = bytearray()
    timestamps = bytearray()
    keys, values, headers = _BinaryColumn(), _BinaryColumn(), _HeaderColumn()
    for _ in range(count):
        length = reader.varint()
        end = reader.at + length
        if length < 0 or end > len(data):
            raise CorruptBatch(f"record of {length} bytes where {len(data) - reader.at} are left")
        reader.end = end
        reader.byte()
        timestamp = base_timestamp + reader.varlong()
        offset_delta = reader.varint()
        if not 0 <= offset_delta <= last_offset_delta:
            raise CorruptBatch(f"offset delta {offset_delta} where the last is {last_offset_delta}")
        if append_timestamp is not None:
            timestamp = append_timestamp
        elif not _SMALLEST_INT64 <= timestamp <= _LARGEST_INT64:
            raise CorruptBatch("a timestamp beyond 64 bits")
        offsets += _INT64.pack(base_offset + offset_delta)
        timestamps += _INT64.pack(timestamp)
        keys.append(reader.nullable_bytes())
        values.append(reader.nullable_bytes())
        headers.read(reader)
        if reader.at != end:
            raise CorruptBatch(f"{end - reader.at} bytes behind a record's headers")
        reader.end = len(data)
    if reader.at != len(data):
        raise CorruptBatch(f"{len(data) - reader.at} bytes behind the last of {count} records")
    return offsets, timestamps, keys.buffers(), values.buffers(), headers.buffers()


class _Reader:
    """Reads a record's fields, never beyond `end`."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)

    def byte(self) -> int:
        if self.at >= self.end:
            raise CorruptBatch("a record ends within a field")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        return self._zigzag(32)

    def varlong(self) -> int:
        return self._zigzag(64)

    def _zigzag(self, bits: int) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if value >> bits:
                raise CorruptBatch(f"a variable-length integer beyond {bits} bits")
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift >= bits:
                raise CorruptBatch(f"a variable-length integer beyond {bits} bits")

    def nullable_bytes(self) -> bytes | None:
        length = self.varint()
        if length == -1:
            return None
        if not 0 <= length <= self.end - self.at:
            raise CorruptBatch(f"{length} bytes in a record where {self.end - self.at} are left")
        self.at += length
        return self.data[self.at - length : self.at]


class _BinaryColumn:
    """An Arrow binary column as it grows."""

    __slots__ = ("count", "data", "nulls", "offsets", "validity")

    def __init__(self) -> None:
        self.count = 0
        self.nulls = 0
        self.data = bytearray()
        self.offsets = bytearray(_INT32.pack(0))
        self.validity = bytearray()

    def append(self, value: bytes | None) -> None:
        if self.count % 8 == 0:
            self.validity.append(0)
        if value is None:
            self.nulls += 1
        else:
            self.validity[-1] |= 1 << self.count % 8
            self.data += value
        self.count += 1
        self.offsets += _INT32.pack(len(self.data))

    def buffers(self) -> BinaryBuffers:
        return self.offsets, self.data, self.validity, self.nulls


class _HeaderColumn:
    """The headers of records as they grow."""

    __slots__ = ("ends", "keys", "values")

    def __init__(self) -> None:
        self.ends = bytearray(_INT32.pack(0))
        self.keys = _BinaryColumn()
        self.values = _BinaryColumn()

    def read(self, reader: _Reader) -> None:
        count = reader.varint()
        if not 0 <= count <= (reader.end - reader.at) // 2:
            raise CorruptBatch(f"{count} headers in {reader.end - reader.at} bytes")
        for _ in range(count):
            name = reader.nullable_bytes()
            if name is None:
                raise CorruptBatch("a header without a key")
            self.keys.append(name)
            self.values.append(reader.nullable_bytes())
        self.ends += _INT32.pack(self.keys.count)

    def buffers(self) -> HeaderBuffers:
        return self.ends, self.keys.buffers(), self.values.buffers()
