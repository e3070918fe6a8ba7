"""A snapshot and those who are told when it is replaced."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ingestd.client.metadata import ClusterMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Snapshot"]


class Snapshot:
    """Holds the newest metadata. A listener that raises is reported to the event loop; the others are still called."""

    def __init__(self) -> None:
        self.metadata = ClusterMetadata()
        self._listeners: dict[object, Callable[[ClusterMetadata], None]] = {}

    def listen(self, changed: Callable[[ClusterMetadata], None]) -> Callable[[], None]:
        """Call `changed` after every replacement; the returned function ends that."""
        key = object()
        self._listeners[key] = changed

        def stop() -> None:
            self._listeners.pop(key, None)

        return stop

    def replace(self, metadata: ClusterMetadata) -> None:
        """Take a new snapshot and tell every listener."""
        self.metadata = metadata
        for changed in list(self._listeners.values()):
            try:
                changed(metadata)
            except Exception as error:  # noqa: BLE001 - one listener's fault must not keep the news from the others
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a metadata listener failed", "exception": error}
                )
