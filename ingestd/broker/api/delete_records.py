"""DeleteRecords (KIP-107): moves the start of logs forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.broker.topics import check_not_internal
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.delete_records
VERSIONS: Final = range(3)

_HIGH_WATERMARK: Final = -1
_log = get_logger(__name__)


def handle(context: Context, request: Request) -> Answer:
    """Each partition has its own result. Offset -1 means the high watermark."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    first = ErrorCode.none
    topics = []
    for topic in asked.topics:
        results = []
        for partition in topic.partitions:
            low_watermark, error = _delete(context, topic.name, partition.partition_index, partition.offset)
            first = first or error
            results.append(
                schema.make(
                    "DeleteRecordsPartitionResult",
                    partition_index=partition.partition_index,
                    low_watermark=low_watermark,
                    error_code=error,
                )
            )
        topics.append(schema.make("DeleteRecordsTopicResult", name=topic.name, partitions=tuple(results)))
    return Answer([schema.encode(throttle_time=NO_THROTTLE, topics=tuple(topics))], first)


def _delete(context: Context, topic: str, partition: int, offset: int) -> tuple[int, ErrorCode]:
    try:
        check_not_internal(topic, "shortened")
        log = context.led(topic, partition).log
        if log.config.compacts and not log.config.deletes:
            return -1, ErrorCode.policy_violation
        if offset == _HIGH_WATERMARK:
            offset = log.high_watermark
        if not 0 <= offset <= log.high_watermark:
            return -1, ErrorCode.offset_out_of_range
        log.delete_before(offset)
    except KafkaError as error:
        return -1, error.code
    except OSError as error:
        _log.error("records not deleted", partition=f"{topic}-{partition}", offset=offset, error=str(error))
        return -1, ErrorCode.kafka_storage_error
    return log.start_offset, ErrorCode.none
