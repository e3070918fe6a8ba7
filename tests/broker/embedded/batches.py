"""Record batches as producers send them, for tests of the broker."""

from __future__ import annotations

from ingestd.records.batch import patch_producer, seal
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression

__all__ = ["batch_of", "numbered_batch", "with_header"]


def batch_of(values: list[bytes], codec: Codec = Codec.none, timestamp_ms: int = 1_000) -> bytearray:
    """A sealed batch without producer; the n-th record is stamped `timestamp_ms` + n."""
    builder = BatchBuilder(limit=1 << 20)
    for number, value in enumerate(values):
        builder.append(None, value, (), timestamp_ms + number)
    batch = bytearray(builder.build(Compression(codec)))
    seal(memoryview(batch))
    return batch


def numbered_batch(
    values: list[bytes], producer_id: int, epoch: int, sequence: int, timestamp_ms: int = 1_000
) -> bytearray:
    """A batch of an idempotent producer."""
    batch = batch_of(values, timestamp_ms=timestamp_ms)
    patch_producer(memoryview(batch), producer_id, epoch, sequence)
    return batch


def with_header(batch: bytearray, at: int, content: bytes) -> bytearray:
    """A copy with other bytes at `at`, sealed again."""
    changed = bytearray(batch)
    changed[at : at + len(content)] = content
    seal(memoryview(changed))
    return changed
