"""DescribeCluster (KIP-700): one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.describe_cluster
VERSIONS: Final = range(3)

_BROKERS: Final = 1


def handle(context: Context, request: Request) -> Answer:
    """Describes brokers only: there are no separate controllers."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    host, port = context.node.address(context.session)
    error, message = ErrorCode.none, None
    endpoint_type = getattr(asked, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        error, message = ErrorCode.unsupported_endpoint_type, "this node lists brokers only"
    body = schema.encode(
        throttle_time=NO_THROTTLE,
        error_code=error,
        error_message=message,
        endpoint_type=_BROKERS,
        cluster_id=broker.storage.topics.cluster_id,
        controller_id=broker.node.id,
        brokers=(
            schema.make(
                "DescribeClusterBroker", broker_id=broker.node.id, host=host, port=port, rack=None, is_fenced=False
            ),
        ),
    )
    return Answer([body], error)
