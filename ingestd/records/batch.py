"""The 61-byte header of a record batch (magic 2): read, write, patch in place, check by CRC-32C.

A batch whose CRC is right is *sealed*. The encoders leave batches unsealed, because the sender writes the producer
fields last: `patch_producer` seals. `seal` is for batches that no producer patches.

Layout: https://kafka.apache.org/documentation/#recordbatch. The CRC covers everything from the attributes on. So only
base offset and leader epoch can change without a new CRC.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ingestd.errors import CorruptBatch
from ingestd.records.checksum import crc32c
from ingestd.records.codecs import Codec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

__all__ = [
    "HEADER_BYTES",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "check_crc",
    "codec_of",
    "patch_offset",
    "patch_producer",
    "read_header",
    "seal",
    "sealed_batch",
    "split_batches",
    "write_header",
    "write_unsealed_header",
]

HEADER_BYTES: Final = 61
"""Bytes before the records of a batch."""

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1

_MAGIC: Final = 2
_LENGTH_ENDS: Final = 12
"""The length field counts the bytes after itself."""
_SMALLEST_LENGTH: Final = HEADER_BYTES - _LENGTH_ENDS
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_PRODUCER_AT: Final = 43

_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_DELETE_HORIZON: Final = 0x40

_HEADER: Final = Struct(">qiibIhiqqqhii")
_START: Final = Struct(">qi")
_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i")
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">h")
_PRODUCER: Final = Struct(">qhi")


class BatchHeader(NamedTuple):
    """The header's fields, as on the wire.

    `length` counts the bytes after the length field; `size` is the whole batch. `records` is the number of records,
    which compaction may have made smaller than `last_offset_delta` + 1. Timestamps are milliseconds, -1 for none.
    """

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return _LENGTH_ENDS + self.length

    @property
    def last_offset(self) -> int:
        """Offset of the last record, also when compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> Codec:
        """How the records are compressed. Raises `UnsupportedCodec`."""
        return Codec.of(self.attributes & _CODEC_MASK)

    @property
    def log_append_time(self) -> bool:
        """Whether the broker stamped the records: each has `max_timestamp`."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether the records are markers that the broker wrote, not data."""
        return bool(self.attributes & _CONTROL)

    @property
    def delete_horizon(self) -> bool:
        """Whether `base_timestamp` is the time at which compaction may drop tombstones and markers (KIP-534)."""
        return bool(self.attributes & _DELETE_HORIZON)


def read_header(buffer: Buffer, offset: int = 0) -> BatchHeader:
    """Read the header that starts at `offset`. The records after it need not be there.

    Raises `CorruptBatch` if there are fewer than 61 bytes, if the magic is not 2, and for lengths and counts that no
    batch can have. The CRC is not checked (`check_crc` does that).
    """
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    if offset < 0 or len(view) - offset < HEADER_BYTES:
        raise CorruptBatch(f"{max(len(view) - offset, 0)} bytes where a batch header of {HEADER_BYTES} should be")
    # There may be a million small batches: this takes a third of the time of `BatchHeader(*…)`.
    header = tuple.__new__(BatchHeader, _HEADER.unpack_from(view, offset))
    if header.magic != _MAGIC:
        raise CorruptBatch(f"magic {view[offset + _MAGIC_AT]} where {_MAGIC} should be")
    if header.length < _SMALLEST_LENGTH:
        raise CorruptBatch(f"batch length {header.length} is less than its header's {_SMALLEST_LENGTH}")
    if header.records < 0:
        raise CorruptBatch(f"batch of {header.records} records")
    if header.last_offset_delta < 0:
        raise CorruptBatch(f"last offset delta {header.last_offset_delta} is negative")
    return header


def write_unsealed_header(
    batch: memoryview,
    *,
    records: int,
    codec: Codec,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
) -> None:
    """Fill the 61 bytes before records that are in place, except the CRC (0 until `patch_producer` or `seal`).

    `batch` is the whole batch and nothing more. `attributes` has the bits above the codec. Timestamps in ms.
    """
    _HEADER.pack_into(
        batch, 0, base_offset, len(batch) - _LENGTH_ENDS, leader_epoch, _MAGIC, 0, attributes | codec, records - 1,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, records,
    )  # fmt: skip


def write_header(
    batch: memoryview,
    *,
    records: int,
    codec: Codec,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
) -> None:
    """Fill the 61 bytes before records that are in place, with the CRC. Arguments as for `write_unsealed_header`."""
    write_unsealed_header(
        batch,
        records=records,
        codec=codec,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        attributes=attributes,
    )
    seal(batch)


def seal(batch: memoryview) -> None:
    """Compute and write the CRC. `batch` is the whole batch and nothing more."""
    _CRC.pack_into(batch, _CRC_AT, crc32c(batch[_ATTRIBUTES_AT:]))


def sealed_batch(header: BatchHeader, records: Buffer) -> memoryview:
    """A batch of `header`, but for its length and CRC, and of records as they are stored: perhaps compressed."""
    content = memoryview(records).cast("B")
    batch = memoryview(bytearray(HEADER_BYTES + len(content)))
    _HEADER.pack_into(batch, 0, *header._replace(length=len(batch) - _LENGTH_ENDS))
    batch[HEADER_BYTES:] = content
    seal(batch)
    return batch


def patch_producer(
    batch: memoryview, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool = False
) -> None:
    """Write the producer fields, and seal the batch. `batch` is the whole batch and nothing more.

    The transactional bit is set or cleared. The delete horizon bit is cleared, because a producer must not send it.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
    attributes &= ~(_TRANSACTIONAL | _DELETE_HORIZON)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes | (_TRANSACTIONAL if transactional else 0))
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, _CRC_AT, crc32c(batch[_ATTRIBUTES_AT:]))


def codec_of(batch: memoryview) -> Codec:
    """How the records of a batch are compressed. Nothing else is checked. Raises `UnsupportedCodec`."""
    return Codec.of(batch[_ATTRIBUTES_AT + 1] & _CODEC_MASK)


def patch_offset(batch: memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write the batch's offset and leader epoch in a partition's log. The CRC does not cover them."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, _LENGTH_ENDS, leader_epoch)


def check_crc(batch: Buffer, header: BatchHeader | None = None) -> None:
    """Raise `CorruptBatch` unless `batch` is one whole batch whose CRC is right. `header`: its header, if known."""
    view = memoryview(batch)
    if header is None:
        header = read_header(view)
    if header.size != len(view):
        raise CorruptBatch(f"batch of {header.size} bytes in a buffer of {len(view)}")
    actual = crc32c(view[_ATTRIBUTES_AT:])
    if actual != header.crc:
        raise CorruptBatch(
            f"CRC-32C {actual:#010x} of a batch that claims {header.crc:#010x}, offset {header.base_offset}"
        )


def split_batches(buffer: Buffer) -> Iterator[memoryview]:
    """The whole batches of a fetch answer, in order, as views. A torn last one is left out.

    Raises `CorruptBatch` for a length that no batch can have. Nothing else is checked.
    """
    view = memoryview(buffer)
    at = 0
    while len(view) - at >= HEADER_BYTES:
        length: int = _START.unpack_from(view, at)[1]
        if length < _SMALLEST_LENGTH:
            raise CorruptBatch(f"batch length {length} is less than its header's {_SMALLEST_LENGTH}")
        end = at + _LENGTH_ENDS + length
        if end > len(view):
            return
        yield view[at:end]
        at = end
