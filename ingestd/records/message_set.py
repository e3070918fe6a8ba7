"""Message sets (magic 0 and 1), Kafka's format before record batches. Written for old brokers, read from old logs.

A set is messages, one after the other. A compressed set is a single wrapper message whose value is a set. The offsets
in it are absolute in magic 0 and relative in magic 1, where the wrapper has the offset of the last. Magic 1 (Kafka
0.10) brought timestamps. Neither has headers, producers or transactions. CRC-32, not CRC-32C, covers a message from its
magic on. kio has neither this format nor the versions of Produce and Fetch that carry it.

Layout: https://kafka.apache.org/documentation/#messageset
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from ingestd.errors import CorruptBatch, IngestdError, UnsupportedCodec, UnsupportedVersion
from ingestd.records.batch import HEADER_BYTES, read_header, write_header
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression, compressor, decompress
from ingestd.records.decode import LARGEST_RECORDS_BYTES, Record, TimestampType, decode_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer

__all__ = ["batches_of", "decode_message_set", "encode_message_set", "message_set_of_batch"]

_NO_TIMESTAMP: Final = -1
_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_FIRST_WITH_BATCHES: Final = 2

_START: Final = Struct(">qi")
"""Offset, and the length of the rest."""
_CRC: Final = Struct(">I")
_HEAD: Final = Struct(">bb")
_TIMESTAMP: Final = Struct(">q")
_LENGTH: Final = Struct(">i")
_OFFSET: Final = Struct(">q")
_MAGIC_AT: Final = _START.size + _CRC.size
_SMALLEST: Final = {0: 14, 1: 22}
"""The length of a message without key and value."""
_SMALLEST_BATCH: Final = HEADER_BYTES - _START.size
_CONVERTED_BYTES: Final = 1024 * 1024

_LZ4_CHECKSUM_AT: Final = 6
_LZ4_OLD_CHECKSUM: Final = 0x1A
"""The checksum of `lz4_frames`' header by the rule of Kafka 0.8 and 0.9, which also hashes its magic (KAFKA-3160)."""


# Writing


def encode_message_set(records: Iterable[Record], magic: int, compression: Compression) -> bytes:
    """The records as a producer sends them: with offsets from 0 on, and in magic 0 without timestamps.

    Raises `UnsupportedVersion` for a record with headers, `UnsupportedCodec` for zstd.
    """
    codec = compression.codec
    if codec is Codec.zstd:
        raise UnsupportedCodec(f"zstd needs record batches; a message of magic {magic} cannot have it")
    plain = bytearray()
    latest = _NO_TIMESTAMP
    count = 0
    for record in records:
        if record.headers:
            raise UnsupportedVersion("headers need record batches (Kafka 0.11); message sets cannot carry them")
        plain += _message(magic, count, 0, record.timestamp_ms, record.key, record.value)
        latest = max(latest, record.timestamp_ms)
        count += 1
    if codec is Codec.none or not count:
        return bytes(plain)
    packed = bytearray(compressor(compression).compress(plain))
    if codec is Codec.lz4 and magic == 0:
        packed[_LZ4_CHECKSUM_AT] = _LZ4_OLD_CHECKSUM
    return _message(magic, count - 1, codec, latest, None, packed)


def message_set_of_batch(batch: memoryview, magic: int) -> bytes:
    """The records of `batch` as a message set with the same codec. `batch` is a whole record batch, sealed or not.

    Raises what `encode_message_set` raises, and `CorruptBatch`.
    """
    return encode_message_set(decode_records(batch), magic, Compression(read_header(batch).codec))


def _message(
    magic: int, offset: int, attributes: int, timestamp_ms: int, key: Buffer | None, value: Buffer | None
) -> bytes:
    stamp = _TIMESTAMP.pack(timestamp_ms) if magic else b""
    covered = b"".join((_HEAD.pack(magic, attributes), stamp, *_nullable(key), *_nullable(value)))
    return b"".join((_START.pack(offset, _CRC.size + len(covered)), _CRC.pack(crc32(covered)), covered))


