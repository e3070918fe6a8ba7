"""Vanished files: events say that they came and went before anybody looked at them.

A search may find one where no event said that it went: under a second name, or compressed. The others are lost.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ingestd.tail.rotation import codec_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ingestd.tail.file_id import FileId
    from ingestd.tail.log import Log

__all__ = ["Vanished", "VanishedFiles"]


class Vanished(NamedTuple):
    """A file that came and went. `log`: the path that it was written under. `file`: what a look showed, if any did."""

    log: str
    path: str
    file: FileId | None = None


class _Missing(NamedTuple):
    vanished: Vanished
    logs: Sequence[Log]
    until: float


class VanishedFiles:
    """The vanished files of one tail, until it is known whether they are lost.

    Invariants
        None is said to be lost while its log looks for what is missing, but for one that waits too long.
    """

    def __init__(self) -> None:
        self._missing: list[_Missing] = []
        self._found: set[FileId] = set()
        """Files that searches found since nothing was missing."""
        self._spare: Counter[Log] = Counter()
        """How many were found of which nobody told yet that they vanished."""
        self._unsought: set[Log] = set()

    def __bool__(self) -> bool:
        return bool(self._missing)

    @property
    def logs(self) -> set[Log]:
        """The logs that may find them."""
        return {*self._unsought, *self._spare, *(log for each in self._missing for log in each.logs)}

    def note(self, vanished: Vanished, logs: Sequence[Log], until: float) -> None:
        """A file vanished. `logs`: those that search for it. `until`: how long it is waited for; a steady clock."""
        self._unsought.update(log for log in logs if log.restless)
        found = next((log for log in logs if self._spare[log]), None)
        if found is None:
            self._missing.append(_Missing(vanished, logs, until))
        else:
            self._spare[found] -= 1

    def met(self, file: FileId) -> None:
        """This file is known now: it did not vanish."""
        if self._missing:
            self._missing = [each for each in self._missing if each.vanished.file != file]

    def found(self, log: Log, files: Collection[FileId]) -> None:
        """A search of a log found these files, of which no event told: as many of its vanished ones are these."""
        for _ in {*files} - self._found:
            mine = next((each for each in self._missing if log in each.logs), None)
            if mine is not None:
                self._missing.remove(mine)
            else:
                self._spare[log] += 1
        self._found.update(files)

    def compressed(self, paths: Collection[str]) -> None:
        """These files hold what is known. So what they were made of was a copy, and is no loss."""
        made_of = {path.removesuffix(f".{codec_of(path)}") for path in paths}
        self._missing = [each for each in self._missing if each.vanished.path not in made_of]

    def take_unsought(self) -> list[Log]:
        """Logs that were busy when one of their files vanished, and can search now. They are given once."""
        ready = [log for log in self._unsought if log.missed]
        self._unsought -= {log for log in self._unsought if log.missed or not log.restless}
        return ready

    def take_lost(self, now: float, *, busy: bool) -> list[str]:
        """The paths of those that are lost. `busy`: there is more to be looked at. They are given once."""
        lost, kept = [], []
        for each in self._missing:
            waits = busy or any(log.restless for log in each.logs)
            if waits and now < each.until:
                kept.append(each)
            else:
                lost.append(each.vanished.path)
        self._missing = kept
        if not kept and not busy:
            self._found.clear()
            self._spare.clear()
        return lost
