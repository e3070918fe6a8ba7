"""ListConfigResources (KIP-1142): what has configurations: topics and nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.configs.resources import ResourceType
from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.list_config_resources
VERSIONS: Final = range(2)

_ALL: Final = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.BROKER_LOGGER,
    ResourceType.CLIENT_METRICS,
    ResourceType.GROUP,
)


def handle(context: Context, request: Request) -> Answer:
    """Version 0 asks for client metrics, of which there are none. No types in version 1 are all types."""
    broker = context.broker
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    wanted = getattr(asked, "resource_types", (ResourceType.CLIENT_METRICS,)) or _ALL
    error = ErrorCode.none if set(wanted) <= set(_ALL) else ErrorCode.unsupported_version
    found: list[tuple[int, str]] = []
    if not error:
        if ResourceType.TOPIC in wanted:
            found += [(ResourceType.TOPIC, topic.name) for topic in broker.storage.topics]
        for kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
            if kind in wanted:
                found += [(kind, str(node.id)) for node in broker.cluster.nodes]
    resources = tuple(schema.make("ConfigResource", resource_name=name, resource_type=kind) for kind, name in found)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, error_code=error, config_resources=resources)], error)
