"""FindCoordinator: names the node of a group or a transactional id.

The first group makes the topic of the groups; the first transactional id that of the transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.find_coordinator
VERSIONS: Final = range(7)

_GROUP: Final = 0
_TRANSACTION: Final = 1
_FIRST_WITH_KEYS: Final = 4


def handle(context: Context, request: Request) -> Answer:
    """One result per key from version 4 on; before, one result."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    error, message = ErrorCode.none, None
    key_type = getattr(asked, "key_type", _GROUP)
    if key_type in {_GROUP, _TRANSACTION}:
        try:
            (broker.groups if key_type == _GROUP else broker.transactions).begin()
        except KafkaError as refused:
            error, message = refused.code, refused.detail
    else:
        error, message = ErrorCode.invalid_request, f"no coordinator for key type {key_type}"
    topic = TRANSACTIONS_TOPIC if key_type == _TRANSACTION else OFFSETS_TOPIC

    def coordinator(key: str) -> dict[str, Any]:
        node = broker.cluster.coordinator(topic, key)
        host, port = node.address(context.session)
        return {"node_id": node.id, "host": host, "port": port, "error_code": error, "error_message": message}

    if request.version >= _FIRST_WITH_KEYS:
        found = tuple(schema.make("Coordinator", key=key, **coordinator(key)) for key in asked.coordinator_keys)
        return Answer([schema.encode(throttle_time=NO_THROTTLE, coordinators=found)], error)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, **coordinator(asked.key))], error)
