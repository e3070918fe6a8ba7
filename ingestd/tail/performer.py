"""Performer: carries out what the logs of one tail command."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ingestd.daemon.source import Found, StoredPosition
from ingestd.tail.facts import (
    Await,
    Bury,
    Conclude,
    Deleted,
    Examine,
    Forget,
    Gone,
    Keep,
    Look,
    Lose,
    Read,
    Refuse,
    Repeat,
    Seek,
    Taken,
    Untold,
)
from ingestd.tail.generation import NOTHING, Phase
from ingestd.tail.known import birth_of, printable

if TYPE_CHECKING:
    from ingestd.daemon.source import Sources
    from ingestd.tail.awaited import Awaited
    from ingestd.tail.examinations import Examinations
    from ingestd.tail.facts import Command, Place
    from ingestd.tail.file_id import FileId
    from ingestd.tail.files import Files
    from ingestd.tail.finder import TailFinder
    from ingestd.tail.finished import Finished
    from ingestd.tail.generation import Generation
    from ingestd.tail.log import Log
    from ingestd.tail.names import Names
    from ingestd.tail.news import News
    from ingestd.tail.thread import Due
    from ingestd.tail.troubles import Troubles
    from ingestd.tail.vanished import VanishedFiles
    from ingestd.tail.verdicts import Verdicts

__all__ = ["Performer"]


class Performer:
    """Made for one tail's finder.

    Invariants
        A generation is noted before it is read: whoever meets its file knows whose that is.
    """

    def __init__(
        self,
        finder: TailFinder,
        log_of: dict[str, Log],
        files: Files,
        names: Names,
        verdicts: Verdicts,
        examinations: Examinations,
        finished: Finished,
        awaited: Awaited,
        vanished: VanishedFiles,
        troubles: Troubles,
        news: News,
        due: Due,
    ) -> None:
        """`log_of`: logs by source, kept here."""
        self._finder = finder
        self._log_of = log_of
        self._files = files
        self._names = names
        self._verdicts = verdicts
        self._examinations = examinations
        self._finished = finished
        self._awaited = awaited
        self._vanished = vanished
        self._troubles = troubles
        self._news = news
        self._due = due
        self.sources: Sources
        """Who is told what to read; to be set before anything is done."""

    def do(self, log: Log, command: Command) -> None:  # noqa: C901, PLR0912 - one for each command
        """Carry out a command of a log."""
        match command:
            case Look(path, asked) if asked:
                (self._files.taker(path) or self._finder).look_for(path, asked)
            case Look(path):
                self._due.look(path, log.path)
            case Examine(place):
                self._verdicts.want(log, place)
            case Repeat(place, copy, asked):
                self._verdicts.repeat(log, place, copy, asked)
            case Seek(generation):
                self._due.seeks[generation.source] = generation
                self._due.logs[generation.source] = log
            case Read(generation):
                self._note(log, generation)
                self.sources.appeared(self._found(log, generation))
                self._troubles.over(log.path)  # not before: that it is taken now is said
                self._over(generation)
            case Conclude(generation):
                self.sources.conclude(generation.source)
            case Keep(generation):
                self._note(log, generation)
                self._over(generation)
                self.store(generation)
                self._finished.finish(generation.source, log)
            case Bury(generation):
                self._files.drop(generation)
                self.store(generation)
                self._names.over(generation.known.file, generation.known.path)
                for source, other in self._finished.bury(generation.source, log):
                    self._finder.apply(other, Deleted(source))
                self._gone(log, generation, buried=True)
            case Forget(generation, after):
                self._log_of.pop(generation.source, None)
                self._names.over(generation.known.file)
                self._finished.forget(generation.source)
                self._files.drop(generation)
                self.sources.forget(generation.source)
                self._gone(log, generation, after)
            case Await(place):
                self._await(log, place)
            case Refuse(place, reason):
                self._verdicts.refuse(place, reason)
            case Untold(generation):
                to_say = self._due.read_out if generation.was_read_out else self._due.untold
                to_say.append((generation.known.path, generation.position))
            case Lose(loss):
                self.sources.lost(replace(loss, thing=printable(loss.thing)))

    def store(self, generation: Generation) -> None:
        """Have the row of a generation stored: its position, and what is known of its file."""
        detail = generation.known.to_detail()
        self.sources.store(StoredPosition(generation.source, generation.position, detail))

    def look_at_awaited(self, file: FileId) -> None:
        """Have it looked at whether an awaited file is where it should be."""
        log, path = self._awaited.expect(file)
        self._due.look(path, log.path)

    def _gone(self, log: Log, generation: Generation, after: str = "", *, buried: bool = False) -> None:
        self._awaited.release(generation.known.file)
        for other, finder in self._files.take_copies(generation.source).items():
            if after or buried:
                self._files.note_copy(after or generation.source, finder, other)
            finder.apply(other, Gone(generation.source, after, log.path, generation.position, buried))

    def _note(self, log: Log, generation: Generation) -> None:
        self._log_of[generation.source] = log
        self._vanished.met(generation.known.file)
        owned = self._files.find(generation.known.file)
        if owned is not None and owned.log is not log and owned.generation.copy_of is not None:
            owned.finder.apply(owned.log, Taken(generation.known.file))
        self._files.note(self._finder, log, generation)
        if generation.copy_of:
            self._files.note_copy(generation.copy_of, self._finder, log)
        self._finished.begin(generation.source)
        self._awaited.release(generation.known.file, read=generation.phase is Phase.READING)
        self._news.watch_beside(generation.known.path)

    def _over(self, generation: Generation) -> None:
        """There is no trouble any more with the path of a file that is not refused."""
        if not self._is_refused(generation):
            self._troubles.over(generation.known.path)

    def _found(self, log: Log, generation: Generation) -> Found:
        until = None
        if self._finder.once and not generation.known.codec:
            until = max(generation.position, generation.size)
        return Found(
            generation.source,
            generation.position,
            generation.known.to_detail(),
            until,
            label=printable(log.path),
            group=log.path,
            rank=birth_of(generation.source),
            last=generation.last,
        )

    def _is_refused(self, generation: Generation) -> bool:
        """Whether a file was refused and counts as empty now: where events were missed, until it is examined again."""
        return generation.copy_of == NOTHING and self._examinations.has_refused(generation.known.file)

    def _await(self, log: Log, place: Place) -> None:
        self._names.judge(place.path, judged=True)
        empty = log.of(place.file)
        if empty is not None and self._is_refused(empty):  # it was examined: nothing is in it any more
            self._troubles.over(place.path)
        if not self._awaited.hold(log, place, time.monotonic()):
            self.look_at_awaited(place.file)
