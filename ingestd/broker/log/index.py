"""A segment's sparse index: where batches start, and the largest timestamp before each. Searched by offset or time.

An entry is made at most every `index.interval.bytes`. The file is written when a segment is sealed and its bytes are on
the disk. It has the segment's size in bytes. So an index that fits its segment proves that it needs no recovery.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import TYPE_CHECKING, Final

from ingestd.broker.log.files import write_replaceable
from ingestd.broker.log.transactions import AbortedTransaction
from ingestd.logs import get_logger
from ingestd.records.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ingestd.broker.log.recent import RecentlyUsed

__all__ = ["SegmentIndex"]

_MAGIC: Final = b"ISI2"
_OLD_MAGIC: Final = b"ISI1"
# Magic, CRC of all that follows it, segment bytes, next offset, largest timestamp, base offset of the batch that has
# it, number of entries, number of aborted transactions.
_HEAD: Final = Struct(">4sIqqqqqq")
# Of versions that had no transactions.
_OLD_HEAD: Final = Struct(">4sIqqqqq")
_CRC_AT: Final = 4
_CRC_COVERS_FROM: Final = 8
_ENTRY_BYTES: Final = 24
_NUMBERS_OF_ABORTED: Final = 4
_NUMBER_BYTES: Final = 8

_log = get_logger(__name__)


class _Entries:
    """Three columns of the same length, and the aborted transactions, four numbers each."""

    __slots__ = ("aborted", "offsets", "positions", "timestamps")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.timestamps = array("q")
        self.aborted = array("q")

    @property
    def columns(self) -> tuple[array[int], ...]:
        """All numbers, in the order of the file."""
        return self.offsets, self.positions, self.timestamps, self.aborted

    @property
    def bytes(self) -> int:
        """Bytes of memory that the numbers take."""
        return _ENTRY_BYTES * len(self.offsets) + self.aborted.itemsize * len(self.aborted)


class SegmentIndex:
    """The entries of one segment; 24 bytes each. And the transactions that a marker in it aborted; 32 bytes each.

    They are in memory while the segment grows. Those of a file are read when needed, and kept as long as `recent` has
    room: indexes of all segments of a large log would not fit into memory. `write` may run in a thread of its own. So
    other code reads the entries once and keeps them, because they may be released at any moment.

    Invariants
        Offsets and positions rise strictly from entry to entry. Timestamps never fall.
        Entries may be missing. Searches are longer then, and still right.
    """

    __slots__ = ("_entries", "_file", "_recent", "interval", "largest_timestamp", "largest_timestamp_batch")

    def __init__(self, interval: int, recent: RecentlyUsed) -> None:
        self.interval = interval
        self._recent = recent
        self._entries: _Entries | None = _Entries()
        self._file: Path | None = None
        self.largest_timestamp = -1
        self.largest_timestamp_batch = -1

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that the entries take now."""
        entries = self._entries
        return 0 if entries is None else entries.bytes

    def add(self, base_offset: int, position: int, max_timestamp: int) -> None:
        """Note a batch appended at `position`. Timestamps in ms."""
        # The file, if there is one, does not have what is added now.
        entries = self._entries = self._present()
        self._file = None
        if not entries.positions or position - entries.positions[-1] >= self.interval:
            entries.offsets.append(base_offset)
            entries.positions.append(position)
            entries.timestamps.append(self.largest_timestamp)
        if max_timestamp > self.largest_timestamp:
            self.largest_timestamp = max_timestamp
            self.largest_timestamp_batch = base_offset

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Note a transaction whose marker was appended here. They come in the order of their markers."""
        entries = self._entries = self._present()
        self._file = None
        entries.aborted.extend((aborted.producer_id, aborted.first_offset, aborted.last_offset, aborted.stable_offset))

    @property
    def aborted(self) -> Iterator[AbortedTransaction]:
        """The transactions that a marker in this segment aborted, in the order of the markers."""
        numbers = iter(self._present().aborted)
        return (AbortedTransaction(*four) for four in zip(numbers, numbers, numbers, numbers, strict=True))

    def position_of_offset(self, offset: int) -> int:
        """Where to start the search for the batch with `offset`: the last indexed start at or before it."""
        entries = self._present()
        at = bisect_right(entries.offsets, offset) - 1
        return entries.positions[at] if at >= 0 else 0

    def position_of_timestamp(self, timestamp: int) -> int:
        """Where to start the search for the first batch with a record at or after `timestamp` (ms)."""
        entries = self._present()
        at = bisect_left(entries.timestamps, timestamp) - 1
        return entries.positions[at] if at >= 0 else 0

    def last_start_until(self, position: int) -> int:
        """The largest known start of a batch that is not beyond `position`."""
        positions = self._present().positions
        at = bisect_right(positions, position) - 1
        return positions[at] if at >= 0 else 0

    def offset_after(self, position: int, end: int) -> int:
        """The smallest known offset that begins at `position` or behind it. `end` if none is known."""
        entries = self._present()
        at = bisect_left(entries.positions, position)
        return entries.offsets[at] if at < len(entries.offsets) else end

    def _present(self) -> _Entries:
        entries = self._entries
        if entries is None:
            entries = self._entries = self._read_again()
        if entries is None:
            return _Entries()
        if self._file is not None:
            self._recent.used(self, entries.bytes)
        return entries

    def _read_again(self) -> _Entries | None:
        assert self._file is not None
        content, reason = b"", "missing or damaged"
        try:
            content = _checked(self._file)
        except OSError as error:
            reason = str(error)
        if content:
            return _entries_of(content)
        _log.error("index not read, the search takes longer", path=str(self._file), error=reason)
        return None

    def release(self) -> None:
        """Release the entries' memory, if they can be read from the file again."""
        if self._file is not None:
            self._entries = None

    def write(self, path: Path, segment_bytes: int, next_offset: int) -> None:
        """Write the file, whole or not at all. From now on entries are read from there. Raises `OSError`."""
        entries = self._present()
        columns = [array("q", column) for column in entries.columns]
        if sys.byteorder == "little":
            for column in columns:
                column.byteswap()
        head = _HEAD.pack(
            _MAGIC,
            0,
            segment_bytes,
            next_offset,
            self.largest_timestamp,
            self.largest_timestamp_batch,
            len(entries.offsets),
            len(entries.aborted) // _NUMBERS_OF_ABORTED,
        )
        content = bytearray(head + b"".join(column.tobytes() for column in columns))
        content[_CRC_AT:_CRC_COVERS_FROM] = crc32c(memoryview(content)[_CRC_COVERS_FROM:]).to_bytes(4, "big")
        write_replaceable(path, bytes(content))
        self._file = path
        self.release()

    @classmethod
    def read(
        cls, path: Path, interval: int, segment_bytes: int, recent: RecentlyUsed
    ) -> tuple[SegmentIndex, int] | None:
        """The index and the segment's next offset; None if it is missing, damaged, or of a segment of another size."""
        content = _checked(path)
        if not content:
            return None
        size, next_offset, largest, batch = _OLD_HEAD.unpack_from(content)[2:6]
        if size != segment_bytes:
            return None
        index = cls(interval, recent)
        index.largest_timestamp, index.largest_timestamp_batch = largest, batch
        index._file = path
        index.release()
        return index, next_offset


