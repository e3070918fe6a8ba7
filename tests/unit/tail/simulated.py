"""A simulated machine for tails: file system, kernel events, and a daemon around the real `TailFinder` and `Looks`.

Nothing here sleeps, opens or listens. `patches` says what of the tail's modules is to be replaced while a `Machine` is
used: their `os`, their clock, their inotify. Everything happens when `Machine` is told to do it, in any order.

A line consists of tokens, each a number that is written once. `Token.delivered` counts how often it arrived.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import posixpath
import stat
from collections import defaultdict
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self, cast

from ingestd.daemon.source import End, Found, StoredPosition
from ingestd.tail import content as content_module
from ingestd.tail import directories as directories_module
from ingestd.tail import examinations as examinations_module
from ingestd.tail import finder as finder_module
from ingestd.tail import globs as globs_module
from ingestd.tail import known as known_module
from ingestd.tail import listings as listings_module
from ingestd.tail import looks as looks_module
from ingestd.tail import news as news_module
from ingestd.tail import performer as performer_module
from ingestd.tail import searching as searching_module
from ingestd.tail import start as start_module
from ingestd.tail import thread as thread_module
from ingestd.tail import vanished as vanished_module
from ingestd.tail import verdicts as verdicts_module
from ingestd.tail import watches as watches_module
from ingestd.tail.content import HEAD_BYTES
from ingestd.tail.facts import (
    Examined,
    Place,
    Plain,
)
from ingestd.tail.file_id import FileId
from ingestd.tail.files import Files
from ingestd.tail.finder import TailFinder
from ingestd.tail.known import WITNESS_BYTES, Known, Sample, Witness
from ingestd.tail.looks import Looks
from ingestd.tail.rotation import codec_of, is_rotated_from
from ingestd.tail.thread import LookThread
from ingestd.tail.verdicts import Verdicts
from ingestd.tail.watch import CREATED, DELETED, IS_DIRECTORY, MOVED_FROM, MOVED_TO, OVERFLOW, WRITTEN, EventStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from ingestd.daemon.source import Loss
    from ingestd.tail.route import TailRoute
    from ingestd.tail.text import Text

ATTRIBUTES = 0x4
DELETED_SELF = 0x400
MOVED_SELF = 0x800
IGNORED = 0x8000

MILLISECOND = 1_000_000
SECOND = 1_000_000_000


class Failure(AssertionError):
    """A history in which a rule was broken."""


def require(holds: object, problem: str) -> None:
    if not holds:
        raise Failure(problem)


# The file system.


class Inode:
    """A file, a directory or a link. A file's `tokens` are (number, end): what was written, by where it ends."""

    __slots__ = (
        "changed", "complete", "content", "data", "entries", "file", "kind", "links", "modified", "number", "opens",
        "packed", "seen", "target", "tokens", "truncated", "watches",
    )  # fmt: skip

    def __init__(self, kind: int, number: int, file: FileId, now: int) -> None:
        self.kind = kind
        self.number = number
        self.file = file
        self.modified = self.changed = now
        self.links = 0
        self.opens = 0
        self.data = bytearray()
        self.tokens: list[tuple[int, int]] = []
        self.content = 0
        self.seen = self.truncated = 0
        """The largest size that the daemon saw of this content."""
        self.packed = False
        self.complete = True
        self.entries: dict[str, Dentry] = {}
        self.target = ""
        self.watches: dict[SimulatedStream, tuple[int, int]] = {}

    @property
    def size(self) -> int:
        """As `stat` says it: of a compressed file not the size of its text."""
        return 20 + len(self.data) // 3 if self.packed else len(self.data)


class Dentry:
    """A name in a directory. A rename moves it, so that an open descriptor knows its path."""

    __slots__ = ("inode", "live", "name", "parent")

    def __init__(self, parent: Dentry | None, name: str, inode: Inode) -> None:
        self.parent = parent
        self.name = name
        self.inode = inode
        self.live = True

    @property
    def path(self) -> str:
        at, names = self, []
        while at.parent is not None:
            names.append(at.name)
            at = at.parent
        return "/" + "/".join(reversed(names))


class Status:
    """What `stat` gives."""

    __slots__ = ("inode", "st_ctime_ns", "st_dev", "st_ino", "st_mode", "st_mtime_ns", "st_nlink", "st_size")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.st_dev = 1
        self.st_ino = inode.number
        self.st_mode = inode.kind
        self.st_mtime_ns = inode.modified
        self.st_ctime_ns = max(inode.modified, inode.changed)
        self.st_nlink = inode.links
        self.st_size = inode.size


