"""The hot loops in Python: the twin of `_compiled`, for machines without a compiler. Same functions, same results.

A record is `length attributes timestampDelta offsetDelta keyLength key valueLength value headers`, all lengths and
deltas zigzag varints (https://kafka.apache.org/documentation/#record). `loops` says which twin is in use.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from ingestd.errors import CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    BinaryBuffers: TypeAlias = tuple[bytearray, bytearray, bytearray, int]
    HeaderBuffers: TypeAlias = tuple[bytearray, BinaryBuffers, BinaryBuffers]
    ParsedRecords: TypeAlias = tuple[bytearray, bytearray, BinaryBuffers, BinaryBuffers, HeaderBuffers]

__all__ = [
    "BUDGET_SPENT",
    "FINISHED",
    "SLOT_FULL",
    "RecordBuffer",
    "allocate",
    "encode_lines",
    "line_ends",
    "murmur2",
    "parse_records",
    "partition_keys",
    "scatter_lines",
]

NAME: Final[str] = "plain"

FINISHED: Final = 0
SLOT_FULL: Final = 1
BUDGET_SPENT: Final = 2
"""Why `scatter_lines` stopped."""

_DELIMITER: Final = b"\n"
_SMALLEST_RECORD: Final = 7
_LONGEST_RECORD: Final = 2**31 - 1
_INT32: Final = Struct("=i")
_INT64: Final = Struct("=q")
_SMALLEST_INT64: Final = -(2**63)
_LARGEST_INT64: Final = 2**63 - 1
_NO_HEADERS: Final = b"\x00"
_NO_BYTES: Final = b"\x01"
_UINT32: Final = 0xFFFFFFFF
_MURMUR2_SEED: Final = 0x9747B28C
_MURMUR2_MULTIPLIER: Final = 0x5BD1E995


def allocate(size: int) -> bytearray:
    """A bytearray whose content is undefined (zeros here)."""
    return bytearray(size)


def line_ends(raw: Buffer) -> bytearray:
    """Where each line of `raw` ends: int32 positions of the delimiters, or of the end for a last line without one."""
    data = bytes(raw)
    ends = bytearray()
    start = 0
    while start < len(data):
        end = _line_end(data, start)
        ends += _INT32.pack(end)
        start = end + 1
    return ends


def encode_lines(raw: Buffer, start: int, out: Buffer, limit: int, key: bytes | None) -> tuple[int, int, int]:
    """Write the lines of `raw` from `start` on as records with timestamp delta 0 and offset deltas from 0 on.

    Stops before the record that would make them more than `limit` bytes (the first record may), or more than `out`
    holds. Returns (where in `raw` the next line starts, bytes written, records); records is 0 when `out` holds none.
    """
    data = memoryview(raw).tobytes()
    _check_start(start, len(data))
    target = memoryview(out)
    at = records = 0
    while start < len(data):
        end = _line_end(data, start)
        record = _record(0, records, key, data[start:end])
        written = at + len(record)
        if written > len(target) or (written > limit and records):
            break
        target[at:written] = record
        at = written
        records += 1
        start = min(end + 1, len(data))
    return start, at, records


def scatter_lines(
    raw: Buffer,
    start: int,
    line: int,
    partitions: Buffer,
    keys: Buffer | None,
    scratch: Buffer,
    slot_bytes: int,
    written: Buffer,
    records: Buffer,
    budget: int,
    overhead: int,
) -> tuple[int, int, int]:
    """Write each line of `raw` from `start` on as a record into the slot of its partition.

    Line number `line` starts at `start`. `partitions` has an int32 for each line of `raw`; `keys`, where given, two
    for each line: the key's span in `raw`, its start negative for no key. Slot p is `slot_bytes` of `scratch` from
    p * slot_bytes on; `written` (int64) and `records` (int32) say for each slot what it holds, and are kept up.

    Stops before the line whose record its slot has no room for (SLOT_FULL), or that would cost this call more than
    `budget` bytes, counting `overhead` for the first record of a slot (BUDGET_SPENT). Returns (where that line starts,
    its number, why it stopped). Raises `ValueError` for a partition without a slot, a line without a partition, and a
    key outside `raw`.
    """
    data = memoryview(raw).tobytes()
    _check_start(start, len(data))
    chosen = memoryview(partitions).cast("B").cast("i")
    spans = None if keys is None else memoryview(keys).cast("B").cast("i")
    target = memoryview(scratch).cast("B")
    sizes = memoryview(written).cast("B").cast("q")
    counts = memoryview(records).cast("B").cast("i")
    slots = min(len(sizes), len(counts), len(target) // slot_bytes if slot_bytes > 0 else 0)
    while start < len(data):
        if line >= len(chosen) or (spans is not None and 2 * line + 1 >= len(spans)):
            raise ValueError(f"line {line} has no partition or no key")
        slot = chosen[line]
        if not 0 <= slot < slots:
            raise ValueError(f"line {line}: partition {slot} of {slots}")
        end = _line_end(data, start)
        record = _record(0, counts[slot], None if spans is None else _key(data, spans, line), data[start:end])
        size = sizes[slot]
        if not 0 <= size <= slot_bytes:
            raise ValueError(f"slot {slot} holds {size} of {slot_bytes} bytes")
        if len(record) > slot_bytes - size:
            return start, line, SLOT_FULL
        cost = len(record) + (0 if counts[slot] else overhead)
        if cost > budget:
            return start, line, BUDGET_SPENT
        at = slot * slot_bytes + size
        target[at : at + len(record)] = record
        sizes[slot] = size + len(record)
        counts[slot] += 1
        budget -= cost
        line += 1
        start = min(end + 1, len(data))
    return start, line, FINISHED


def _key(data: bytes, spans: memoryview, line: int) -> bytes | None:
    start, end = spans[2 * line], spans[2 * line + 1]
    if start < 0:
        return None
    if not start <= end <= len(data):
        raise ValueError(f"line {line}: key from {start} to {end} of {len(data)} bytes")
    return data[start:end]


def murmur2(key: Buffer) -> int:
    """Kafka's 32-bit murmur2 of a key (`org.apache.kafka.common.utils.Utils.murmur2`), unsigned."""
    data = memoryview(key).tobytes()
    value = _MURMUR2_SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MURMUR2_MULTIPLIER & _UINT32
        word = (word ^ word >> 24) * _MURMUR2_MULTIPLIER & _UINT32
        value = value * _MURMUR2_MULTIPLIER & _UINT32 ^ word
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MURMUR2_MULTIPLIER & _UINT32
    value = (value ^ value >> 13) * _MURMUR2_MULTIPLIER & _UINT32
    return value ^ value >> 15


