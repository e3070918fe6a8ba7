"""ListOffsets: the start and end of a log, and offsets by timestamp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer
from ingestd.errors import CorruptBatch, ErrorCode, KafkaError
from ingestd.logs import get_logger
from ingestd.records.decode import decode_records
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker
    from ingestd.broker.log.partition_log import PartitionLog
    from ingestd.broker.request import Request

API: Final = Api.list_offsets
VERSIONS: Final = range(1, 12)

_LATEST: Final = -1
_EARLIEST: Final = -2
_LARGEST_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_NOT_TIERED: Final = -6
"""There is no tiered storage (KIP-405): everything is local."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    offset: int = -1
    timestamp: int = -1


def handle(broker: Broker, request: Request) -> Answer:
    """Each partition has its own result."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    topics = tuple(
        schema.make(
            "ListOffsetsTopicResponse",
            name=topic.name,
            partitions=tuple(_partition(broker, schema, topic.name, partition) for partition in topic.partitions),
        )
        for topic in asked.topics
    )
    first = next((p.error_code for topic in topics for p in topic.partitions if p.error_code), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, topics=topics)], first)


def _partition(broker: Broker, schema: Messages, topic: str, asked: Any) -> Any:
    found, epoch = _Found(), -1
    error = broker.leader_error(getattr(asked, "current_leader_epoch", -1))
    if error is ErrorCode.none:
        try:
            log = broker.partition(topic, asked.partition_index).log
            found = _find(log, asked.timestamp)
            if found.offset >= 0:
                epoch = log.epochs.at(found.offset)
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


def _find(log: PartitionLog, timestamp: int) -> _Found:
    ends = {
        _LATEST: log.end_offset,
        _EARLIEST: log.start_offset,
        _EARLIEST_LOCAL: log.start_offset,
        _LATEST_TIERED: -1,
        _EARLIEST_NOT_TIERED: log.start_offset,
    }
    if timestamp in ends:
        return _Found(ends[timestamp])
    if timestamp == _LARGEST_TIMESTAMP:
        return _largest(log)
    if timestamp < 0:
        raise KafkaError(ErrorCode.invalid_request, f"timestamp {timestamp}")
    return _first_from(log, timestamp)


def _first_from(log: PartitionLog, timestamp: int) -> _Found:
    for header, batch in log.batches_from_timestamp(timestamp):
        if header.base_timestamp >= timestamp and header.base_offset >= log.start_offset and header.records == 1:
            return _Found(header.base_offset, header.base_timestamp)
        for record in decode_records(batch.read()):
            if record.timestamp_ms >= timestamp and record.offset >= log.start_offset:
                return _Found(record.offset, record.timestamp_ms)
    return _Found()


def _largest(log: PartitionLog) -> _Found:
    found = _Found()
    for _header, batch in log.batches_of_largest_timestamp():
        for record in decode_records(batch.read(), first=log.start_offset):
            if record.timestamp_ms > found.timestamp:
                found = _Found(record.offset, record.timestamp_ms)
    return found