class FileSystem:
    """Directories, files, links; inode numbers that are used again, and what inotify says of it all."""

    def __init__(self) -> None:
        self.now = 1_000_000 * SECOND
        self.grain = 1
        """Modification times are multiples of so many nanoseconds."""
        self._numbers = itertools.count(10)
        self._handles = itertools.count(1)
        self._cookies = itertools.count(1)
        self._free: list[int] = []
        self._descriptors = itertools.count(3)
        self.open_files: dict[int, Dentry] = {}
        self.pause: Callable[[], None] | None = None
        """Called between the steps of what is not atomic."""
        self.inodes: dict[FileId, Inode] = {}
        self.root = Dentry(None, "", self.make(stat.S_IFDIR))
        self.root.inode.links = 1

    def tick(self, nanoseconds: int = MILLISECOND) -> int:
        self.now += nanoseconds
        return self.now - self.now % self.grain

    def make(self, kind: int) -> Inode:
        number = self._free.pop() if self._free else next(self._numbers)
        file = FileId(1, number, self.tick(), f"{next(self._handles):x}", "1")
        inode = self.inodes[file] = Inode(kind, number, file, self.tick())
        return inode

    def between(self) -> None:
        if self.pause is not None:
            self.pause()

    # Events.

    def tell(self, inode: Inode, mask: int, name: str = "", cookie: int = 0) -> None:
        for stream, (watch, wanted) in inode.watches.items():
            if mask & wanted:
                stream.events.append((watch, mask, cookie, name.encode()))

    def _told_off(self, inode: Inode) -> None:
        for stream, (watch, wanted) in inode.watches.items():
            if wanted & DELETED_SELF:
                stream.events.append((watch, DELETED_SELF, 0, b""))
            stream.events.append((watch, IGNORED, 0, b""))
        inode.watches.clear()

    # Paths.

    def find(self, path: str, *, follow: bool = True) -> Dentry | None:
        """What stands at a path; None where nothing does."""
        at = self.root
        ahead = path.split("/")[1:]
        left = 40
        while ahead:
            name = ahead.pop(0)
            if name in {"", "."}:
                continue
            if name == "..":
                at = at.parent or at
                continue
            if at.inode.kind != stat.S_IFDIR:
                return None
            entry = at.inode.entries.get(name)
            if entry is None:
                return None
            if entry.inode.kind == stat.S_IFLNK and (ahead or follow):
                left -= 1
                if not left:
                    return None
                ahead = entry.inode.target.split("/") + ahead
                if entry.inode.target.startswith("/"):
                    at = self.root
                continue
            at = entry
        return at

    def note_seen(self, place: Place) -> None:
        """The daemon knows that the file had this size."""
        inode = self.inodes[place.file]
        if not inode.packed and inode.truncated < place.modified:
            inode.seen = max(inode.seen, place.size)

    def stands_at(self, path: str, file: FileId) -> bool:
        found = self.find(path)
        return found is not None and found.inode.file == file

    def get(self, path: str, *, follow: bool = True) -> Dentry:
        found = self.find(path, follow=follow)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return found

    def place(self, path: str) -> tuple[Dentry, str]:
        directory, name = posixpath.split(path)
        return self.get(directory), name

    # What programs do.

    def _enter(self, directory: Dentry, name: str, inode: Inode) -> Dentry:
        entry = directory.inode.entries[name] = Dentry(directory, name, inode)
        inode.links += 1
        directory.inode.modified = inode.changed = self.tick()
        return entry

    def create(self, path: str, kind: int = stat.S_IFREG, target: str = "") -> Dentry:
        directory, name = self.place(path)
        inode = self.make(kind)
        inode.target = target
        entry = self._enter(directory, name, inode)
        self.tell(directory.inode, CREATED | (IS_DIRECTORY if kind == stat.S_IFDIR else 0), name)
        return entry

    def link(self, old: str, new: str) -> None:
        inode = self.get(old).inode
        directory, name = self.place(new)
        self._enter(directory, name, inode)
        self.tell(inode, ATTRIBUTES)
        self.tell(directory.inode, CREATED, name)

    def unlink(self, path: str) -> None:
        entry = self.get(path, follow=False)
        assert entry.parent is not None
        directory = entry.parent.inode
        del directory.entries[entry.name]
        directory.modified = self.tick()
        self._drop(entry)
        self.tell(directory, DELETED | (IS_DIRECTORY if entry.inode.kind == stat.S_IFDIR else 0), entry.name)

    def _drop(self, entry: Dentry) -> None:
        entry.live = False
        entry.inode.links -= 1
        if entry.inode.kind != stat.S_IFDIR:
            self.tell(entry.inode, ATTRIBUTES)
        self._free_if_unused(entry.inode)

    def _free_if_unused(self, inode: Inode) -> None:
        if not inode.links and not inode.opens:
            self._told_off(inode)
            self._free.append(inode.number)

    def rename(self, old: str, new: str) -> None:
        entry = self.get(old, follow=False)
        directory, name = self.place(new)
        before = directory.inode.entries.get(name)
        if before is not None and before.inode is entry.inode:
            return
        assert entry.parent is not None
        origin, old_name = entry.parent.inode, entry.name
        del origin.entries[old_name]
        directory.inode.entries[name] = entry
        entry.parent, entry.name = directory, name
        origin.modified = directory.inode.modified = entry.inode.changed = self.tick()
        cookie = next(self._cookies)
        kind = IS_DIRECTORY if entry.inode.kind == stat.S_IFDIR else 0
        self.tell(origin, MOVED_FROM | kind, old_name, cookie)
        self.between()
        self.tell(directory.inode, MOVED_TO | kind, name, cookie)
        self.tell(entry.inode, MOVED_SELF)
        if before is not None:
            self._drop(before)

    def open(self, entry: Dentry) -> Dentry:
        entry.inode.opens += 1
        return entry

    def close(self, entry: Dentry) -> None:
        entry.inode.opens -= 1
        self._free_if_unused(entry.inode)

    def write(self, inode: Inode, data: bytes, token: int = 0) -> None:
        inode.data += data
        if token:
            inode.tokens.append((token, len(inode.data)))
        inode.modified = self.tick()
        self.tell(inode, WRITTEN)

    def truncate(self, inode: Inode) -> None:
        inode.data.clear()
        inode.tokens = []
        inode.content += 1
        inode.seen = 0
        inode.modified = inode.truncated = self.tick()
        self.tell(inode, WRITTEN)

    def copy(self, source: Inode, target: Inode, length: int) -> None:
        """Copy up to `length`, from where the copy is."""
        length = min(length, len(source.data))
        done = len(target.data)
        target.data += source.data[done:length]
        target.tokens = [(token, end) for token, end in source.tokens if end <= length]
        target.modified = self.tick()
        self.tell(target, WRITTEN)

    def set_modified(self, path: str, modified: int) -> None:
        entry = self.get(path)
        assert entry.parent is not None
        entry.inode.modified, entry.inode.changed = modified, self.tick()
        self.tell(entry.inode, ATTRIBUTES)
        self.tell(entry.parent.inode, ATTRIBUTES, entry.name)

    def entries(self, below: Dentry | None = None) -> Iterator[Dentry]:
        """All names of files and links."""
        for entry in list((below or self.root).inode.entries.values()):
            if entry.inode.kind == stat.S_IFDIR:
                yield from self.entries(entry)
            else:
                yield entry


# What stands for `os` in the tail's modules.