def partition_keys(raw: Buffer, keys: Buffer, partitions: int, keyless: int) -> bytearray:
    """The partition of each key among `partitions`, as Java's default partitioner has it; int32 each.

    `keys` holds two int32 for each: where it starts and ends within `raw`. A negative start is no key and gives
    `keyless`. Raises `ValueError` for a key outside `raw` and for less than one partition.
    """
    if not 0 < partitions <= _LONGEST_RECORD:
        raise ValueError(f"{partitions} partitions: expected at least 1")
    data = memoryview(raw).tobytes()
    spans = memoryview(keys).cast("B").cast("i")
    chosen = bytearray()
    for number in range(len(spans) // 2):
        key = _key(data, spans, number)
        chosen += _INT32.pack(keyless if key is None else (murmur2(key) & _LONGEST_RECORD) % partitions)
    return chosen


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
    if len(data) > _LONGEST_RECORD:
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


class RecordBuffer:
    """Records of one batch under construction, up to `limit` bytes of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self.records = 0
        self.base_timestamp = -1
        self.max_timestamp = -1

    @property
    def size(self) -> int:
        """Bytes of the records so far."""
        return len(self._buffer)

    def append(
        self,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str | bytes, Buffer | None]],
        timestamp_ms: int,
    ) -> int:
        """Add a record. Returns the bytes of all records so far.

        Returns -1, and adds nothing, when there are records and this one would make them more than `limit` bytes.
        Raises `ValueError` for a record of 2 GiB and more, `OverflowError` for a timestamp beyond 64 bits, `TypeError`
        for what is not bytes.
        """
        if not _SMALLEST_INT64 <= timestamp_ms <= _LARGEST_INT64:
            raise OverflowError(f"timestamp {timestamp_ms} is beyond 64 bits")
        base = self.base_timestamp if self.records else timestamp_ms
        timestamp_delta = timestamp_ms - base
        if not _SMALLEST_INT64 <= timestamp_delta <= _LARGEST_INT64:
            raise ValueError(f"timestamp {timestamp_ms} is more than 64 bits from {base}")
        record = _record(
            timestamp_delta,
            self.records,
            None if key is None else memoryview(key).tobytes(),
            None if value is None else memoryview(value).tobytes(),
            _headers(headers),
        )
        if self.records and len(self._buffer) + len(record) > self.limit:
            return -1
        self.max_timestamp = max(timestamp_ms, self.max_timestamp) if self.records else timestamp_ms
        self.base_timestamp = base
        self._buffer += record
        self.records += 1
        return len(self._buffer)

    def view(self) -> memoryview:
        """The records so far. Valid until the next `append` or `clear`; release it before."""
        return memoryview(self._buffer).toreadonly()

    def clear(self) -> None:
        """Begin anew."""
        self._buffer.clear()
        self.records = 0
        self.base_timestamp = self.max_timestamp = -1


def _headers(headers: Sequence[tuple[str | bytes, Buffer | None]]) -> bytes:
    if not headers:
        return _NO_HEADERS
    pairs = list(headers)
    encoded = bytearray(_varint(len(pairs)))
    for name, value in pairs:
        encoded += _nullable(name.encode() if isinstance(name, str) else memoryview(name).tobytes())
        encoded += _nullable(None if value is None else memoryview(value).tobytes())
    return bytes(encoded)


def _record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: bytes = _NO_HEADERS
) -> bytes:
    body = b"".join(
        (_NO_HEADERS, _varint(timestamp_delta), _varint(offset_delta), _nullable(key), _nullable(value), headers)
    )
    if len(body) > _LONGEST_RECORD:
        raise ValueError(f"a record of {len(body)} bytes")
    return _varint(len(body)) + body


def _nullable(data: bytes | None) -> bytes:
    return _NO_BYTES if data is None else _varint(len(data)) + data


def _varint(value: int) -> bytes:
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _line_end(data: bytes, start: int) -> int:
    end = data.find(_DELIMITER, start)
    return end if end >= 0 else len(data)


def _check_start(start: int, size: int) -> None:
    if not 0 <= start <= size:
        raise ValueError(f"start {start} in {size} bytes")


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
