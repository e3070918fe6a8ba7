"""Checks a produced batch by its header and CRC before it is appended. No record is parsed."""

from __future__ import annotations

from typing import Final

from ingestd.errors import CorruptBatch, ErrorCode, KafkaError
from ingestd.records.batch import HEADER_BYTES, NO_PRODUCER_ID, BatchHeader, check_crc, read_header
from ingestd.records.codecs import Codec

__all__ = ["check_batch"]

_MAGIC: Final = 2
_MAGIC_AT: Final = 16
_LENGTH_ENDS: Final = 12
_CODEC_MASK: Final = 0x07


def check_batch(records: memoryview | None, max_message_bytes: int, *, zstd: bool) -> tuple[memoryview, BatchHeader]:
    """The one batch in a partition's records, and its header.

    `zstd`: whether the request's version may carry that codec (KIP-110). Raises `KafkaError` with Kafka's codes:
    INVALID_RECORD for a batch that no producer may send, CORRUPT_MESSAGE for wrong lengths and a wrong CRC,
    MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE, INVALID_TIMESTAMP.
    """
    if records is None or len(records) == 0:
        raise KafkaError(ErrorCode.invalid_record, "no record batch: exactly one is expected per partition")
    if len(records) > _MAGIC_AT and records[_MAGIC_AT] != _MAGIC:
        raise KafkaError(ErrorCode.invalid_record, f"record format {records[_MAGIC_AT]}, expected {_MAGIC}")
    if len(records) < HEADER_BYTES:
        raise KafkaError(
            ErrorCode.corrupt_message, f"a batch of {len(records)} bytes: its header alone has {HEADER_BYTES}"
        )
    _check_length(records)
    if len(records) > max_message_bytes:
        raise KafkaError(
            ErrorCode.message_too_large, f"a batch of {len(records)} bytes: the topic takes up to {max_message_bytes}"
        )
    try:
        check_crc(records)
        header = read_header(records)
    except CorruptBatch as error:
        raise KafkaError(ErrorCode.corrupt_message, str(error)) from error
    _check_header(header, zstd=zstd)
    return records, header


def _check_length(records: memoryview) -> None:
    size = _LENGTH_ENDS + int.from_bytes(records[8:_LENGTH_ENDS], "big", signed=True)
    if HEADER_BYTES <= size < len(records):
        raise KafkaError(ErrorCode.invalid_record, "more than one record batch: exactly one is expected per partition")
    if size != len(records):
        raise KafkaError(ErrorCode.corrupt_message, f"a batch that claims {size} bytes in {len(records)}")


def _check_header(header: BatchHeader, *, zstd: bool) -> None:
    if header.base_offset != 0:
        raise KafkaError(ErrorCode.invalid_record, f"base offset {header.base_offset}: a producer's is 0")
    if header.records <= 0 or header.records != header.last_offset_delta + 1:
        raise KafkaError(
            ErrorCode.invalid_record, f"{header.records} records with last offset delta {header.last_offset_delta}"
        )
    codec = header.attributes & _CODEC_MASK
    if codec > Codec.zstd or (codec == Codec.zstd and not zstd):
        raise KafkaError(ErrorCode.unsupported_compression_type, f"compression type {codec} in this version of Produce")
    if header.log_append_time:
        raise KafkaError(ErrorCode.invalid_timestamp, "a producer can not say LogAppendTime")
    if header.control:
        raise KafkaError(ErrorCode.invalid_record, "a producer can not write control batches")
    if header.producer_id < NO_PRODUCER_ID or (header.transactional and header.producer_id == NO_PRODUCER_ID):
        raise KafkaError(ErrorCode.invalid_record, f"producer id {header.producer_id}")
    if header.producer_id != NO_PRODUCER_ID and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise KafkaError(
            ErrorCode.invalid_record,
            f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}",
        )