class _Entry:
    """`os.DirEntry`."""

    __slots__ = ("_entry", "_files", "name", "path")

    def __init__(self, files: FileSystem, directory: str, entry: Dentry, name: str) -> None:
        self._files = files
        self._entry = entry
        self.name = name
        self.path = f"{directory.rstrip('/')}/{name}"

    def inode(self) -> int:
        return self._entry.inode.number

    def is_symlink(self) -> bool:
        return self._entry.inode.kind == stat.S_IFLNK

    def stat(self, *, follow_symlinks: bool = True) -> Status:
        assert not follow_symlinks
        return Status(self._entry.inode)

    def _kind(self, *, follow: bool) -> int:
        if follow and self.is_symlink():
            found = self._files.find(self.path)
            return 0 if found is None else found.inode.kind
        return self._entry.inode.kind

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._kind(follow=follow_symlinks) == stat.S_IFDIR

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._kind(follow=follow_symlinks) == stat.S_IFREG


class _Scan:
    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = entries

    def __enter__(self) -> Iterator[_Entry]:
        return iter(self._entries)

    def __iter__(self) -> Iterator[_Entry]:
        return iter(self._entries)

    def __exit__(self, *_: object) -> None:
        return


class _Paths:
    """`os.path`, of the simulated files."""

    dirname = staticmethod(posixpath.dirname)
    basename = staticmethod(posixpath.basename)
    split = staticmethod(posixpath.split)
    join = staticmethod(posixpath.join)
    normpath = staticmethod(posixpath.normpath)

    def __init__(self, files: FileSystem) -> None:
        self._files = files

    def realpath(self, path: str) -> str:
        ahead, at = path.split("/")[1:], ""
        for _ in range(80):
            if not ahead:
                break
            name = ahead.pop(0)
            entry = self._files.find(f"{at}/{name}", follow=False)
            if entry is not None and entry.inode.kind == stat.S_IFLNK:
                ahead = entry.inode.target.split("/")[1:] + ahead
                at = ""
            else:
                at = f"{at}/{name}"
        return at

    def exists(self, path: str) -> bool:
        return self._files.find(path) is not None

    def lexists(self, path: str) -> bool:
        return self._files.find(path, follow=False) is not None

    def isdir(self, path: str) -> bool:
        found = self._files.find(path)
        return found is not None and found.inode.kind == stat.S_IFDIR


class SimulatedOs:
    """What the tail's modules use of `os`."""

    O_PATH = O_CLOEXEC = 0

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self.path = _Paths(files)

    R_OK = X_OK = 0

    @staticmethod
    def access(path: str, mode: int, *, effective_ids: bool) -> bool:
        return True

    @staticmethod
    def fsencode(path: str) -> bytes:
        return path.encode()

    def open(self, path: str, flags: int) -> int:
        self._files.between()
        descriptor = next(self._files._descriptors)
        self._files.open_files[descriptor] = self._files.open(self._files.get(path))
        return descriptor

    def close(self, descriptor: int) -> None:
        self._files.close(self._files.open_files.pop(descriptor))

    def fstat(self, descriptor: int) -> Status:
        return Status(self._files.open_files[descriptor].inode)

    def stat(self, path: str, *, follow_symlinks: bool = True) -> Status:
        self._files.between()
        return Status(self._files.get(path, follow=follow_symlinks).inode)

    def readlink(self, path: str) -> str:
        if path.startswith("/proc/self/fd/"):
            entry = self._files.open_files[int(path.rpartition("/")[2])]
            return entry.path + ("" if entry.live else " (deleted)")
        entry = self._files.get(path, follow=False)
        if entry.inode.kind != stat.S_IFLNK:
            raise OSError(errno.EINVAL, "Invalid argument", path)
        return entry.inode.target

    def scandir(self, path: str) -> _Scan:
        """No snapshot: what happens meanwhile shows for some names and not for others."""
        directory = self._files.get(path)
        if directory.inode.kind != stat.S_IFDIR:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        before = dict(directory.inode.entries)
        self._files.between()
        after = directory.inode.entries
        names = before | after
        found = []
        for name in names:
            entry = (before if sum(name.encode()) % 2 else after).get(name)
            if entry is not None:
                found.append(_Entry(self._files, path, entry, name))
        return _Scan(found)

    def listdir(self, path: str) -> list[str]:
        return list(self._files.get(path).inode.entries)


class SimulatedText:
    """`Text`, of simulated files."""

    def __init__(self, files: FileSystem, descriptor: int, codec: str) -> None:
        self._files = files
        self.descriptor = descriptor
        self._inode = files.open_files[descriptor].inode
        self._codec = codec

    @property
    def _text(self) -> bytes:
        if self._inode.packed and not self._codec:
            return b"\x1f\x8b" + bytes(self._inode.size - 2)
        return bytes(self._inode.data)

    @property
    def size(self) -> int:
        self._files.between()
        return 0 if self._codec else self._inode.size

    @property
    def complete(self) -> bool:
        return self._inode.complete

    def read(self, position: int, length: int) -> bytes:
        self._files.between()
        if self._codec and not self._inode.packed:
            raise OSError(errno.EBADMSG, "damaged")
        data = self._text[position : position + length]
        if len(data) < length and self._codec and not self._inode.complete:
            raise OSError(errno.EBADMSG, "damaged")
        return data

    def status(self) -> Status:
        return Status(self._inode)

    def close(self) -> None:
        self._files.close(self._files.open_files.pop(self.descriptor))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SimulatedStream(EventStream):
    """The real `EventStream`, without a kernel: `events` are what it would read."""

    def __init__(self, files: FileSystem, heard: Callable[[list[Any]], None]) -> None:
        self._files = files
        self._heard = heard
        self._keys = {}
        self._watches = {}
        self._strange = []
        self._library = self  # type: ignore[assignment]
        self._descriptor = 0
        self._numbers = itertools.count(1)
        self._watched: dict[int, Inode] = {}
        self.events: list[tuple[int, int, int, bytes]] = []

    def watch(self, path: str, events: int) -> int:
        self._files.between()
        inode = self._files.get(path).inode
        number = inode.watches[self][0] if self in inode.watches else next(self._numbers)
        inode.watches[self] = number, events
        self._watched[number] = inode
        return number

    def inotify_rm_watch(self, descriptor: int, watch: int) -> None:
        inode = self._watched.pop(watch, None)
        if inode is not None and inode.watches.pop(self, None) is not None:
            self.events.append((watch, IGNORED, 0, b""))

    def deliver(self) -> None:
        """One wake-up: all that happened."""
        events, self.events = self.events, []
        self._tell(events)

    drain = deliver

    @property
    def silent(self) -> bool:
        return not self.events

    def overflow(self) -> None:
        self.events = [(-1, OVERFLOW, 0, b"")]
        # A watch that is gone is gone, whether that was told or not.

    def close(self) -> None:
        for inode in self._watched.values():
            inode.watches.pop(self, None)
        self._watched.clear()
        self._keys.clear()
        self._watches.clear()
        self.events.clear()


