"""Overlaps: mirrors of one daemon that copy the same topic of the source into the same topic of the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Copied", "Overlaps"]


class Copied(NamedTuple):
    """A topic and its copy. source, target: the ids of the clusters, which may have several names."""

    source: str
    topic: str
    target: str
    copy: str


class Overlaps:
    """What the mirrors of this daemon take. One for all of them, in the supervisor: each look of a mirror says it."""

    def __init__(self) -> None:
        self._taken: dict[str, frozenset[Copied]] = {}
        """By mirror, as of its last look."""
        self._found: set[tuple[frozenset[str], Copied]] = set()
        """What was found, with the two mirrors."""

    def look(self, mirror: str, taken: Iterable[Copied]) -> dict[str, list[str]]:
        """A mirror takes these now. Returns the topics that another one copies too, by that mirror; each only once."""
        self._taken[mirror] = mine = frozenset(taken)
        found: dict[str, list[str]] = {}
        for other, theirs in self._taken.items():
            pair = frozenset((mirror, other))
            new = {(pair, one) for one in mine & theirs if other != mirror} - self._found
            if new:
                self._found |= new
                found[other] = sorted(one.topic for _, one in new)
        return found
