"""Generation: one content of one file of a log, and how far it is. Generations: those of one log."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from ingestd.tail.facts import Empty, Plain
from ingestd.tail.rotation import is_rotated_from, is_rotation_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from ingestd.tail.facts import Gone, Place, Verdict
    from ingestd.tail.known import Known

__all__ = ["NOTHING", "Generation", "Generations", "Phase"]

NOTHING: Final = ""
"""`Generation.copy_of` of a file that is empty, or can not be read yet: it may become a log, or a copy."""


class Phase(Enum):
    """How far a generation is."""

    STORED = "stored"
    """Known from an earlier run, not seen in this one."""
    SOUGHT = "sought"
    """Looked for: the file is not where it was, or has other content."""
    HELD = "held"
    """Found, and not read until what is older is found, too."""
    READING = "reading"
    DONE = "done"
    """Read to its end. It stays known, so that it is not sent again."""


@dataclass(slots=True, eq=False)
class Generation:
    """One content of one file. `position`: where its reading begins, or ended."""

    source: str
    known: Known
    position: int
    phase: Phase
    links: int = 1
    """Names of its file; 0 once it is buried."""
    last: bool = False
    """Nothing more is expected of it."""
    copy_of: str | None = None
    """The source, perhaps of another log, that this file repeats up to `position`; `NOTHING` while it is empty."""
    compared: int = 0
    """When the file, which repeats another one, had been modified last (ns) as both were compared."""
    like: str = ""
    """The path of the log that the one which it repeats is of; empty if it was compared in an earlier run."""
    moved: bool = False
    """That one had been modified last at the same time, as if this were it, moved to another file system."""
    untold: bool = False
    """Known from an earlier run, and not read in this one. Nobody saw what came after it."""
    orphaned: bool = False
    """Its reader died, and the next one did not find it. Nobody saw what was written to it meanwhile."""
    size: int = 0
    """Bytes in the file at the last look, whatever its content was then. `known.size` counts this content only."""
    unexamined: bool = False
    """Empty in an earlier run, and not examined in this one."""
    cut: bool = False
    """Its file was truncated as it was read, or is gone. Others may have been written there and rotated since."""
    unread_since: int = 0
    """How often its file, after it was truncated, was truncated again before that was told."""
    grown: int = 0
    """Bytes that its file, which is compressed, has more than when it was read to its end, if that is read now."""
    away: bool = False
    """Its disk is not there. Only what may be a copy of it waits for that."""
    sought_again: bool = False
    """Its content was sought once more: a file seemed to have it, or arrived under a rotation's name."""

    @property
    def repeats(self) -> bool:
        """Whether its file repeats another one."""
        return self.copy_of not in {None, NOTHING}

    @property
    def may_begin_alike(self) -> bool:
        """Whether it repeats another one, and may be no copy of that."""
        return self.repeats and not self.known.apart

    @property
    def is_apart(self) -> bool:
        """Whether it is a copy of another one that was made where no log is written."""
        return self.repeats and self.known.apart

    @property
    def is_packed_copy(self) -> bool:
        """Whether it is such a copy, and compressed: it is compared with nothing any more."""
        return self.is_apart and bool(self.known.codec)

    @property
    def waits(self) -> bool:
        """Whether it is not read because it repeats another one, though it may be no copy of that."""
        return self.may_begin_alike and self.phase is Phase.DONE

    @property
    def is_missing(self) -> bool:
        """Whether nobody knows where it is. One that was over in the last run is where it was, as far as is known."""
        return (self.phase is Phase.STORED and not self.known.done) or self.phase is Phase.SOUGHT

    @property
    def was_read_out(self) -> bool:
        """Whether it was deleted while it was read, after its last byte had been read, as far as its reader saw."""
        known = self.known
        whole = bool(known.read_size) if known.codec else known.size <= self.position
        return known.deleted and whole

    def is_as_compared(self, plain: Plain) -> bool:
        """Whether its file, which repeats another one, has what it had when it was compared with that, and no more."""
        return plain.goes_on and plain.witness is not None and plain.witness.at == self.known.read

    def is_cut(self, place: Place) -> bool:
        """Whether its file, which is not compressed, was truncated since it was read."""
        return not self.known.codec and place.size < max(self.position, self.known.size)

    def is_modified(self, place: Place) -> bool:
        """Whether it was modified since it was read to its end; it may be as long as before."""
        over = self.known.done and self.copy_of is None and self.phase in {Phase.STORED, Phase.DONE}
        return over and 0 < self.known.modified < place.modified

    def is_packed_anew(self, place: Place) -> bool:
        """Whether its file, which is compressed, was written to since it was read to its end."""
        known = self.known
        return bool(known.read_size) and (known.read_size, known.read_modified) != (place.size, place.modified)

    def was_read_whole(self, place: Place) -> bool:
        """Whether nothing is in its file but what was read."""
        if self.known.codec:
            return bool(self.known.read_size) and not self.is_packed_anew(place)
        return place.size == self.position

    def is_rewritten(self, verdict: Verdict) -> bool:
        """Whether it waits, as it may be a copy of another log's file, is called like none, and has other content."""
        other = isinstance(verdict, Empty) or (isinstance(verdict, Plain) and not verdict.goes_on)
        names = os.path.basename(self.known.log), os.path.basename(self.like or self.known.log)
        akin = self.like == self.known.log or is_rotation_of(*names) or is_rotation_of(*reversed(names))
        return other and self.waits and bool(self.like) and not (akin or self.known.codec)

    def may_only_begin_as(self, gone: Gone) -> bool:
        """Whether it may be no copy of another log's file, which it repeats: its name is none of a copy."""
        known, names = self.known, (os.path.basename(self.known.log), os.path.basename(gone.log))
        akin = gone.log == known.log or is_rotation_of(*names) or is_rotated_from(known.path, gone.log)
        return not (akin or known.apart or known.codec)