class _Clock:
    """`time`, for the finder."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files

    def monotonic(self) -> float:
        return self._files.now / SECOND

    time = process_time = monotonic

    def time_ns(self) -> int:
        return self._files.now


# The daemon.

_TURNS_MOST: Final = 5_000
"""A daemon that has so much to do until it is at rest has no end of it."""


class _Job:
    """What a finder's thread is asked."""

    def __init__(self, work: Callable[[], Any], *, sleeps: bool = False) -> None:
        self.work = work
        self.sleeps = sleeps
        self.performed = False
        self.result: Any = None
        self.error: BaseException | None = None

    def perform(self) -> None:
        self.performed = True
        try:
            self.result = self.work()
        except Failure:
            raise
        except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
            self.error = error

    def __await__(self) -> Iterator[Any]:
        yield self
        if self.error is not None:
            raise self.error
        return self.result


class _Idle:
    def __await__(self) -> Iterator[Any]:
        yield self


class _Until:
    """Waits until something holds."""

    def __init__(self, holds: Callable[[], bool]) -> None:
        self.holds = holds

    def __await__(self) -> Iterator[Any]:
        while not self.holds():
            yield self


class _Files(Files):
    async def led(self, finder: TailFinder, patience: float) -> None:
        self._led[finder].set()
        await _Until(lambda: all(self._led[each].is_set() for each in self._before(finder)))

    async def looked(self, finder: TailFinder, patience: float) -> None:
        self._to_look.discard(finder)
        await _Until(lambda: not self._to_look)


class _Thread(LookThread):
    """Does a job when the machine says so."""

    def __init__(self) -> None:
        """It has nobody to tell that it hangs."""

    async def ask(self, work: Callable[[], Any]) -> Any:
        return await _Job(work)

    def close(self) -> None:
        """There is no thread."""


class _Finder(TailFinder):
    machine: Machine

    def apply(self, log: Any, fact: Any) -> None:
        self.machine.said(f"{log.path}: {fact}")
        if isinstance(fact, Examined):
            self.machine.meet(fact.place.file, log.path)
            if isinstance(fact.verdict, Plain) and fact.verdict.witness is not None:
                self.machine.note_examined(fact.place, fact.verdict.witness.at)
                self.machine.files.note_seen(fact.place)
        super().apply(log, fact)


class FinderTask:
    """One finder at work: its coroutine, as the supervisor's task runs it."""

    def __init__(self, machine: Machine, index: int, finder: _Finder) -> None:
        self.machine = machine
        self.index = index
        self.finder = finder
        self.scanned = False
        self.rescan = False
        self.job: _Job | None = None
        self.idle = False
        self.until: _Until | None = None
        self._coroutine = self._run()
        self.resume()

    async def _run(self) -> None:
        finder = self.finder
        await finder.scan(self)
        self.scanned = True
        self.machine.has_run[self.index] = True
        while self.machine.once:
            await _Idle()
        while True:
            if finder._news.relist or self.rescan:
                self.rescan = False
                await finder._look_again()
                await finder._settle()
            elif finder._due.woken.is_set():
                finder._due.woken.clear()
                await finder._settle()
            elif self.hears_no_more:
                finder._news.hear_no_more()
                await finder._settle()
            else:
                await _Idle()

    @property
    def wants(self) -> bool:
        """Whether it would go on by itself."""
        if self.until is not None:
            return self.until.holds()
        if self.machine.once:
            return not self.idle
        if self.hears_no_more:
            return True
        return not self.idle or self.rescan or self.finder._news.relist or self.finder._due.woken.is_set()

    @property
    def hears_no_more(self) -> bool:
        """Whether nothing comes for a while: that is longer than between the two events of a rename."""
        return bool(self.finder._names.moving) and not self.events and self.machine.time_passes

    def resume(self) -> None:
        yielded = self._coroutine.send(None)
        self.job = yielded if isinstance(yielded, _Job) else None
        self.idle = isinstance(yielded, _Idle)
        self.until = yielded if isinstance(yielded, _Until) else None
        self.machine.commit()

    @property
    def events(self) -> list[Any]:
        stream = self.finder._watches._stream
        return [] if stream is None else stream.events  # type: ignore[attr-defined]

    def deliver(self) -> None:
        stream = self.finder._watches._stream
        if stream is not None:
            stream.deliver()  # type: ignore[attr-defined]
            self.machine.commit()

    def close(self) -> None:
        self._coroutine.close()
        if self.finder._watches._stream is not None:
            self.finder._watches._stream.close()

    # `Sources`.

    def appeared(self, found: Found) -> None:
        self.machine.appeared(self.index, found)

    def conclude(self, source: str) -> None:
        self.machine.concluded(source)

    def store(self, stored: StoredPosition) -> None:
        require(stored.source not in self.machine.followed, f"{stored.source} is stored while it is read")
        self.machine.changed[self.index, stored.source] = stored

    def forget(self, source: str) -> None:
        require(source not in self.machine.followed, f"{source} is forgotten while it is read")
        self.machine.changed[self.index, source] = None

    def latest(self, source: str) -> Found | None:
        held = self.machine.followed.get(source)
        return None if held is None else held.found

    def leased(self, until: float) -> None:
        pass

    def looked(self, problem: str | None) -> None:
        pass

    def given_up(self, reason: str) -> None:
        raise AssertionError(reason)

    def found_all(self, until: float) -> None:
        self.machine.found_until[self.index] = until

    def overflowed(self) -> None:
        """It is counted."""

    def gone(self, read_to: Sequence[tuple[str, int]]) -> None:
        """They are counted."""

    def trouble_over(self, thing: str) -> None:
        pass

    def unmatched(self, entry: str, reason: str) -> None:
        self.trouble(entry, reason)

    def trouble(self, thing: str, reason: str) -> None:
        self.machine.troubles.append((thing, reason))

    def lost(self, loss: Loss) -> None:
        self.machine.losses.append((self.machine.files.now, loss))
        self.machine.said(f"LOST {loss}")


