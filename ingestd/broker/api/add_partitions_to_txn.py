"""AddPartitionsToTxn: partitions that a producer is about to write to in its transaction (KIP-98).

From version 4 on, brokers ask each other, for several transactions at once, or only whether a partition is in one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.api.fencing import in_words_of
from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer
from ingestd.broker.topics import is_internal
from ingestd.broker.transactions.transaction import EPOCH_BUMP, Ids
from ingestd.broker.transactions.transitions import check_member
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.broker.broker import Broker
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context
    from ingestd.broker.transactions.transaction import TopicPartition
    from ingestd.broker.transactions.transaction_partition import Outcome

API: Final = Api.add_partitions_to_txn
VERSIONS: Final = range(6)

_FIRST_WITH_FENCED: Final = 2
_FIRST_OF_BROKERS: Final = 4


@dataclass(frozen=True, slots=True)
class _Asked:
    """One transaction's partitions. `errors`: why some can not be added; then none is."""

    transactional_id: str
    ids: Ids
    partitions: Sequence[TopicPartition]
    verify_only: bool
    errors: dict[TopicPartition, ErrorCode]


def handle(context: Context, request: Request) -> Handled:
    """All partitions of a transaction are added, or none. Answered when it is in the log."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    several = request.version >= _FIRST_OF_BROKERS
    transactions = [_read(context.broker, one, several=several) for one in (asked.transactions if several else [asked])]
    waiting = [_begin(context, one, several=several) for one in transactions]
    return _wait(schema, request.version, transactions, waiting)


def _read(broker: Broker, asked: Any, *, several: bool) -> _Asked:
    topics = asked.topics if several else asked.v3_and_below_topics
    partitions = [(topic.name, number) for topic in topics for number in topic.partitions]
    verify_only = several and asked.verify_only
    errors = {}
    for where in partitions:
        if is_internal(where[0]) and not several:
            errors[where] = ErrorCode.topic_authorization_failed
        elif broker.storage.partition(*where) is None and not verify_only:
            errors[where] = ErrorCode.unknown_topic_or_partition
    named = asked if several else None
    return _Asked(
        named.transactional_id if named else asked.v3_and_below_transactional_id,
        Ids(
            named.producer_id if named else asked.v3_and_below_producer_id,
            named.producer_epoch if named else asked.v3_and_below_producer_epoch,
        ),
        partitions,
        verify_only,
        errors,
    )


def _begin(context: Context, asked: _Asked, *, several: bool) -> asyncio.Future[Outcome] | ErrorCode:
    if asked.errors:
        asked.errors.update(
            {where: ErrorCode.operation_not_attempted for where in asked.partitions if where not in asked.errors}
        )
        return ErrorCode.none
    try:
        partition = context.transaction_partition(asked.transactional_id)
        if not asked.verify_only:
            version = EPOCH_BUMP if several else 0
            return partition.add(asked.transactional_id, asked.ids, asked.partitions, version)
        known = check_member(partition.get(asked.transactional_id), asked.ids)
    except KafkaError as refused:
        return refused.code
    missing = [where for where in asked.partitions if where not in known.partitions]
    asked.errors.update(dict.fromkeys(missing, ErrorCode.transaction_abortable))
    return ErrorCode.none


async def _wait(
    schema: Messages, version: int, transactions: list[_Asked], waiting: list[asyncio.Future[Outcome] | ErrorCode]
) -> Answer:
    first = ErrorCode.none
    results = []
    for asked, one in zip(transactions, waiting, strict=True):
        error = (await one).error if isinstance(one, asyncio.Future) else one
        error = in_words_of(version, error, fenced_since=_FIRST_WITH_FENCED)
        first = first or error or next(iter(asked.errors.values()), ErrorCode.none)
        results.append((asked.transactional_id, _topics(schema, asked, error)))
    if version < _FIRST_OF_BROKERS:
        return Answer([schema.encode(throttle_time=NO_THROTTLE, results_by_topic_v3_and_below=results[0][1])], first)
    by_transaction = tuple(
        schema.make("AddPartitionsToTxnResult", transactional_id=transactional_id, topic_results=topics)
        for transactional_id, topics in results
    )
    body = schema.encode(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results_by_transaction=by_transaction)
    return Answer([body], first)


def _topics(schema: Messages, asked: _Asked, error: ErrorCode) -> tuple[Any, ...]:
    by_topic: dict[str, list[int]] = {}
    for topic, number in asked.partitions:
        by_topic.setdefault(topic, []).append(number)
    return tuple(
        schema.make(
            "AddPartitionsToTxnTopicResult",
            name=topic,
            results_by_partition=tuple(
                schema.make(
                    "AddPartitionsToTxnPartitionResult",
                    partition_index=number,
                    partition_error_code=asked.errors.get((topic, number), error),
                )
                for number in numbers
            ),
        )
        for topic, numbers in by_topic.items()
    )
