"""One segment: a file of record batches as they came, named after its first offset, and its index."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ingestd.broker.log.files import OpenFiles, write_all
from ingestd.broker.log.headers import scan_headers, scan_whole_batches
from ingestd.broker.log.index import SegmentIndex

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ingestd.records.batch import BatchHeader

__all__ = ["INDEX_SUFFIX", "LOG_SUFFIX", "Segment"]

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
_ASIDE_SUFFIX: Final = ".damaged"


class Segment:
    """A run of offsets [base_offset, next_offset) and their bytes [0, size).

    Invariants
        Bytes up to `size` are whole batches. Bytes of a failed write after them are cut off before the next write.
        Offsets rise from batch to batch. There may be gaps, which compaction leaves.
    """

    __slots__ = (
        "_files",
        "_sealed_size",
        "_torn",
        "base_offset",
        "created",
        "index",
        "next_offset",
        "path",
        "size",
        "unflushed",
    )

    def __init__(self, files: OpenFiles, directory: Path, base_offset: int, index_interval: int) -> None:
        self._files = files
        self._torn = False
        self._sealed_size = -1
        self.path = directory / f"{base_offset:020d}{LOG_SUFFIX}"
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.index = SegmentIndex(index_interval, files.indexes)
        self.created = time.time()
        self.unflushed = False

    @property
    def index_path(self) -> Path:
        """The path of the index, which is written when the segment is sealed."""
        return self.path.with_suffix(INDEX_SUFFIX)

    @property
    def sealed(self) -> bool:
        """Whether the index file describes the segment as it is."""
        return self._sealed_size == self.size

    @property
    def descriptor(self) -> int:
        """The file's descriptor; opens the file if needed. Valid until another file is used. Raises `OSError`."""
        return self._files.get(self.path)

    def append(self, batch: memoryview, header: BatchHeader, base_offset: int) -> None:
        """Write a batch, patched for `base_offset`, at the end. Raises `OSError`; then nothing has changed."""
        descriptor = self.descriptor
        if self._torn:
            os.ftruncate(descriptor, self.size)
            self._torn = False
        try:
            write_all(descriptor, batch, self.size)
        except OSError:
            self._torn = True
            # Cut off at once, if possible: on a full disk, half a batch would take room that others need.
            with suppress(OSError):
                os.ftruncate(descriptor, self.size)
                self._torn = False
            raise
        if self.size == 0:
            self.created = time.time()
        self.index.add(base_offset, self.size, header.max_timestamp)
        self.size += len(batch)
        self.next_offset = base_offset + header.last_offset_delta + 1
        self.unflushed = True

    def headers(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of the batches from the one that holds `offset` on. Raises `OSError`, `CorruptBatch`."""
        for position, header in scan_headers(self.descriptor, self.index.position_of_offset(offset), self.size):
            if header.last_offset >= offset:
                yield position, header

    def headers_from_timestamp(self, timestamp: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of the batches from the first with a record at or after `timestamp` (ms) on."""
        for position, header in scan_headers(self.descriptor, self.index.position_of_timestamp(timestamp), self.size):
            if header.max_timestamp >= timestamp:
                yield position, header

    def slice(self, offset: int, max_bytes: int, until: int) -> tuple[int, int, int, bool] | None:
        """Whole batches from the first that ends behind `offset` on, and before `until`, where a batch begins.

        Their position, their bytes, the bytes of the first one, and whether they are the last ones before `until` here.
        As many as fit into `max_bytes`, as far as the index knows where they end, and at least one. None if there is no
        such batch. Raises `OSError`, `CorruptBatch`.
        """
        found = next(self.headers(offset), None)
        if found is None or found[1].base_offset >= until:
            return None
        start, header = found
        last = self.size
        if until < self.next_offset:
            last = next((position for position, _header in self.headers(until)), self.size)
        end = last
        if start + max_bytes < last:
            end = max(self.index.last_start_until(start + max_bytes), start + header.size)
        return start, end - start, header.size, end == last

    def read(self, position: int, length: int) -> bytes:
        """Bytes of the file. Raises `OSError`."""
        return os.pread(self.descriptor, length, position)

    def seal(self) -> None:
        """Write the index. The segment's bytes must be on the disk. Raises `OSError`."""
        self.index.write(self.index_path, self.size, self.next_offset)
        self._sealed_size = self.size

    def load(self, *, gaps_until: int) -> bool:
        """Load the segment by its index. Without an index that fits, read the file and keep the valid batches.

        What follows the last valid batch is cut off. Before `gaps_until`, offsets may be missing. Returns whether there
        was something to cut off. Raises `OSError`.
        """
        # Not opened: at a start there are thousands, and most are not read.
        status = self.path.stat()
        self.created = status.st_mtime
        known = SegmentIndex.read(self.index_path, self.index.interval, status.st_size, self._files.indexes)
        if known is not None:
            self.index, self.next_offset = known
            self.size = self._sealed_size = status.st_size
            return False
        self.index_path.unlink(missing_ok=True)
        self.index = SegmentIndex(self.index.interval, self._files.indexes)
        self.unflushed = True
        for position, header in scan_whole_batches(
            self.descriptor, status.st_size, self.base_offset, gaps_until=gaps_until
        ):
            self.index.add(header.base_offset, position, header.max_timestamp)
            self.size = position + header.size
            self.next_offset = header.last_offset + 1
        if self.size == status.st_size:
            return False
        os.ftruncate(self.descriptor, self.size)
        return True

    def set_aside(self) -> Path:
        """Keep the bytes under a name that is no segment's. Returns it. Raises `OSError`."""
        self._files.close(self.path)
        self.index_path.unlink(missing_ok=True)
        return self.path.rename(self.path.with_name(f"{self.path.name}{_ASIDE_SUFFIX}"))

    def delete(self) -> None:
        """Remove the files. Raises `OSError`."""
        self._files.close(self.path)
        self.index_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
