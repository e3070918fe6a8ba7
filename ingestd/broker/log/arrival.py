"""A produced batch beside its topic's configuration: timestamps, keys, and the stamp of the append's time."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from ingestd.broker.configs.kinds import LONG_MAX
from ingestd.errors import CorruptBatch, ErrorCode, KafkaError, UnsupportedCodec
from ingestd.records.batch import seal
from ingestd.records.decode import decode_columns

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ingestd.broker.topic_config import TopicConfig
    from ingestd.records.batch import BatchHeader

__all__ = ["check_arrival", "stamped"]

_ATTRIBUTES_AT: Final = 21
_ATTRIBUTES: Final = Struct(">h")
_MAX_TIMESTAMP_AT: Final = 35
_MAX_TIMESTAMP: Final = Struct(">q")
_LOG_APPEND_TIME: Final = 0x08
_NONE: Final = -1


def check_arrival(batch: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """Check what the topic asks of its records. Records are read only if the header does not tell.

    `now_ms`: milliseconds since the epoch. Raises `KafkaError`: INVALID_TIMESTAMP for a timestamp too far from now,
    INVALID_RECORD for a record without a key in a compacted topic, CORRUPT_MESSAGE.
    """
    latest = now_ms + config.timestamp_after_max_ms
    if not config.append_time and header.max_timestamp > latest:
        raise _wrong_time(header.max_timestamp, f"at most {config.timestamp_after_max_ms} ms ahead of {now_ms}")
    if not config.needs_records:
        return
    try:
        columns = decode_columns(batch, header=header)
    except (CorruptBatch, UnsupportedCodec) as error:
        raise KafkaError(ErrorCode.corrupt_message, str(error)) from error
    if config.compacts and columns.keys.nulls:
        raise KafkaError(
            ErrorCode.invalid_record, f"{columns.keys.nulls} records without a key: the topic is compacted"
        )
    if not config.append_time:
        _check_times(columns.timestamps, config, now_ms)


def _check_times(timestamps: Buffer, config: TopicConfig, now_ms: int) -> None:
    times = memoryview(timestamps).cast("q")
    latest = max(times, default=_NONE)
    if latest > now_ms + config.timestamp_after_max_ms:
        raise _wrong_time(latest, f"at most {config.timestamp_after_max_ms} ms ahead of {now_ms}")
    if config.timestamp_before_max_ms == LONG_MAX:
        return
    earliest = min((time for time in times if time != _NONE), default=now_ms)
    if earliest < now_ms - config.timestamp_before_max_ms:
        raise _wrong_time(earliest, f"at most {config.timestamp_before_max_ms} ms behind {now_ms}")


def _wrong_time(timestamp: int, expected: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_timestamp, f"timestamp {timestamp}: the topic takes {expected}")


def stamped(batch: memoryview, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Give all records of a batch the time of the append (LogAppendTime), in place. Returns the header after that."""
    attributes = header.attributes | _LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, now_ms)
    seal(batch)
    return header._replace(attributes=attributes, max_timestamp=now_ms)
