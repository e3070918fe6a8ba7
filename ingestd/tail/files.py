"""Files: shared by all tails of a daemon. Which log a file is of, and which tail takes a path."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ingestd.errors import DeadlineExceeded
from ingestd.retry import Deadline
from ingestd.tail.generation import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ingestd.tail.facts import Place
    from ingestd.tail.file_id import FileId
    from ingestd.tail.finder import TailFinder
    from ingestd.tail.generation import Generation
    from ingestd.tail.log import Log
    from ingestd.tail.looks import Original

__all__ = ["Files", "Owned"]


class Owned(NamedTuple):
    """A generation, its log and its tail."""

    finder: TailFinder
    log: Log
    generation: Generation


class Files:
    """Shared by the finders of a daemon's tails.

    Invariants
        A file is read by one tail. One that nobody knows belongs to the tail that takes its path: the first whose globs
        match that or a link to it. A tail that has a link to it leaves it to one that reads what was there before.
    """

    def __init__(self) -> None:
        self._finders: list[TailFinder] = []
        self._led: dict[TailFinder, asyncio.Event] = {}
        """By tail, set once it knows where its links lead."""
        self._to_look: set[TailFinder] = set()
        self._all_looked = asyncio.Event()
        self._by_inode: dict[int, list[Owned]] = {}
        self._copies: dict[str, dict[Log, TailFinder]] = {}
        """By source, the logs that hold copies of it, each with its tail."""

    def enter(self, finder: TailFinder) -> None:
        """Tails enter in the order of the configuration."""
        self._finders.append(finder)
        self._led[finder] = asyncio.Event()
        self._to_look.add(finder)

    async def led(self, finder: TailFinder, patience: float) -> None:
        """A tail knows where its links lead. Returns when those before it do, too: what they lead to is theirs.

        One that hangs is waited for as many seconds as `patience` says.
        """
        self._led[finder].set()
        deadline = Deadline.after(patience)
        with suppress(DeadlineExceeded):
            for before in self._before(finder):
                await deadline.wait_for(self._led[before].wait(), "where the links of tails before this one lead")

    async def looked(self, finder: TailFinder, patience: float) -> None:
        """A tail has looked at all there is. Returns when all have: a file missing in one may be what another found.

        One that hangs is waited for as many seconds as `patience` says.
        """
        self._to_look.discard(finder)
        if not self._to_look:
            self._all_looked.set()
        with suppress(DeadlineExceeded):
            await Deadline.after(patience).wait_for(self._all_looked.wait(), "the other tails' first looks")

    def _before(self, finder: TailFinder) -> Iterator[TailFinder]:
        return itertools.takewhile(lambda other: other is not finder, self._finders)

    @property
    def alone(self) -> bool:
        """Whether there is one tail only."""
        return len(self._finders) == 1

    def taker(self, path: str) -> TailFinder | None:
        """Which tail a new file at a path belongs to."""
        first = None
        for finder in self._finders:
            matches = finder.matches(path)
            if matches or finder.leads_to(path):
                if (matches and first is None) or finder.reads(path):
                    return finder
                first = first or finder
        return first

    def taken_before(self, finder: TailFinder, path: str) -> bool:
        """Whether a new file at a path belongs to a tail before this one."""
        taker = self.taker(path)
        return taker is not None and taker in self._before(finder)

    def match(self, path: str) -> bool:
        """Whether any tail's globs take a path."""
        return any(finder.matches(path) for finder in self._finders)

    def log_of(self, source: str) -> tuple[TailFinder, Log] | None:
        """The tail and the log of a source."""
        logs = ((finder, finder.log_of(source)) for finder in self._finders)
        return next(((finder, log) for finder, log in logs if log is not None), None)

    def originals(
        self, finder: TailFinder, place: Place, called: Collection[str], apart: Callable[[Generation], bool]
    ) -> tuple[Original, ...]:
        """What a file that a tail met is compared with: generations of that tail's logs.

        And of other tails' logs beside it, or above it, of which it is called like a rotation. What is compressed is
        compared with all that are called alike: its content says what it is, and nothing waits for that. `apart`: says
        of which generations it is no copy.
        """
        finders = (other for other in self._finders if other is not finder)
        others = (each for other in finders for each in other.originals(place, called, apart))
        return (*finder.originals(place, called, apart), *(each for each in others if each.akin or place.codec))

    def note(self, finder: TailFinder, log: Log, generation: Generation) -> None:
        """A tail knows a generation. Safe for one that is noted."""
        inode = generation.known.file.inode
        held = self._by_inode.get(inode)
        if held is None:
            self._by_inode[inode] = [Owned(finder, log, generation)]
        elif generation not in [each.generation for each in held]:
            held.append(Owned(finder, log, generation))

    def drop(self, generation: Generation) -> None:
        """A generation is over."""
        inode = generation.known.file.inode
        left = [each for each in self._by_inode.get(inode, ()) if each.generation is not generation]
        if left:
            self._by_inode[inode] = left
        else:
            self._by_inode.pop(inode, None)

    def find(self, file: FileId) -> Owned | None:
        """Whose generation a file is, by the strongest that is known of both."""
        held = self._by_inode.get(file.inode, ())
        for each in held:
            if each.generation.known.file.same(file):
                return each
        return next(
            (e for e in held if e.generation.phase is Phase.STORED and e.generation.known.file.resembles(file)), None
        )

    def note_copy(self, source: str, finder: TailFinder, log: Log) -> None:
        """A log of this tail holds a copy of a source's content."""
        self._copies.setdefault(source, {})[log] = finder

    def take_copies(self, source: str) -> dict[Log, TailFinder]:
        """The logs that hold copies of a source, with their tails. Its copies are forgotten."""
        return self._copies.pop(source, {})
