"""TopicIds: the ids of a mirror's topics on both sides. So a topic that was deleted and made again is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TopicIds"]


class TopicIds:
    """One for each mirror, in the supervisor."""

    def __init__(self) -> None:
        self.source: Mapping[str, str] = {}
        """By topic of the source; empty where the cluster has none."""
        self._target: dict[str, str] = {}
        self._old: set[str] = set()
        """Of topics of the target that were deleted. A broker that has not heard of that yet may name them still."""

    def on_target(self, topic: str) -> str:
        """The id of a topic of the target, empty where its brokers tell none."""
        return self._target.get(topic, "")

    def look(self, ids: Mapping[str, str]) -> set[str]:
        """Note what the target says. Returns the topics that were deleted, and made again by anybody, since then."""
        ids = {name: one for name, one in ids.items() if one not in self._old}
        deleted = {name for name, one in ids.items() if self._target.get(name, one) != one}
        self._old |= {self._target[name] for name in deleted}
        self._target |= ids
        return deleted
