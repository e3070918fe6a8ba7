"""FindCoordinator: names this node for every group and every transactional id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker
    from ingestd.broker.request import Request

API: Final = Api.find_coordinator
VERSIONS: Final = range(7)

_GROUP_OR_TRANSACTION: Final = (0, 1)
_FIRST_WITH_KEYS: Final = 4


def handle(broker: Broker, request: Request) -> Answer:
    """One result per key from version 4 on; before, one result."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    host, port = broker.address(request)
    error, message = ErrorCode.none, None
    if getattr(asked, "key_type", 0) not in _GROUP_OR_TRANSACTION:
        error, message = ErrorCode.invalid_request, f"no coordinator for key type {asked.key_type}"
    node = {"node_id": broker.node_id, "host": host, "port": port, "error_code": error, "error_message": message}
    coordinators = ()
    if request.version >= _FIRST_WITH_KEYS:
        coordinators = tuple(schema.make("Coordinator", key=key, **node) for key in asked.coordinator_keys)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, coordinators=coordinators, **node)], error)
