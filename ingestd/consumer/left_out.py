"""Left out: partitions of a broker that had nothing while its answers were full of others. They are asked for alone.

An answer that is filled by some says nothing of the others: the broker may have had no room for them, under limits of
its own that it does not tell. One that had room for all of them, and nothing of them, does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.fetch_session import PartitionFetch

__all__ = ["LeftOut"]

_LOOK_EVERY: Final = 0.2
"""Seconds. Who had nothing from one look to the next is asked for alone: full answers, too, come in turn till then."""
_OF_THE_TIME: Final = 3


class LeftOut:
    """Which partitions the next fetch should ask for without the others, and how long the broker may hold it back.

    Invariants
        Looks are at least `_LOOK_EVERY` seconds and `_OF_THE_TIME` times what a fetch of this kind may be held back
        apart: those that wait for it meanwhile keep most of the time.
        What is to be asked for by itself is, at once, and is not held back.
    """

    def __init__(self, first_wait: float, longest_wait: float) -> None:
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._wait = min(first_wait, longest_wait)
        self._held_back = True
        self._next_look = 0.0
        self._stood: dict[TopicPartition, int] = {}
        self._asked_alone: set[TopicPartition] = set()
        self._by_itself: set[TopicPartition] = set()

    @property
    def wait(self) -> float:
        """Seconds that the broker may hold back what `take` gave. As others wait for it, it begins low and doubles."""
        return self._wait if self._held_back else 0.0

    def due(self, now: float) -> bool:
        """Whether it is time for a look. `now`: seconds of a monotonic clock."""
        return now >= self._next_look

    def look(self, now: float, positions: Iterable[tuple[TopicPartition, int]]) -> None:
        """`positions`: those that had nothing in an answer with records of others, and where they are."""
        self._next_look = now + max(_LOOK_EVERY, _OF_THE_TIME * self._wait)
        before, self._stood = self._stood, dict(positions)
        self._asked_alone.update(key for key, position in self._stood.items() if before.get(key) == position)

    def by_itself(self, key: TopicPartition) -> None:
        """Ask for nothing but this one: then its next batch comes whole, whatever the limits (KIP-74), or never."""
        self._by_itself.add(key)

    def take(self, fetches: Mapping[TopicPartition, PartitionFetch]) -> dict[TopicPartition, PartitionFetch]:
        """What of `fetches` is to be asked for alone now; nothing: the whole."""
        while self._by_itself:
            key = self._by_itself.pop()
            if key in fetches:
                self._held_back = False
                return {key: fetches[key]}
        self._held_back = True
        asked, self._asked_alone = self._asked_alone, set()
        return {key: fetches[key] for key in asked if key in fetches}

    def answered(self, *, empty: bool) -> None:
        """An answer to such a fetch came."""
        if self._held_back:
            self._wait = min(2 * self._wait if empty else self._first_wait, self._longest_wait)
