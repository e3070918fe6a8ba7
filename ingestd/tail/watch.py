"""Inotify: one descriptor for many files or directories; says what changed.

A busy file gives thousands of events a second, of which one is news. So after each wake-up the descriptor is left alone
for `pause` seconds: the kernel gathers meanwhile, and one read takes all. What comes after quiet is told at once.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import struct
import termios
from array import array
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

__all__ = [
    "ATTRIBUTES", "CREATED", "DELETED", "DELETED_SELF", "DIRECTORY_EVENTS", "FILE_EVENTS", "IS_DIRECTORY", "MOVED_FROM",
    "MOVED_TO", "OVERFLOW", "WRITTEN", "Event", "EventStream", "Inotify", "SharedInotify", "WatchLimit",
]  # fmt: skip

# linux/inotify.h
_MODIFY: Final = 0x2
ATTRIBUTES: Final = 0x4
MOVED_FROM: Final = 0x40
MOVED_TO: Final = 0x80
CREATED: Final = 0x100
DELETED: Final = 0x200
DELETED_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ONLYDIR: Final = 0x1000000
IS_DIRECTORY: Final = 0x40000000

WRITTEN: Final = _MODIFY
"""The event of bytes written, or cut off; any other means that the file was renamed, deleted or given away."""

OVERFLOW: Final = _OVERFLOW
"""What every watched thing is given when the kernel lost events: anything may have happened."""

FILE_EVENTS: Final = _MODIFY | ATTRIBUTES | DELETED_SELF | _MOVE_SELF
DIRECTORY_EVENTS: Final = CREATED | MOVED_FROM | MOVED_TO | DELETED | DELETED_SELF | _MOVE_SELF | ATTRIBUTES | _ONLYDIR

_EVENT: Final = struct.Struct("iIII")
_BUFFER_BYTES: Final = 64 * 1024
_READS_AT_ONCE: Final = 64
_STRANGE_MOST: Final = 16_384
"""Events of directories that are just being listed: as many as the kernel keeps by default."""
_LIMITS: Final = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSYS})


class WatchLimit(OSError):
    """The kernel gives no more watches or inotify descriptors (sysctl `fs.inotify`): look by the clock instead."""


class Inotify:
    """Watches paths, each for one or more keys; calls `changed(key, events)` on the running loop, each once a wake-up.

    Invariants
        A path that is watched for two keys has one watch in the kernel, which stays until the second key is dropped.
        Nothing is called after `close`.
    """

    def __init__(self, changed: Callable[[Hashable, int], None], *, pause: float, longest: float = 0.0) -> None:
        """`longest`: what the pause grows to while events come all the time, if that is more."""
        self._changed = changed
        self._least = self._pause = pause
        self._longest = max(pause, longest)
        self._told = False
        """Whether there was something to tell since `_listen` was called last."""
        self._loop = asyncio.get_running_loop()
        self._library = ctypes.CDLL(None, use_errno=True)
        self._keys: dict[int, set[Hashable]] = {}
        self._watches: dict[Hashable, int] = {}
        self._resume: asyncio.TimerHandle | None = None
        self._descriptor = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise self._error("inotify")
        self._loop.add_reader(self._descriptor, self._readable)

    def hasten(self, pause: float, longest: float) -> None:
        """Wait no longer than this from now on."""
        self._least = min(self._least, pause)
        self._longest = max(self._least, min(self._longest, longest))

    def _error(self, thing: str) -> OSError:
        number = ctypes.get_errno()
        kind = WatchLimit if number in _LIMITS else OSError
        return kind(number, os.strerror(number), thing)

    def watch(self, path: str, events: int) -> int:
        """Have the kernel watch what is at `path` now. Returns the watch, for `register`. Any thread may call it.

        Raises `WatchLimit`, or another `OSError`.
        """
        watch: int = self._library.inotify_add_watch(self._descriptor, os.fsencode(path), ctypes.c_uint32(events))
        if watch < 0:
            raise self._error(path)
        return watch

    def register(self, key: Hashable, watch: int) -> None:
        """Call `changed` with this key for what the watch tells."""
        if self._watches.get(key, watch) != watch:
            self.drop(key)
        self._watches[key] = watch
        self._keys.setdefault(watch, set()).add(key)

    def add(self, key: Hashable, path: str, events: int) -> None:
        """Watch what is at `path` now, under whatever name it has later. Raises `WatchLimit`, or another `OSError`."""
        self.register(key, self.watch(path, events))

    def drop(self, key: Hashable) -> None:
        """Watch it for this key no more. Safe for a key that is not watched."""
        watch = self._watches.pop(key, None)
        if watch is None:
            return
        keys = self._keys.get(watch)
        if keys is None:
            return
        keys.discard(key)
        if not keys:
            del self._keys[watch]
            # Fails when the file is gone, and the watch with it: then there is nothing to remove.
            self._library.inotify_rm_watch(self._descriptor, watch)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._watches

    def has(self, key: Hashable, watch: int) -> bool:
        """Whether a key is watched by this watch, and not by one of something else that had its path."""
        return self._watches.get(key) == watch

    @property
    def keys(self) -> frozenset[Hashable]:
        """All keys that are watched."""
        return frozenset(self._watches)

    def _readable(self) -> None:
        if self._least > 0:
            self._loop.remove_reader(self._descriptor)
            self._resume = self._loop.call_later(self._least, self._listen)
        self.drain()
        self._told = False

    @property
    def silent(self) -> bool:
        """Whether the kernel has gathered nothing."""
        size = array("i", [0])
        fcntl.ioctl(self._descriptor, termios.FIONREAD, size)
        return not size[0]

    def drain(self) -> None:
        """Tell now what the kernel has gathered."""
        found: list[tuple[int, int, int, bytes]] = []
        for _ in range(_READS_AT_ONCE):
            try:
                data = os.read(self._descriptor, _BUFFER_BYTES)
            except BlockingIOError:
                break
            at = 0
            while at < len(data):
                watch, mask, cookie, name_bytes = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                found.append((watch, mask, cookie, data[at : at + name_bytes].rstrip(b"\0")))
                at += name_bytes
        if found:
            self._told = True
            self._tell(found)

    def _tell(self, found: list[tuple[int, int, int, bytes]]) -> None:
        gathered: dict[Hashable, int] = {}
        for watch, mask, _, _ in found:
            if mask & _OVERFLOW:
                gathered.update(dict.fromkeys(self._watches, _OVERFLOW))
            for key in self._keys_of(watch, mask):
                gathered[key] = gathered.get(key, 0) | mask
        for key, events in gathered.items():
            self._changed(key, events)

    def _keys_of(self, watch: int, mask: int) -> Iterable[Hashable]:
        """Who is told of an event. The kernel's last word on a watch ends it."""
        if not mask & _IGNORED:
            return self._keys.get(watch, ())
        keys = self._keys.pop(watch, set())
        for key in keys:
            self._watches.pop(key, None)
        return keys

    def _listen(self) -> None:
        self.drain()
        if self._descriptor < 0:
            return
        if self._told:  # in a stream of events there is no need to be woken
            self._told, self._pause = False, min(2 * self._pause, self._longest)
            self._resume = self._loop.call_later(self._pause, self._listen)
            return
        self._resume, self._pause = None, self._least
        self._loop.add_reader(self._descriptor, self._readable)

    def close(self) -> None:
        """Give the descriptor back, and all watches with it. Safe to call twice."""
        if self._descriptor < 0:
            return
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        self._keys.clear()
        self._watches.clear()


