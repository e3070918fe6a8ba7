"""TailOpener: one per tail and worker. Opens files, and hears of their changes by one inotify descriptor."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from ingestd.logs import get_logger
from ingestd.tail.identity import Identity, find_again
from ingestd.tail.source import TailSource
from ingestd.tail.watch import FILE_EVENTS, WRITTEN, Inotify, WatchLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ingestd.daemon.source import Assignment
    from ingestd.tail.route import TailRoute

__all__ = ["TailOpener"]

LONGEST_PAUSE: Final = 0.01
"""Seconds between two looks at what inotify has to say while files are busy; less when `linger` is shorter."""

UNWATCHED_INTERVAL: Final = 1.0
"""Seconds between two looks at files for which the kernel has no watch left."""

_SHARE_OF_DESCRIPTORS: Final = 0.75
"""Of the descriptors that this process may have, files take no more than this share: the rest is for connections."""

_OPENED_BETWEEN_RELEASES: Final = 64
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_DESCRIPTORS_GONE: Final = frozenset({errno.EMFILE, errno.ENFILE})

_log = get_logger(__name__)


class TailOpener:
    """Opens the files of one tail in one worker, and calls `ready` for those that have news.

    Invariants
        `ready` is called at most once a wake-up for a source, however often it was written to.
        A quiet file costs one `stat` each `poll_interval`, and no timer.
    """

    def __init__(self, route: TailRoute, ready: Callable[[str], None]) -> None:
        self.route = route
        self.globs = route.globs
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._sources: dict[TailSource, asyncio.TimerHandle | asyncio.Handle | None] = {}
        self._unwatched: set[TailSource] = set()
        self._warned = False
        # The kernel gives the lowest number that is free: a high one says that many are in use.
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _SHARE_OF_DESCRIPTORS
        self._opened = 0
        self._released = 0
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify(self._changed, pause=min(LONGEST_PAUSE, route.linger / 2))
        except WatchLimit as error:
            self._warn(error)
        self._poll_timer = self._loop.call_later(route.poll_interval, self._poll)
        self._unwatched_timer: asyncio.TimerHandle | None = None

    def open(self, assignment: Assignment) -> TailSource:
        """See `ingestd.daemon.source.Opener.open`. A file that is gone for good gives a source that is finished."""
        found = assignment.found
        identity = Identity.from_detail(found.detail)
        descriptor = self._open_known(identity, found.position)
        copied = identity.copy
        if descriptor is None:
            elsewhere = find_again(identity, found.position, besides=set())
            if elsewhere is not None:
                path, status = elsewhere
                descriptor = self._open_known(identity.at(path, status), found.position)
                copied |= descriptor is not None and not identity.is_at(status)
                identity = identity if descriptor is None else identity.at(path, status)
        source = TailSource(self, assignment, identity, descriptor)
        self._sources[source] = None
        try:
            if descriptor is not None:
                _check_again(identity, descriptor, found.position)
            self._begin(source, descriptor, copied=copied)
        except OSError:
            source.close()
            raise
        return source

    def _begin(self, source: TailSource, descriptor: int | None, *, copied: bool) -> None:
        if descriptor is None:
            source.vanished()
        else:
            self.watch(source, descriptor)
            if copied:
                source.copied()
            if descriptor >= self._most:
                source.release()
        source.look()

    def _open_known(self, identity: Identity, position: int) -> int | None:
        """A descriptor of what is at the path, if that is the file; None if it is not, or nothing is there."""
        try:
            descriptor = self.reopen(identity.path)
        except FileNotFoundError:
            return None
        try:
            if identity.is_at(os.fstat(descriptor)) and identity.is_in(descriptor, position):
                return descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def reopen(self, path: str) -> int:
        """A descriptor of the file at `path`; when none are left, idle files give theirs up. Raises `OSError`."""
        self._opened += 1
        try:
            descriptor = os.open(path, _FLAGS)
        except OSError as error:
            if error.errno not in _DESCRIPTORS_GONE:
                raise
            self._release_idle()
            return os.open(path, _FLAGS)
        if descriptor >= self._most and self._opened - self._released >= _OPENED_BETWEEN_RELEASES:
            self._release_idle()
        return descriptor

    def _release_idle(self) -> None:
        self._released = self._opened
        for source in self._sources:
            source.release_if_idle(float("inf"))

    # What a source asks.

    def wake(self, source: TailSource, delay: float) -> None:
        """See `ingestd.tail.source.Owner.wake`; a later call replaces an earlier one."""
        if source not in self._sources:
            return
        handle = self._sources[source]
        if handle is not None:
            handle.cancel()
        self._sources[source] = self._loop.call_later(delay, self._wake, source)

    def _wake(self, source: TailSource) -> None:
        self._sources[source] = None
        self._ready(source.assignment.found.source)

    def watch(self, source: TailSource, descriptor: int) -> None:
        """See `ingestd.tail.source.Owner.watch`."""
        if self._inotify is not None:
            try:
                # By the descriptor: the path may stand for another file by now.
                self._inotify.add(source, f"/proc/self/fd/{descriptor}", FILE_EVENTS)
            except WatchLimit as error:
                self._warn(error)
            else:
                self._unwatched.discard(source)
                return
        self._unwatched.add(source)
        if self._unwatched_timer is None:
            self._unwatched_timer = self._loop.call_later(UNWATCHED_INTERVAL, self._poll_unwatched)

    def closed(self, source: TailSource) -> None:
        """See `ingestd.tail.source.Owner.closed`."""
        handle = self._sources.pop(source, None)
        if handle is not None:
            handle.cancel()
        self._unwatched.discard(source)
        if self._inotify is not None:
            self._inotify.drop(source)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "no more inotify watches: files without one are looked at by the clock",
                tail=self.route.name,
                seconds=UNWATCHED_INTERVAL,
                reason=str(error),
                remedy="raise fs.inotify.max_user_watches or fs.inotify.max_user_instances",
            )

    # What the kernel tells, and what a look shows.

    def _changed(self, key: Hashable, events: int) -> None:
        source = cast("TailSource", key)
        if source not in self._sources:
            return
        if events == WRITTEN:
            source.written()
        else:
            self._look(source)
        self._ready(source.assignment.found.source)

    def _look(self, source: TailSource) -> bool:
        """Whether the source has something to do. An error here comes again in `read`, which may raise it."""
        try:
            return source.look()
        except OSError:
            return True

    def _poll(self) -> None:
        now = time.monotonic()
        for source in list(self._sources):
            if self._look(source):
                self._ready(source.assignment.found.source)
            else:
                with suppress(OSError):  # a descriptor whose file system is gone: the next read says so
                    source.release_if_idle(now)
        self._poll_timer = self._loop.call_later(self.route.poll_interval, self._poll)

    def _poll_unwatched(self) -> None:
        self._unwatched_timer = None
        for source in list(self._unwatched):
            if self._look(source):
                self._ready(source.assignment.found.source)
        if self._unwatched:
            self._unwatched_timer = self._loop.call_later(UNWATCHED_INTERVAL, self._poll_unwatched)

    def close(self) -> None:
        """Close what is still open, the watches, and the timers. Safe to call twice."""
        for source in list(self._sources):
            source.close()
        self._poll_timer.cancel()
        if self._unwatched_timer is not None:
            self._unwatched_timer.cancel()
        if self._inotify is not None:
            self._inotify.close()


def _check_again(identity: Identity, descriptor: int, position: int) -> None:
    """What a source saw of the file first is what was looked for if that is still there. Raises `OSError` if not."""
    if not identity.is_in(descriptor, position):
        raise OSError(errno.ESTALE, "changed while it was opened", identity.path)
