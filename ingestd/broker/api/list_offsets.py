"""ListOffsets: the start and end of a log, and offsets by timestamp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.log.times import batches_from_timestamp, batches_of_largest_timestamp
from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer
from ingestd.errors import CorruptBatch, ErrorCode, KafkaError
from ingestd.logs import get_logger
from ingestd.records.decode import decode_records
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.log.partition_log import PartitionLog
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.list_offsets
VERSIONS: Final = range(1, 12)

_READ_COMMITTED: Final = 1
_LATEST: Final = -1
_EARLIEST: Final = -2
_LARGEST_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_NOT_TIERED: Final = -6
"""There is no tiered storage (KIP-405): everything is local, and nothing is or will be elsewhere."""
_SINCE: Final = {
    _LATEST: 1,
    _EARLIEST: 1,
    _LARGEST_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_NOT_TIERED: 11,
}
"""What stands in place of a timestamp, and the first version of the request that has it."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    offset: int = -1
    timestamp: int = -1


def handle(context: Context, request: Request) -> Answer:
    """Each partition has its own result."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    committed = getattr(asked, "isolation_level", 0) == _READ_COMMITTED
    topics = tuple(
        schema.make(
            "ListOffsetsTopicResponse",
            name=topic.name,
            partitions=tuple(
                _partition(context, schema, request.version, topic.name, partition, committed=committed)
                for partition in topic.partitions
            ),
        )
        for topic in asked.topics
    )
    first = next((p.error_code for topic in topics for p in topic.partitions if p.error_code), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, topics=topics)], first)


def _partition(context: Context, schema: Messages, version: int, topic: str, asked: Any, *, committed: bool) -> Any:
    found, epoch, error = _Found(), -1, ErrorCode.none
    try:
        _check(asked.timestamp, version)
        log = context.led(topic, asked.partition_index).log
        log.check_leader_epoch(getattr(asked, "current_leader_epoch", -1))
        found = _find(log, asked.timestamp, log.last_stable_offset if committed else log.high_watermark)
        if found.offset >= 0:
            # Kafka's answer for the end, also where the last batches are of an older epoch.
            epoch = log.leader_epoch if asked.timestamp == _LATEST else log.epoch_at(found.offset)
    except KafkaError as refused:
        error = refused.code
    except (OSError, CorruptBatch) as failure:
        _log.error("log can not be read", partition=f"{topic}-{asked.partition_index}", error=str(failure))
        error = ErrorCode.kafka_storage_error
    return schema.make(
        "ListOffsetsPartitionResponse",
        partition_index=asked.partition_index,
        error_code=error,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=epoch,
    )


def _check(timestamp: int, version: int) -> None:
    if timestamp < 0 and version < _SINCE.get(timestamp, version + 1):
        raise KafkaError(ErrorCode.unsupported_version, f"timestamp {timestamp} in version {version}")


def _find(log: PartitionLog, timestamp: int, until: int) -> _Found:
    """`until` is the end of what the client may read. As in Kafka, nothing behind it is found."""
    ends = {
        _LATEST: until,
        _EARLIEST: log.start_offset,
        _EARLIEST_LOCAL: log.start_offset,
        _LATEST_TIERED: -1,
        _EARLIEST_NOT_TIERED: -1,
    }
    if timestamp in ends:
        return _Found(ends[timestamp])
    found = _largest(log) if timestamp == _LARGEST_TIMESTAMP else _first_from(log, timestamp)
    return found if found.offset < until else _Found()


def _first_from(log: PartitionLog, timestamp: int) -> _Found:
    for header, batch in batches_from_timestamp(log, timestamp):
        whole = header.records == 1 and header.last_offset_delta == 0 and not header.delete_horizon
        if whole and header.base_timestamp >= timestamp and header.base_offset >= log.start_offset:
            return _Found(header.base_offset, header.base_timestamp)
        for record in decode_records(batch.read()):
            if record.timestamp_ms >= timestamp and record.offset >= log.start_offset:
                return _Found(record.offset, record.timestamp_ms)
    return _Found()


def _largest(log: PartitionLog) -> _Found:
    found = _Found()
    for _header, batch in batches_of_largest_timestamp(log):
        for record in decode_records(batch.read(), first=log.start_offset):
            if record.timestamp_ms > found.timestamp:
                found = _Found(record.offset, record.timestamp_ms)
    return found
