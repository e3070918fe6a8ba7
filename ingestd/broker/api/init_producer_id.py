"""InitProducerId: an id for a producer (KIP-98). One with a transactional id keeps its id, with the next epoch.

The next epoch fences the producer before, and aborts what that left open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.api.fencing import in_words_of
from ingestd.broker.messages import NO_THROTTLE, Messages, messages
from ingestd.broker.request import Answer, when_done
from ingestd.broker.transactions.transaction import NONE, Ids
from ingestd.broker.transactions.transaction_partition import Outcome
from ingestd.broker.transactions.transitions import Start
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    import asyncio

    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

API: Final = Api.init_producer_id
VERSIONS: Final = range(6)

_FIRST_WITH_FENCED: Final = 4


def handle(context: Context, request: Request) -> Handled:
    """Answered when it is in the log. Without a transactional id, a producer that had an id gets a new one too."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    try:
        if asked.transactional_id is None:
            outcome = Outcome(ErrorCode.none, Ids(broker.storage.producer_ids.take(), 0))
            return _answer(schema, request.version, outcome)
        waiting = _initialize(context, asked)
    except KafkaError as refused:
        return _answer(schema, request.version, Outcome(refused.code))
    return when_done(waiting, lambda outcome: _answer(schema, request.version, outcome))


def _initialize(context: Context, asked: Any) -> asyncio.Future[Outcome]:
    broker = context.broker
    had = Ids(getattr(asked, "producer_id", NONE), getattr(asked, "producer_epoch", NONE))
    if (had.producer_id == NONE) != (had.epoch == NONE):
        raise KafkaError(ErrorCode.invalid_request, f"producer {had.producer_id} with epoch {had.epoch}")
    timeout = asked.transaction_timeout.total_seconds()
    if not 0 < timeout <= broker.settings.max_transaction_timeout:
        raise KafkaError(
            ErrorCode.invalid_transaction_timeout,
            f"transaction timeout {timeout} s: expected up to {broker.settings.max_transaction_timeout} s",
        )
    start = Start(round(timeout * 1000), broker.settings.transaction_version, None if had.producer_id == NONE else had)
    return context.transaction_partition(asked.transactional_id).initialize(asked.transactional_id, start)


def _answer(schema: Messages, version: int, outcome: Outcome) -> Answer:
    error = in_words_of(version, outcome.error, fenced_since=_FIRST_WITH_FENCED)
    ids = outcome.ids
    body = schema.encode(
        throttle_time=NO_THROTTLE, error_code=error, producer_id=ids.producer_id, producer_epoch=ids.epoch
    )
    return Answer([body], error)
