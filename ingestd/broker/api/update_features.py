"""UpdateFeatures (KIP-584): features of this broker come with its version and its settings. None is updated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.update_features
VERSIONS: Final = range(3)


def handle(context: Context, request: Request) -> Answer:
    """Refuse all with INVALID_UPDATE_VERSION, as Kafka refuses a level that it does not support."""
    del context
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    names = [update.feature for update in asked.feature_updates]
    error = ErrorCode.invalid_update_version if names else ErrorCode.none
    says = f"{', '.join(names)}: this broker's features change with its version and its settings alone"
    body = schema.encode(throttle_time=NO_THROTTLE, error_code=error, error_message=says if names else None, results=())
    return Answer([body], error)
