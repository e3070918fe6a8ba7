"""DescribeLogDirs (KIP-113): the data directory, the bytes of each partition in it, and the room on its volume."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.broker.broker import Broker
    from ingestd.broker.messages import Messages
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.describe_log_dirs
VERSIONS: Final = range(1, 6)


def handle(context: Context, request: Request) -> Answer:
    """There is one directory. Partitions that do not exist are left out, as in Kafka."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    wanted = None if asked.topics is None else {topic.topic: topic.partitions for topic in asked.topics}
    directory = broker.settings.data
    total, usable, error = -1, -1, ErrorCode.none
    try:
        volume = os.statvfs(directory)
        total, usable = volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
    except OSError:
        error = ErrorCode.kafka_storage_error
    result = schema.make(
        "DescribeLogDirsResult",
        error_code=error,
        log_dir=str(directory.absolute()),
        topics=tuple(_topics(broker, schema, wanted)),
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=False,
    )
    return Answer([schema.encode(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results=(result,))], error)


def _topics(broker: Broker, schema: Messages, wanted: dict[str, tuple[int, ...]] | None) -> Iterable[Any]:
    for topic in broker.storage.topics:
        numbers = range(topic.partitions) if wanted is None else wanted.get(topic.name, ())
        found = [(number, broker.storage.partition(topic.name, number)) for number in numbers]
        partitions = tuple(
            schema.make(
                "DescribeLogDirsPartition",
                partition_index=number,
                partition_size=partition.log.size,
                offset_lag=0,
                is_future_key=False,
            )
            for number, partition in found
            if partition is not None
        )
        if partitions:
            yield schema.make("DescribeLogDirsTopic", name=topic.name, partitions=partitions)
