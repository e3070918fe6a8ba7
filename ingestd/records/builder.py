"""A record batch built record by record. A producer fills it while its linger runs."""

from __future__ import annotations

import threading
from typing import Final

from ingestd.records.batch import HEADER_BYTES, write_unsealed_header
from ingestd.records.codecs import Codec, Compression, compressor
from ingestd.records.loops import RecordBuffer, allocate

__all__ = ["BatchBuilder"]

_LARGEST_SCRATCH: Final = 4 * 1024 * 1024
_threads: Final = threading.local()


class BatchBuilder(RecordBuffer):
    """Collects records with `append(key, value, headers, timestamp_ms)` until `build` makes a batch of them.

    `append` returns the bytes of the records so far. It returns -1 if this record would make them more than `limit`;
    then nothing was added: build, and append the record to the next batch. A record larger than `limit` gets a batch of
    its own. Not thread-safe.
    """

    @property
    def room(self) -> int:
        """Bytes of records that still fit below the limit."""
        return max(self.limit - self.size, 0)

    def build(self, compression: Compression) -> bytearray:
        """Make the batch, not sealed (see `batch.patch_producer`), and start over. Raises `ValueError` without records.

        If compression gains nothing, the records are stored as they are.
        """
        if not self.records:
            raise ValueError("a batch needs a record")
        codec = compression.codec
        with self.view() as records:
            scratch = _scratch(len(records))
            length = -1 if codec is Codec.none else compressor(compression).compress_into(records, scratch)
            packed = scratch[:length]
            if length < 0:
                codec, packed = Codec.none, records
            batch = allocate(HEADER_BYTES + len(packed))
            with packed, memoryview(batch) as target:
                target[HEADER_BYTES:] = packed
        with memoryview(batch) as target:
            write_unsealed_header(
                target,
                records=self.records,
                codec=codec,
                base_timestamp=self.base_timestamp,
                max_timestamp=self.max_timestamp,
            )
        self.clear()
        return batch


def _scratch(size: int) -> memoryview:
    """`size` bytes of this thread's memory to compress into.

    So the memory of a batch has exactly the size of the batch. The alternative is memory as large as the records, cut
    after compression. The kernel would give it fresh for every batch, page by page: 5 % of the cost of producing.
    """
    scratch: bytearray | None = getattr(_threads, "scratch", None)
    if scratch is None or len(scratch) < size:
        scratch = allocate(size)
        if size <= _LARGEST_SCRATCH:
            _threads.scratch = scratch
    return memoryview(scratch)[:size]
