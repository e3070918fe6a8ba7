"""Record batches as producers send them, for tests of the broker."""

from __future__ import annotations

from ingestd.records.batch import patch_producer, seal
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression

__all__ = ["batch_of", "compacted", "keyed_batch", "marker", "numbered_batch", "with_header"]

_ATTRIBUTES_AT, _PRODUCER_AT, _LAST_OFFSET_DELTA_AT = 21, 43, 23
_TRANSACTIONAL_CONTROL = b"\0\x30"


def batch_of(values: list[bytes], codec: Codec = Codec.none, timestamp_ms: int = 1_000) -> bytearray:
    """A sealed batch without producer; the n-th record is stamped `timestamp_ms` + n."""
    builder = BatchBuilder(limit=1 << 20)
    for number, value in enumerate(values):
        builder.append(None, value, (), timestamp_ms + number)
    batch = bytearray(builder.build(Compression(codec)))
    seal(memoryview(batch))
    return batch


def keyed_batch(
    records: list[tuple[bytes, bytes | None]], codec: Codec = Codec.none, timestamp_ms: int = 1_000
) -> bytearray:
    """A sealed batch of keys and values without producer; all records have the same timestamp."""
    builder = BatchBuilder(limit=1 << 20)
    for key, value in records:
        builder.append(key, value, (), timestamp_ms)
    batch = bytearray(builder.build(Compression(codec)))
    seal(memoryview(batch))
    return batch


def numbered_batch(
    values: list[bytes],
    producer_id: int,
    epoch: int,
    sequence: int,
    timestamp_ms: int = 1_000,
    *,
    transactional: bool = False,
) -> bytearray:
    """A batch of an idempotent producer."""
    batch = batch_of(values, timestamp_ms=timestamp_ms)
    patch_producer(memoryview(batch), producer_id, epoch, sequence, transactional=transactional)
    return batch


def with_header(batch: bytearray, at: int, content: bytes) -> bytearray:
    """A copy with other bytes at `at`, sealed again."""
    changed = bytearray(batch)
    changed[at : at + len(content)] = content
    seal(memoryview(changed))
    return changed


def marker(producer_id: int, epoch: int, coordinator_epoch: int = 0, *, aborts: bool = False) -> bytearray:
    """The control batch that commits or aborts a producer's transaction. It has no sequence."""
    builder = BatchBuilder(limit=1 << 20)
    key = bytes.fromhex("00000000" if aborts else "00000001")
    builder.append(key, b"\0\0" + coordinator_epoch.to_bytes(4, "big"), (), 1_000)
    batch = bytearray(builder.build(Compression(Codec.none)))
    producer = producer_id.to_bytes(8, "big") + epoch.to_bytes(2, "big") + (-1).to_bytes(4, "big", signed=True)
    return with_header(with_header(batch, _PRODUCER_AT, producer), _ATTRIBUTES_AT, _TRANSACTIONAL_CONTROL)


def compacted(values: list[bytes], offsets: int) -> bytearray:
    """A batch of so many offsets, of which the cleaner left only the first records."""
    return with_header(batch_of(values), _LAST_OFFSET_DELTA_AT, (offsets - 1).to_bytes(4, "big"))
