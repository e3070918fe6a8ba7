"""AlterReplicaLogDirs (KIP-113): to move logs to another directory. There is one, so nothing is ever moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.alter_replica_log_dirs
VERSIONS: Final = range(1, 3)


def handle(context: Context, request: Request) -> Answer:
    """A log that shall be where it is, is there. For any other directory: LOG_DIR_NOT_FOUND."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    codes: dict[str, dict[int, ErrorCode]] = {}
    for directory in asked.dirs:
        for topic in directory.topics:
            for partition in topic.partitions:
                code = _outcome(context.broker, directory.path, topic.name, partition)
                codes.setdefault(topic.name, {})[partition] = code
    results: tuple[Any, ...] = tuple(
        schema.make(
            "AlterReplicaLogDirTopicResult",
            topic_name=topic,
            partitions=tuple(
                schema.make("AlterReplicaLogDirPartitionResult", partition_index=partition, error_code=code)
                for partition, code in of_topic.items()
            ),
        )
        for topic, of_topic in codes.items()
    )
    first = next((code for of_topic in codes.values() for code in of_topic.values() if code), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, results=results)], first)


def _outcome(broker: Broker, path: str, topic: str, partition: int) -> ErrorCode:
    if path != str(broker.settings.data.absolute()):
        return ErrorCode.log_dir_not_found
    if broker.storage.partition(topic, partition) is None:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none