def _checked(path: Path) -> bytes:
    """The file's content; empty if it is missing or damaged. Raises `OSError`."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b""
    if len(content) < _OLD_HEAD.size or content[:_CRC_AT] not in {_MAGIC, _OLD_MAGIC}:
        return b""
    if len(content) < _head(content).size or len(content) != _head(content).size + sum(_lengths(content)):
        return b""
    crc = int.from_bytes(content[_CRC_AT:_CRC_COVERS_FROM], "big")
    return content if crc32c(memoryview(content)[_CRC_COVERS_FROM:]) == crc else b""


def _head(content: bytes) -> Struct:
    return _OLD_HEAD if content.startswith(_OLD_MAGIC) else _HEAD


def _lengths(content: bytes) -> list[int]:
    """Bytes of each column, as the head has them."""
    head = _head(content)
    entries, *aborted = head.unpack_from(content)[6:]
    return [_NUMBER_BYTES * entries] * 3 + [_NUMBER_BYTES * _NUMBERS_OF_ABORTED * count for count in aborted]


def _entries_of(content: bytes) -> _Entries:
    entries = _Entries()
    at = _head(content).size
    for column, length in zip(entries.columns, _lengths(content), strict=False):
        column.frombytes(content[at : at + length])
        at += length
        if sys.byteorder == "little":
            column.byteswap()
    return entries
