"""TailReader: one per tail and worker. Opens files, and hears of their changes by one inotify descriptor."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import resource
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from ingestd.logs import get_logger
from ingestd.tail.facts import GONE, TRUNCATED
from ingestd.tail.file_id import identify
from ingestd.tail.known import stored_path
from ingestd.tail.remote import Do, RemoteSource, mount_thread, remote_mount
from ingestd.tail.source import TailSource
from ingestd.tail.text import open_text
from ingestd.tail.watch import FILE_EVENTS, OVERFLOW, WRITTEN, SharedInotify, WatchLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from ingestd.daemon.source import Assignment
    from ingestd.tail.known import Known
    from ingestd.tail.route import TailRoute
    from ingestd.tail.text import Text

__all__ = ["TailReader"]

SHORTEST_PAUSE: Final = 0.01
"""Seconds between two looks at what inotify has to say: less when `linger` is shorter, more while files are busy."""

UNWATCHED_INTERVAL: Final = 1.0
"""Seconds between two looks at files for which the kernel has no watch left."""

REST_PATIENCE: Final = 5.0
"""Seconds until the content of a file that is gone counts as found nowhere, and newer files are read."""

_SHARE_OF_DESCRIPTORS: Final = 0.75
"""Of the descriptors that this process may have, files take no more than this share: the rest is for connections."""

_OPENED_BETWEEN_RELEASES: Final = 64
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_DESCRIPTORS_GONE: Final = frozenset({errno.EMFILE, errno.ENFILE})


AnySource: TypeAlias = TailSource | RemoteSource


class TailReader:
    """Opens the files of one tail in one worker, and calls `ready` for those that have news.

    Invariants
        `ready` is called at most once a wake-up for a source, however often it was written to.
        A quiet file keeps its descriptor, and costs two `stat` calls each `poll_interval` and no timer.
    """

    def __init__(self, route: TailRoute, ready: Callable[[str], None], changed: Callable[[str], None]) -> None:
        self.route = route
        self._ready = ready
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._mounts: dict[str, Do] = {}
        self._sources: dict[str, AnySource] = {}
        self._wakes: dict[AnySource, asyncio.TimerHandle] = {}
        self._groups: dict[str, dict[int, AnySource]] = {}
        """What is open, by group and rank, and for a while what was gone."""
        self._cut_off: dict[AnySource, tuple[AnySource, asyncio.TimerHandle]] = {}
        """Sources, and the ones before them, whose content is gone: if it is found elsewhere, it comes first."""
        self._unwatched: set[AnySource] = set()
        self._log = get_logger(__name__).bind(route=route.name)
        self._warned = False
        # The kernel gives the lowest number that is free: a high one says that many are in use.
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _SHARE_OF_DESCRIPTORS
        self._short = False
        self._until_release = 0
        self._inotify: SharedInotify | None = None
        try:
            longest = route.linger / 2
            self._inotify = SharedInotify(self._heard, pause=min(SHORTEST_PAUSE, longest), longest=longest)
        except WatchLimit as error:
            self._warn(error)
        # All files are looked at in turns: thousands at once would hold up everything else.
        self._interval = min(UNWATCHED_INTERVAL, route.poll_interval)
        self._turns = math.ceil(route.poll_interval / self._interval)
        self._turn = 0
        self._timer = self._loop.call_later(self._interval, self._tick)

    def open(self, assignment: Assignment) -> AnySource:
        """See `ingestd.daemon.source.Opener.open`. A file that is not there gives a source that is finished."""
        found = assignment.found
        mount = remote_mount(stored_path(found.detail["path"]))
        source: AnySource
        if mount is None:
            source = self._open_local(assignment)
        else:
            if mount not in self._mounts:
                self._mounts[mount] = mount_thread(mount)
            self._sources[found.source] = source = RemoteSource(self, assignment, self._mounts[mount])
        self._line_up(source, found.group, found.rank)
        return source

    def _line_up(self, source: AnySource, group: str, rank: int) -> None:
        """Have it wait for the source of its group that comes before it, and those wait that may miss what it has."""
        members = self._groups.setdefault(group, {})
        members[rank] = source  # it takes the place of one that had this rank
        earlier = self._before(source)
        if earlier is not None:
            source.held_back = True
            earlier.when_read(partial(self._let_go, source, earlier))
        for other, later in [*members.items()]:
            if other <= rank or later not in self._cut_off:
                continue
            gone, timer = self._cut_off[later]
            if _rank(gone) == rank and _ended(gone, TRUNCATED):
                continue  # what is in that file now comes behind this, and before the later one
            del self._cut_off[later]
            timer.cancel()
            source.when_read(partial(self._let_go, later, source))

    def _before(self, source: AnySource) -> AnySource | None:
        """The one of its group that comes directly before it."""
        group, rank = self._groups.get(source.assignment.found.group, {}), _rank(source)
        earlier = max((each for each in group if each < rank), default=None)
        return None if earlier is None else group[earlier]

    def _open_local(self, assignment: Assignment) -> TailSource:
        self._sources[assignment.found.source] = source = TailSource(self, assignment)
        try:
            source.open()
        except OSError:
            source.close()
            raise
        if self._short:
            source.release()
        return source

    def _let_go(self, source: AnySource, earlier: AnySource) -> None:
        """The earlier one is read. If its content is gone, another file may have more of it, and comes first."""
        if _ended(earlier, GONE, TRUNCATED):
            self._cut_off[source] = earlier, self._loop.call_later(REST_PATIENCE, self._go_on, source, earlier)
        else:
            self._go_on(source, earlier)

    def _go_on(self, source: AnySource, earlier: AnySource) -> None:
        """Have it read, unless one came meanwhile that comes between the two."""
        self._cut_off.pop(source, None)
        between = self._before(source)
        if between not in {None, earlier} and _rank(between) >= _rank(earlier):
            between.when_read(partial(self._let_go, source, between))
            return
        source.held_back = False
        self.wake(source, 0)

    # What a source asks.

    def find(self, source: TailSource, known: Known) -> tuple[Known, Text] | None:
        """See `ingestd.tail.source.Owner.find`."""
        found = self.locate(known, self._descriptor)
        if found is not None:
            self.watch(source, found[1].descriptor)
        return found

    @staticmethod
    def locate(known: Known, descriptor_of: Callable[[str, int], int] = os.open) -> tuple[Known, Text] | None:
        """Open the known file, wherever it is now; None where it is nowhere. Raises `OSError`. In any thread."""
        for path in _places(known):
            try:
                place = descriptor_of(path, os.O_PATH | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                continue
            try:
                file = identify(place)
                if file.resembles(known.file):
                    # By the descriptor: the path may stand for another file by now, and that one is not ours to open.
                    descriptor = _opened(descriptor_of, place, path)
                    if (path, file) != (known.path, known.file):
                        known = known._replace(path=path, file=file)
                    return known, open_text(descriptor, known.codec)
            finally:
                os.close(place)
        return None

    def _descriptor(self, path: str, flags: int) -> int:
        """A descriptor; when they are short, files that are read give theirs up. Raises `OSError`."""
        try:
            descriptor = os.open(path, flags)
        except OSError as error:
            if error.errno not in _DESCRIPTORS_GONE:
                raise
            self._release()
            return os.open(path, flags)
        self._short = descriptor >= self._most
        self._until_release -= 1
        if self._short and self._until_release <= 0:
            self._release()
        return descriptor

    def _release(self) -> None:
        """Close some files where that loses nothing, first those that had no news for longest.

        Where no file is read to its end, those that wait for the rest of a line: they must not keep out all others.
        """
        self._until_release = left = _OPENED_BETWEEN_RELEASES
        quietest = sorted(self._sources.values(), key=lambda each: each.news_at)
        for unfinished in (False, True):
            for source in quietest:
                left -= source.release_if_read(unfinished=unfinished)
                if not left:
                    return
            if left < _OPENED_BETWEEN_RELEASES:
                return

    def watch(self, source: AnySource, descriptor: int) -> None:
        """Watch the source's file, which is open; where that can not be, look at it often."""
        if self._inotify is not None:
            try:
                # By the descriptor: the path may stand for another file by now.
                self._inotify.add(source, f"/proc/self/fd/{descriptor}", FILE_EVENTS)
            except OSError as error:
                self._warn(error)
            else:
                self._unwatched.discard(source)
                return
        self._unwatched.add(source)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            self._log.warning(
                "no more inotify watches: files without one are looked at by the clock",
                seconds=UNWATCHED_INTERVAL,
                reason=str(error),
                remedy="raise fs.inotify.max_user_watches or fs.inotify.max_user_instances",
            )

    def wake(self, source: AnySource, delay: float) -> None:
        """See `ingestd.tail.source.Owner.wake`; a later call with a delay replaces an earlier one."""
        if self._sources.get(source.name) is not source:
            return
        if not delay:
            self._loop.call_soon(self._ready, source.name)
            return
        self._rest(source)
        self._wakes[source] = self._loop.call_later(delay, self._wake_now, source)

    def _wake_now(self, source: AnySource) -> None:
        del self._wakes[source]
        self._ready(source.name)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on the loop. From any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    def _rest(self, source: AnySource) -> None:
        handle = self._wakes.pop(source, None)
        if handle is not None:
            handle.cancel()

    def moved(self, source: AnySource) -> None:
        """See `ingestd.tail.source.Owner.moved`."""
        self._loop.call_soon(self._changed, source.name)  # who opens it does not have it yet

    def closed(self, source: AnySource) -> None:
        """See `ingestd.tail.source.Owner.closed`."""
        if self._sources.get(source.name) is source:
            del self._sources[source.name]
        if source in self._cut_off:
            self._cut_off.pop(source)[1].cancel()
        if not _ended(source, GONE):
            self._leave_group(source)
        elif self._is_in_group(source):  # what is opened next waits, too
            self._loop.call_later(REST_PATIENCE, self._leave_group, source)
        self._rest(source)
        self._unwatched.discard(source)
        if self._inotify is not None:
            self._inotify.drop(source)

    def _is_in_group(self, source: AnySource) -> bool:
        return self._groups.get(source.assignment.found.group, {}).get(_rank(source)) is source

    def _leave_group(self, source: AnySource) -> None:
        if self._is_in_group(source):
            group = source.assignment.found.group
            del self._groups[group][_rank(source)]
            if not self._groups[group]:
                del self._groups[group]

    # What the kernel tells, and what a look shows.

    def _heard(self, key: Hashable, events: int) -> None:
        source = cast("AnySource", key)
        looked = (events != WRITTEN or source.finished is not None) and source.look()
        if looked or events & (WRITTEN | OVERFLOW):
            self._ready(source.name)

    def _tick(self) -> None:
        """Look at files without a watch, and at the next few of all."""
        self._turn += 1
        some = [*self._sources.values()][self._turn % self._turns :: self._turns]
        # What is watched, and is to be read at a certain time, needs no look until then.
        for source in {*self._unwatched, *(each for each in some if each.remote or each not in self._wakes)}:
            if source.look():
                self._ready(source.name)
            if source.has_news():
                self._changed(source.name)
        self._timer = self._loop.call_later(self._interval, self._tick)

    def drain(self) -> None:
        """See `ingestd.daemon.source.Opener.drain`."""
        for source in [*self._sources.values()]:
            source.look()
            if source.has_news():
                self._changed(source.name)

    def close(self) -> None:
        """Close what is still open, the watches, and the timers. Safe to call twice."""
        self._groups.clear()
        for source in [*self._sources.values()]:
            source.close()
        while self._mounts:
            self._mounts.popitem()[1](None)
        self._timer.cancel()
        if self._inotify is not None:
            self._inotify.close()


def _rank(source: AnySource) -> int:
    return source.assignment.found.rank


def _ended(source: AnySource, *kinds: str) -> bool:
    return source.finished is not None and source.finished.kind in kinds


def _opened(descriptor_of: Callable[[str, int], int], place: int, path: str) -> int:
    """Open for reading what is open without: at `path`, which an error names."""
    try:
        return descriptor_of(f"/proc/self/fd/{place}", _FLAGS)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _places(known: Known) -> Iterator[str]:
    """Where the file may be: at its path, else under another name beside it; twice, for names may shift meanwhile."""
    for _ in range(2):
        yield known.path
        try:
            with os.scandir(os.path.dirname(known.path)) as entries:
                yield from [entry.path for entry in entries if entry.inode() == known.file.inode]
        except (FileNotFoundError, NotADirectoryError):
            return
