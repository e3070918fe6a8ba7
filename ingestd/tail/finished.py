"""Finished: generations of one tail that were read to their end and are remembered, up to a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.tail.log import Log

__all__ = ["Finished"]

_RECENT_MOST: Final = 256
_BURIED_MOST: Final = 256


class Finished:
    """Their logs, by source, the oldest first.

    Recent ones are looked at again, for lines that came late. Buried ones were deleted: their content may come back
    compressed.
    """

    def __init__(self) -> None:
        self._recent: dict[str, Log] = {}
        self._buried: dict[str, Log] = {}

    def finish(self, source: str, log: Log) -> None:
        """This one is recent now."""
        self._recent[source] = log
        if len(self._recent) > _RECENT_MOST:
            del self._recent[next(iter(self._recent))]

    def bury(self, source: str, log: Log) -> Iterator[tuple[str, Log]]:
        """The file of this one was deleted. Gives those that there is no room for any more."""
        self._recent.pop(source, None)
        self._buried[source] = log
        while len(self._buried) > _BURIED_MOST:
            oldest = next(iter(self._buried))
            yield oldest, self._buried.pop(oldest)

    def begin(self, source: str) -> None:
        """This one is read again."""
        self._recent.pop(source, None)

    def forget(self, source: str) -> None:
        """This one is nothing any more."""
        self._recent.pop(source, None)
        self._buried.pop(source, None)

    def is_recent(self, source: str) -> bool:
        """Whether it is looked at again."""
        return source in self._recent

    def recent(self) -> Iterator[tuple[str, Log]]:
        """Those that are looked at again."""
        yield from self._recent.items()
