"""FindCoordinator: names this node for every group and every transactional id.

The first group makes the topic of the groups; the first transactional id that of the transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
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
    host, port = context.node.address(context.session)
    error, message = ErrorCode.none, None
    key_type = getattr(asked, "key_type", _GROUP)
    if key_type in {_GROUP, _TRANSACTION}:
        try:
            (broker.groups if key_type == _GROUP else broker.transactions).begin()
        except KafkaError as refused:
            error, message = refused.code, refused.detail
    else:
        error, message = ErrorCode.invalid_request, f"no coordinator for key type {key_type}"
    node = {"node_id": broker.node.id, "host": host, "port": port, "error_code": error, "error_message": message}
    coordinators = ()
    if request.version >= _FIRST_WITH_KEYS:
        coordinators = tuple(schema.make("Coordinator", key=key, **node) for key in asked.coordinator_keys)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, coordinators=coordinators, **node)], error)