@dataclass(slots=True)
class _Followed:
    """A source that the supervisor gave to the worker."""

    index: int
    found: Found
    generation: int


@dataclass(slots=True)
class Token:
    """What a writer wrote in one go. `complete`: a newline was with it or after it."""

    number: int
    at: int
    content: tuple[Inode, int]
    end: int
    late: bool
    excused: bool = False
    """Written through an old descriptor: found at the next rescan, where its file was taken for complete."""
    log: str = ""
    """Where it was written, as it is told to the daemon."""
    delivered: int = 0
    repeatable: bool = False


class _Content:
    """The text that a reader has open, where nothing happens between two looks."""

    def __init__(self, text: bytearray) -> None:
        self._text = text

    def read(self, position: int, length: int) -> bytes:
        return bytes(self._text[position : position + length])


class Reader:
    """One source as the worker reads it: see `ingestd.tail.source.TailSource`."""

    def __init__(self, machine: Machine, followed: _Followed) -> None:
        self.machine = machine
        self.files = machine.files
        found = followed.found
        self.source = found.source
        self.generation = followed.generation
        self.group, self.rank = found.group, found.rank
        self.known = Known.from_detail(found.detail)
        self.entry: Dentry | None = None
        self.position = self.acknowledged = found.position
        self.concluded = found.last
        self.linked = True
        self.seen: Sample | None = None
        self.before: Sample | None = None
        self.head = b""
        self.size = self.most = max(self.known.size, found.position)
        self.modified, self.links = self.known.modified, self.known.links
        self.scanned = 0
        self.held_back = False
        self.waiting: list[tuple[int, Reader]] = []
        self.news_at = self.files.now
        self.until = found.until
        self.finished: End | None = None
        self.pieces: list[int] = []
        self.dirty = self.met = False

    def open(self) -> None:
        for _ in range(2):
            for path in self._places():
                entry = self.files.find(path)
                if entry is None or not entry.inode.file.resembles(self.known.file):
                    continue
                self.entry = self.files.open(entry)
                known = self.known._replace(path=path, file=entry.inode.file)
                if known != self.known:
                    self.known, self.dirty = known, True
                return
        self.finish("gone")

    def _places(self) -> Iterator[str]:
        yield self.known.path
        directory = self.files.find(posixpath.dirname(self.known.path))
        if directory is not None:
            for entry in list(directory.inode.entries.values()):
                if entry.inode.number == self.known.file.inode:
                    yield f"{posixpath.dirname(self.known.path)}/{entry.name}"

    def look(self) -> None:
        """Follow its renames."""
        if self.entry is None:
            return
        there = self.files.find(self.known.path)
        if there is not None and there.inode is self.entry.inode:
            return
        path = self.entry.path
        if self.entry.live and path != self.known.path:
            self.known = self.known._replace(path=path)
            self.dirty = True

    def detail(self) -> dict[str, Any]:
        witness = self.known.witness
        if self.seen is not None:
            witness = Witness.of(self.seen, witness).with_head(self.head)
        known = self.known._replace(witness=witness, size=self.most, modified=self.modified, links=self.links)
        return known.to_detail()

    def conclude(self) -> None:
        if not self.concluded:
            self.concluded = True
            self.news_at = self.files.now

    def release(self) -> None:
        if self.entry is not None:
            entry, self.entry = self.entry, None
            self.files.close(entry)

    def release_if_read(self) -> None:
        if self.entry is None or self.known.codec:
            return
        there = self.files.find(self.known.path)
        if len(self.entry.inode.data) == self.position and there is not None and there.inode is self.entry.inode:
            self.release()

    def when_read(self, other: Reader) -> None:
        if self.entry is not None and not self.known.codec:
            self.size = len(self.entry.inode.data)
        self.waiting.append((self.size, other))
        other.held_back = True
        self._let_pass(self.position + self.scanned)

    def _let_pass(self, read_to: float) -> None:
        while self.waiting:
            most = float("inf") if self.known.codec else min(self.waiting[0][0], self.size)
            if read_to < most and self.finished is None:
                return
            self.waiting.pop(0)[1].held_back = False

    def finish(self, kind: str) -> None:
        self.finished = End(kind, self.known.path, self.position, max(self.most, self.position), seen=self.met)
        self.machine.said(f"reader {self.source} {self.finished}")
        self.release()
        self._let_pass(float("inf"))

    def close(self) -> None:
        self.release()
        for _, other in self.waiting:
            other.held_back = False

    def read(self, lines: int) -> bool:
        """Read at most so many lines (0: all). Returns whether anything came of it."""
        if self.held_back or self.finished is not None:
            return False
        if self.entry is None:
            self.open()
        entry = self.entry
        if entry is None:
            return True
        inode = entry.inode
        if bool(self.known.codec) != inode.packed:
            raise Failure(f"{self.source} reads {entry.path} as {self.known.codec or 'plain'}")
        text = inode.data[: self.until]
        if not self._unchanged(inode):
            self.finish("truncated")
            return True
        length = len(text) - self.position
        if length > self.scanned:
            self.news_at = self.files.now
        end = self._whole(text, lines)
        if end > self.position:
            self._take(text, end)
        else:
            self.scanned = max(0, length)
            if not self.position and length > 0:
                self._see(text, len(text))
            if not self._at_end(inode, text, length):
                self._let_pass(self.position + self.scanned)
                return False
        self._let_pass(self.position + self.scanned)
        return True

    def _whole(self, text: bytearray, lines: int) -> int:
        if not lines:
            return text.rfind(b"\n", self.position) + 1
        end = self.position
        # After a header alone, nobody can tell a truncation: the file begins alike. Slabs take more than a header.
        header = not end and text.startswith(b"#")
        for _ in range(lines + header):
            at = text.find(b"\n", end)
            if at < 0:
                break
            end = at + 1
        return end

    def _at_end(self, inode: Inode, text: bytearray, length: int) -> bool:
        kind = self._complete(inode, unfinished=length > 0)
        if kind is None:
            return self.finished is not None
        if length <= 0:
            self.finish(kind)
        else:
            self._take(text, len(text))
        return True

    def _complete(self, inode: Inode, *, unfinished: bool) -> str | None:
        if self.until is not None:
            if not self.linked and self.size > self.until:
                self.until = self.size
                return None
            if not unfinished or not self.linked:
                return "taken"
            if self.size > self.until:
                self.finish("taken")
                return None
            return None if self.files.now < inode.modified + 10 * SECOND and self._wait() else "taken"
        if self.known.codec:
            if inode.complete:
                return "concluded"
            if inode.modified != self.modified:
                self.modified, self.news_at = inode.modified, self.files.now
            return None if self._wait() else "damaged"
        if (self.linked and not self.concluded) or self._wait():
            return None
        return "concluded" if self.linked else "deleted"

    def _wait(self) -> bool:
        return self.files.now < self.news_at + 10 * SECOND

    def _unchanged(self, inode: Inode) -> bool:
        size = len(inode.data)
        if size < self.position:
            return bool(self.known.codec) and not inode.complete
        if not self._is_content(inode.data):
            return False
        self.met = True
        self.size, self.links = size, max(self.links, inode.links)
        if not self.known.codec:
            self.modified = inode.modified
            inode.seen = max(inode.seen, size)
        self.most = max(self.most, size)
        linked = inode.links > 0
        if self.linked and not linked:
            self.news_at = self.files.now
        self.linked = linked
        return True

    def _is_content(self, text: bytearray) -> bool:
        witness = self.known.witness
        if self.seen is not None:
            return bool(self.known.codec) or self.seen.is_in(cast("Text", _Content(text)))
        if witness is None or (self.known.codec and witness.at > self.position):
            return True
        if not self.known.codec:
            self.before = Sample(self.position, bytes(text[max(0, self.position - WITNESS_BYTES) : self.position]))
        content = cast("Text", _Content(text))
        return witness.ends(content) if self.known.codec else witness.fits(content)

    def _see(self, text: bytearray, end: int) -> None:
        if not self.position:
            self.head = bytes(text[: min(end, HEAD_BYTES)])
        self.seen = Sample.of(end, bytes(text[self.position : end]), self.seen or self.before)

    def _take(self, text: bytearray, end: int) -> None:
        begin, self.position = self.position, self.position
        self._see(text, end)
        self.position, self.scanned = end, 0
        self.pieces.append(end)
        self.machine.delivered(self, bytes(text[begin:end]), end)

    def acknowledge(self, pieces: int) -> None:
        if self.pieces:
            done = self.pieces[: pieces or None]
            del self.pieces[: len(done)]
            self.acknowledged, self.dirty = done[-1], True


