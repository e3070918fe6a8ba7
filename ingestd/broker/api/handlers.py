"""The table of handlers: which API in which versions. Dispatch and ApiVersions read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.broker.api import (
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingestd.broker.broker import Broker
    from ingestd.broker.request import Handled, Request

__all__ = ["HANDLERS", "Handler"]


@dataclass(frozen=True, slots=True)
class Handler:
    """Answers one API in `versions`. ApiVersions takes any version, to answer with the supported ones."""

    versions: range
    handle: Callable[[Broker, Request], Handled]

    def takes(self, version: int) -> bool:
        """Whether a request of this version may be handed to it."""
        return version in self.versions


_OTHERS: Final = (
    produce,
    fetch,
    list_offsets,
    metadata,
    find_coordinator,
    create_topics,
    delete_topics,
    delete_records,
    init_producer_id,
    offset_for_leader_epoch,
    describe_configs,
    create_partitions,
    describe_cluster,
)
"""All APIs but ApiVersions, which tells what there is."""

_VERSIONS: Final = {module.API: module.VERSIONS for module in (api_versions, *_OTHERS)}

HANDLERS: Final[Mapping[int, Handler]] = {
    **{module.API: Handler(module.VERSIONS, module.handle) for module in _OTHERS},
    api_versions.API: Handler(range(1 << 15), api_versions.ApiVersionsHandler(_VERSIONS)),
}
