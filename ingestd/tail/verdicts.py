"""Verdicts: which unknown files are to be examined, and to which log it is told what each of them is."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ingestd.tail.examinations import COMPRESSING, DOUBT, DOUBTS_MOST
from ingestd.tail.facts import Alone, Answered, Copy, Doubtful, Examined, Plain, Repeated, Unreadable
from ingestd.tail.rotation import codec_of, is_numbered, is_rotated_from

if TYPE_CHECKING:
    from collections.abc import Collection

    from ingestd.tail.awaited import Awaited
    from ingestd.tail.examinations import Examinations
    from ingestd.tail.facts import Place
    from ingestd.tail.files import Files
    from ingestd.tail.finder import TailFinder
    from ingestd.tail.kin import Kin
    from ingestd.tail.log import Log
    from ingestd.tail.looks import Examination
    from ingestd.tail.names import Names
    from ingestd.tail.thread import Due
    from ingestd.tail.troubles import Troubles

__all__ = ["Verdicts"]

_EXAMINED_AT_ONCE: Final = 256
"""So many files are examined until directories that came meanwhile are watched. What goes there before is not known."""


class Verdicts:
    """Made for one tail's finder.

    Invariants
        A file that a log wants to be examined is examined, or known to be refused, and the log gets its answer.
    """

    def __init__(
        self,
        finder: TailFinder,
        examinations: Examinations,
        names: Names,
        files: Files,
        kin: Kin,
        awaited: Awaited,
        troubles: Troubles,
        due: Due,
    ) -> None:
        self._finder = finder
        self._examinations = examinations
        self._names = names
        self._files = files
        self._kin = kin
        self._awaited = awaited
        self._troubles = troubles
        self._due = due

    # What is to be examined.

    def want(self, log: Log, place: Place) -> None:
        """A log wants to know what a file is."""
        if reason := self._examinations.why_refused(place):
            self._tell_refused(place, reason)
            self._finder.apply(log, Answered(place.file))
            return
        self.want_next(self._due, log, place)

    def want_next(self, due: Due, log: Log, place: Place) -> None:
        """Enter it for the log that asked first. Another one knows the file by a second name."""
        other, _ = due.examinations.get(place.file, (log, place))
        if other is log:
            due.examinations[place.file] = log, place
        else:
            self._kin.name_also({log.path, place.path}, other.path)
            self._finder.apply(log, Answered(place.file))

    def oldest(self, wanted: Collection[tuple[Log, Place]]) -> Collection[tuple[Log, Place]]:
        """Of many files, those that are examined now. The others are to be examined next, with what comes meanwhile."""
        if len(wanted) <= _EXAMINED_AT_ONCE:
            return wanted
        by_age = self._examinations.by_age(wanted)
        for log, place in by_age[_EXAMINED_AT_ONCE:]:
            self.want_next(self._due, log, place)
        return by_age[:_EXAMINED_AT_ONCE]

    # What it is.

    def judged(self, log: Log, wanted: Examination, examined: Examined | None) -> None:
        """A file was examined; None: it is not there any more."""
        self._tell(log, wanted, examined)
        self._finder.apply(log, Answered(wanted.place.file))

    def _tell(self, log: Log, wanted: Examination, examined: Examined | None) -> None:
        doubts = self._examinations.take_doubts(wanted.place.file)
        if wanted.in_the_making and wanted.place.codec:
            self._look_later(COMPRESSING, wanted.place.path, None)
        owner = self._owner(log, wanted.place)
        if owner is None:
            return
        finder, log = owner
        self._names.examined(wanted.place.file)
        if examined is not None and examined.place.path != wanted.place.path:
            self._finder.found_at(log, examined.place)
        if examined is None:  # events say where it went, or else a search
            finder.search_what_went(log, wanted.place)
            return
        if isinstance(examined.verdict, Doubtful):
            self._examinations.doubt(examined.place.file, doubts + 1)
        if isinstance(examined.verdict, Doubtful) or self._is_undecided(log, examined):
            self._look_later(DOUBT / DOUBTS_MOST, examined.place.path, log.path)
            return
        if isinstance(examined.verdict, Copy):
            original = self._files.log_of(examined.verdict.of)
            if original is None:  # its end was told meanwhile
                self._due.look(examined.place.path, log.path)
                return
            if self._is_alone(log, examined.place, examined.verdict):
                finder.apply(log, Alone(examined.place.file))
                return
            # What is lost with a copy is told of its original. One that is plain and not sure may be none.
            self._names.judge(examined.place.path, judged=examined.verdict.sure or bool(examined.place.codec))
            examined, (finder, log) = replace(examined, asked=log.path), original
        finder.apply(log, examined)
        if isinstance(examined.verdict, Unreadable):  # it may be given to us without being modified
            self._examinations.take_back(wanted.place.file)

    def _look_later(self, seconds: float, path: str, of: str | None) -> None:
        asyncio.get_running_loop().call_later(seconds, self._due.look, path, of)

    def _is_alone(self, log: Log, place: Place, copy: Copy) -> bool:
        """Whether what repeats another file does so for too long to be a copy in the making."""
        known = log.of(place.file)
        repeats = known is not None and known.repeats
        return copy.sure and repeats and self._awaited.is_still(place.file, time.monotonic())

    def _is_undecided(self, log: Log, examined: Examined) -> bool:
        """Whether a file still begins as one that it repeated, and which is looked for: that says what this one is."""
        known, verdict = log.of(examined.place.file), examined.verdict
        if known is None or not known.waits or not (isinstance(verdict, Plain) and verdict.goes_on):
            return False
        owner = self._files.log_of(known.copy_of or "")
        if owner is None:
            return False
        _, other = owner
        repeated = other.named(known.copy_of or "")
        return repeated is not None and other.misses(repeated) and not repeated.away

    def _owner(self, log: Log, place: Place) -> tuple[TailFinder, Log] | None:
        """Whose an examined file is, which was met by this log; None: another one's, by another of its names."""
        owned = self._files.find(place.file)
        if owned is not None and owned.log is not log:
            if owned.generation.copy_of is None:
                self._kin.name_also({log.path, place.path}, owned.log.path)
                return None
            return owned.finder, owned.log
        if owned is None and place.links > 1 and self._finder.withheld_by(place.file) not in {None, log}:
            return None  # that one looks for what is older
        return self._finder, log

    def refuse(self, place: Place, reason: str) -> None:
        """A file is not read until it is modified."""
        self._examinations.refuse(place, reason)
        self._tell_refused(place, reason)

    def _tell_refused(self, place: Place, reason: str) -> None:
        self._names.judge(place.path, judged=True)
        # An empty file that was compressed to while nothing ran is no trouble: its content was read, or is sought.
        if place.codec or not codec_of(place.path):
            self._troubles.tell(place.path, reason)

    # Copies.

    def repeat(self, original: Log, place: Place, copy: Copy, asked: str) -> None:
        """Tell the log that knows the copy; if none does, the one of its path, or which it is a rotation of."""
        owned, taker = self._files.find(place.file), self._files.taker(place.path)
        if owned is None:
            finder = taker or self._finder
            known = self._finder.known_log(asked) is not None
            rotated = asked if known and is_rotated_from(place.path, asked) else original.path
            log = finder.log(finder.log_at(place.path) or rotated)
        else:
            finder, log = owned.finder, owned.log
        apart = taker is None and log is original and not (log.stands(place.file) or self._may_be_new(log, place, copy))
        if owned is not None and owned.generation.copy_of:
            apart = owned.generation.known.apart  # as it was when it was met, wherever it is by now
        finder.apply(log, Repeated(place, copy, apart, original.path))

    def _may_be_new(self, log: Log, place: Place, copy: Copy) -> bool:
        """Whether a file was written as a log, though it begins as another one does.

        Events told that it was renamed from where its log is written; or that other one was rotated before this one was
        made, and this one has less than it, or is called like the next rotation.
        """
        original = log.named(copy.of)
        if original is None or not copy.later or log.stands(original.known.file):
            return self._names.was_rotated(place.path)
        named_after = os.path.basename(place.path).startswith(os.path.basename(original.known.path))
        next_one = is_numbered(place.path, log.path) and not named_after
        return copy.unfinished or next_one or self._names.was_rotated(place.path)
