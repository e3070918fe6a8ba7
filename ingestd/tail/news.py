"""News: what inotify tells of one tail's directories, and what that means for its files.

An event gives paths to look at, directories to watch or to list, and files that are gone. All that is entered in `Due`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ingestd.logs import get_logger
from ingestd.tail.directories import watch_toward
from ingestd.tail.facts import Deleted
from ingestd.tail.generation import Phase
from ingestd.tail.rotation import CODECS
from ingestd.tail.watch import (
    ATTRIBUTES,
    CREATED,
    DELETED,
    DELETED_SELF,
    IS_DIRECTORY,
    MOVED_FROM,
    MOVED_TO,
    OVERFLOW,
    WRITTEN,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.daemon.source import Sources
    from ingestd.tail.awaited import Awaited
    from ingestd.tail.directories import Directories
    from ingestd.tail.file_id import FileId
    from ingestd.tail.files import Files
    from ingestd.tail.globs import Globs
    from ingestd.tail.names import Changes, Names
    from ingestd.tail.route import TailRoute
    from ingestd.tail.thread import Due, LookThread
    from ingestd.tail.troubles import Troubles
    from ingestd.tail.vanished import Unseen
    from ingestd.tail.watches import Round, Watches
    from ingestd.tail.ways import Ways

__all__ = ["GRAIN", "News"]

GRAIN: Final = 10_000_000
"""Nanoseconds: a modification time may be so much earlier than the clock at the modification."""

_SAID_AGAIN: Final = 60.0
"""Seconds until it is said again that events were dropped."""

_log = get_logger(__name__)


class News:
    """Takes events of one tail's directories.

    Invariants
        Where events are missing, the logs concerned are told, and a pass or a list says what is there.
    """

    def __init__(
        self,
        route: TailRoute,
        globs: Globs,
        watches: Watches,
        names: Names,
        ways: Ways,
        directories: Directories,
        awaited: Awaited,
        troubles: Troubles,
        files: Files,
        unseen: Unseen,
        due: Due,
        log_at: Callable[[str], str | None],
    ) -> None:
        """`log_at`: the log that a file made at a path is of."""
        self._route = route
        self._globs = globs
        self._watches = watches
        self._names = names
        self._ways = ways
        self._directories = directories
        self._awaited = awaited
        self._troubles = troubles
        self._files = files
        self._unseen = unseen
        self._due = due
        self._log_at = log_at
        self.sources: Sources
        """To whom it is told that events were dropped; to be set before any are heard."""
        self._overflows = 0
        """How often they were dropped since that was said last."""
        self._say_again = 0.0
        """When (seconds of a steady clock) it may be said again."""
        self.heard_at = 0
        """When (ns) events were last taken."""
        self.relist = True
        """Whether a pass is to be made at once."""
        self._missed = False
        """Whether events are missing since the last pass."""
        self._changed_itself: set[str] = set()
        """Directories of which events are missing since then: they were moved, deleted or mounted over."""

    # Passes.

    def certain(self) -> Callable[[str, int], bool]:
        """Whether a path is certain to stand for the known file with an inode number, and needs no look."""
        if self._missed:  # a new file may have the path and the inode number of a known one
            return lambda _path, _inode: False
        return lambda path, inode: self._names.holds(path, inode) and self._watches.sees(path)

    def take_missed(self) -> tuple[bool, set[str]]:
        """A pass begins. Whether events are missing since the last one; and directories of which events are."""
        missed, changed = self._missed, self._changed_itself
        self.relist, self._missed, self._changed_itself = False, False, set()
        return missed, changed

    def register(self, watched: Round) -> None:
        """These directories are watched from now on."""
        self.relist = self.relist or watched.gone  # the next pass says where it went
        self._watches.register(watched)
        self.hear()

    # Watches.

    async def watch(self, directories: set[str], thread: LookThread) -> set[str]:
        """Watch directories; of where links lead and nothing is yet, the nearest one above. Returns the new ones."""
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

        self._ways.note_away(await thread.ask(watch))
        new = self._watches.new(watched)
        self._unseen.miss_before_watches(new)
        self.register(watched)
        return new

    def watch_beside(self, path: str) -> None:
        """Watch the directory of a file."""
        directory = path.rpartition("/")[0] or "/"
        if self._watches.lacks(directory):
            self._due.watches.add(directory)

    def watch_ways_anew(self) -> None:
        """Another directory may be where links lead, and nobody said so."""
        self._due.watches |= self._ways.directories
        for log in self._ways.through:
            self._due.look(log, None)

    def watch_what_was_away(self, under: str = "") -> None:
        """Directories where links lead, at this path or below it, may be there again."""
        for directory in self._ways.away(under):
            self._ways.back(directory)
            self._watch_where_links_lead(directory)

    def _watch_where_links_lead(self, directory: str) -> None:
        """Watch it, and look at what is followed through links into it: nobody told what happened there before."""
        for log in list(self._ways.into(directory)):
            self._due.watches.add(directory)
            self._due.look(log, None)

    # Events.

    def hear(self) -> None:
        """Take all that happened until now."""
        self.heard_at = time.time_ns() - GRAIN
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
                log, path = self._awaited.expect(key)
                self._due.look(path, log.path)
                self._names.judge(path, judged=False)
        if missed:
            self._tell_overflow()
            self._unseen.miss()
        else:
            self._unseen.miss_below(changed)
        # Once more at the next pass, which watches again whatever is not watched now.
        self.relist = self.relist or missed or bool(changed)
        self._missed = self._missed or missed
        self._changed_itself |= changed
        self._take(self._names.heard([each for each in names if not each[1] & IS_DIRECTORY]))
        self._look_where_directories_went([each for each in names if each[1] & IS_DIRECTORY])
        for path, mask, _ in names:
            self._changed(path, mask)
        for directory in gone:  # events told before what became of all that was in it
            self._watches.drop(directory)
            self._watch_where_links_lead(directory)
            self._list_soon(directory)
        self._due.woken.set()

    def _tell_overflow(self) -> None:
        self.sources.overflowed()
        self._overflows += 1
        now = time.monotonic()
        if now < self._say_again:
            return
        _log.warning(
            "events of directories dropped",
            route=self._route.name,
            times=self._overflows,
            reason="more happened than the kernel keeps until it is taken",
            then="all directories are looked through; what came and was deleted meanwhile is lost, and not named",
            remedy="raise fs.inotify.max_queued_events and restart; match fewer directories; give the daemon more CPU",
        )
        self._overflows, self._say_again = 0, now + _SAID_AGAIN

    def hear_no_more(self) -> None:
        """Nothing came for a while: of what was renamed, no event is to say where to."""
        if self._names.moving and not self._watches.waiting:
            self._take(self._names.heard(()))

    def _take(self, changes: Changes) -> None:
        """What events say of files."""
        for path, of in changes.looks.items():
            self._due.look(path, of)
        for vanished in changes.vanished:
            self._unseen.vanish(vanished)
        for file, path in changes.moved:
            owned = self._files.find(file)
            if owned is not None:
                owned.finder.renamed(owned.generation, path)
        self._due.deleted += changes.deleted
        self._unseen.arrive(changes.arrived)
        self._unseen.miss_files({**changes.copied, **changes.left})

    def _look_where_directories_went(self, events: list[tuple[str, int, int]]) -> None:
        """What nobody reads yet is not held open: nothing else tells where it went with its directory."""
        came_from = {cookie: path for path, mask, cookie in events if mask & MOVED_FROM}
        for path, mask, cookie in events:
            if mask & MOVED_TO and cookie in came_from:
                before = came_from[cookie]
                for log, awaited in self._awaited.below(before):
                    self._due.look(f"{path}{awaited.removeprefix(before)}", log.path)

    def _changed_self(self, directory: str, mask: int) -> None:
        if mask & ATTRIBUTES:  # most likely it is the same one, of which no event is to be missed
            self._due.watches.add(directory)
        else:
            for each in (directory, *self._watches.below(directory)):  # they went with it, under other paths
                self._watch_anew(each)
            self._list_soon(directory)

    def _list_soon(self, directory: str) -> None:
        if self._directories.is_above(directory):
            self.relist = True
        else:
            self._due.directories.add(directory)

    def _watch_anew(self, directory: str) -> None:
        """A directory changed itself: another one may be in its place."""
        self._watches.drop(directory)
        for vanished in self._names.replaced(directory):
            self._unseen.vanish_with_directory(vanished)
        self._watch_where_links_lead(directory)

    def _changed(self, path: str, mask: int) -> None:
        """What a name that came or went means beside what it names."""
        leads = self._directories.leads(path)
        if mask & IS_DIRECTORY and self._is_walked(path, mask, leads=leads):
            self._list_soon(path)
        elif leads:
            self.relist = True
        for log in self._ways.logs(path):
            self._due.look(log, None)
        if mask & DELETED and self._route.compressed == "read":
            for made in (f"{path}.{codec}" for codec in CODECS if codec):
                if self._log_at(made) == made:
                    self._due.look(made, None)
        if path in self._troubles:
            self._due.look(path, None)
        if mask & IS_DIRECTORY and mask & (CREATED | MOVED_TO):
            self.watch_what_was_away(path)

    def _is_walked(self, directory: str, mask: int, *, leads: bool) -> bool:
        """Whether a directory that came or went is one that is looked into."""
        came = bool(mask & (CREATED | MOVED_TO)) and self._globs.leads_through(directory)
        return came or (leads and bool(mask & DELETED))

    def forget_deleted(self, deleted: list[tuple[FileId, str]]) -> None:
        """These files are not at these paths any more. Those that were not seen elsewhere since are gone."""
        gone = [
            owned for file, path in deleted if (owned := self._files.find(file)) and owned.generation.known.path == path
        ]
        linked = {owned.generation.known.file for owned in gone if owned.generation.links > 1}
        names = self._names.paths_of(linked)
        for finder, log, generation in gone:
            if generation.phase is Phase.DONE and (others := names.get(generation.known.file)):
                # Late lines may come: they are looked for under another name of it.
                finder.renamed(generation, others[0])
                self._due.look(others[0], None)
            else:
                finder.apply(log, Deleted(generation.source))
