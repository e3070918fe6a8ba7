"""A record batch built record by record: what a producer fills while its linger runs."""

from __future__ import annotations

from ingestd.records.batch import HEADER_BYTES, write_unsealed_header
from ingestd.records.codecs import Codec, Compression, compressor
from ingestd.records.loops import RecordBuffer, allocate

__all__ = ["BatchBuilder"]


class BatchBuilder(RecordBuffer):
    """Collects records with `append(key, value, headers, timestamp_ms)` until `build` makes a batch of them.

    `append` gives the bytes of the records so far, or -1 when this record would make them more than `limit`: nothing
    was added; build, and append it to the next batch. A record larger than `limit` gets a batch of its own.
    Not thread-safe.
    """

    @property
    def room(self) -> int:
        """Bytes of records that still fit below the limit."""
        return max(self.limit - self.size, 0)

    def build(self, compression: Compression) -> bytearray:
        """The batch, not sealed (see `batch.patch_producer`), and begin anew. Raises `ValueError` without records.

        Where compression gains nothing the records are stored as they are.
        """
        if not self.records:
            raise ValueError("a batch needs a record")
        with self.view() as records:
            batch = allocate(HEADER_BYTES + len(records))
            codec = compression.codec
            with memoryview(batch) as target:
                length = compressor(compression).compress_into(records, target[HEADER_BYTES:])
                if length < 0:
                    codec, length = Codec.none, len(records)
                    target[HEADER_BYTES:] = records
        del batch[HEADER_BYTES + length :]
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
