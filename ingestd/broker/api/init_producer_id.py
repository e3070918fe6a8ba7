"""InitProducerId: a new producer id for every idempotent producer (KIP-98). There are no transactions yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.init_producer_id
VERSIONS: Final = range(6)


def handle(context: Context, request: Request) -> Answer:
    """A producer that gives its previous id gets a new one too, as from Kafka: only transactions keep theirs."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    error, producer_id, epoch = ErrorCode.none, -1, -1
    if asked.transactional_id is not None:
        # Fatal to the client, with a message of its own that names the feature.
        error = ErrorCode.unsupported_version
    else:
        try:
            producer_id, epoch = broker.storage.producer_ids.take(), 0
        except KafkaError as refused:
            error = refused.code
    body = schema.encode(throttle_time=NO_THROTTLE, error_code=error, producer_id=producer_id, producer_epoch=epoch)
    return Answer([body], error)
