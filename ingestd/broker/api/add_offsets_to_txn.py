"""AddOffsetsToTxn: a producer is about to commit offsets of a group in its transaction (KIP-98).

The group's partition of `__consumer_offsets` becomes part of the transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.api.fencing import in_words_of
from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer, when_done
from ingestd.broker.topics import OFFSETS_TOPIC
from ingestd.broker.transactions.transaction import Ids
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

API: Final = Api.add_offsets_to_txn
VERSIONS: Final = range(5)

_FIRST_WITH_FENCED: Final = 2


def handle(context: Context, request: Request) -> Handled:
    """Answered when it is in the log."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    ids = Ids(asked.producer_id, asked.producer_epoch)
    try:
        # The producer looks for the group's coordinator afterwards.
        broker.groups.begin()
        where = OFFSETS_TOPIC, broker.groups.number_of(asked.group_id)
        waiting = context.transaction_partition(asked.transactional_id).add(asked.transactional_id, ids, [where])
    except KafkaError as refused:
        return _answer(schema, request.version, refused.code)
    return when_done(waiting, lambda outcome: _answer(schema, request.version, outcome.error))


def _answer(schema: Messages, version: int, error: ErrorCode) -> Answer:
    error = in_words_of(version, error, fenced_since=_FIRST_WITH_FENCED)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, error_code=error)], error)