class Machine:
    """The file system, the daemon's stored rows, and the daemon while it runs."""

    def __init__(self, routes: list[TailRoute]) -> None:
        self.routes = routes
        self.once = False
        """Whether the present run, or else the next one, has an end."""
        self.files = FileSystem()
        self.os = SimulatedOs(self.files)
        self.clock = _Clock(self.files)
        self.rows: dict[tuple[int, str], StoredPosition] = {}
        self.has_run = [False] * len(routes)
        self.finders: list[FinderTask] = []
        self.followed: dict[str, _Followed] = {}
        self.changed: dict[tuple[int, str], StoredPosition | None] = {}
        self.found_until: dict[int, float] = {}
        """By tail, until when all is found; told, and not stored yet."""
        self.since: defaultdict[int, float] = defaultdict(float)
        self.telling: list[tuple[str, str]] = []
        self.inbox: list[tuple[str, _Followed | str]] = []
        self.outbox: list[tuple[str, int, Any]] = []
        self.readers: dict[str, Reader] = {}
        self.troubles: list[tuple[str, str]] = []
        self.losses: list[tuple[int, Loss]] = []
        self.tokens: dict[int, Token] = {}
        self.order: list[int] = []
        """Tokens in the order of their first delivery."""
        self.given: dict[str, list[tuple[int, list[int]]]] = {}
        """What was read of each source in this life of the daemon: (end, tokens)."""
        self.examined: set[tuple[Inode, int]] = set()
        """Contents that the daemon can know again in a copy."""
        self.met: dict[FileId, tuple[str, int]] = {}
        """Files that the daemon examined: for which log, and since which content."""
        self.log: list[str] | None = None
        self.time_passes = True
        """Whether more than moments pass now: a writer takes no longer for one thing."""
        self._generations = itertools.count(1)

    def said(self, text: str) -> None:
        if self.log is not None:
            self.log.append(f"      {text}")

    def note_examined(self, place: Place, size: int) -> None:
        """Of what begins alike in all files, nobody can tell whose content it is."""
        inode = self.files.inodes[place.file]
        if inode.truncated < place.modified and inode.tokens and size >= inode.tokens[0][1]:
            self.examined.add((inode, inode.content))

    def meet(self, file: FileId, log: str) -> None:
        since = self.met[file][1] if file in self.met else self.files.inodes[file].content
        self.met[file] = log, since

    # Life.

    @property
    def up(self) -> bool:
        return bool(self.finders)

    def start(self) -> None:
        others: list[_Finder] = []
        for index, route in enumerate(self.routes):
            rows = [row for (at, _), row in self.rows.items() if at == index]
            finder = _Finder(
                route,
                rows,
                once=self.once,
                since=self.since[index],
                first_run=not self.has_run[index],
                others=tuple(others),
                looks=Looks(),
                thread=_Thread(),
            )
            others.append(finder)
            others[-1].machine = self
        for index, finder in enumerate(others):
            self.finders.append(FinderTask(self, index, finder))

    @property
    def done(self) -> bool:
        """Whether a run with an end is at its end."""
        busy = self.followed or self.inbox or self.outbox or self.readers
        return self.once and self.up and not busy and all(each.scanned for each in self.finders)

    def matches(self, path: str) -> bool:
        """Whether a glob matches a path, by which a file is read."""
        return any(route.globs.matches(path) and not codec_of(path) for route in self.routes)

    def stop(self) -> None:
        """In order: nothing more is found; all that was read is acknowledged and stored."""
        self.receive()
        for each in self.finders:
            each._coroutine.close()
        for reader in self.readers.values():
            reader.look()
            reader.acknowledge(0)
            reader.dirty = True  # its file is elsewhere perhaps, or larger, than was told
        self.report()
        self.receive()
        self.commit()
        self._gone()

    def kill(self) -> None:
        for source, pieces in self.given.items():
            row = next((row for (_, name), row in self.rows.items() if name == source), None)
            for end, tokens in pieces:
                if row is None or end > row.position:
                    for token in tokens:
                        self.tokens[token].repeatable = True
        self._gone()

    def _gone(self) -> None:
        for token in self.tokens.values():
            token.excused |= token.late and not token.delivered
        logs = {row.detail["log"] for row in self.rows.values()}
        stored = {(row.detail["inode"], row.detail["handle"]) for row in self.rows.values()}
        self.met = {
            file: self.met[file]
            for file, (log, _) in self.met.items()
            if (file.inode, file.handle) in stored or (log in logs and self.files.stands_at(log, file))
        }
        for each in self.finders:
            each.close()
        self.finders = []
        for reader in self.readers.values():
            reader.release()
        for held in (
            self.readers,
            self.followed,
            self.changed,
            self.found_until,
            self.telling,
            self.inbox,
            self.outbox,
            self.given,
        ):
            held.clear()

    def crash_worker(self) -> None:
        """The worker dies; another one opens what it had, where that was reported to be."""
        for reader in self.readers.values():
            reader.release()
        for source, held in self.followed.items():
            for end, tokens in self.given.get(source, ()):
                if end > held.found.position:
                    for token in tokens:
                        self.tokens[token].repeatable = True
        self.readers.clear()
        self.inbox.clear()
        self.outbox.clear()
        for held in sorted(self.followed.values(), key=lambda each: each.found.rank):
            held.generation = next(self._generations)
            self.inbox.append(("open", replace(held)))

    # The supervisor.

    def appeared(self, index: int, found: Found) -> None:
        require(found.source not in self.followed, f"{found.source} appears twice")
        self.followed[found.source] = _Followed(index, found, next(self._generations))
        self.changed[index, found.source] = StoredPosition(found.source, found.position, found.detail)
        self.telling.append(("open", found.source))
        self.said(f"read {found.source} from {found.position} rank {found.rank} last={found.last} {found.detail}")

    def concluded(self, source: str) -> None:
        held = self.followed.get(source)
        if held is not None and not held.found.last:
            held.found = held.found._replace(last=True)
            self.telling.append(("conclude", source))
            self.said(f"conclude {source}")

    def commit(self) -> None:
        """The end of a turn of the loop: what was said is stored, then workers are told."""
        for key, row in self.changed.items():
            if row is None:
                self.rows.pop(key, None)
                self.given.pop(key[1], None)
            else:
                self.rows[key] = row
        if self.changed:
            self.since.update(self.found_until)
        self.changed.clear()
        for verb, source in self.telling:
            held = self.followed.get(source)
            if held is not None:
                self.inbox.append((verb, replace(held) if verb == "open" else source))
        self.telling.clear()

    def receive(self, most: int = 0) -> bool:
        """What the worker says."""
        messages = self.outbox[: most or None]
        del self.outbox[: len(messages)]
        for source, generation, what in messages:
            held = self.followed.get(source)
            if held is None or held.generation != generation:
                continue
            if isinstance(what, End):
                del self.followed[source]
                self.finders[held.index].finder.ended(held.found, what)
            else:
                position, detail = what
                self.finders[held.index].finder.moved()
                held.found = held.found._replace(position=position, detail=detail)
                self.changed[held.index, source] = StoredPosition(source, position, detail)
        self.commit()
        return bool(messages)

    # The worker.

    def tell(self, most: int = 0) -> bool:
        """What the supervisor says to it."""
        messages = self.inbox[: most or None]
        del self.inbox[: len(messages)]
        for verb, what in messages:
            if verb == "conclude":
                if what in self.readers:
                    self.readers[what].conclude()  # type: ignore[index]
                continue
            assert isinstance(what, _Followed)
            reader = self.readers[what.found.source] = Reader(self, what)
            reader.open()
            if reader.finished is None:
                older = [
                    each for each in self.readers.values() if each.group == reader.group and each.rank < reader.rank
                ]
                if older:
                    max(older, key=lambda each: each.rank).when_read(reader)
        return bool(messages)

    def report(self) -> bool:
        any_news = False
        for source, reader in list(self.readers.items()):
            if reader.dirty:
                reader.dirty = False
                any_news = True
                self.outbox.append((source, reader.generation, (reader.acknowledged, reader.detail())))
            if reader.finished is not None and not reader.pieces:
                any_news = True
                del self.readers[source]
                reader.close()
                self.outbox.append((source, reader.generation, reader.finished))
        return any_news

    def delivered(self, reader: Reader, data: bytes, end: int) -> None:
        numbers = [int(each) for line in data.split(b"\n") for each in line.split(b";") if each.isdigit()]
        self.given.setdefault(reader.source, []).append((end, numbers))
        self.said(f"delivered {numbers} from {reader.known.path} by {reader.source}")
        for number in numbers:
            token = self.tokens[number]
            token.delivered += 1
            require(self._is_of(token, reader.known), f"{number} of {token.log} is told to be of {reader.known.log}")
            if token.delivered == 1:
                self.order.append(number)
            else:
                require(token.repeatable, f"{number} arrived again, from {reader.known.path} by {reader.source}")
            token.repeatable = False

    def _is_of(self, token: Token, known: Known) -> bool:
        """Whether a line is not told to be of another log; in a directory that was moved away, nobody knows better.

        Nor of a compressed file that is called like a rotation of both logs, and whose own log has no file that is
        known: app-1.log.1.gz of app-1.log, which app.log searches for too (seed 1068296).
        """
        moved_away = "." in posixpath.dirname(known.path)
        nameless = bool(known.codec) and is_rotated_from(token.log, known.log)
        known_as = moved_away or nameless or token.log == known.log
        return known_as or all(each.log != known.log for each in self.tokens.values())

    # Steps.

    def choices(self) -> list[tuple[str, int | str]]:
        """What can happen next in the daemon."""
        found: list[tuple[str, int | str]] = []
        for index, each in enumerate(self.finders):
            if each.events:
                found.append(("deliver", index))
            if each.job is not None and (self.time_passes or each.job.performed or not each.job.sleeps):
                found.append(("answer" if each.job.performed else "perform", index))
            elif each.job is None and each.wants:
                found.append(("turn", index))
        if self.inbox:
            found.append(("tell", 0))
        if self.outbox:
            found.append(("receive", 0))
        if self.done:
            found.append(("end", 0))
        for source, reader in self.readers.items():
            if reader.finished is None:
                found.append(("read", source))
            if reader.pieces:
                found.append(("acknowledge", source))
            elif reader.dirty or reader.finished is not None:
                found.append(("report", source))
        return found

    def step(self, verb: str, which: int | str, random: Random) -> None:  # noqa: C901 - one for each verb
        if self.log is not None and verb != "read":
            self.said(f"{verb} {which}")
        match verb:
            case "deliver":
                self.finders[which].deliver()  # type: ignore[index]
            case "perform":
                self.finders[which].job.perform()  # type: ignore[index,union-attr]
            case "answer" | "turn":
                self.finders[which].resume()  # type: ignore[index]
            case "tell":
                self.tell(random.choice((1, 2, 0)))
            case "receive":
                self.receive(random.choice((1, 2, 0)))
            case "read":
                reader = self.readers[which]  # type: ignore[index]
                if random.random() < 0.7:
                    reader.look()
                if random.random() < 0.1:
                    reader.release_if_read()
                else:
                    reader.read(random.choice((1, 2, 0)))
            case "acknowledge":
                self.readers[which].acknowledge(random.choice((1, 0)))  # type: ignore[index]
            case "report":
                self.report()
            case "end":
                self.stop()

    def settle(self) -> None:
        """Let the daemon do all that it has to do."""
        turns = 0
        for _ in range(200):
            before = turns
            for each in self.finders:
                turns = self._let_find(each, turns)
            busy = turns > before
            busy |= self.tell()
            for reader in list(self.readers.values()):
                reader.look()
                while reader.read(0):
                    busy = True
                reader.acknowledge(0)
            busy |= self.report()
            busy |= self.receive()
            if self.done:
                self.stop()
            elif self.once and self.up and not busy:
                self.files.now += 11 * SECOND  # it waits for one who may still write
            elif not busy:
                return
        raise Failure("the daemon finds no rest")

    def _let_find(self, each: FinderTask, turns: int) -> int:
        """Let a finder do all that it has to do. Returns its number of turns, added to `turns`."""
        while each.events or each.job is not None or each.wants:
            turns += 1
            if turns > _TURNS_MOST:  # seed 259015: with two tails, what one examined was for the other to know
                raise Failure("the daemon looks for ever")
            if each.events:
                each.deliver()
            if each.job is not None and not each.job.performed:
                each.job.perform()
            if each.job is not None or each.wants:
                each.resume()
        return turns

    def rescan(self) -> None:
        for each in self.finders:
            each.rescan = True


