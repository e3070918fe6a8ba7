"""EndTxn: a producer commits or aborts its transaction (KIP-98). From version 5 on it gets its next epoch (KIP-890)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.api.fencing import in_words_of
from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer, when_done
from ingestd.broker.transactions.transaction import EPOCH_BUMP, Ids
from ingestd.broker.transactions.transaction_partition import Outcome
from ingestd.broker.transactions.transitions import End
from ingestd.errors import KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

API: Final = Api.end_txn
VERSIONS: Final = range(6)

_FIRST_WITH_FENCED: Final = 2
_FIRST_WITH_EPOCH_BUMP: Final = 5


def handle(context: Context, request: Request) -> Handled:
    """Answered when the markers are written: then readers of committed records have all of it, or nothing."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    level = context.broker.settings.transaction_version
    bumps = request.version >= _FIRST_WITH_EPOCH_BUMP and level >= EPOCH_BUMP
    end = End(Ids(asked.producer_id, asked.producer_epoch), asked.committed, EPOCH_BUMP if bumps else 0)
    try:
        waiting = context.transaction_partition(asked.transactional_id).end(asked.transactional_id, end)
    except KafkaError as refused:
        return _answer(schema, request.version, Outcome(refused.code))
    return when_done(waiting, lambda outcome: _answer(schema, request.version, outcome))


def _answer(schema: Messages, version: int, outcome: Outcome) -> Answer:
    error = in_words_of(version, outcome.error, fenced_since=_FIRST_WITH_FENCED)
    ids = outcome.ids
    body = schema.encode(
        throttle_time=NO_THROTTLE, error_code=error, producer_id=ids.producer_id, producer_epoch=ids.epoch
    )
    return Answer([body], error)