def _nullable(data: Buffer | None) -> tuple[bytes, Buffer]:
    return (_LENGTH.pack(-1), b"") if data is None else (_LENGTH.pack(memoryview(data).nbytes), data)


# Reading


def batches_of(buffer: Buffer, *, limit: int = LARGEST_RECORDS_BYTES) -> Iterator[memoryview]:
    """The whole record batches of a fetch answer, in order. A torn last one is left out. Messages become batches.

    Batches are views into `buffer`; only their length is checked. Runs of messages of magic 0 and 1 become
    uncompressed, sealed batches in memory of their own, made one by one during the iteration. All wrappers of one
    answer may hold `limit` bytes together. Raises `CorruptBatch` (checksums of messages included) and
    `UnsupportedCodec`, after the batches before the fault.
    """
    view = memoryview(buffer)
    at = 0
    while len(view) - at > _MAGIC_AT:
        if view[at + _MAGIC_AT] >= _FIRST_WITH_BATCHES:
            length: int = _START.unpack_from(view, at)[1]
            if length < _SMALLEST_BATCH:
                raise CorruptBatch(f"batch length {length} is less than its header's {_SMALLEST_BATCH}")
            end = at + _START.size + length
            if end > len(view):
                return
            yield view[at:end]
        else:
            end = _end_of_messages(view, at)
            if end == at:
                return
            yield from _converted(decode_message_set(view[at:end], limit=limit))
        at = end


def _end_of_messages(view: memoryview, at: int) -> int:
    """The end of the run of messages that begins at `at`, or the start of the first torn one."""
    while len(view) - at > _MAGIC_AT and view[at + _MAGIC_AT] < _FIRST_WITH_BATCHES:
        length: int = _START.unpack_from(view, at)[1]
        if length < _SMALLEST[view[at + _MAGIC_AT]]:
            raise CorruptBatch(f"message of {length} bytes")
        if length > len(view) - at - _START.size:
            break
        at += _START.size + length
    return at


def decode_message_set(buffer: Buffer, *, limit: int = LARGEST_RECORDS_BYTES) -> Iterator[Record]:
    """The records of whole messages, one by one, with their offsets in the log. Wrappers are opened.

    All wrappers together may hold `limit` bytes, and no more memory is taken for them. Raises `CorruptBatch` (checksums
    included) and `UnsupportedCodec`, after the records before the fault.
    """
    view = memoryview(buffer)
    left = limit
    for offset, message in _messages(view):
        magic, attributes, timestamp_ms, key, value = _fields(message, offset)
        codec = Codec.of(attributes & _CODEC_MASK)
        stamped = TimestampType.log_append_time if attributes & _LOG_APPEND_TIME else TimestampType.create_time
        if codec is Codec.none:
            yield Record(offset, timestamp_ms, stamped, _bytes(key), _bytes(value))
            continue
        if codec is Codec.zstd:
            raise UnsupportedCodec(f"offset {offset}: zstd in a message of magic {magic}")
        if value is None:
            raise CorruptBatch(f"offset {offset}: a compressed message without a value")
        inner = memoryview(decompress(codec, value, left)).cast("B")
        left -= len(inner)
        shift = offset - _last_offset(inner) if magic else 0
        for within, held in _messages(inner):
            inner_magic, inner_attributes, inner_timestamp_ms, key, value = _fields(held, offset)
            if inner_magic != magic or inner_attributes & _CODEC_MASK:
                raise CorruptBatch(f"offset {offset}: a wrapper of magic {magic} holds another kind of message")
            # The wrapper's timestamp type counts. If it is log append time, its timestamp counts too (KIP-32).
            stamp = timestamp_ms if stamped is TimestampType.log_append_time else inner_timestamp_ms
            if not 0 <= within + shift <= offset:
                raise CorruptBatch(f"offset {within + shift} in the wrapper that ends at offset {offset}")
            yield Record(within + shift, stamp, stamped, _bytes(key), _bytes(value))


