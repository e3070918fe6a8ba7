"""TailFinder: one per tail, in the supervisor. It says what is looked at, and when; a `Log` decides what follows.

Events of directories and reports of readers are the news. Looks at paths, examinations of files and searches for them
are made in the tail's own thread. A complete pass over the directories comes first, and whenever events may be missing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ingestd.daemon.source import Found, Loss, StoredPosition, WrongDetail
from ingestd.errors import DeadlineExceeded
from ingestd.logs import get_logger
from ingestd.retry import Deadline
from ingestd.tail import awaited
from ingestd.tail.awaited import Awaited
from ingestd.tail.directories import Directories
from ingestd.tail.examinations import Examinations
from ingestd.tail.facts import DAMAGED, TAKEN, VANISHED, Ended, Missed
from ingestd.tail.files import Files
from ingestd.tail.finished import Finished
from ingestd.tail.generation import Phase
from ingestd.tail.kin import Kin
from ingestd.tail.known import Known, birth_of, name_later_than, printable
from ingestd.tail.log import Log
from ingestd.tail.looks import Looks
from ingestd.tail.names import Names
from ingestd.tail.news import GRAIN, News
from ingestd.tail.performer import Performer
from ingestd.tail.rotation import codec_of, family_of, rotated_from
from ingestd.tail.rounds import Rounds
from ingestd.tail.sightings import Sightings
from ingestd.tail.start import NAMED_MOST, found_before, note_rotated, tell_left_out, warn_of_rotated
from ingestd.tail.thread import PATIENCE, Due, LookThread, in_turns
from ingestd.tail.troubles import Troubles
from ingestd.tail.vanished import Unseen
from ingestd.tail.verdicts import Verdicts
from ingestd.tail.watches import SETTLE, SETTLE_IN_STREAMS, Watches
from ingestd.tail.ways import Ways

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from collections.abc import Set as AbstractSet

    from ingestd.daemon.source import End, Finder, Sources
    from ingestd.tail.facts import Fact, Place, Sought
    from ingestd.tail.file_id import FileId
    from ingestd.tail.generation import Generation
    from ingestd.tail.looks import Original, Sighting, Walk
    from ingestd.tail.route import TailRoute
    from ingestd.tail.searching import Search

__all__ = ["TailFinder"]

T = TypeVar("T")

_REST_FOR_WORK: Final = 20
"""Where names come and go all the time, passes take at most one part in so many of a core."""

_SPARE_MOST: Final = 5.0
"""CPU seconds that passes may take sooner than that, after a time in which they took less."""

_LOOKS_BEFORE_READING: Final = 5
_ROUNDS: Final = 5

_REST_LOOK: Final = 0.01
"""Seconds between two looks whether there is nothing left to look at, before a stop."""

_UNSEEN_MOST: Final = 256
"""So many logs without a file are kept only because files of theirs may be there unseen."""

_NAME_ROTATED: Final = (
    'if rotation moves files to another directory{than}, say so: rotated = ["/that/directory/*"]; if it deletes them, '
    "let it keep more. Nothing is lost of a file that had no more than that"
)

_LEFT: Final = (
    "not examined yet, waits for an older file, or seems to be a copy of a log that is there: the next run looks again"
)

_log = get_logger(__name__)


class TailFinder:
    """Tells `Sources` what to read of one tail.

    Invariants
        A file is stored before it is read, and known, under whatever names, until it is gone.
        What is looked at costs what changed, not what is there.
    """

    def __init__(
        self,
        route: TailRoute,
        stored: Sequence[StoredPosition],
        *,
        once: bool,
        since: float = 0.0,
        first_run: bool = False,
        others: Sequence[Finder] = (),
        looks: Looks | None = None,
        thread: LookThread | None = None,
    ) -> None:
        """`since`, `first_run`: as of `Surroundings`. `start` is meant for what a first run finds and is not stored.

        Raises `WrongDetail`.
        """
        self.route = route
        self.once = once
        """Whether it is a run with an end."""
        self._globs = route.globs
        self._files = next((other.files for other in others if isinstance(other, TailFinder)), None) or Files()
        self._files.enter(self)
        self._looks = looks or Looks()
        self._thread = thread or LookThread(route.name, lambda: self._looks.steps, self._tell_hanging)
        self._first_run = first_run
        self._since = int(since * 1e9)
        self._new_since = 0
        """Until when (ns) all files were seen; a log that is met now may have been rotated since. 0: it was not."""
        self._looked_at = 0
        """When (ns) the last complete look at the directories began."""
        self._resting = False
        """Whether it waits for news, and so is in the middle of nothing."""
        self.first_pass = True
        """Whether the start is not over yet."""
        self._logs: dict[str, Log] = {}
        self._log_of: dict[str, Log] = {}
        """By source."""
        self._withholding: dict[Log, None] = {}
        """Logs with files that are not read until what is older is found."""
        self._ways = Ways()
        self._kin = Kin(self._logs, self._ways.through, self._files, self._latest, route.rotated_globs, once=once)
        self._names = Names(self.log_at, self._is_read, partial(self._files.taken_before, self))
        self._due = Due()
        self._watches = Watches(route, self._due.woken.set)
        self._awaited = Awaited(self._watches, self._files)
        self._directories = Directories(self._globs)
        self._troubles = Troubles(route.paths)
        self._unseen = Unseen(
            self._logs, self._ways.through, self._files, self._names, self._kin, self._due, self.apply
        )
        self._vanished = self._unseen.vanished
        self._news = News(
            route,
            self._globs,
            self._watches,
            self._names,
            self._ways,
            self._directories,
            self._awaited,
            self._troubles,
            self._files,
            self._unseen,
            self._due,
            self.log_at,
        )
        self._examinations = Examinations(route, partial(self._files.originals, self), once=once)
        self._verdicts = Verdicts(
            self, self._examinations, self._names, self._files, self._kin, self._awaited, self._troubles, self._due
        )
        self._rounds = Rounds(self._examinations, self._looks, self._thread, self._kin, self._names, self._files)
        self._finished = Finished()
        self._performer = Performer(
            self,
            self._log_of,
            self._files,
            self._names,
            self._verdicts,
            self._examinations,
            self._finished,
            self._awaited,
            self._vanished,
            self._troubles,
            self._news,
            self._due,
        )
        self._sightings = Sightings(
            self,
            self._names,
            self._ways,
            self._kin,
            self._files,
            self._watches,
            self._awaited,
            self._troubles,
            self._unseen,
            self._news,
            self._due,
        )
        self._sources: Sources
        for position in sorted(stored, key=lambda each: birth_of(each.source)):
            self._restore(position)
            name_later_than(position.source)
        self._restored = frozenset(self._logs)
        """Paths of the logs that earlier runs knew."""

    @property
    def files(self) -> Files:
        """What this tail shares with the others."""
        return self._files

    def matches(self, path: str) -> bool:
        """Whether the tail's globs take a path."""
        return self._globs.matches(path) and (self.route.compressed == "read" or not codec_of(path))

    def leads_to(self, path: str) -> bool:
        """Whether a log of this tail is followed to a path, or through it, along links."""
        return bool(self._ways.logs(path))

    def reads(self, path: str) -> bool:
        """Whether it knows what stands, or stood, at a path that it takes, by its globs or through a link."""
        log = self._logs.get(path if self.matches(path) else self._ways.log_of(path) or "")
        return log is not None and bool(log.generations)

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
        log = self.log(known.log)
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

    @property
    def waiting(self) -> int:
        """See `ingestd.daemon.source.Finder.waiting`."""
        return len(self._awaited.repeating())

    async def scan(self, sources: Sources) -> None:
        """See `ingestd.daemon.source.Finder.scan`."""
        self._tell_to(sources)
        route, logs = self.route, self._logs.values()
        if not self.once:
            self._watches.open()
        self._new_since = found_before(route, logs, self._since)
        self._looked_at = time.time_ns() - GRAIN
        self._unseen.know_all(self._new_since or self._looked_at)
        for log in self._logs.values():
            # What was met later than all was found may have been met before what is older.
            if log.generations[-1].known.modified > self._new_since:
                self.apply(log, Missed(self._new_since))
        await note_rotated(route, logs, self._looks, self._thread, self._new_since)
        await warn_of_rotated(route, logs, self._thread)
        await self._pass()
        if self._new_since:
            await self._look_for_rotated(self._directories.stamps.keys() | self._ways.directories, self._new_since)
        await in_turns(list(self._logs.values()), self._look_where_they_were)
        await self._settle(_ROUNDS)
        restless: list[Log] = []
        await in_turns(self._logs.values(), lambda log: restless.append(log) if log.restless else None)
        await self._files.looked(self, PATIENCE if restless else 0)
        await in_turns(list(self._logs.values()), self._unseen.seek)
        await self._settle(_ROUNDS)
        self.first_pass, self._new_since = False, 0
        self._tell_all_found()
        tell_left_out(route, self._logs.values())
        if self.once:  # no later pass looks for lines that came late
            self._look_at_finished()
            await self._settle(_ROUNDS)
            await self._wait_for_copies()
            self._tell_left()

    def _tell_to(self, sources: Sources) -> None:
        self._sources = self._troubles.sources = self._news.sources = self._performer.sources = sources

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

    def _tell_left(self) -> None:
        left = {place.path for _, place in self._due.examinations.values()}
        for path in left.union(*(log.waiting for log in self._withholding)):
            if path not in self._troubles:
                self._troubles.tell(path, _LEFT)

    def _look_where_they_were(self, log: Log) -> None:
        for each in log.generations:
            if each.phase is Phase.STORED and not each.known.done:
                self._due.look(each.known.path, None)

    async def run(self, sources: Sources) -> None:
        """See `ingestd.daemon.source.Finder.run`."""
        self._tell_to(sources)
        rested = rescan = 0.0
        spare, looked = _SPARE_MOST, time.monotonic()
        try:
            while True:
                now = time.monotonic()
                due = rested if self._news.relist else rescan
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
                    self._resting = True
                    try:  # without news, it is time for a pass, or for what was left
                        await Deadline.after(min(due - now, left)).wait_for(self._due.woken.wait(), "news of files")
                    except DeadlineExceeded:
                        self._news.hear_no_more()
                    self._resting = False
                await self._settle(_ROUNDS)
                self._due.woken.clear()  # what came meanwhile may wait for more
        finally:
            self.close()

    async def rest(self) -> None:
        """See `ingestd.daemon.source.Finder.rest`. A file may have come and gone just before a stop."""
        await self._without_news()
        self._news.hear()
        self._due.woken.set()
        await self._without_news()

    async def _without_news(self) -> None:
        def is_busy() -> bool:
            return not self._resting or bool(self._due or self._vanished) or self._names.moving

        # A stop is rare. What it waits for changes in many places.
        while is_busy() or self._due.woken.is_set():  # noqa: ASYNC110
            await asyncio.sleep(_REST_LOOK)

    def close(self) -> None:
        """Give up watches and thread. Safe to call twice."""
        if self._resting:
            self._resting = False
            self._news.hear()
            self._tell_all_found()
        self._watches.close()
        self._thread.close()

    def moved(self) -> None:
        """See `ingestd.daemon.source.Finder.moved`. The rows tell of hardly a later time than what is found then."""
        if self._resting and self._watches.silent:  # events are gathered before they are heard
            self._news.hear()
            self._tell_all_found()

    def ended(self, found: Found, end: End) -> None:
        """See `ingestd.daemon.source.Finder.ended`."""
        log = self._log_of.get(found.source)
        if log is None:
            return
        known = Known.told(found.detail)._replace(path=end.path)
        if self.once and end.kind not in {TAKEN, DAMAGED} and end.size > end.position:
            reason = f"{end.kind} after byte {end.position}: the next run looks for the rest in copies of it"
            self._sources.trouble(printable(end.path), reason)
            return
        self.apply(log, Ended(found.source, end, known))

    async def answer(self, question: object) -> object:
        """See `ingestd.daemon.source.Finder.answer`: runners of lines ask nothing."""
        raise AssertionError(f"not a question for a tail's finder: {question!r}")

    # Passes.

    async def _look_again(self) -> None:
        self._looked_at = time.time_ns() - GRAIN
        await self._thread.ask(self._looks.rest)
        due = self._news.relist or self._troubles.suspected
        if not due and not await self._thread.ask(lambda: self._looks.changed(self._directories.stamps)):
            await self._look_at_what_waits()
            return
        await self._pass()
        await self._look_at_what_waits()

    def _look_at_all_awaited(self) -> None:
        for file in self._awaited:
            self._performer.look_at_awaited(file)

    def _look_at_troubles(self) -> None:
        for path in self._troubles.paths:
            if self.log_at(path) == path:
                self._due.look(path, None)

    async def _look_at_what_waits(self) -> None:
        self._examine_what_repeats()
        self._look_at_all_awaited()
        self._look_at_troubles()
        self._news.watch_what_was_away()
        self._look_at_finished()
        await in_turns(list(self._logs.values()), self._look_at_log)
        self._forget_logs()

    def _forget_logs(self) -> None:
        """Nothing is known of these any more, and nothing stands at their paths."""
        over = [log for log in self._logs.values() if log.is_over]
        if not over:
            return
        busy = {*self._unseen.logs, *self._due.logs.values()}
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
                self._verdicts.want(log, place)

    def _look_at_log(self, log: Log) -> None:
        self._unseen.seek(log)
        for generation in log.generations:
            if generation.phase is Phase.READING and generation.last:
                latest = self._sources.latest(generation.source)
                if latest is not None:  # it may have gone to a directory that nobody watches yet
                    self._news.watch_beside(str(latest.detail.get("path", log.path)))

    def _look_at_finished(self) -> None:
        """Late lines may have come to what was read, if it is still there: another file there is none of this log's."""
        read = [each for source, log in self._finished.recent() if (each := log.named(source)) is not None]
        names = self._names.paths_of({each.known.file for each in read if each.links > 1})
        for generation in read:
            others = names.get(generation.known.file)
            if others and generation.known.path not in others:
                self.renamed(generation, others[0])
            self._due.look(generation.known.path, None)

    async def _pass(self) -> None:
        certain = self._news.certain()
        missed, changed = self._news.take_missed()
        made = self._directories.look(self._watches.round())
        found = await self._thread.ask(lambda: made.walk(self._looks, certain))
        new = set() if self.first_pass else self._watches.new(made.watched) | made.anew
        self._unseen.miss_before_watches(new)
        self._names.listed(found.present)
        standing = self._names.standing()
        self._news.register(made.watched)
        self._directories.listed(made, found)
        self._drop_watches(made.watched.watched.keys())
        vanished = self._names.forget(found.present, standing)
        self._examinations.forget(
            lambda file: self._files.find(file) is not None,
            lambda path: path in found.present or path in self._ways.paths,
        )
        rotated = (path for path in self._troubles.paths if self._names.has(path))  # no glob need match these
        self._troubles.listed(found.troubles, found.present.union(rotated))
        if missed:
            self._unseen.miss()
        else:
            self._unseen.miss_below(changed)
        if missed or changed:
            self._news.watch_ways_anew()
        await self._take_listed(found)
        await in_turns(vanished, self._unseen.vanish_with_directory)
        await self._look_for_rotated(new, self._unseen.all_known)

    async def _look_below(self, starts: Collection[str]) -> None:
        """A pass over these directories and what is below them: they came, or went."""
        made = self._directories.look(self._watches.round())
        certain = self._news.certain()
        found = await self._thread.ask(lambda: made.walk_below(starts, self._looks, certain))
        new = self._watches.new(made.watched) | made.anew
        self._unseen.miss_before_watches(new)
        self._names.listed(found.present)
        self._watches.register(made.watched)  # where one went that is gone by now, events of the one above it say
        self._news.hear()
        self._directories.listed_below(starts, found)
        self._troubles.found(found.troubles)
        for glob in self._globs.matched(found.present):
            self._troubles.over(glob)
        await self._take_listed(found)
        await self._look_for_rotated(new, self._unseen.all_known)

    async def _look_for_rotated(self, directories: AbstractSet[str], since: int) -> None:
        """Look at what was written in these directories since then (ns) as logs that nobody knows, and rotated, unseen.

        The next file of such a log may be made at any time.
        """

        def is_known(path: str) -> bool:
            log = self._logs.get(path)
            return log is not None and not (log.is_over and log.here is None)

        def look(path: str) -> None:
            originals = (each for each in rotated_from(path) if family_of(each) == family_of(path))
            logs = [log for log in map(self.log_at, originals) if log is not None]
            beside = (log for log in self._kin.alike(path) if os.path.dirname(log) == os.path.dirname(path))
            if logs and not any(map(is_known, (*logs, *beside))):  # else it is a known one's to search for
                self._due.look(path, min(logs, key=len))

        if directories:
            written = await self._thread.ask(lambda: self._looks.made_since(directories, since, written=True))
            # What the globs match is a log of its own, or compressed, and to be left alone.
            await in_turns([path for path in written if not self._globs.matches(path)], look)

    async def _take_listed(self, found: Walk) -> None:
        if self.first_pass:  # whose a file is depends on where the links of the tails before this one lead
            for sighting in found.sightings:
                if sighting.through and self.log_at(sighting.path) == sighting.path:
                    self._sightings.lead(sighting.path, sighting.through)
            await self._files.led(self, PATIENCE)
        if not self.first_pass:  # nobody told of what is new here: its directory is, or events are missing
            self._new_since = self._unseen.all_known
        await in_turns(found.sightings, self._sightings.take_listed)
        if not self.first_pass:
            self._new_since = 0
        self._names.listed(frozenset())

    def _drop_watches(self, listed: AbstractSet[str]) -> None:
        others = self._watches.others(listed)
        if not others:
            return  # without a look at all generations
        others -= self._ways.directories | self._ways.nearest
        others -= {os.path.dirname(each.known.path) for log in self._logs.values() for each in log.generations}
        for key in others:
            self._watches.drop(key)

    def renamed(self, generation: Generation, path: str) -> None:
        """A file of this tail has another path now. The next run looks there for lines that come late."""
        generation.known = generation.known._replace(path=path)
        if self._finished.is_recent(generation.source):
            self._performer.store(generation)

    def log_at(self, path: str) -> str | None:
        """The log that a file made at this path is of: the path's own, or one that leads there through links."""
        log = path if self.matches(path) else self._ways.log_of(path)
        return log if log is None or self._files.alone or self._files.taker(path) is self else None

    def known_log(self, path: str) -> Log | None:
        """The log at this path, if anything is known of one."""
        return self._logs.get(path)

    def look_for(self, path: str, log: str) -> None:
        """Look at a path for a log that asked, perhaps of another tail, unless this tail has a log there."""
        self._due.look(path, None if self.log_at(path) else log)

    def search_what_went(self, log: Log, place: Place) -> None:
        """A file went before it was examined, and no event said where to."""
        self._unseen.search(log, place.modified - 1 if log.generations else self._unseen.all_known)

    def _is_read(self, file: FileId) -> bool:
        owned = self._files.find(file)
        return owned is not None and owned.generation.copy_of is None

    def log(self, path: str) -> Log:
        """The log of this path, which is new if none is known."""
        log = self._logs.get(path)
        if log is None:
            new_since = self._new_since or self._unseen.new_since(path)
            met = self._looked_at if self._first_run and self.first_pass else 0
            log = self._logs[path] = Log(path, self.once, self.matches, met, new_since=new_since)
            self._kin.name(path, path)
        return log

    # What the thread does.

    async def _settle(self, rounds: int = sys.maxsize) -> None:
        """Do what is due, and what follows from it, which may have no end where files come all the time."""
        self._news.hear()
        while self._due and rounds:
            rounds -= 1
            due = self._due.take()
            await self._watch_and_list(due)
            if due.looks:
                await self._look_at(due)
                # With what was to be examined before: the oldest of them all comes first.
                met, self._due.examinations = self._due.examinations, {}
                for log, place in met.values():
                    self._verdicts.want_next(due, log, place)
            if due.examinations:
                wanted: Collection[tuple[Log, Place]] = due.examinations.values()
                oldest = wanted if self.first_pass else self._verdicts.oldest(wanted)
                await self._rounds.make(oldest, self._verdicts.judged, self._were_before)
            if due.seeks:
                await self._seek(due)
            if due.looks or due.examinations:
                self._due.deleted += due.deleted
            else:
                self._news.forget_deleted(due.deleted)
            if due.untold:
                self._warn_untold(due.untold)
            if due.read_out:
                self._tell_read_out(due.read_out)
            self._unseen.search_again(self._due.looks)
            if self._due.examinations:  # more than one round's: directories may have come meanwhile
                self._news.hear()
        for path in self._unseen.take_lost(busy=bool(self._due) or self._names.moving):
            self._sources.lost(Loss(printable(path), VANISHED, 0, 0, exact=False))
        if not self.first_pass:
            self._tell_all_found()

    def _tell_all_found(self) -> None:
        """Note until when no file went unseen. For the next run, tell it once all files until then are stored."""
        if self._due or self._vanished or self._news.relist or self._names.moving:
            return
        until = self._news.heard_at if self._watches.complete else self._looked_at
        self._unseen.know_all(until)
        if not (self._withholding or self._unseen.waits):
            self._sources.found_all(until / 1e9)

    def _were_before(self, log: Log) -> bool:
        """Whether a log's files were there before the tail: `start` is meant for them."""
        return self._first_run and self.first_pass and log.path not in self._restored

    def _warn_untold(self, untold: list[tuple[str, int]]) -> None:
        """All in one line, since all pods of a node may be gone at once."""
        self._sources.gone(untold)
        _log.warning(
            "files are gone or were cut off while nobody read them: they may have had more than was read",
            route=self.route.name,
            files=len(untold),
            some=_some(untold),
            remedy=_NAME_ROTATED.format(than=" than `rotated` says" if self.route.rotated else ""),
        )

    def _tell_read_out(self, read_out: list[tuple[str, int]]) -> None:
        _log.info(
            "deleted files that are gone now had been read to their end",
            route=self.route.name,
            files=len(read_out),
            some=_some(read_out),
            unknown="what a program that still had one of them open wrote to it since then",
        )

    def _tell_hanging(self, seconds: float) -> None:
        reason = f"no answer for {seconds:g} s: a dead mount? Its files wait; nothing else does"
        self._troubles.tell(", ".join(sorted(self._globs.roots)), reason)

    async def _watch_and_list(self, due: Due) -> None:
        if due.watches:
            new = await self._news.watch(due.watches, self._thread)
            await self._look_for_rotated(new, self._unseen.all_known)
        if due.directories:
            await self._look_below(due.directories)

    async def _look_at(self, due: Due) -> None:
        """Look, take the events since, look at their paths too. So the oldest of several new files is read first."""
        wanted = due.looks
        found: list[tuple[Sighting, str | None]] = []
        for _ in range(_LOOKS_BEFORE_READING):
            paths = tuple(wanted)
            sightings = await self._thread.ask(partial(self._look_all, paths))
            found += zip(sightings, wanted.values(), strict=True)
            if not self._concerned(found):
                break
            self._news.hear()
            wanted, self._due.looks = self._due.looks, {}
            if not wanted:
                break
        else:
            self._due.looks |= wanted
        await in_turns({sighting.path: (sighting, of) for sighting, of in found}.values(), self._sightings.take)

    def _concerned(self, found: list[tuple[Sighting, str | None]]) -> bool:
        """Whether what happened meanwhile concerns what was looked at. What does not waits for the next turn."""
        looked = {path for sighting, of in found for path in (sighting.path, *sighting.through, of or "")}
        looked |= {sighting.place.path for sighting, _ in found if sighting.place is not None}
        return self._watches.concern(looked)

    def _look_all(self, paths: tuple[str, ...]) -> list[Sighting]:
        return [self._looks.look(path) for path in paths]

    def withheld_by(self, file: FileId) -> Log | None:
        """The log that keeps a file waiting."""
        return next((log for log in self._withholding if log.holds_back(file) or log.may_be_copy(file)), None)

    def found_at(self, log: Log, place: Place) -> None:
        """A file was found where nobody saw it go."""
        self._sightings.stands_at(place.path, log.path, place.file)

    def _latest(self, source: str) -> Found | None:
        return self._sources.latest(source)

    async def _seek(self, due: Due) -> None:
        searches: list[Search] = []
        called = self._names.paths_of({each.known.file for each in due.seeks.values() if each.links > 1})
        directories = {*self._kin.directories(), *self._directories.stamps} if called else set()

        def want(generation: Generation) -> None:
            names = called.get(generation.known.file, ())
            more = directories if generation.links > 1 else ()
            searches.append(self._kin.search(due.logs[generation.source], generation, names, more))

        await in_turns(due.seeks.values(), want)
        found = await self._thread.ask(partial(self._looks.search, searches))

        def take(answer: tuple[Search, Sought]) -> None:
            search, sought = answer
            again = self._due.seeks.get(sought.source)
            if again is not None and again.known.witness != search.known.witness:
                return  # more was read of it meanwhile, and it is sought with that
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
                    self.found_at(due.logs[sought.source], place)

        await in_turns(found, meet)  # before the events since then are heard
        self._news.hear()  # what is not found may just have been moved away
        await in_turns(zip(searches, found, strict=True), take)

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

    def apply(self, log: Log, fact: Fact) -> None:
        """Let a log of this tail decide, and do what it says. Another tail may have seen the fact."""
        for command in log.step(fact):
            self._performer.do(log, command)
        if log.waiting:
            self._withholding[log] = None
        else:
            self._withholding.pop(log, None)
        if self._due:
            self._due.woken.set()


def _some(read_to: list[tuple[str, int]]) -> list[dict[str, object]]:
    """The first few paths, and how far their files were read; of several at one path, the furthest that any was."""
    furthest: dict[str, int] = {}
    for path, position in read_to:
        furthest[path] = max(position, furthest.get(path, 0))
    return [{"file": printable(path), "read_to": position} for path, position in [*furthest.items()][:NAMED_MOST]]
