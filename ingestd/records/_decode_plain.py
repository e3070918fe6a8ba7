"""The hot loops of decoding in Python: the twin of `_decode_compiled`, for machines without a compiler.

Same functions, same results. A record's fields are described in `_encode_plain`; `loops` says which twin is in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from ingestd.errors import CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

    from typing_extensions import Buffer

    from ingestd.records.decode import TimestampType

    Origin: TypeAlias = tuple[str, int, int, TimestampType]
    Header: TypeAlias = tuple[str, bytes | None]
    BinaryBuffers: TypeAlias = tuple[bytearray, bytearray | memoryview, bytearray, int]
    HeaderBuffers: TypeAlias = tuple[bytearray, BinaryBuffers, BinaryBuffers]
    ParsedRecords: TypeAlias = tuple[bytearray, bytearray, BinaryBuffers, BinaryBuffers, HeaderBuffers]

__all__ = ["Record", "RecordStream", "make_records", "parse_records"]

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
    out: memoryview | None = None,
) -> ParsedRecords:
    """Parse `count` records, which fill `records` exactly, into the buffers of Arrow columns.

    Returns (offsets int64, timestamps int64, keys, values, headers). A binary column is (int32 offsets, data, validity
    bitmap, number of nulls). Headers are (int32 offsets into the header lists, header keys, header values).
    `append_timestamp`, if given, is every record's timestamp. `out`, if given, has room for as many bytes as `records`,
    and the values' data is written there. Raises `CorruptBatch` if lengths or counts are wrong.
    """
    data = memoryview(records).tobytes()
    reader = Reader(data)
    if out is not None and len(out) < len(data):
        raise ValueError(f"room for {len(out)} bytes where {len(data)} may be needed")
    _check_batch(len(data), count, last_offset_delta, base_offset)
    offsets = bytearray()
    timestamps = bytearray()
    keys, values, headers = _BinaryColumn(), _BinaryColumn(), _HeaderColumn()
    for _ in range(count):
        reader.begin()
        timestamp = reader.timestamp(base_timestamp, append_timestamp)
        offsets += _INT64.pack(base_offset + reader.offset_delta(last_offset_delta))
        timestamps += _INT64.pack(timestamp)
        keys.append(reader.nullable_bytes())
        values.append(reader.nullable_bytes())
        headers.append(reader.headers())
        reader.finish()
    reader.finish_all(count)
    return offsets, timestamps, keys.buffers(), _moved(values.buffers(), out), headers.buffers()


def _moved(buffers: BinaryBuffers, out: memoryview | None) -> BinaryBuffers:
    """The same column with its data in `out`, if given."""
    if out is None:
        return buffers
    offsets, data, validity, nulls = buffers
    out[: len(data)] = data
    return offsets, out[: len(data)], validity, nulls


@dataclass(frozen=True, slots=True)
class Record:
    """One record as a consumer sees it.

    `headers`: names and values in order. In a name, bytes that are not UTF-8 are replaced by U+FFFD. `leader_epoch` is
    that of the leader that appended the record (KIP-101). If the record was not consumed from a topic, `topic` is
    empty, and `partition` and `leader_epoch` are -1. Any thread may read it.
    """

    offset: int
    timestamp_ms: int
    """Milliseconds since 1970 UTC, -1 for none."""
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    topic: str = field(default="", kw_only=True)
    partition: int = field(default=-1, kw_only=True)
    leader_epoch: int = field(default=-1, kw_only=True)


def make_records(
    records: Buffer,
    count: int,
    last_offset_delta: int,
    base_offset: int,
    base_timestamp: int,
    append_timestamp: int | None,
    origin: Origin,
    first: int,
    end: int,
) -> list[Record]:
    """The records with offsets from `first` up to, not including, `end`, as objects. All records are checked.

    `origin`: the topic, partition, leader epoch and timestamp type of all of them.
    """
    data = memoryview(records).tobytes()
    reader = Reader(data)
    _check_batch(len(data), count, last_offset_delta, base_offset)
    topic, partition, leader_epoch, timestamp_type = origin
    made = []
    for _ in range(count):
        reader.begin()
        timestamp = reader.timestamp(base_timestamp, append_timestamp)
        offset = base_offset + reader.offset_delta(last_offset_delta)
        key, value = reader.nullable_bytes(), reader.nullable_bytes()
        headers = tuple((str(name, "utf-8", "replace"), content) for name, content in reader.headers())
        reader.finish()
        if first <= offset < end:
            made.append(
                Record(
                    offset,
                    timestamp,
                    timestamp_type,
                    key,
                    value,
                    headers,
                    topic=topic,
                    partition=partition,
                    leader_epoch=leader_epoch,
                )
            )
    reader.finish_all(count)
    return made


class RecordStream:
    """Async iterator over records that come in lists. It awaits nothing for a record that is at hand.

    `more` gives the next list, which may be empty, or None at the end. `next_offset` is the offset after the last
    record that was handed out, -1 before the first. Belongs to one event loop, for one task at a time. Raises what
    `more` raises.
    """

    def __init__(self, more: Callable[[], Awaitable[list[Record] | None]]) -> None:
        self._more = more
        self._records: list[Record] = []
        self._at = 0
        self.next_offset = -1

    @property
    def left(self) -> int:
        """The number of records at hand."""
        return len(self._records) - self._at

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        while not self.left:
            self.clear()
            records = await self._more()
            if records is None:
                raise StopAsyncIteration
            self._records = records
        record = self._records[self._at]
        self._at += 1
        self.next_offset = record.offset + 1
        return record

    def rest(self) -> list[Record]:
        """Take all records at hand."""
        rest = self._records[self._at :]
        if rest:
            self.next_offset = rest[-1].offset + 1
        self.clear()
        return rest

    def clear(self) -> None:
        """Drop the records at hand."""
        self._records = []
        self._at = 0


def _check_batch(size: int, count: int, last_offset_delta: int, base_offset: int) -> None:
    if count < 0 or count * _SMALLEST_RECORD > size:
        raise CorruptBatch(f"{count} records in {size} bytes")
    if size > _LONGEST_COLUMN:
        raise CorruptBatch(f"{size} bytes of records are more than a column holds")
    if base_offset < 0 or base_offset > _LARGEST_INT64 - last_offset_delta:
        raise CorruptBatch(f"base offset {base_offset} with last offset delta {last_offset_delta}")


class Reader:
    """Reads a record's fields, never beyond `end`. Not of the twins: what both modules in Python read with."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)

    def begin(self) -> None:
        """Read a record's length. Nothing after its end can be read then."""
        self.end = len(self.data)
        length = self.varint()
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise CorruptBatch(f"record of {length} bytes where {len(self.data) - self.at} are left")
        self.end = end
        self.byte()

    def finish(self) -> None:
        if self.at != self.end:
            raise CorruptBatch(f"{self.end - self.at} bytes behind a record's headers")

    def finish_all(self, count: int) -> None:
        if self.at != len(self.data):
            raise CorruptBatch(f"{len(self.data) - self.at} bytes behind the last of {count} records")

    def timestamp(self, base: int, appended: int | None) -> int:
        timestamp = base + self.varlong()
        if appended is not None:
            return appended
        if not _SMALLEST_INT64 <= timestamp <= _LARGEST_INT64:
            raise CorruptBatch("a timestamp beyond 64 bits")
        return timestamp

    def offset_delta(self, last: int) -> int:
        delta = self.varint()
        if not 0 <= delta <= last:
            raise CorruptBatch(f"offset delta {delta} where the last is {last}")
        return delta

    def headers(self) -> list[tuple[bytes, bytes | None]]:
        count = self.varint()
        if not 0 <= count <= (self.end - self.at) // 2:
            raise CorruptBatch(f"{count} headers in {self.end - self.at} bytes")
        pairs = []
        for _ in range(count):
            name = self.nullable_bytes()
            if name is None:
                raise CorruptBatch("a header without a key")
            pairs.append((name, self.nullable_bytes()))
        return pairs

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
    """An Arrow binary column while it grows."""

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
    """The headers of records while they grow."""

    __slots__ = ("ends", "keys", "values")

    def __init__(self) -> None:
        self.ends = bytearray(_INT32.pack(0))
        self.keys = _BinaryColumn()
        self.values = _BinaryColumn()

    def append(self, headers: list[tuple[bytes, bytes | None]]) -> None:
        for name, value in headers:
            self.keys.append(name)
            self.values.append(value)
        self.ends += _INT32.pack(self.keys.count)

    def buffers(self) -> HeaderBuffers:
        return self.ends, self.keys.buffers(), self.values.buffers()