def _messages(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Each message's offset, and its bytes from the checksum on."""
    at = 0
    while at < len(view):
        if len(view) - at <= _MAGIC_AT:
            raise CorruptBatch(f"{len(view) - at} bytes where a message should be")
        offset, length = _START.unpack_from(view, at)
        magic = view[at + _MAGIC_AT]
        if magic not in _SMALLEST:
            raise CorruptBatch(f"magic {magic} among messages")
        if offset < 0:
            raise CorruptBatch(f"message at offset {offset}")
        start = at + _START.size
        if not _SMALLEST[magic] <= length <= len(view) - start:
            raise CorruptBatch(f"message of {length} bytes, {len(view) - start} are left")
        at = start + length
        yield offset, view[start:at]


def _last_offset(inner: memoryview) -> int:
    """The offset, within a wrapper, of its last message."""
    last = -1
    for offset, _ in _messages(inner):
        last = offset
    return last


def _fields(message: memoryview, offset: int) -> tuple[int, int, int, memoryview | None, memoryview | None]:
    """Magic, attributes, timestamp, key and value. Checks that the message is whole and its checksum right."""
    (claimed,) = _CRC.unpack_from(message)
    actual = crc32(message[_CRC.size :])
    if actual != claimed:
        raise CorruptBatch(f"offset {offset}: CRC-32 {actual:#010x} of a message that claims {claimed:#010x}")
    magic, attributes = _HEAD.unpack_from(message, _CRC.size)
    at = _CRC.size + _HEAD.size
    timestamp_ms = _NO_TIMESTAMP
    if magic:
        (timestamp_ms,) = _TIMESTAMP.unpack_from(message, at)
        at += _TIMESTAMP.size
    key, at = _read_nullable(message, at, offset)
    value, at = _read_nullable(message, at, offset)
    if at != len(message):
        raise CorruptBatch(f"offset {offset}: {len(message) - at} bytes behind the value")
    return magic, attributes, timestamp_ms, key, value


def _read_nullable(message: memoryview, at: int, offset: int) -> tuple[memoryview | None, int]:
    start = at + _LENGTH.size
    if start > len(message):
        raise CorruptBatch(f"offset {offset}: the message ends within a length")
    (length,) = _LENGTH.unpack_from(message, at)
    if length == -1:
        return None, start
    if not 0 <= length <= len(message) - start:
        raise CorruptBatch(f"offset {offset}: {length} bytes announced, {len(message) - start} are left")
    return message[start : start + length], start + length


def _bytes(data: memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)


# Converting


def _converted(records: Iterator[Record]) -> Iterator[memoryview]:
    """The records as batches. Offsets in a batch follow each other; records with log append time share a timestamp."""
    builder = BatchBuilder(_CONVERTED_BYTES)
    first = last = None
    try:
        for record in records:
            if last is not None and not _continues(last, record) and first is not None:
                yield _build(builder, first)
                first = None
            if _append(builder, record) < 0:
                assert first is not None
                yield _build(builder, first)
                first = None
                _append(builder, record)
            first = first or record
            last = record
    except IngestdError:
        # The records before the fault are good.
        if first is not None:
            yield _build(builder, first)
        raise
    if first is not None:
        yield _build(builder, first)


def _append(builder: BatchBuilder, record: Record) -> int:
    try:
        return builder.append(record.key, record.value, (), record.timestamp_ms)
    except (OverflowError, ValueError) as error:
        raise CorruptBatch(f"offset {record.offset}: {error}") from error


def _continues(last: Record, record: Record) -> bool:
    if record.offset != last.offset + 1 or record.timestamp_type is not last.timestamp_type:
        return False
    return record.timestamp_type is TimestampType.create_time or record.timestamp_ms == last.timestamp_ms


def _build(builder: BatchBuilder, first: Record) -> memoryview:
    records, base, latest = builder.records, builder.base_timestamp, builder.max_timestamp
    batch = memoryview(builder.build(_PLAIN))
    stamped = _LOG_APPEND_TIME if first.timestamp_type is TimestampType.log_append_time else 0
    write_header(
        batch,
        records=records,
        codec=Codec.none,
        base_timestamp=base,
        max_timestamp=latest,
        base_offset=first.offset,
        attributes=stamped,
    )
    return batch


_PLAIN: Final = Compression(Codec.none)
