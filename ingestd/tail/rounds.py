"""Rounds: examinations of unknown files, those together that may be alike, the oldest of them first.

One may be a copy of the one before, or of what that begins. So each is examined when all that is older was judged.
"""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from ingestd.tail.facts import Plain
from ingestd.tail.kin import Families
from ingestd.tail.looks import Changed
from ingestd.tail.thread import in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ingestd.tail.examinations import Examinations
    from ingestd.tail.facts import Examined, Place
    from ingestd.tail.file_id import FileId
    from ingestd.tail.files import Files
    from ingestd.tail.heads import Heads
    from ingestd.tail.kin import Kin
    from ingestd.tail.log import Log
    from ingestd.tail.looks import Examination, Looks
    from ingestd.tail.names import Names
    from ingestd.tail.thread import LookThread

__all__ = ["Rounds"]


class Rounds:
    """Made for one tail's finder, one at a time."""

    def __init__(
        self, examinations: Examinations, looks: Looks, thread: LookThread, kin: Kin, names: Names, files: Files
    ) -> None:
        self._examinations = examinations
        self._looks = looks
        self._thread = thread
        self._kin = kin
        self._names = names
        self._files = files

    async def make(
        self,
        wanted: Collection[tuple[Log, Place]],
        judge: Callable[[Log, Examination, Examined | None], None],
        first: Callable[[Log], bool],
    ) -> None:
        """Examine files; `judge` gets each, with the log that it seems to be of.

        `first`: whether a log's files were there before the tail.
        """
        called = await self._names_of([place.file for _, place in wanted if place.links > 1])
        alike = await self._alike(wanted, called)
        several = [each for each in alike if len(each) > 1 or each[0][0].generations]
        begun = [place for each in several for _, place in each if not self._is_successor(place)]
        heads = await self._thread.ask(partial(self._looks.heads, begun))
        alike = [await self._copies_last(each) for each in alike]
        for batch in zip_longest(*alike):
            await self._examine([each for each in batch if each], called, heads, judge, first)
        heads.clear()

    async def _alike(
        self, wanted: Collection[tuple[Log, Place]], called: Mapping[FileId, list[str]]
    ) -> list[list[tuple[Log, Place]]]:
        families = Families()
        elders: list[tuple[str, tuple[Log, Place]]] = []

        def gather(each: tuple[Log, Place]) -> None:
            log, place = each
            paths = log.path, *called.get(place.file, ())
            elders.append((families.join(*map(self._kin.eldest, paths)), each))

        await in_turns(self._examinations.by_age(wanted), gather)
        alike: dict[str, list[tuple[Log, Place]]] = {}
        for elder, each in elders:
            alike.setdefault(families.of(elder), []).append(each)
        return list(alike.values())

    async def _copies_last(self, alike: list[tuple[Log, Place]]) -> list[tuple[Log, Place]]:
        """What stands where its log is written comes before copies of it: so these are compared with it."""
        others: dict[str, list[Place]] = {}
        for log, place in alike if len(alike) > 1 else ():
            if not log.stands(place.file):
                others.setdefault(log.path, []).append(place)
        copies: set[FileId] = set()
        for log, place in alike:
            if log.stands(place.file) and log.path in others:
                found = await self._thread.ask(partial(self._looks.copies_of, place, others[log.path]))
                copies.update(each.file for each in found)
        return sorted(alike, key=lambda each: each[1].file in copies) if copies else alike

    async def _examine(
        self,
        batch: list[tuple[Log, Place]],
        called: Mapping[FileId, list[str]],
        heads: Heads,
        judge: Callable[[Log, Examination, Examined | None], None],
        first: Callable[[Log], bool],
    ) -> None:
        """What begins in another way by now is examined once more, and compared with all: see `Examinations.of`."""
        while batch:
            asked: list[Examination] = []

            def ask(each: tuple[Log, Place], to: list[Examination] = asked) -> None:
                log, place = each
                owned = self._files.find(place.file)
                known = None if owned is None else owned.generation
                names = called.get(place.file, ())
                copy = not self._is_successor(place)
                to.append(self._examinations.of(log, place, known, names, heads, first=first(log), may_be_copy=copy))

            await in_turns(batch, ask)
            verdicts = await self._thread.ask(partial(self._looks.examine, asked))
            outcome = [*zip(batch, asked, verdicts, strict=True)]
            batch = [each for each, _, examined in outcome if _has_changed(examined)]

            def take(judged: tuple[tuple[Log, Place], Examination, Examined | None]) -> None:
                (log, _), examination, examined = judged
                judge(log, examination, examined)
                if examined is not None:
                    self._note_head(examined, heads)

            await in_turns((each for each in outcome if not _has_changed(each[-1])), take)

    def _is_successor(self, place: Place) -> bool:
        return self._names.is_successor(place.path, place.file)

    def _note_head(self, examined: Examined, heads: Heads) -> None:
        """If that began a generation, files that are examined next are compared with it where they begin alike."""
        head = heads.examined.pop(examined.place.file, b"")
        begun = self._files.find(examined.place.file) if head else None
        as_examined = isinstance(examined.verdict, Plain) and examined.verdict.witness
        if begun is not None and begun.generation.known.witness is as_examined:
            heads.note(begun.generation.source, head)

    async def _names_of(self, files: list[FileId]) -> dict[FileId, list[str]]:
        """All names of files that have several: one may tell that a file is a copy of a log, and another does not."""
        if not files:
            return {}
        listed = await self._thread.ask(partial(self._looks.names_of, files, self._kin.directories()))
        return {file: [*seen, *listed.get(file, ())] for file, seen in self._names.paths_of(files).items()}


def _has_changed(examined: Examined | None) -> bool:
    return examined is not None and isinstance(examined.verdict, Changed)
