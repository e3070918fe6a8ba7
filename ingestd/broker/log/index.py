"""A segment's sparse index: where batches start, and the largest timestamp before each; by offset and by time.

An entry is made at most every `index.interval.bytes`. The file is written when a segment is sealed and its bytes are
on the disk, and says how many bytes that were: an index that fits its segment is the proof that it needs no recovery.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from ingestd.broker.log.files import write_replaceable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SegmentIndex"]

_MAGIC: Final = b"ISI1"
# Magic, CRC of all that follows it, segment bytes, next offset, largest timestamp, base offset of the batch that has
# it, number of entries.
_HEAD: Final = Struct(">4sIqqqqq")
_CRC_AT: Final = 4
_CRC_COVERS_FROM: Final = 8


class SegmentIndex:
    """The entries of one segment, in memory; 24 bytes each.

    Invariants
        Offsets and positions rise strictly from entry to entry; timestamps never fall.
        The first batch of the segment has an entry, if there is one.
    """

    __slots__ = (
        "_offsets",
        "_positions",
        "_timestamps",
        "interval",
        "largest_timestamp",
        "largest_timestamp_batch",
    )

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._offsets = array("q")
        self._positions = array("q")
        self._timestamps = array("q")
        self.largest_timestamp = -1
        self.largest_timestamp_batch = -1

    def add(self, base_offset: int, position: int, max_timestamp: int) -> None:
        """Note a batch appended at `position`. Timestamps in ms."""
        if not self._positions or position - self._positions[-1] >= self.interval:
            self._offsets.append(base_offset)
            self._positions.append(position)
            self._timestamps.append(self.largest_timestamp)
        if max_timestamp > self.largest_timestamp:
            self.largest_timestamp = max_timestamp
            self.largest_timestamp_batch = base_offset

    def position_of_offset(self, offset: int) -> int:
        """Where to start looking for the batch that holds `offset`: the last indexed start at or before it."""
        at = bisect_right(self._offsets, offset) - 1
        return self._positions[at] if at >= 0 else 0

    def position_of_timestamp(self, timestamp: int) -> int:
        """Where to start looking for the first batch with a record at or after `timestamp` (ms)."""
        at = bisect_left(self._timestamps, timestamp) - 1
        return self._positions[at] if at >= 0 else 0

    def last_start_until(self, position: int) -> int:
        """The largest known start of a batch that is not beyond `position`."""
        at = bisect_right(self._positions, position) - 1
        return self._positions[at] if at >= 0 else 0

    def write(self, path: Path, segment_bytes: int, next_offset: int) -> None:
        """Write the file, whole or not at all. Raises `OSError`."""
        columns = [array("q", column) for column in (self._offsets, self._positions, self._timestamps)]
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
            len(self._offsets),
        )
        content = bytearray(head + b"".join(column.tobytes() for column in columns))
        content[_CRC_AT:_CRC_COVERS_FROM] = crc32c(memoryview(content)[_CRC_COVERS_FROM:]).to_bytes(4, "big")
        write_replaceable(path, bytes(content))

    @classmethod
    def read(cls, path: Path, interval: int, segment_bytes: int) -> tuple[SegmentIndex, int] | None:
        """The index and the segment's next offset; None when missing, damaged, or of a segment of another size."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        if len(content) < _HEAD.size:
            return None
        magic, crc, size, next_offset, largest, batch, entries = _HEAD.unpack_from(content)
        if magic != _MAGIC or size != segment_bytes or len(content) != _HEAD.size + 24 * entries:
            return None
        if crc32c(memoryview(content)[_CRC_COVERS_FROM:]) != crc:
            return None
        index = cls(interval)
        at = _HEAD.size
        for column in (index._offsets, index._positions, index._timestamps):
            column.frombytes(content[at : at + 8 * entries])
            at += 8 * entries
            if sys.byteorder == "little":
                column.byteswap()
        index.largest_timestamp, index.largest_timestamp_batch = largest, batch
        return index, next_offset
