"""The hot loops of encoding in Python: the twin of `_encode_compiled`, for machines without a compiler.

Same functions, same results.

A record is `length attributes timestampDelta offsetDelta keyLength key valueLength value headers`, all lengths and
deltas zigzag varints (https://kafka.apache.org/documentation/#record). `loops` says which twin is in use.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer


__all__ = [
    "BUDGET_SPENT",
    "FINISHED",
    "SLOT_FULL",
    "allocate",
    "encode_lines",
    "line_ends",
    "murmur2",
    "partition_keys",
    "scatter_lines",
]

NAME: Final[str] = "plain"

FINISHED: Final = 0
SLOT_FULL: Final = 1
BUDGET_SPENT: Final = 2
"""Why `scatter_lines` stopped."""

_DELIMITER: Final = b"\n"
_LONGEST_RECORD: Final = 2**31 - 1
_INT32: Final = Struct("=i")
_NO_HEADERS: Final = b"\x00"
_NO_BYTES: Final = b"\x01"
_UINT32: Final = 0xFFFFFFFF
_MURMUR2_SEED: Final = 0x9747B28C
_MURMUR2_MULTIPLIER: Final = 0x5BD1E995


def allocate(size: int) -> bytearray:
    """A bytearray whose content is undefined (zeros here)."""
    return bytearray(size)


def line_ends(raw: Buffer) -> bytearray:
    """The end of each line of `raw`: int32 positions of the newlines, and of the end for a last line without one."""
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

    Stops before the record that would make them more than `limit` bytes (the first record may), or more than fits into
    `out`. Returns (where in `raw` the next line starts, bytes written, records). records is 0 if none fits.
    """
    data = memoryview(raw).tobytes()
    _check_start(start, len(data))
    target = memoryview(out)
    at = records = 0
    while start < len(data):
        end = _line_end(data, start)
        record = encode_record(0, records, key, data[start:end])
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

    Line number `line` starts at `start`. `partitions` has an int32 for each line of `raw`. `keys`, if given, has two
    for each line: where the key starts and ends in `raw`; a negative start means no key. Slot p is `slot_bytes` of
    `scratch` from p * slot_bytes on. `written` (int64) and `records` (int32) have the bytes and records of each slot,
    and are updated.

    Stops before the line whose slot has no room for its record (SLOT_FULL), or that would make this call take more than
    `budget` bytes, with `overhead` for the first record of a slot (BUDGET_SPENT). Returns (where that line starts, its
    number, why it stopped). Raises `ValueError` for a partition without a slot, a line without a partition, and a key
    outside `raw`.
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
        record = encode_record(0, counts[slot], None if spans is None else _key(data, spans, line), data[start:end])
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
    """The partition of each key among `partitions`, as in Java's default partitioner; an int32 each.

    `keys` has two int32 for each key: where it starts and ends in `raw`. A negative start means no key and gives
    `keyless`. Raises `ValueError` for a key outside `raw`, and for less than one partition.
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


def encode_record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: bytes = _NO_HEADERS
) -> bytes:
    """A whole record. Raises `ValueError` for one of 2 GiB and more."""
    body = b"".join(
        (_NO_HEADERS, varint(timestamp_delta), varint(offset_delta), nullable(key), nullable(value), headers)
    )
    if len(body) > _LONGEST_RECORD:
        raise ValueError(f"a record of {len(body)} bytes")
    return varint(len(body)) + body


def nullable(data: bytes | None) -> bytes:
    """Bytes, after their length."""
    return _NO_BYTES if data is None else varint(len(data)) + data


def varint(value: int) -> bytes:
    """A zigzag varint."""
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
