"""Watches: the directories and files of one tail that inotify watches, and what it told of them.

Where inotify has no room, that is said, nothing is told, and the tail looks by the clock.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ingestd.logs import get_logger
from ingestd.tail.watch import DIRECTORY_EVENTS, WRITTEN, EventStream, WatchLimit

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from ingestd.tail.facts import Place
    from ingestd.tail.file_id import FileId
    from ingestd.tail.route import TailRoute
    from ingestd.tail.watch import Event

__all__ = ["SETTLE", "SETTLE_IN_STREAMS", "Round", "Watches"]

SETTLE: Final = 0.02
"""Seconds that events are gathered: a rotation is several."""

SETTLE_IN_STREAMS: Final = 0.1
"""The same, where they come all the time: what is done for many rotations at once costs little for each."""

_log = get_logger(__name__)


class Round:
    """Directories that a look's thread begins to watch before it lists them."""

    def __init__(self, stream: EventStream | None) -> None:
        self._stream = stream
        self.watched: dict[str, int] = {}
        """Watches by directory."""
        self.limit: OSError | None = None
        """Why no more can be watched."""
        self.gone = False
        """Whether a directory went before it could be watched."""

    def enter(self, directory: str) -> None:
        """Watch a directory. In the thread."""
        if self._stream is None or self.limit is not None:
            return
        try:
            self.watched[directory] = self._stream.watch(directory, DIRECTORY_EVENTS)
        except WatchLimit as error:
            self.limit = error
        except OSError:
            self.gone = True


class Watches:
    """What one tail watches. Keys: the path of a directory, the id of a file."""

    def __init__(self, route: TailRoute, heard: Callable[[], None]) -> None:
        """`heard` is called when there is something to `take`."""
        self._route = route
        self._heard = heard
        self._stream: EventStream | None = None
        self.complete = False
        """Whether all that was to be watched could be: then events tell of whatever comes."""
        self._events: list[Event] = []
        """What was told and waits for the next turn."""

    def open(self) -> None:
        """Begin. Without a descriptor for inotify, nothing will be told."""
        try:
            self._stream = EventStream(self.tell, pause=SETTLE, longest=SETTLE_IN_STREAMS)
            self.complete = True
        except WatchLimit as error:
            self._warn(error)

    def close(self) -> None:
        """Give all watches up. Safe to call twice."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def tell(self, events: list[Event]) -> None:
        """Inotify told this."""
        self._events += events
        self._heard()

    def take(self) -> list[Event]:
        """All that happened until now and was not taken yet."""
        if self._stream is not None:
            self._stream.drain()
        events, self._events = self._events, []
        return events

    @property
    def waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._events)

    @property
    def silent(self) -> bool:
        """Whether nothing happened until now that was not taken."""
        return not self._events and (self._stream is None or self._stream.silent)

    def concern(self, paths: AbstractSet[str]) -> bool:
        """Whether anything happened until now, and was not taken, that concerns one of these paths."""
        if self._stream is None:
            return False
        self._stream.drain()
        return any(not name or f"{str(key).rstrip('/')}/{name}" in paths for key, _, _, name in self._events)

    # Directories.

    def sees(self, path: str) -> bool:
        """Whether what happens to the name at a path is told."""
        return self._stream is not None and os.path.dirname(path) in self._stream

    def lacks(self, directory: str) -> bool:
        """Whether a directory could be watched, and is not."""
        return self._stream is not None and directory not in self._stream

    def new(self, entered: Round) -> set[str]:
        """Directories of a round that were not watched before it. One that was made anew has another watch."""
        stream = self._stream
        if stream is None:
            return set()
        return {directory for directory, watch in entered.watched.items() if not stream.has(directory, watch)}

    def round(self) -> Round:
        """Begin to watch directories in a thread; `register` is to be called afterwards."""
        return Round(self._stream)

    def register(self, entered: Round) -> None:
        """From now on, and since they were entered, tell of these directories."""
        if self._stream is None:
            return
        for directory, watch in entered.watched.items():
            self._stream.register(directory, watch)
        if entered.limit is not None:
            self._warn(entered.limit)
        self._stream.replay()

    def drop(self, key: str | FileId) -> None:
        """Watch this no more. Safe for what is not watched."""
        if self._stream is not None:
            self._stream.drop(key)

    def others(self, listed: AbstractSet[str]) -> set[str]:
        """Directories that are watched beside these."""
        if self._stream is None:
            return set()
        return {key for key in self._stream.keys - listed if isinstance(key, str)}

    def below(self, directory: str) -> list[str]:
        """Directories that are watched below this one."""
        begin = f"{directory.rstrip('/')}/"
        return [each for each in self.others(frozenset()) if each.startswith(begin)]

    # Files.

    def file(self, place: Place) -> bool:
        """Tell when a file is written to. False: it is another one by now, or was modified since it was there."""
        if self._stream is None:
            return True
        watched = place.file in self._stream
        try:
            if not watched:
                self._stream.add(place.file, place.path, WRITTEN)
            status = os.stat(place.path)
            if not watched and status.st_ino != place.file.inode:
                self._stream.drop(place.file)
        except WatchLimit as error:
            self._warn(error)
            return True
        except PermissionError:  # who may not read a file can not watch it: it is looked at by the clock
            return True
        except OSError:
            return False
        found = (status.st_ino, status.st_size, status.st_mtime_ns)
        return found == (place.file.inode, place.size, place.modified)

    def _warn(self, error: OSError) -> None:
        self.complete = False
        _log.warning(
            "no more inotify watches: files are looked for by the clock",
            route=self._route.name,
            seconds=self._route.rescan_interval,
            reason=str(error),
            remedy="raise fs.inotify.max_user_watches or fs.inotify.max_user_instances",
        )
