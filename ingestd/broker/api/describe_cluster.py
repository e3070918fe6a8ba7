"""DescribeCluster (KIP-700): the nodes."""

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
        controller_id=broker.cluster.controller.id,
        brokers=tuple(
            schema.make("DescribeClusterBroker", broker_id=node.id, host=host, port=port, rack=None, is_fenced=False)
            for node in broker.cluster.nodes
            for host, port in (node.address(context.session),)
        ),
    )
    return Answer([body], error)
