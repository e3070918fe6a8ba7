"""LogState: what is known of a log, and what follows from it. What is done about that, `Log` says.

Pure, as `Log` is: no I/O, no clock.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ingestd.tail.content import HEAD_BYTES
from ingestd.tail.facts import Copy, Plain
from ingestd.tail.generation import NOTHING, Generation, Generations, Phase
from ingestd.tail.known import Known, birth_between, birth_of, name_source
from ingestd.tail.rotation import is_rotation_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingestd.daemon.source import End
    from ingestd.tail.facts import Examined, Place, Sought, Verdict
    from ingestd.tail.file_id import FileId
    from ingestd.tail.known import Witness

__all__ = ["LogState"]

_WRITTEN_AT_MOST: Final = 8
"""So many of the paths that a link led to one after the other are remembered."""


_ROUNDED: Final = 10**6
"""ns. What is said in seconds may be less by so much."""


@dataclass(slots=True, eq=False)
class LogState:
    """What is known of one log.

    Invariants
        A file is one generation at a time, whatever it is called.
        No row tells of a later time than a file that is known and not stored: the next run still looks for that file.
    """

    path: str
    careful: bool = False
    """For a run with an end, in which nobody hears what a reader finds. Known content is checked before it is read."""
    matches: Callable[[str], bool] = lambda _: True
    """Whether the tail's globs take a path. They may be others than in the last run."""
    met: int = 0
    """For a log that was there before the tail: when (ns) it was met. What was rotated before is not its own."""
    generations: Generations = field(default_factory=Generations)
    _here: FileId | None = None
    """The file at the path, as far as known."""
    _waiting: dict[FileId, Place] = field(default_factory=dict)
    """Files that wait until what is older is found."""
    _released: dict[FileId, Place] = field(default_factory=dict)
    """Files that waited last, and are not examined yet."""
    _copies: dict[FileId, tuple[Place, str]] = field(default_factory=dict)
    """Files that may have the content of what is looked for, and the logs that met them."""
    _changed: dict[FileId, str] = field(default_factory=dict)
    """Files that were over, and are longer or shorter now, by path. They are looked at again once all is found."""
    _missed: bool = False
    """Whether files may have come and gone unseen since the newest generation was last sought."""
    _overtaken: bool = False
    """Whether what is examined now may have come after files that went unseen. It waits for the search for them."""
    _arrived: bool = False
    """Whether there was an `Arrived` since a file was deleted at the log's path."""
    asked: str = ""
    """The source that was the newest when it was sought, until there is an answer."""
    written_at: list[str] = field(default_factory=list)
    """Paths it was written at before: where its generations were in the last run, but for rotations, and links led."""
    since: int = 0
    """When the newest generation was modified last (ns), if it is over."""
    unseen_since: int = 0
    """Files modified later than this (ns) may be unknown. 0: only those later than the newest generation."""
    new_since: int = 0
    """For a log that is new in this run: files made later than this (ns) may be its own. 0: unset."""
    rotated: bool = False
    """Whether a header alone was read of it, perhaps, and something came since that is called like a rotation of it."""
    _searches: int = 0
    """How often in a row a search found files that nobody knew."""

    def restore(self, source: str, position: int, known: Known) -> Generation:
        """A generation of an earlier run. They come in the order of their names."""
        generation = Generation(source, known, position, Phase.STORED, known.links, last=known.done, size=known.size)
        empty = not (position or known.witness or known.begun or known.done)  # or compressed, and in the making
        generation.copy_of, generation.unexamined = known.copy_of or (NOTHING if empty else None), empty
        generation.untold = generation.copy_of is None and not known.done
        self.met = max(self.met, known.met)
        self.generations.append(generation)
        name = os.path.basename(known.path)
        if not any(is_rotation_of(name, os.path.basename(each)) for each in (self.path, *self.written_at)):
            self.written_at.append(known.path)
        return generation

    def mistrust(self, certain: int, found: int, said: int) -> None:
        """Of the stored times (ns), those after `certain` say nothing: `found` stands for them.

        `said`: until when the last run said that it had found all; 0 if it did not. What was met later than that was
        met while the clock was ahead.
        """
        for each in self.generations:
            if each.known.modified > certain:
                each.known = each.known._replace(modified=found)
        if self.met > min(certain, said + _ROUNDED if said else certain):
            self.met = 0

    def leads_elsewhere(self, before: str) -> None:
        """A link leads to another file than this one now. Rotations of this one are still the log's."""
        self.written_at = [*(each for each in self.written_at if each != before), before][-_WRITTEN_AT_MOST:]

    # What is asked of it.

    def of(self, file: FileId) -> Generation | None:
        """The generation that this file holds now."""
        for each in self.generations.with_inode(file.inode):
            known = each.known.file
            if each.links and (known.same(file) or (each.phase is Phase.STORED and known.resembles(file))):
                return each
        return None

    def named(self, source: str) -> Generation | None:
        """The generation with this source."""
        return self.generations.named(source)

    @property
    def here(self) -> FileId | None:
        """The file at the log's path, of whatever log it is a generation; None if there is none, or nobody looked."""
        return self._here

    def stands(self, file: FileId) -> bool:
        """Whether this file stands at the log's path."""
        return self._here is not None and self._here.same(file)

    def holds_back(self, file: FileId) -> bool:
        """Whether this file waits until what is older is found."""
        return file in self._waiting

    def misses(self, generation: Generation) -> bool:
        """Whether it is looked for. One that was over in the last run already is where it was, as far as is known."""
        return generation.is_missing or self._unresolved(generation)

    def may_be_copy(self, file: FileId) -> bool:
        """Whether this file seems to have the content of a generation that is looked for, or was truncated."""
        return file in self._copies

    @property
    def waiting(self) -> tuple[str, ...]:
        """Paths of files that are not read until what is older is found."""
        return tuple(place.path for place in (*self._waiting.values(), *(met for met, _ in self._copies.values())))

    @property
    def missed(self) -> bool:
        """Whether files came and went unseen, perhaps, and no search for them is under way."""
        return self._missed and not self.asked

    @property
    def may_have_header_only(self) -> bool:
        """Whether so little was read of its newest generation that it may be a header, which the next one has, too."""
        return bool(self.generations) and 0 < self.generations[-1].position <= HEAD_BYTES

    @property
    def restless(self) -> bool:
        """Whether something is missing, or waits."""
        return bool(self._waiting) or bool(self._copies) or self._unsettled or self._has_unresolved

    @property
    def is_over(self) -> bool:
        """Whether nothing is known of it, and nothing waits. A file that appears at its path begins a new log."""
        return not (self.generations or self._waiting or self._copies or self.asked)

    @property
    def unseen(self) -> bool:
        """Whether files of it may be there that nobody saw. They are searched for once a file appears at its path."""
        return bool(self.new_since or self.unseen_since)

    def is_left_out(self, path: str) -> bool:
        """Whether no glob takes this log, nor a file of it at this path, any more: what is known of it is kept."""
        return not (self.matches(self.path) or self.matches(path))

    def newest_path(self, generation: Generation, told: Known) -> str:
        """Where a file is. It may have been renamed since its reader looked, which has `told` of it."""
        renamed = told.path == self.path and self._left(told.file)
        return generation.known.path if renamed else told.path

    # Its generations.

    def _add(
        self,
        place: Place,
        position: int,
        witness: Witness | None,
        phase: Phase,
        instead_of: Generation | None = None,
        before: Generation | None = None,
    ) -> Generation:
        """It is the newest, unless one of these is given.

        instead_of: what it has the content of now, and whose place it takes.
        before: what comes directly after it. Its name says so, too: the next run and readers go by names.
        """
        # If the daemon is killed before these are stored, the next run looks for what was modified later than this one.
        # That all was found may be noted already: only a reader sees that a file holds other content than it did.
        unstored = [*self._waiting.values(), *self._released.values()]
        since = [each for each in (self.new_since, self.unseen_since) if each]
        modified = min([place.modified, *since, *(each.modified - 1 for each in unstored if each.file != place.file)])
        size = 0 if place.codec else place.size
        known = Known(self.path, place.path, place.file, witness, size, modified, place.codec, links=place.links)
        if not self.generations:
            known = known._replace(met=self.met)
        birth = 0 if instead_of is None else birth_of(instead_of.source)
        if before is not None:
            number = self.generations.index(before)
            birth = birth_between(self.generations[number - 1].source if number else "", before.source)
        source = name_source(place.file, birth)
        if self.named(source) is not None:
            source = name_source(place.file)  # the same file: it was deleted, and is back
        generation = Generation(source, known, position, phase, place.links, size=place.size)
        newest = self.generations[-1] if self.generations else None
        follower = before if birth else None
        if instead_of is not None and instead_of is not newest:
            follower = instead_of
        if follower is not None:
            self.generations.insert(self.generations.index(follower), generation)
            return generation
        if newest is not None and newest.phase is Phase.STORED and self._unresolved(newest):
            self._missed = True  # what came after that one is found with this one then
        self.generations.append(generation)
        self.since = 0
        return generation

    def _next(self, generation: Generation) -> Generation | None:
        """What comes directly after it."""
        return next(itertools.islice(self.generations, self.generations.index(generation) + 1, None), None)

    def _follower(self, file: FileId) -> Generation | None:
        """What stands at the path, if this file left it: that came after whatever this one holds."""
        return self.of(self._here) if self._here is not None and self._left(file) else None

    def _left(self, file: FileId) -> bool:
        return self._here is not None and not self._here.same(file)

    # What waits.

    def _unread(self, until: Generation | None = None) -> Iterator[Generation]:
        """Those that are neither being read nor done, oldest first. `until`: only those that come before this one."""
        reading, done = Phase.READING, Phase.DONE  # nearly all are, and this is asked at each fact
        for each in self.generations:
            if each is until:
                return
            if each.phase is not done and each.phase is not reading:
                yield each

    def _is_older_awaited(self, generation: Generation) -> bool:
        older = self._unread(generation)
        return any(each.phase is Phase.HELD or (each.is_missing and not each.away) for each in older)

    def _may_follow_unknown(self, generation: Generation, place: Place) -> bool:
        """Whether files that nobody knows may have come before what is in this one, of which nothing was read."""
        if self.careful or generation.position or generation.copy_of is not None:
            return False
        unknown = (each for file, each in self._waiting.items() if self.of(file) is None)
        return any(self._age(each) < self._age(place) for each in unknown)

    def _hold(self, generation: Generation, place: Place) -> None:
        """Have it wait until what is older is found."""
        generation.phase, self._waiting[generation.known.file] = Phase.HELD, place

    def _begun_after(self, place: Place) -> Generation | None:
        """The first one that waits for what may have come before it, where this file may have."""
        begun = (each for each in self._unread() if each.phase is Phase.HELD and each.copy_of is None)
        for each in () if self.careful else begun:
            if not each.position and self._age(self._waiting[each.known.file]) > self._age(place):
                return each
        return None

    def _age(self, place: Place) -> tuple[bool, int, int]:
        """Orders files by when they were written. Where clocks are coarse, the one that was made later is later."""
        return self.stands(place.file), place.modified, place.file.birth

    # What is sought.

    def _unresolved(self, generation: Generation) -> bool:
        if generation.phase is Phase.STORED:
            # What came after the newest one, unseen, is found with it; if that one is over, it was found already.
            newest = generation is self.generations[-1] and (self._missed or not self.since)
            return newest or not generation.known.done or generation.repeats
        return generation.phase is Phase.SOUGHT

    @property
    def _unsettled(self) -> bool:
        """Whether new files wait for a search. What is on a disk that is not there is sought; nothing waits for it."""
        sought = (each for each in self._unread() if self._unresolved(each))
        return self._missed or bool(self.asked) or any(not each.away for each in sought)

    @property
    def _has_unresolved(self) -> bool:
        return any(map(self._unresolved, self._unread()))

    def _look_back(self, since: int) -> None:
        self.unseen_since = min(since, self.unseen_since or since)

    # What a fact tells.

    def _may_be_overwritten(self, stored: Generation, place: Place) -> bool:
        """Whether what is sought may have been copied into a file that was over. Else it has lines that came late."""
        return stored.known.done and place.size != stored.position and self._unsettled

    def _may_have_followers(self, stored: Generation, place: Place, *, here: bool) -> bool:
        """Whether files may have come and gone since it was written: then it is sought, and they with it."""
        same_time = stored.known.modified == place.modified
        telling = not self.rotated or same_time or place.size <= stored.position
        if here and (telling if stored.position else same_time and not self._missed):
            return False  # its content tells; behind a header alone, and what was not read, others may have stood there
        return stored is self.generations[-1] and not stored.known.done

    def _verdict(self, examined: Examined) -> Verdict:
        """What stands at the path is no copy of a file that was made later, as a copy of it, and modified before it.

        It was truncated, and has the same again: a header. What has more than a header was written to since.
        """
        file, verdict = examined.place.file, examined.verdict
        original = self.named(verdict.of) if isinstance(verdict, Copy) and self.stands(file) else None
        if not isinstance(verdict, Copy) or original is None:
            return verdict
        copied = original.known.file.birth > file.birth > 0 and original.known.size <= HEAD_BYTES
        again = copied and verdict.modified > (verdict.original_modified or original.known.modified)
        return Plain(0, verdict.witness) if again else verdict

    def _unseen_before(
        self, place: Place, witness: Witness | None, known: Generation | None, *, was_empty: bool, emptied: bool
    ) -> int | None:
        """Since when (ns) a file may have had other content that nobody saw; None: it had none.

        It came or was empty, was written to, copied, truncated and written to again, all between two looks.
        """
        end = place.size if witness is None else witness.at
        if end < place.size:
            return place.modified - 1
        empty = known is not None and known.copy_of == NOTHING
        if known is not None and (was_empty or (empty and (self._missed or end > place.size))):
            return known.known.modified
        return place.file.birth if emptied else None

    def _was_copied(self, repeating: Generation, place: Place) -> bool:
        """Whether what a file repeats is its own copy, which was read first. Unless truncated, it has all of that."""
        copy = self.named(repeating.copy_of or NOTHING)
        if copy is None or not copy.known.file.birth > repeating.known.file.birth > 0:
            return False
        length = max(copy.position, copy.known.size, 0 if copy.known.codec else copy.size)
        return self.stands(place.file) and place.size >= repeating.position >= length

    @staticmethod
    def _is_elsewhere(found: Sought) -> bool:
        """Whether what its file held is in another one by now, or nowhere."""
        return not (found.unavailable or found.intact) and (found.at is not None or found.rest is not None)

    def _may_come_back(self, generation: Generation) -> bool:
        """Whether it was replaced, or nobody saw it in this run: perhaps its disk is not mounted."""
        known = generation.known
        unseen = generation.untold and known.witness is not None and not self.is_left_out(known.path)
        return unseen or not generation.links

    def _may_go_on(self, end: End) -> bool:
        """Whether there may be more of a deleted file elsewhere.

        What was not read may be in one that waits: it was moved or compressed. What a collector replaces at the log's
        path comes under a rotation's name, with the lines that were written since its last visit.
        """
        waits = end.size > end.position and bool(self._waiting or self._copies)
        return waits or (self._arrived and end.path == self.path)