def patches(machine: Callable[[], Machine]) -> list[tuple[Any, str, Any]]:
    """(object, attribute, value): what the tail's modules are given while machines are used."""

    class Current:
        def __getattr__(self, name: str) -> Any:
            return getattr(machine().os, name)

    class CurrentClock:
        def __getattr__(self, name: str) -> Any:
            return getattr(machine().clock, name)

    def open_text(file: str | int, codec: str = "") -> SimulatedText:
        here = machine()
        return SimulatedText(here.files, here.os.open(file, 0) if isinstance(file, str) else file, codec)

    def identify(descriptor: int, status: Status | None = None) -> FileId:
        return machine().files.open_files[descriptor].inode.file

    def sleep(seconds: float) -> _Job:
        return _Job(lambda: machine().files.tick(int(seconds * SECOND)), sleeps=True)

    system, clock = Current(), CurrentClock()
    listed = (content_module, directories_module, looks_module, listings_module, searching_module)
    deciding = (examinations_module, finder_module, known_module, news_module, performer_module, start_module)
    timed = (*deciding, thread_module, vanished_module, verdicts_module)
    telling = (finder_module, news_module, start_module)
    return [
        *((module, "os", system) for module in listed),
        (known_module, "_births", known_module._Births()),
        *((module, "open_text", open_text) for module in (content_module, looks_module, searching_module)),
        *((module, "_log", SimpleNamespace(warning=lambda *_, **__: None)) for module in telling),
        *((module, "identify", identify) for module in (looks_module, searching_module)),
        (searching_module, "may_hold", lambda directory, file: True),
        (listings_module, "lists_other_inodes", lambda directory: False),
        (listings_module, "time", clock),
        (looks_module, "text_start", lambda descriptor, head: 0),
        (looks_module, "not_compressed", lambda descriptor, codec: None),
        (globs_module, "os", system),
        *((module, "os", system) for module in (finder_module, start_module)),
        (watches_module, "os", system),
        (finder_module, "Files", _Files),
        (finder_module, "asyncio", SimpleNamespace(sleep=sleep, Event=asyncio.Event)),
        (thread_module, "asyncio", SimpleNamespace(sleep=sleep)),
        *((module, "time", clock) for module in timed),
        # What waits for longer is found by the next rescan.
        (Verdicts, "_look_later", lambda self, seconds, path, of: self._due.look(path, of) if seconds < 1 else None),
        (watches_module, "EventStream", lambda heard, **_: SimulatedStream(machine().files, heard)),
    ]
