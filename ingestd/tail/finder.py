"""TailFinder: one per tail, in the supervisor. Gathers the facts of which `Log` decides, and carries out its commands.

Events of directories and reports of readers are the news. Looks at paths, examinations of files and searches for them
are made in the tail's own thread. A complete pass over the directories comes first, and whenever events may be missing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ingestd.daemon.source import Found, Loss, StoredPosition, WrongDetail
from ingestd.errors import DeadlineExceeded
from ingestd.logs import get_logger
from ingestd.retry import Deadline
from ingestd.tail import awaited
from ingestd.tail.awaited import Awaited
from ingestd.tail.directories import Directories, watch_toward
from ingestd.tail.examinations import COMPRESSING, DOUBT, DOUBTS_MOST, Examinations
from ingestd.tail.facts import (
    DAMAGED,
    TAKEN,
    VANISHED,
    Alone,
    Arrived,
    Await,
    Bury,
    Conclude,
    Copy,
    Deleted,
    Doubtful,
    Ended,
    Examine,
    Examined,
    Forget,
    Gone,
    Keep,
    Listed,
    Look,
    Lose,
    Missed,
    Occupied,
    Phase,
    Read,
    Refuse,
    Repeat,
    Repeated,
    Seek,
    Seen,
    Taken,
    Untold,
)
from ingestd.tail.files import Files
from ingestd.tail.finished import Finished
from ingestd.tail.kin import Kin
from ingestd.tail.known import Known, birth_of, printable
from ingestd.tail.log import Log
from ingestd.tail.looks import Examination, Looks, Unreadable
from ingestd.tail.names import Names
from ingestd.tail.rotation import CODECS, codec_of, is_rotated_from, rotated_from
from ingestd.tail.rounds import Rounds
from ingestd.tail.thread import PATIENCE, LookThread, in_turns
from ingestd.tail.troubles import Troubles
from ingestd.tail.vanished import VanishedFiles
from ingestd.tail.watch import (
    ATTRIBUTES,
    CREATED,
    DELETED,
    DELETED_SELF,
    IS_DIRECTORY,
    MOVED_TO,
    OVERFLOW,
    WRITTEN,
)
from ingestd.tail.watches import SETTLE, SETTLE_IN_STREAMS, Watches
from ingestd.tail.ways import Ways

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence
    from collections.abc import Set as AbstractSet

    from ingestd.daemon.source import End, Finder, Sources
    from ingestd.tail.facts import Command, Fact, Generation, Place, Sought
    from ingestd.tail.file_id import FileId
    from ingestd.tail.looks import Original, Sighting, Walk
    from ingestd.tail.names import Changes
    from ingestd.tail.route import TailRoute
    from ingestd.tail.searching import Search
    from ingestd.tail.vanished import Vanished
    from ingestd.tail.watches import Round

__all__ = ["TailFinder"]

T = TypeVar("T")

_REST_FOR_WORK: Final = 20
"""Where names come and go all the time, passes take at most one part in so many of a core."""

_SPARE_MOST: Final = 5.0
"""CPU seconds that passes may take sooner than that, after a time in which they took less."""

_GRAIN: Final = 10_000_000
"""Nanoseconds: a modification time may be so much earlier than the clock at the modification."""

_LOOKS_BEFORE_READING: Final = 5
_ROUNDS: Final = 5

_EXAMINED_AT_ONCE: Final = 256
"""So many files are examined until directories that came meanwhile are watched. What goes there before is not known."""

_UNSEEN_MOST: Final = 256
"""So many logs without a file are kept only because files of theirs may be there unseen."""

_NAMED_MOST: Final = 5
"""So many files are named in a line of the log that is about all of them."""

_NAME_ROTATED: Final = "if rotation moves files to another directory, name that in `rotated`"

_log = get_logger(__name__)


@dataclass(slots=True)
class _Due:
    """What the thread is to do next."""

    looks: dict[str, str | None] = field(default_factory=dict)
    """Paths, and the log that a file there is of, where that is known."""
    examinations: dict[FileId, tuple[Log, Place]] = field(default_factory=dict)
    seeks: dict[str, Generation] = field(default_factory=dict)
    watches: set[str] = field(default_factory=set)
    directories: set[str] = field(default_factory=set)
    """Those that came or went: they are listed, with what is below them."""
    deleted: list[tuple[FileId, str]] = field(default_factory=list)
    """Files whose name is gone. Looked at last: what they were compressed to is told by what is known of them."""
    logs: dict[str, Log] = field(default_factory=dict)
    """The log of each search, by source."""
    untold: list[tuple[str, int]] = field(default_factory=list)
    """Files that are gone since the run before this one, and how far they were read: to be said."""

    def __bool__(self) -> bool:
        files = self.looks or self.examinations or self.seeks or self.deleted
        return bool(files or self.watches or self.directories or self.untold)


class TailFinder:
    """Tells `Sources` what to read of one tail.

    Invariants
        A file is stored before it is read, and known, under whatever names, until it is gone.
        What is looked at costs what changed, not what is there.
    """

    def __init__(
        self,
        route: TailRoute,
        stored: Sequence[StoredPosition] | None,
        *,
        once: bool,
        others: Sequence[Finder] = (),
        looks: Looks | None = None,
        thread: LookThread | None = None,
    ) -> None:
        """`stored`: None in the first run of the tail, for which `start` is meant. Raises `WrongDetail`."""
        self.route = route
        self._once = once
        self._globs = route.globs
        self._files = next((other.files for other in others if isinstance(other, TailFinder)), None) or Files()
        self._files.enter(self)
        self._looks = looks or Looks()
        self._thread = thread or LookThread(route.name, lambda: self._looks.steps, self._tell_hanging)
        self._first_run = stored is None
        self._first_pass = True
        self._logs: dict[str, Log] = {}
        self._log_of: dict[str, Log] = {}
        """By source."""
        self._withholding: dict[Log, None] = {}
        """Logs with files that are not read until what is older is found."""
        self._ways = Ways()
        self._kin = Kin(self._logs, self._ways.through, self._files, self._latest, route.rotated_globs, once=once)
        self._names = Names(self._log_at, self._is_read)
        self._vanished = VanishedFiles()
        self._due = _Due()
        self._examinations = Examinations(route, partial(self._files.originals, self), once=once)
        self._rounds = Rounds(self._examinations, self._looks, self._thread, self._kin, self._names, self._files)
        self._unwatched: dict[str, Log] = {}
        """By path, logs of which files may have come and gone where nobody watched, until they are searched for."""
        self._finished = Finished()
        self._directories = Directories(self._globs)
        self._troubles = Troubles()
        self._relist = True
        self._missed = False
        """Whether events are missing since the last pass."""
        self._changed_itself: set[str] = set()
        """Directories of which events are missing since then: they were moved, deleted or mounted over."""
        self._heard_at = self._all_known = 0
        """When (ns) events were last taken; and until when all files are known, as of the last run at first."""
        self._news = asyncio.Event()
        self._watches = Watches(route, self._news.set)
        self._awaited = Awaited(self._watches, self._files)
        self._sources: Sources
        for position in sorted(stored or (), key=lambda each: birth_of(each.source)):
            self._restore(position)

    @property
    def files(self) -> Files:
        """What this tail shares with the others."""
        return self._files

    def matches(self, path: str) -> bool:
        """Whether the tail's globs take a path."""
        return self._globs.matches(path) and (self.route.compressed == "read" or not codec_of(path))

    def log_of(self, source: str) -> Log | None:
        """The log that a source is a generation of, if it is one of this tail's."""
        return self._log_of.get(source)

    def originals(
        self, place: Place, called: Collection[str], apart: Callable[[Generation], bool]
    ) -> tuple[Original, ...]:
        """See `Files.originals`."""
        return self._kin.originals(place, called, apart)

    def _restore(self, position: StoredPosition) -> None:
        try:
            known = Known.from_detail(position.detail)
        except ValueError as error:
            raise WrongDetail(position.source, str(error)) from None
        log = self._log(known.log)
        generation = log.restore(position.source, position.position, known)
        self._log_of[position.source] = log
        if known.path in log.written_at:
            self._kin.name(known.path, log.path)
        self._files.note(self, log, generation)
        if known.copy_of:
            self._files.note_copy(known.copy_of, self, log)
        if known.done:
            self._finished.finish(position.source, log)

    # What the supervisor calls.

    @property
    def keeper(self) -> None:
        """Positions of files are kept in the daemon's file."""

    async def scan(self, sources: Sources) -> None:
        """See `ingestd.daemon.source.Finder.scan`."""
        self._sources = self._troubles.sources = sources
        if not self._once:
            self._watches.open()
        known = set(self._logs)
        until = max((each.known.modified for log in self._logs.values() for each in log.generations), default=0)
        self._all_known = until or time.time_ns() - _GRAIN
        await self._pass()
        await in_turns(list(self._logs.values()), self._look_where_they_were)
        await self._settle(_ROUNDS)
        new = [log for path, log in self._logs.items() if path not in known and until]
        await in_turns(new, partial(self._search_since, until))
        restless: list[Log] = []
        await in_turns(self._logs.values(), lambda log: restless.append(log) if log.restless else None)
        await self._files.looked(self, PATIENCE if restless else 0)
        await in_turns(list(self._logs.values()), self._seek_missing)
        await self._settle(_ROUNDS)
        self._first_pass = False
        self._tell_left_out()
        if self._once:
            await self._wait_for_copies()

    async def _wait_for_copies(self) -> None:
        """In a run with an end, nobody comes back to what repeats another file."""
        for _ in range(_ROUNDS):
            if not self._awaited.repeating():
                return
            await asyncio.sleep(awaited.COPY_PATIENCE)
            self._look_at_all_awaited()
            await self._settle(_ROUNDS)
            self._examine_what_repeats()
            await self._settle(_ROUNDS)
        for place in self._awaited.repeating():
            reason = "grows as another file does, like a copy in the making: the next run looks again"
            self._troubles.tell(place.path, reason)

    def _tell_left_out(self) -> None:
        left = [log.path for log in self._logs.values() if log.generations and log.is_left_out(log.path)]
        if left:
            _log.info(
                "known logs are not read on: no glob of the tail takes them any more",
                route=self.route.name,
                logs=len(left),
                some=[printable(path) for path in left[:_NAMED_MOST]],
            )

    def _look_where_they_were(self, log: Log) -> None:
        for each in log.generations:
            if each.phase is Phase.STORED and not each.known.done:
                self._look(each.known.path, None)

    def _search_since(self, until: int, log: Log) -> None:
        """The log is new, but may have been rotated since the last run. That run saw all files until `until` (ns)."""
        if log.generations:
            log.new_since = until
            self._search_unseen(log)

    def _seek_missing(self, log: Log) -> None:
        if log.restless:
            self.apply(log, Listed())

    async def run(self, sources: Sources) -> None:
        """See `ingestd.daemon.source.Finder.run`."""
        self._sources = self._troubles.sources = sources
        rested = rescan = 0.0
        spare, looked = _SPARE_MOST, time.monotonic()
        try:
            while True:
                now = time.monotonic()
                due = rested if self._relist else rescan
                if now >= due:
                    began = time.process_time()
                    await self._look_again()
                    now = time.monotonic()
                    spare = min(_SPARE_MOST, spare + (now - looked) / _REST_FOR_WORK) - (time.process_time() - began)
                    looked = now
                    rested = now + max(SETTLE, -spare * _REST_FOR_WORK)
                    rescan = max(rested, now + self.route.rescan_interval)
                else:
                    soon = self._due or self._watches.waiting or self._names.moving
                    left = SETTLE_IN_STREAMS if soon else sys.maxsize
                    try:  # without news, it is time for a pass, or for what was left
                        await Deadline.after(min(due - now, left)).wait_for(self._news.wait(), "news of files")
                    except DeadlineExceeded:
                        self._hear_no_more()
                await self._settle(_ROUNDS)
                self._news.clear()  # what came meanwhile may wait for more
        finally:
            self.close()

    def close(self) -> None:
        """Give up watches and thread. Safe to call twice."""
        self._watches.close()
        self._thread.close()

    def ended(self, found: Found, end: End) -> None:
        """See `ingestd.daemon.source.Finder.ended`."""
        log = self._log_of.get(found.source)
        if log is None:
            return
        known = Known.told(found.detail)._replace(path=end.path)
        if self._once and end.kind != TAKEN and end.size > end.position:
            again = "the next run looks for the rest in copies of it"
            then = "what follows can not be read; repair it, or exclude it" if end.kind == DAMAGED else again
            reason = f"{end.kind} after byte {end.position}: {then}"
            self._sources.trouble(printable(end.path), reason)
            return
        self.apply(log, Ended(found.source, end, known))

    async def answer(self, question: object) -> object:
        """See `ingestd.daemon.source.Finder.answer`: runners of lines ask nothing."""
        raise AssertionError(f"not a question for a tail's finder: {question!r}")

    # Passes.

    async def _look_again(self) -> None:
        await self._thread.ask(self._looks.rest)
        if not self._relist and not await self._thread.ask(lambda: self._looks.changed(self._directories.stamps)):
            await self._look_at_what_waits()
            return
        await self._pass()
        await self._look_at_what_waits()

    def _look_at_troubles(self) -> None:
        for path in self._troubles.paths:
            if self._log_at(path) == path:
                self._look(path, None)

    async def _look_at_what_waits(self) -> None:
        self._examine_what_repeats()
        self._look_at_all_awaited()
        self._look_at_troubles()
        self._watch_what_was_away(self._ways.away())
        self._look_at_finished()
        await in_turns(list(self._logs.values()), self._look_at_log)
        self._forget_logs()

    def _forget_logs(self) -> None:
        """Nothing is known of these any more, and nothing stands at their paths."""
        over = [log for log in self._logs.values() if log.is_over]
        if not over:
            return
        busy = {*self._vanished.logs, *self._due.logs.values(), *self._unwatched.values()}
        busy.update(log for log, _ in self._due.examinations.values())
        over = [log for log in over if log not in busy and not self._stands(log)]
        unseen = [log for log in over if log.unseen]
        for log in {*over}.difference(unseen[-_UNSEEN_MOST:]):
            del self._logs[log.path]
            self._kin.unname(log.path)

    def _stands(self, log: Log) -> bool:
        """Whether there is something at the path of a log, or was, and events may tell where it went."""
        if log.path in self._ways.through or self._names.has(log.path):
            return True
        return log.here is not None and self._files.find(log.here) is not None  # of another log

    def _examine_what_repeats(self) -> None:
        """What repeated another file for long enough is read, unless that one was truncated since."""
        for log, place in self._awaited.still(time.monotonic()):
            copy = log.of(place.file)
            if copy is not None and copy.copy_of:
                self._want_examination(log, place)

    def _look_at_log(self, log: Log) -> None:
        self._seek_missing(log)
        for generation in log.generations:
            if generation.phase is Phase.READING and generation.last:
                latest = self._sources.latest(generation.source)
                if latest is not None:  # it may have gone to a directory that nobody watches yet
                    self._watch_beside(str(latest.detail.get("path", log.path)))

    def _look_at_finished(self) -> None:
        """Late lines may have come to what was read, if it is still there: another file there is none of this log's."""
        read = [each for source, log in self._finished.recent() if (each := log.named(source)) is not None]
        names = self._names.paths_of({each.known.file for each in read if each.links > 1})
        for generation in read:
            others = names.get(generation.known.file)
            if others and generation.known.path not in others:
                self.renamed(generation, others[0])
            self._look(generation.known.path, None)

    async def _pass(self) -> None:
        missed, self._relist, self._missed = self._missed, False, False
        changed, self._changed_itself = self._changed_itself, set()
        made = self._directories.look(self._watches.round())
        certain = _never if missed else self._certain
        found = await self._thread.ask(lambda: made.walk(self._looks, certain))
        if not self._first_pass:
            self._miss_before_watches(self._watches.new(made.watched) | made.anew)
        self._names.listed = found.present
        standing = self._names.standing()
        self._register(made.watched)
        self._directories.listed(made, found)
        self._drop_watches(made.watched.watched.keys())
        vanished = self._names.forget(found.present, standing)
        self._examinations.forget(
            lambda file: self._files.find(file) is not None,
            lambda path: path in found.present or path in self._ways.paths,
        )
        self._troubles.listed(found.troubles, found.present)
        if missed:
            self._miss()
        else:
            self._miss_below(changed)
        if missed or changed:
            self._watch_ways_anew()
        await self._take_listed(found)
        await in_turns(vanished, self._vanish_with_directory)

    async def _look_below(self, starts: Collection[str]) -> None:
        """A pass over these directories and what is below them: they came, or went."""
        made = self._directories.look(self._watches.round())
        certain = _never if self._missed else self._certain
        found = await self._thread.ask(lambda: made.walk_below(starts, self._looks, certain))
        self._miss_before_watches(self._watches.new(made.watched) | made.anew)
        self._names.listed = found.present
        self._watches.register(made.watched)  # where one went that is gone by now, events of the one above it say
        self._hear()
        self._directories.listed_below(starts, found)
        self._troubles.found(found.troubles)
        for glob in self._globs.matched(found.present):
            self._troubles.over(glob)
        await self._take_listed(found)

    async def _take_listed(self, found: Walk) -> None:
        await in_turns(((sighting, None) for sighting in found.sightings), self._sighted)
        self._names.listed = frozenset()

    def _watch_ways_anew(self) -> None:
        """Another directory may be where links lead, and nobody said so."""
        self._due.watches |= self._ways.directories
        for log in self._ways.through:
            self._look(log, None)

    def _miss_before_watches(self, new: set[str]) -> None:
        """Files may have come and gone in a directory that is new, or where a link leads, before it was watched."""
        for log in [self._logs[path] for path in self._kin.written_in(new) if path in self._logs]:
            through = self._ways.through.get(log.path, ())
            if any(os.path.dirname(path) in new for path in (log.path, *through)):
                self.apply(log, Missed(self._all_known))
                self._unwatched[log.path] = log
                if through:
                    self._look(log.path, None)  # where its newest file still is, nothing was missed

    def _miss(self) -> None:
        for log in self._logs.values():
            self.apply(log, Missed(self._all_known))

    def _miss_below(self, directories: Collection[str]) -> None:
        """Of what is, or was, below these directories, events are missing."""
        below = tuple(f"{directory.rstrip('/')}/" for directory in directories)
        for log in self._logs.values() if below else ():
            paths = (log.path, *self._ways.through.get(log.path, ()), *(each.known.path for each in log.generations))
            if any(path.startswith(below) for path in paths):
                self.apply(log, Missed(self._all_known))

    def _certain(self, path: str, inode: int) -> bool:
        return self._names.holds(path, inode) and self._watches.sees(path)

    # Watches.

    def _register(self, watched: Round) -> None:
        self._relist = self._relist or watched.gone  # the next pass says where it went
        self._watches.register(watched)
        self._hear()

    def _drop_watches(self, listed: AbstractSet[str]) -> None:
        others = self._watches.others(listed)
        if not others:
            return  # without a look at all generations
        others -= self._ways.directories | self._ways.nearest
        others -= {os.path.dirname(each.known.path) for log in self._logs.values() for each in log.generations}
        for key in others:
            self._watches.drop(key)

    # News.

    def _hear(self) -> None:
        """Take all that happened until now."""
        self._heard_at = time.time_ns() - _GRAIN
        events = self._watches.take()
        if not events:
            return
        names: list[tuple[str, int, int]] = []
        missed, changed, gone = False, set(), set()
        for key, mask, cookie, name in events:
            if mask & OVERFLOW:
                missed = True
            elif isinstance(key, str) and not name:
                if mask & DELETED_SELF:
                    gone.add(key)
                elif key not in gone:
                    changed.add(key)
                    self._changed_self(key, mask)
            elif isinstance(key, str):
                names.append((f"{key.rstrip('/')}/{name}", mask, cookie))
            elif mask & WRITTEN and key in self._awaited:
                self._names.judge(self._look_at_awaited(key), judged=False)
        if missed:
            self._miss()
        else:
            self._miss_below(changed)
        # Once more at the next pass, which watches again whatever is not watched now.
        self._relist = self._relist or missed or bool(changed)
        self._missed = self._missed or missed
        self._changed_itself |= changed
        self._take(self._names.heard([each for each in names if not each[1] & IS_DIRECTORY]))
        for path, mask, _ in names:
            self._changed(path, mask)
        for directory in gone:  # events told before what became of all that was in it
            self._watches.drop(directory)
            self._watch_where_links_lead(directory)
            self._list_soon(directory)
        self._news.set()

    def _hear_no_more(self) -> None:
        """Nothing came for a while: of what was renamed, no event is to say where to."""
        if self._names.moving and not self._watches.waiting:
            self._take(self._names.heard(()))

    def _take(self, changes: Changes) -> None:
        """What events say of files."""
        for path, of in changes.looks.items():
            self._look(path, of)
        for vanished in changes.vanished:
            self._vanish(vanished)
        for file, path in changes.moved:
            owned = self._files.find(file)
            if owned is not None:
                owned.finder.renamed(owned.generation, path)
        self._due.deleted += changes.deleted
        for log in [self._logs[path] for path in changes.arrived if path in self._logs]:
            self.apply(log, Arrived())

    def _changed_self(self, directory: str, mask: int) -> None:
        if mask & ATTRIBUTES:  # most likely it is the same one, of which no event is to be missed
            self._due.watches.add(directory)
        else:
            for each in (directory, *self._watches.below(directory)):  # they went with it, under other paths
                self._watch_anew(each)
            self._list_soon(directory)

    def _list_soon(self, directory: str) -> None:
        if self._directories.is_above(directory):
            self._relist = True
        else:
            self._due.directories.add(directory)

    def _watch_anew(self, directory: str) -> None:
        """A directory changed itself: another one may be in its place."""
        self._watches.drop(directory)
        for vanished in self._names.replaced(directory):
            self._vanish_with_directory(vanished)
        self._watch_where_links_lead(directory)

    def renamed(self, generation: Generation, path: str) -> None:
        """A file of this tail has another path now. The next run looks there for lines that come late."""
        generation.known = generation.known._replace(path=path)
        if self._finished.is_recent(generation.source):
            self._store(generation)

    def _forget_deleted(self, deleted: list[tuple[FileId, str]]) -> None:
        gone = [
            owned for file, path in deleted if (owned := self._files.find(file)) and owned.generation.known.path == path
        ]
        linked = {owned.generation.known.file for owned in gone if owned.generation.links > 1}
        names = self._names.paths_of(linked)
        for finder, log, generation in gone:  # they were not seen elsewhere since
            if generation.phase is Phase.DONE and (others := names.get(generation.known.file)):
                # Late lines may come: they are looked for under another name of it.
                finder.renamed(generation, others[0])
                self._look(others[0], None)
            else:
                finder.apply(log, Deleted(generation.source))

    def _changed(self, path: str, mask: int) -> None:
        """What a name that came or went means beside what it names."""
        leads = self._directories.leads(path)
        came = mask & (CREATED | MOVED_TO) and self._globs.leads_through(path)
        if mask & IS_DIRECTORY and (came or (leads and mask & DELETED)):
            self._list_soon(path)
        elif leads:
            self._relist = True
        for log in self._ways.logs(path):
            self._look(log, None)
        if mask & DELETED and self.route.compressed == "read":
            for made in (f"{path}.{codec}" for codec in CODECS if codec):
                if self._log_at(made) == made:
                    self._look(made, None)
        if path in self._troubles:
            self._look(path, None)
        if mask & IS_DIRECTORY and mask & (CREATED | MOVED_TO):
            self._watch_what_was_away(self._ways.away(path))

    def _watch_what_was_away(self, directories: list[str]) -> None:
        for directory in directories:
            self._ways.back(directory)
            self._watch_where_links_lead(directory)

    def _watch_where_links_lead(self, directory: str) -> None:
        """Watch it, and look at what is followed through links into it: nobody told what happened there before."""
        for log in list(self._ways.into(directory)):
            self._due.watches.add(directory)
            self._look(log, None)

    def _vanish(self, vanished: Vanished | None) -> None:
        if vanished is None:
            return
        if vanished.log in self._logs:
            self._look(vanished.log, None)
        paths = dict.fromkeys((vanished.log, *rotated_from(vanished.path)))
        logs = [self._logs[path] for path in paths if path in self._logs and self._logs[path].generations]
        self._vanished.note(vanished, logs, time.monotonic() + PATIENCE)
        for log in logs:  # what it was compressed to before it could be opened is there perhaps
            busy = log.restless
            self.apply(log, Missed(self._all_known))
            if not busy:
                self.apply(log, Listed())

    def _vanish_with_directory(self, vanished: Vanished) -> None:
        """A file that was seen, and not read yet, went with its directory; unless it is known by now, elsewhere."""
        if vanished.file is not None and self._files.find(vanished.file) is None:
            self._vanish(vanished)

    def _search_unseen(self, log: Log, since: int = 0) -> None:
        """Files of a log may have come and gone unseen: search for them now. `since`: as of `Missed`."""
        self.apply(log, Missed(since))
        self.apply(log, Listed())

    def _log_at(self, path: str) -> str | None:
        """The log that a file made at this path is of: the path's own, or one that leads there through links."""
        if self.matches(path) and not self._files.taken_before(self, path):
            return path
        return self._ways.log_of(path)

    def _is_read(self, file: FileId) -> bool:
        owned = self._files.find(file)
        return owned is not None and owned.generation.copy_of is None

    def _log(self, path: str) -> Log:
        log = self._logs.get(path)
        if log is None:
            log = self._logs[path] = Log(path, self._once, self.matches)
            self._kin.name(path, path)
        return log

    # What the thread does.

    def _look(self, path: str, log: str | None) -> None:
        if self._due.looks.get(path) is None:
            self._due.looks[path] = log
        self._news.set()

    async def _settle(self, rounds: int = sys.maxsize) -> None:
        """Do what is due, and what follows from it, which may have no end where files come all the time."""
        self._hear()
        while self._due and rounds:
            rounds -= 1
            due, self._due = self._due, _Due()
            await self._watch_and_list(due)
            if due.looks:
                await self._look_at(due)
                # With what was to be examined before: the oldest of them all comes first.
                for log, place in self._due.examinations.values():
                    self._examine_next(due, log, place)
                self._due.examinations = {}
            if due.examinations:
                first = self._first_run and self._first_pass
                await self._rounds.make(self._oldest(due.examinations.values()), self._judged, first=first)
            if due.seeks:
                await self._seek(due)
            if due.looks or due.examinations:
                self._due.deleted += due.deleted
            else:
                self._forget_deleted(due.deleted)
            if due.untold:
                self._warn_untold(due.untold)
            self._search_again()
            self._hear()
        for path in self._vanished.take_lost(time.monotonic(), busy=bool(self._due)):
            if not self._is_compressed(path):
                self._sources.lost(Loss(printable(path), VANISHED, 0, 0, exact=False))
        if not (self._due or self._vanished or self._relist or self._names.moving):
            self._all_known = self._heard_at

    def _oldest(self, wanted: Collection[tuple[Log, Place]]) -> Collection[tuple[Log, Place]]:
        """Of many files, those that are examined now. The others are to be examined next, with what comes meanwhile."""
        if self._first_pass or len(wanted) <= _EXAMINED_AT_ONCE:
            return wanted
        by_age = self._examinations.by_age(wanted)
        for log, place in by_age[_EXAMINED_AT_ONCE:]:
            self._examine_next(self._due, log, place)
        return by_age[:_EXAMINED_AT_ONCE]

    def _is_compressed(self, path: str) -> bool:
        """Whether there is a compressed file beside a vanished one that is called after it, and is read."""
        return any(self._names.has(f"{path}.{codec}") for codec in CODECS if codec)

    def _search_again(self) -> None:
        """Files vanished while something else was searched for, or came and went before their directory was watched."""
        for log in self._vanished.take_unsought():
            self.apply(log, Listed())
        for path, log in list(self._unwatched.items()):
            if path not in self._due.looks and not log.asked:
                del self._unwatched[path]
                self._seek_missing(log)

    def _warn_untold(self, untold: list[tuple[str, int]]) -> None:
        """All in one line, since all pods of a node may be gone at once."""
        _log.warning(
            "files are gone or were cut off since the last run: what was written to them after it is unknown",
            route=self.route.name,
            files=len(untold),
            read_to={printable(path): position for path, position in untold[:_NAMED_MOST]},
            **({} if self.route.rotated else {"remedy": _NAME_ROTATED}),
        )

    def _tell_hanging(self, seconds: float) -> None:
        reason = f"no answer for {seconds:g} s: a dead mount? Its files wait; nothing else does"
        self._troubles.tell(", ".join(sorted(self._globs.roots)), reason)

    async def _watch_and_list(self, due: _Due) -> None:
        if due.watches:
            await self._watch_more(due.watches)
        if due.directories:
            await self._look_below(due.directories)

    async def _watch_more(self, directories: set[str]) -> None:
        watched = self._watches.round()
        ways = self._ways.directories

        def watch() -> dict[str, str]:
            away = {}
            for directory in directories:
                if directory not in ways:
                    watched.enter(directory)
                elif (above := watch_toward(directory, watched)) != directory:
                    away[directory] = above
            return away

        self._ways.note_away(await self._thread.ask(watch))
        self._miss_before_watches(self._watches.new(watched))
        self._register(watched)

    async def _look_at(self, due: _Due) -> None:
        """Look, take the events since, look at their paths too. So the oldest of several new files is read first."""
        wanted = due.looks
        found: list[tuple[Sighting, str | None]] = []
        for _ in range(_LOOKS_BEFORE_READING):
            paths = tuple(wanted)
            sightings = await self._thread.ask(partial(self._sightings, paths))
            found += zip(sightings, wanted.values(), strict=True)
            if not self._concerned(found):
                break
            self._hear()
            wanted, self._due.looks = self._due.looks, {}
            if not wanted:
                break
        else:
            self._due.looks |= wanted
        await in_turns({sighting.path: (sighting, of) for sighting, of in found}.values(), self._sighted)

    def _concerned(self, found: list[tuple[Sighting, str | None]]) -> bool:
        """Whether what happened meanwhile concerns what was looked at. What does not waits for the next turn."""
        looked = {path for sighting, of in found for path in (sighting.path, *sighting.through, of or "")}
        looked |= {sighting.place.path for sighting, _ in found if sighting.place is not None}
        return self._watches.concern(looked)

    def _sightings(self, paths: tuple[str, ...]) -> list[Sighting]:
        return [self._looks.look(path) for path in paths]

    def _judged(self, log: Log, wanted: Examination, examined: Examined | None) -> None:
        doubts = self._examinations.take_doubts(wanted.place.file)
        if wanted.in_the_making and wanted.place.codec:
            self._call_later(COMPRESSING, self._look, wanted.place.path, None)
        owner = self._owner(log, wanted.place)
        if owner is None:
            return
        finder, log = owner
        self._names.examined(wanted.place.file)
        if examined is not None and examined.place.path != wanted.place.path:
            self._found_at(log, examined.place)
        if examined is None:
            if log.generations:  # events say where it went, or else a search
                finder._search_unseen(log, wanted.place.modified - 1)  # noqa: SLF001 - one of its kind
            return
        if isinstance(examined.verdict, Doubtful):
            self._examinations.doubt(examined.place.file, doubts + 1)
            self._call_later(DOUBT / DOUBTS_MOST, self._look, examined.place.path, log.path)
            return
        if isinstance(examined.verdict, Copy):
            original = self._files.log_of(examined.verdict.of)
            if original is None:  # its end was told meanwhile
                self._look(examined.place.path, log.path)
                return
            if examined.verdict.sure and self._awaited.is_still(examined.place.file, time.monotonic()):
                finder.apply(log, Alone(examined.place.file))
                return
            # What is lost with a copy is told of its original. One that is plain and not sure may be none.
            self._names.judge(examined.place.path, judged=examined.verdict.sure or bool(examined.place.codec))
            examined, (finder, log) = replace(examined, asked=log.path), original
        finder.apply(log, examined)
        if isinstance(examined.verdict, Unreadable):  # it may be given to us without being modified
            self._examinations.take_back(wanted.place.file)

    def _owner(self, log: Log, place: Place) -> tuple[TailFinder, Log] | None:
        """Whose an examined file is, which was met by this log; None: another one's, by another of its names."""
        owned = self._files.find(place.file)
        if owned is not None and owned.log is not log:
            if owned.generation.copy_of is None:
                self._note_second_name({log.path, place.path}, owned.log)
                return None
            return owned.finder, owned.log
        if owned is None and place.links > 1 and self._withheld_by(place.file) not in {None, log}:
            return None  # that one looks for what is older
        return self, log

    def _withheld_by(self, file: FileId) -> Log | None:
        """The log that keeps a file waiting."""
        return next((log for log in self._withholding if log.holds_back(file) or log.may_be_copy(file)), None)

    def _call_later(self, delay: float, call: Callable[..., None], *arguments: object) -> None:
        asyncio.get_running_loop().call_later(delay, call, *arguments)

    def _found_at(self, log: Log, place: Place) -> None:
        """A file was found where nobody saw it go."""
        self._vanish(self._names.looked(place.path, log.path, place.file))

    def _latest(self, source: str) -> Found | None:
        return self._sources.latest(source)

    async def _seek(self, due: _Due) -> None:
        searches: list[Search] = []
        called = self._names.paths_of({each.known.file for each in due.seeks.values() if each.links > 1})
        directories = {*self._kin.directories(), *self._directories.stamps} if called else set()

        def want(generation: Generation) -> None:
            names = called.get(generation.known.file, ())
            more = directories if generation.links > 1 else ()
            searches.append(self._kin.search(due.logs[generation.source], generation, names, more))

        await in_turns(due.seeks.values(), want)
        found = await self._thread.ask(partial(self._looks.search, searches))

        def take(sought: Sought) -> None:
            log = due.logs[sought.source]
            new = (place for place in (*sought.between, sought.rest) if place is not None)
            self._vanished.found(log, [place.file for place in new if self._is_unheard_of(place)])
            self._vanished.compressed([place.path for place in sought.packed])
            self.apply(log, sought)
            if sought.unavailable:
                self._tell_waiting(log, sought.source)

        def meet(sought: Sought) -> None:
            for place in (sought.at, sought.rest):
                if place is not None:
                    self._found_at(due.logs[sought.source], place)

        await in_turns(found, meet)  # before the events since then are heard
        self._hear()  # what is not found may just have been moved away
        await in_turns(found, take)

    def _tell_waiting(self, log: Log, source: str) -> None:
        """Files wait for this source, which can not be looked for now."""
        missing = log.named(source)
        if missing is None:
            return
        where = f"{missing.known.path}, whose directory can not be read or is not mounted"
        for path in log.waiting:
            self._troubles.tell(path, f"may be a copy of what is read in {where}: it waits until that is there")

    def _is_unheard_of(self, place: Place) -> bool:
        told = not place.codec and self._names.expects(place.path)
        return self._files.find(place.file) is None and not told

    # Facts.

    def _sighted(self, looked: tuple[Sighting, str | None]) -> None:
        """A look, and the log of a file there where it is not the one of the path."""
        sighting, of = looked
        path, place = sighting.path, sighting.place
        own = self._log_at(path)
        if own == path:
            self._note_way(sighting)
            if path in sighting.through:
                of = None  # a link that was renamed is a name of a log, and no rotation of another one
        if place is None:
            self._miss_awaited(path, None)
            self._vanish(self._names.looked(path, of or path, None))
            if sighting.trouble is not None:  # what stands there is no file
                self._names.judge(path, judged=True)
            return
        self._miss_awaited(path, place.file)
        owned = self._files.find(place.file)
        log_of = of or own or (owned.log.path if owned is not None and owned.finder is self else None)
        for name in {path, place.path} if log_of else ():
            if not self._watches.sees(name):
                continue  # of what happens there next, nobody tells
            self._vanish(self._names.looked(name, log_of, place.file))
        self._take_over(path, place.file)
        owned = self._files.find(place.file)
        if owned is not None:
            self._seen_again(owned.finder, owned.log, path, place)
        elif of is not None and of != path:
            self.apply(self._log(of), Seen(place, here=False))
        elif place.links > 1 and (waiting := self._withheld_by(place.file)) is not None:
            self.apply(waiting, Seen(place, here=False))
        elif own is not None:
            self.apply(self._log(own), Seen(place, here=own == path))
        elif self.matches(path):
            self._belongs(path, self._files.taken_before(self, path))

    def _take_over(self, path: str, file: FileId) -> None:
        """Another tail may have read a file that only this one takes any more."""
        owned = self._files.find(file)
        if owned is not None and owned.finder is not self and self.matches(path) and owned.log.is_left_out(path):
            owned.finder.apply(owned.log, Taken(file))

    def _miss_awaited(self, path: str, found: FileId | None) -> None:
        """A file that is waited for may not be where it was: it is searched for."""
        log = self._awaited.missed(path, found)
        if log is not None and not log.restless:
            self._search_unseen(log)

    def _note_way(self, sighting: Sighting) -> None:
        if sighting.trouble is not None:
            if not self._globs.leads_through(sighting.path):  # what is in a directory is taken, by `**`
                self._troubles.tell(sighting.path, sighting.trouble)
        elif sighting.place is None:
            self._troubles.over(sighting.path)
        before = self._ways.through.get(sighting.path, ())
        if sighting.through != before:
            self._lead(sighting.path, sighting.through)
            if before and (log := self._logs.get(sighting.path)) is not None:
                log.leads_elsewhere(before[-1])
                # What came and went where it leads now, before that was known, is found by a search.
                self._search_unseen(log)

    def _belongs(self, path: str, finder: TailFinder | None) -> None:
        if finder is not None and not self._once:  # in a run with an end, it would be one that failed
            self._troubles.tell(path, f"taken by the tail {finder.route.name!r}; a file belongs to one tail")

    def _seen_again(self, finder: TailFinder, log: Log, path: str, place: Place) -> None:
        finder.apply(log, Seen(place, here=log.path == path))
        other = self._logs.get(path)
        if not is_rotated_from(path, log.path):
            self._note_second_name({path, place.path}, log)
        if other is not None and other is not log:
            self.apply(other, Occupied(place.file))
        if finder is not self and self.matches(path):
            self._belongs(path, finder)

    def _lead(self, log: str, through: tuple[str, ...]) -> None:
        """A log is followed through links, or not any more."""
        self._ways.follow(log, through)
        for path in through:
            self._kin.name(path, log)
            self._watch_beside(path)
        if not through and log not in self._logs:
            self._kin.unname(log)
        self._look(log, None)  # again, for what happened there before it was known whose that is

    def apply(self, log: Log, fact: Fact) -> None:
        """Let a log of this tail decide, and do what it says. Another tail may have seen the fact."""
        for command in log.step(fact):
            self._do(log, command)
        if log.waiting:
            self._withholding[log] = None
        else:
            self._withholding.pop(log, None)
        if self._due:
            self._news.set()

    # Commands.

    def _do(self, log: Log, command: Command) -> None:  # noqa: C901, PLR0912 - one for each command
        match command:
            case Look(path, asked) if asked:
                finder = self._files.taker(path) or self
                finder._look(path, None if finder._log_at(path) else asked)  # noqa: SLF001 - one of its kind
            case Look(path):
                self._look(path, log.path)
            case Examine(place):
                self._want_examination(log, place)
            case Repeat(place, copy):
                self._repeat(log, place, copy)
            case Seek(generation):
                self._due.seeks[generation.source] = generation
                self._due.logs[generation.source] = log
            case Read(generation, after):
                self._note(log, generation)
                self._troubles.over(log.path)
                self._sources.appeared(self._found(log, generation, after))
            case Conclude(generation):
                self._sources.conclude(generation.source)
            case Keep(generation):
                self._note(log, generation)
                self._store(generation)
                self._finished.finish(generation.source, log)
            case Bury(generation):
                self._files.drop(generation)
                self._store(generation)
                self._names.over(generation.known.file, generation.known.path)
                for source, other in self._finished.bury(generation.source, log):
                    self.apply(other, Deleted(source))
                self._gone(generation)
            case Forget(generation, after):
                self._log_of.pop(generation.source, None)
                self._names.over(generation.known.file)
                self._finished.forget(generation.source)
                self._files.drop(generation)
                self._sources.forget(generation.source)
                self._gone(generation, after)
            case Await(place):
                self._await(log, place)
            case Refuse(place, reason):
                self._examinations.refuse(place, reason)
                self._names.judge(place.path, judged=True)
                self._troubles.tell(place.path, reason)
            case Untold(generation):
                self._due.untold.append((generation.known.path, generation.position))
            case Lose(loss):
                self._sources.lost(replace(loss, thing=printable(loss.thing)))

    def _repeat(self, original: Log, place: Place, copy: Copy) -> None:
        """Tell the log that knows the copy; if none does, the one of its path."""
        owned, taker = self._files.find(place.file), self._files.taker(place.path)
        if owned is None:
            finder = taker or self
            log = finder._log(finder._log_at(place.path) or original.path)  # noqa: SLF001 - one of its kind
        else:
            finder, log = owned.finder, owned.log
        apart = taker is None and log is original and not log.stands(place.file)
        if owned is not None and owned.generation.copy_of:
            apart = owned.generation.known.apart  # as it was when it was met, wherever it is by now
        finder.apply(log, Repeated(place, copy, apart))

    def _store(self, generation: Generation) -> None:
        detail = generation.known.to_detail()
        self._sources.store(StoredPosition(generation.source, generation.position, detail))

    def _gone(self, generation: Generation, after: str = "") -> None:
        self._awaited.release(generation.known.file)
        for log, finder in self._files.take_copies(generation.source).items():
            if after:
                self._files.note_copy(after, finder, log)
            finder.apply(log, Gone(generation.source, after))

    def _note(self, log: Log, generation: Generation) -> None:
        self._log_of[generation.source] = log
        self._vanished.met(generation.known.file)
        self._troubles.over(generation.known.path)
        owned = self._files.find(generation.known.file)
        if owned is not None and owned.log is not log and owned.generation.copy_of is not None:
            owned.finder.apply(owned.log, Taken(generation.known.file))
        self._files.note(self, log, generation)
        if generation.copy_of:
            self._files.note_copy(generation.copy_of, self, log)
        self._finished.begin(generation.source)
        self._awaited.release(generation.known.file, read=generation.phase is Phase.READING)
        self._watch_beside(generation.known.path)

    def _watch_beside(self, path: str) -> None:
        directory = path.rpartition("/")[0] or "/"
        if self._watches.lacks(directory):
            self._due.watches.add(directory)

    def _found(self, log: Log, generation: Generation, after: str | None) -> Found:
        until = None
        if self._once and not generation.known.codec:
            until = max(generation.position, generation.size)
        return Found(
            generation.source,
            generation.position,
            generation.known.to_detail(),
            until,
            label=printable(log.path),
            group=log.path,
            after=after,
            last=generation.last,
        )

    def _want_examination(self, log: Log, place: Place) -> None:
        if reason := self._examinations.why_refused(place):
            self._names.judge(place.path, judged=True)
            self._troubles.tell(place.path, reason)
            return
        self._examine_next(self._due, log, place)

    def _examine_next(self, due: _Due, log: Log, place: Place) -> None:
        """For the log that asked first. Another one knows the file by a second name."""
        other, _ = due.examinations.get(place.file, (log, place))
        if other is log:
            due.examinations[place.file] = log, place
        else:
            self._note_second_name({log.path, place.path}, other)

    def _note_second_name(self, names: set[str], log: Log) -> None:
        """A file of a log has other names, too. Copies of it may be called like rotations of these."""
        for path in names - {log.path}:
            self._kin.name(path, log.path)

    def _await(self, log: Log, place: Place) -> None:
        self._names.judge(place.path, judged=True)
        if not self._awaited.hold(log, place, time.monotonic()):
            self._look_at_awaited(place.file)

    def _look_at_all_awaited(self) -> None:
        for file in self._awaited:
            self._look_at_awaited(file)

    def _look_at_awaited(self, file: Hashable) -> str:
        log, path = self._awaited.expect(file)
        self._look(path, log.path)
        return path


def _never(_path: str, _inode: int) -> bool:
    """Where events are missing, a new file may have the path and the inode number of a known one."""
    return False
