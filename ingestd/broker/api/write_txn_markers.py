"""WriteTxnMarkers (KIP-98): markers into partitions that this node leads. Administrators end hanging transactions so.

A coordinator of this broker writes its markers without it (`ingestd/broker/transactions/marker_writer.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ingestd.broker.messages import Messages, messages
from ingestd.broker.request import Answer
from ingestd.broker.transactions.marker_writer import Marker
from ingestd.broker.transactions.transaction import EPOCH_BUMP, Ids, by_topic
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context
    from ingestd.broker.transactions.transaction import TopicPartition

API: Final = Api.write_txn_markers
VERSIONS: Final = range(1, 3)

_Outcome: TypeAlias = "ErrorCode | asyncio.Future[ErrorCode]"


def handle(context: Context, request: Request) -> Handled:
    """Each partition has its own result. Several markers of one producer have one result, as in Kafka."""
    schema = messages(API, request.version)
    outcomes: dict[int, dict[TopicPartition, _Outcome]] = {}
    for marker in schema.decode(request.body).markers:
        for topic in marker.topics:
            for number in topic.partition_indexes:
                where = topic.name, number
                outcomes.setdefault(marker.producer_id, {})[where] = _write(context, marker, where)
    return _wait(schema, outcomes)


def _write(context: Context, asked: Any, where: TopicPartition) -> _Outcome:
    ids = Ids(asked.producer_id, asked.producer_epoch)
    if ids.producer_id < 0 or ids.epoch < 0:
        return ErrorCode.unknown_server_error  # Kafka's word for it
    try:
        log = context.led(*where).log
        if getattr(asked, "transaction_version", 0) >= EPOCH_BUMP:
            log.check_raises_epoch(ids.producer_id, ids.epoch)
        marker = Marker(ids, asked.transaction_result, asked.coordinator_epoch)
        return context.broker.transactions.markers.write_once(marker, where)
    except KafkaError as refused:
        return refused.code


async def _wait(schema: Messages, outcomes: dict[int, dict[TopicPartition, _Outcome]]) -> Answer:
    first = ErrorCode.none
    markers = []
    for producer_id, of_producer in outcomes.items():
        errors = {
            where: await outcome if isinstance(outcome, asyncio.Future) else outcome
            for where, outcome in of_producer.items()
        }
        first = first or next((error for error in errors.values() if error), ErrorCode.none)
        markers.append(schema.make("WritableTxnMarkerResult", producer_id=producer_id, topics=_topics(schema, errors)))
    return Answer([schema.encode(markers=tuple(markers))], first)


def _topics(schema: Messages, errors: dict[TopicPartition, ErrorCode]) -> tuple[Any, ...]:
    return tuple(
        schema.make(
            "WritableTxnMarkerTopicResult",
            name=topic,
            partitions=tuple(
                schema.make(
                    "WritableTxnMarkerPartitionResult", partition_index=number, error_code=errors[topic, number]
                )
                for number in numbers
            ),
        )
        for topic, numbers in by_topic(errors).items()
    )
