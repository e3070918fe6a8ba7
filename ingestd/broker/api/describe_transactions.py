"""DescribeTransactions (KIP-664): state, producer, timeout, start and partitions of transactional ids."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer
from ingestd.broker.transactions.transaction import NONE, by_topic
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.broker.request import Request
    from ingestd.broker.session import Context
    from ingestd.broker.transactions.transaction import TopicPartition, Transaction

API: Final = Api.describe_transactions
VERSIONS: Final = range(1)

_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def handle(context: Context, request: Request) -> Answer:
    """Each transactional id has its own result."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    states = tuple(_state(context, schema, transactional_id) for transactional_id in asked.transactional_ids)
    first = next((state.error_code for state in states if state.error_code), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, transaction_states=states)], first)


def _state(context: Context, schema: Messages, transactional_id: str) -> Any:
    try:
        known = context.transaction_partition(transactional_id).get(transactional_id)
    except KafkaError as refused:
        return _refused(schema, transactional_id, refused.code)
    if known is None:
        return _refused(schema, transactional_id, ErrorCode.transactional_id_not_found)
    return _described(schema, transactional_id, known, context.broker.transactions.unmarked(known))


def _described(
    schema: Messages, transactional_id: str, known: Transaction, partitions: Iterable[TopicPartition]
) -> Any:
    return schema.make(
        "TransactionState",
        error_code=ErrorCode.none,
        transactional_id=transactional_id,
        transaction_state=known.state.shown,
        transaction_timeout=known.timeout_ms * _MILLISECOND,
        transaction_start_time=None if known.started_ms == NONE else _EPOCH + known.started_ms * _MILLISECOND,
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
        topics=tuple(
            schema.make("TopicData", topic=topic, partitions=tuple(numbers))
            for topic, numbers in by_topic(partitions).items()
        ),
    )


def _refused(schema: Messages, transactional_id: str, error: ErrorCode) -> Any:
    # Kafka leaves the numbers at 0.
    return schema.make(
        "TransactionState",
        error_code=error,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout=timedelta(0),
        transaction_start_time=_EPOCH,
        producer_id=0,
        producer_epoch=0,
        topics=(),
    )