class SharedInotify:
    """One of several users of a loop's only `Inotify`: the kernel gives 128, for all tails in all workers."""

    _of: ClassVar[dict[asyncio.AbstractEventLoop, tuple[Inotify, set[SharedInotify]]]] = {}

    def __init__(self, changed: Callable[[Hashable, int], None], *, pause: float, longest: float) -> None:
        """As for `Inotify`; of several users, the one that waits for less decides."""
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        if self._loop not in self._of:
            self._of[self._loop] = Inotify(self._tell, pause=pause, longest=longest), set()
        self._inotify, users = self._of[self._loop]
        users.add(self)
        self._inotify.hasten(pause, longest)

    @staticmethod
    def _tell(key: Hashable, events: int) -> None:
        changed, own_key = cast("tuple[Callable[[Hashable, int], None], Hashable]", key)
        changed(own_key, events)

    def add(self, key: Hashable, path: str, events: int) -> None:
        """See `Inotify.add`."""
        self._inotify.add((self._changed, key), path, events)

    def drop(self, key: Hashable) -> None:
        """See `Inotify.drop`."""
        self._inotify.drop((self._changed, key))

    def close(self) -> None:
        """Leave it; what this user did not drop stays watched until the last one leaves. Safe to call twice."""
        users = self._of.get(self._loop, (self._inotify, set()))[1]
        users.discard(self)
        if not users and self._of.pop(self._loop, None) is not None:
            self._inotify.close()


class Event(NamedTuple):
    """One event of a watched thing; in a directory, of the entry `name`. A rename's two events have one cookie."""

    key: Hashable
    mask: int
    cookie: int
    name: str


class EventStream(Inotify):
    """Tells every event, in order, and calls `heard` once a wake-up.

    A watch may be set by another thread (`watch`) before its key is registered: what it tells meanwhile is kept.
    """

    def __init__(self, heard: Callable[[list[Event]], None], *, pause: float, longest: float = 0.0) -> None:
        super().__init__(lambda _key, _events: None, pause=pause, longest=longest)
        self._heard = heard
        self._strange: list[tuple[int, int, int, bytes]] = []

    def _tell(self, found: list[tuple[int, int, int, bytes]]) -> None:
        events: list[Event] = []
        for each in found:
            watch, mask, cookie, name = each
            if mask & _OVERFLOW:
                events.append(Event(None, OVERFLOW, 0, ""))
            elif watch not in self._keys and not mask & _IGNORED:
                self._strange.append(each)
            events += [Event(key, mask, cookie, os.fsdecode(name)) for key in self._keys_of(watch, mask)]
        if len(self._strange) > _STRANGE_MOST:
            self._strange.clear()
            events.append(Event(None, OVERFLOW, 0, ""))
        if events:
            self._heard(events)

    def replay(self) -> None:
        """Tell what watches told before their keys were registered; forget the rest."""
        strange, self._strange = self._strange, []
        self._tell([each for each in strange if each[0] in self._keys])
