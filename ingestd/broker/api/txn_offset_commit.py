"""TxnOffsetCommit: what a group has processed, in a transaction. It can be fetched when that is committed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.api.offsets_to_commit import offsets_to_commit
from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer
from ingestd.broker.topics import OFFSETS_TOPIC
from ingestd.broker.transactions.admission import Missing, admit
from ingestd.broker.transactions.transaction import Ids
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.broker.coordinator.records import Committed
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context
    from ingestd.broker.transactions.transaction_partition import Outcome

API: Final = Api.txn_offset_commit
VERSIONS: Final = range(6)

_FIRST_WITH_ABORTABLE: Final = 4
_FIRST_THAT_ADDS: Final = 5


def handle(context: Context, request: Request) -> Handled:
    """Each partition has its own result. Answered when it is in the log."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    offsets, refused = offsets_to_commit(context.broker, asked.topics, by_id=False)
    if not offsets:
        return _answer(schema, asked, refused, ErrorCode.none)
    try:
        added, committed = _commit(context, request.version, asked, offsets)
    except KafkaError as error:
        # Kafka's group coordinator says it so.
        again = error.code is ErrorCode.not_enough_replicas
        return _answer(schema, asked, refused, ErrorCode.coordinator_not_available if again else error.code)
    return _wait(schema, asked, refused, added, committed)


def _commit(
    context: Context, version: int, asked: Any, offsets: Mapping[tuple[str, int], Committed]
) -> tuple[asyncio.Future[Outcome] | None, asyncio.Future[ErrorCode]]:
    broker = context.broker
    place = context.members_partition(asked.group_id)
    where = OFFSETS_TOPIC, broker.groups.number_of(asked.group_id)
    ids = Ids(asked.producer_id, asked.producer_epoch)
    log = broker.partition(*where).log
    added = admit(broker.transactions, asked.transactional_id, ids, where, log, _missing(version))
    member = (
        getattr(asked, "member_id", ""),
        getattr(asked, "group_instance_id", None),
        getattr(asked, "generation_id", -1),
    )
    transaction = asked.producer_id, asked.producer_epoch
    return added, place.commit_in_transaction(asked.group_id, member, transaction, offsets)


def _missing(version: int) -> Missing:
    """What becomes of a group that is not in the transaction."""
    if version >= _FIRST_THAT_ADDS:
        return Missing.added
    return Missing.abortable if version >= _FIRST_WITH_ABORTABLE else Missing.refused


async def _wait(
    schema: Messages,
    asked: Any,
    refused: dict[tuple[object, int], ErrorCode],
    added: asyncio.Future[Outcome] | None,
    committed: asyncio.Future[ErrorCode],
) -> Answer:
    error = await committed
    if added is not None:
        error = error or (await asyncio.shield(added)).error
    return _answer(schema, asked, refused, error)


def _answer(schema: Messages, asked: Any, refused: dict[tuple[object, int], ErrorCode], error: ErrorCode) -> Answer:
    topics = tuple(
        schema.make(
            "TxnOffsetCommitResponseTopic",
            name=topic.name,
            partitions=tuple(
                schema.make(
                    "TxnOffsetCommitResponsePartition",
                    partition_index=one.partition_index,
                    error_code=refused.get((topic.name, one.partition_index), error),
                )
                for one in topic.partitions
            ),
        )
        for topic in asked.topics
    )
    first = error or next(iter(refused.values()), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, topics=topics)], first)