class Generations(list[Generation]):
    """Those of one log, oldest first. One is found by its source, or by its file's inode number, without a walk.

    Invariants
        Only the methods that are defined here change the list, and only `know` changes which file a generation has.
    """

    __slots__ = ("_by_inode", "_by_source")

    def __init__(self) -> None:
        super().__init__()
        self._by_source: dict[str, Generation] = {}
        self._by_inode: dict[int, list[Generation]] = {}

    def append(self, generation: Generation) -> None:
        """Add the newest one."""
        super().append(generation)
        self._enter(generation)

    def insert(self, index: SupportsIndex, generation: Generation) -> None:
        """Add one before another one."""
        super().insert(index, generation)
        self._enter(generation)

    def remove(self, generation: Generation) -> None:
        """Drop one."""
        super().remove(generation)
        del self._by_source[generation.source]
        self._by_inode[generation.known.file.inode].remove(generation)
        if not self._by_inode[generation.known.file.inode]:
            del self._by_inode[generation.known.file.inode]

    def know(self, generation: Generation, known: Known) -> None:
        """Replace what is known of one. Its file may have another inode number by now."""
        self._by_inode[generation.known.file.inode].remove(generation)
        generation.known = known
        self._by_inode.setdefault(known.file.inode, []).append(generation)

    def named(self, source: str) -> Generation | None:
        """The one with this source."""
        return self._by_source.get(source)

    def with_inode(self, inode: int) -> Sequence[Generation]:
        """Those whose files have this inode number, newest first. It may have been used again."""
        found = self._by_inode.get(inode, ())
        return found if len(found) < 2 else sorted(found, key=self.index, reverse=True)

    def _enter(self, generation: Generation) -> None:
        self._by_source[generation.source] = generation
        self._by_inode.setdefault(generation.known.file.inode, []).append(generation)
