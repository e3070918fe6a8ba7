"""Examinations: in which order the unknown files of one tail are examined, and what to know of each before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ingestd.tail.looks import Examination
from ingestd.tail.rotation import date_of, is_rotated_from

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ingestd.tail.facts import Place
    from ingestd.tail.file_id import FileId
    from ingestd.tail.generation import Generation
    from ingestd.tail.heads import Heads
    from ingestd.tail.log import Log
    from ingestd.tail.looks import Original
    from ingestd.tail.route import TailRoute

__all__ = ["COMPRESSING", "DOUBT", "DOUBTS_MOST", "Examinations"]

DOUBT: Final = 2.0
"""Seconds within which readers tell what they have read."""

DOUBTS_MOST: Final = 4
"""So often within that time a file is examined that may be a copy of what is not told yet."""

_DOUBTED_MOST: Final = 1024
"""Of so many it is remembered how often they were examined. Most of the others are gone."""

COMPRESSING: Final = 2.0
"""Seconds without a write after which a compressed file is complete."""


class Examinations:
    """What is remembered from one examination to the next."""

    def __init__(
        self,
        route: TailRoute,
        originals: Callable[[Place, Collection[str], Callable[[Generation], bool]], tuple[Original, ...]],
        *,
        once: bool,
    ) -> None:
        """`originals`: what a file is compared with; see `Files.originals`."""
        self._route = route
        self._originals = originals
        self._once = once
        self._refused: dict[FileId, tuple[int, str, str]] = {}
        """With the modification time (ns) at which it was refused, why, and where it was seen last."""
        self._doubts: dict[FileId, int] = {}

    @staticmethod
    def by_age(wanted: Collection[tuple[Log, Place]]) -> list[tuple[Log, Place]]:
        """Logs by their oldest file; of a log, what is written now comes last."""
        births: dict[str, int] = {}
        for log, place in wanted:
            births[log.path] = min(place.file.birth, births.get(log.path, place.file.birth))

        def age(each: tuple[Log, Place]) -> tuple[int, str, bool, int]:
            log, place = each
            return births[log.path], log.path, log.stands(place.file), place.modified

        ordered = sorted(wanted, key=age)
        _order_by_dates(ordered)
        return ordered

    def of(
        self,
        log: Log,
        place: Place,
        known: Generation | None,
        called: Collection[str],
        heads: Heads,
        *,
        first: bool,
        may_be_copy: bool,
    ) -> Examination:
        """How to examine a file. It may be a copy of what is in the log that met it, whatever it is called.

        `known`: its generation, if it has one. `called`: other names of it. `first`: it was there before the tail.
        may_be_copy: else it is compared with nothing.
        """
        route = self._route
        at_end = first and route.start != "beginning"
        if at_end and route.start_age is not None:
            at_end = place.modified / 1e9 < time.time() - route.start_age
        patient = self._doubts.get(place.file, 0) < DOUBTS_MOST
        making = not self._once and time.time() - place.modified / 1e9 < COMPRESSING
        repeated = known.known.witness if known is not None and known.repeats else None
        binary = route.binary == "accept"
        head = heads.seen.pop(place.file, b"")  # if it changed, it is compared with all the next time
        originals = self._originals(place, (*called, log.path), heads.apart_from(head)) if may_be_copy else ()
        if place.codec and is_rotated_from(place.path, log.path):  # another log may have had the same lines
            originals = tuple(each for each in originals if each.akin)
        return Examination(place, originals, at_end, binary, patient, making, repeated, tuple(called), head)

    def doubt(self, file: FileId, doubts: int) -> None:
        """It was examined so often, and nobody could tell yet whether it is a copy."""
        self._doubts[file] = doubts
        if len(self._doubts) > _DOUBTED_MOST:
            del self._doubts[next(iter(self._doubts))]

    def take_doubts(self, file: FileId) -> int:
        """How often it was examined in doubt; there is none any more."""
        return self._doubts.pop(file, 0)

    def refuse(self, place: Place, reason: str) -> None:
        """It is not to be read as long as it is not modified."""
        self._refused[place.file] = place.modified, reason, place.path

    def why_refused(self, place: Place) -> str:
        """Why it was refused, as it is now; empty if it was not."""
        modified, reason, path = self._refused.get(place.file, (-1, "", ""))
        if modified != place.modified:
            return ""
        if path != place.path:
            self._refused[place.file] = modified, reason, place.path
        return reason

    def has_refused(self, file: FileId) -> bool:
        """Whether a file was refused, perhaps before it was modified."""
        return file in self._refused

    def take_back(self, file: FileId) -> None:
        """It is not refused any more."""
        self._refused.pop(file, None)

    def forget(self, known: Callable[[FileId], bool], stands: Callable[[str], bool]) -> None:
        """Refusals are over of files that are known by now, and of those that do not stand where they were seen."""
        self._refused = {file: kept for file, kept in self._refused.items() if stands(kept[-1]) and not known(file)}


def _order_by_dates(ordered: list[tuple[Log, Place]]) -> None:
    """Put rotated files in the order of the dates in their names, where some are compressed.

    A file that is compressed late is modified later than the next one, which was written before that. Files that are
    called alike but for the date change places with each other; no other file moves.
    """
    places: dict[tuple[str, str, int], list[int]] = {}
    dates: dict[FileId, tuple[str, int]] = {}
    for index, (log, place) in enumerate(ordered):
        dated = None if log.stands(place.file) else date_of(place.path)
        if dated is not None:
            rest, dates[place.file] = dated
            places.setdefault((log.path, rest, len(dates[place.file][0])), []).append(index)
    for alike in places.values():
        files = [ordered[index] for index in alike]
        if any(place.codec for _, place in files):
            files.sort(key=lambda each: dates[each[1].file])
            for index, each in zip(alike, files, strict=True):
                ordered[index] = each
