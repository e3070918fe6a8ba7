"""What configurations belong to, with the protocol's numbers, and the checks of such names."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.broker.session import Context

__all__ = ["ResourceType", "check_own_node", "named_twice"]


class ResourceType:
    """Kinds of resources (KIP-226, KIP-412, KIP-714, KIP-848)."""

    TOPIC: Final = 2
    BROKER: Final = 4
    BROKER_LOGGER: Final = 8
    CLIENT_METRICS: Final = 16
    GROUP: Final = 32


def check_own_node(context: Context, name: str) -> None:
    """Raise `KafkaError` (INVALID_REQUEST) unless `name` is the id of the node that was asked."""
    if name != str(context.node.id):
        raise KafkaError(ErrorCode.invalid_request, f"node {name!r}: this is node {context.node.id}")


def named_twice(resources: Iterable[Any]) -> set[tuple[int, str]]:
    """The resources, as type and name, that a request names more than once."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    return {resource for resource, count in times.items() if count > 1}
