"""The latest offset of each key in the dirty part of a log, within a bound of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.records.decode import Record

__all__ = ["LatestOffsets"]

_ENTRY_BYTES: Final = 190
"""What a key takes beside its own bytes: two objects and its share of a table that was just made larger."""


class LatestOffsets:
    """Keys with the largest offset at which they were seen. `full` when the keys take more than `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._offsets: dict[bytes, int] = {}
        self._key_bytes = 0

    @property
    def full(self) -> bool:
        """Whether no more batches should be added."""
        return self._key_bytes + _ENTRY_BYTES * len(self._offsets) >= self._limit

    def add(self, records: Iterable[Record]) -> None:
        """Note a batch's records. Batches come in the order of their offsets."""
        offsets = self._offsets
        for record in records:
            key = record.key
            if key is not None:
                if key not in offsets:
                    self._key_bytes += len(key)
                offsets[key] = record.offset

    def is_latest(self, key: bytes, offset: int) -> bool:
        """Whether no later record of that key was noted."""
        return offset >= self._offsets.get(key, -1)
