"""Finished: generations of one tail that were read to their end and are remembered; which of them are looked at."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.tail.log import Log

__all__ = ["Finished"]

_RECENT_MOST: Final = 256
_PACKED_AT_ONCE: Final = 256
"""So many of the compressed files that are not recent are looked at with the recent ones."""

_BURIED_MOST: Final = 4096
"""Logs that are rotated together are compressed together: many are gone before their compressed files are looked at."""

_BURIED_OF_A_LOG_MOST: Final = 256
"""Each new file of a log is compared with all of these."""


class Finished:
    """Their logs, by source, the oldest first.

    Recent ones are looked at again, for lines that came late; and all compressed ones in turns, for these may grow as
    logs do. Buried ones were deleted: their content may come back compressed.
    """

    def __init__(self) -> None:
        self._recent: dict[str, Log] = {}
        self._packed: dict[str, Log] = {}
        """Compressed ones that are not recent any more, the one that was looked at last at the end."""
        self._buried: dict[str, Log] = {}
        self._of_log: dict[Log, dict[str, None]] = {}
        """Those that are buried, by log, the oldest first."""

    def finish(self, source: str, log: Log) -> None:
        """This one is recent now."""
        self._packed.pop(source, None)
        self._recent[source] = log
        if len(self._recent) > _RECENT_MOST:
            oldest = next(iter(self._recent))
            log = self._recent.pop(oldest)
            generation = log.named(oldest)
            if generation is not None and generation.known.codec:
                self._packed[oldest] = log

    def bury(self, source: str, log: Log) -> Iterator[tuple[str, Log]]:
        """The file of this one was deleted. Gives those that there is no room for any more."""
        self.begin(source)
        if source not in self._buried:
            self._buried[source] = log
            self._of_log.setdefault(log, {})[source] = None
        if len(self._of_log[log]) > _BURIED_OF_A_LOG_MOST:
            yield self._dig_up(next(iter(self._of_log[log])))
        while len(self._buried) > _BURIED_MOST:
            yield self._dig_up(next(iter(self._buried)))

    def _dig_up(self, source: str) -> tuple[str, Log]:
        log = self._buried.pop(source)
        del self._of_log[log][source]
        if not self._of_log[log]:
            del self._of_log[log]
        return source, log

    def begin(self, source: str) -> None:
        """This one is read again."""
        self._recent.pop(source, None)
        self._packed.pop(source, None)

    def forget(self, source: str) -> None:
        """This one is nothing any more."""
        self.begin(source)
        if source in self._buried:
            self._dig_up(source)

    def is_recent(self, source: str) -> bool:
        """Whether it is looked at again."""
        return source in self._recent or source in self._packed

    def recent(self) -> Iterator[tuple[str, Log]]:
        """Those that are looked at now."""
        turn = [*islice(self._packed, _PACKED_AT_ONCE)]
        for source in turn:
            self._packed[source] = self._packed.pop(source)
        yield from self._recent.items()
        yield from ((source, self._packed[source]) for source in turn)
