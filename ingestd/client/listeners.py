"""Listeners: the newest snapshot, and the listeners that are told when it is replaced."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ingestd.client.metadata import ClusterMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = ["Snapshot"]


class Snapshot:
    """Holds the newest metadata. If a listener raises, the event loop is told, and the others are still called."""

    def __init__(self) -> None:
        self.metadata = ClusterMetadata()
        self._listeners: dict[object, Callable[[ClusterMetadata], None]] = {}
        self._uses: dict[object, Callable[[], Collection[str]] | None] = {}

    def listen(
        self, changed: Callable[[ClusterMetadata], None], uses: Callable[[], Collection[str]] | None = None
    ) -> Callable[[], None]:
        """Call `changed` after every replacement; the returned function ends that. `uses` names the topics used."""
        key = object()
        self._listeners[key] = changed
        self._uses[key] = uses

        def stop() -> None:
            self._listeners.pop(key, None)
            self._uses.pop(key, None)

        return stop

    def used(self, tracked: Collection[str]) -> Collection[str]:
        """Those of the `tracked` topics that a listener uses. All of them if one does not say which."""
        used: set[str] = set()
        for uses in self._uses.values():
            if uses is None:
                return list(tracked)
            used.update(uses())
        return used.intersection(tracked)

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
