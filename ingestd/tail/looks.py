"""Looks: the file system as a tail's finder sees it. Every call may hang with its mount, so a thread makes them."""

from __future__ import annotations

import os
import stat
import sys
from bisect import bisect_left
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ingestd.tail.content import HEAD_BYTES, last_line_start, not_text, text_start
from ingestd.tail.facts import (
    Copy,
    Doubtful,
    Empty,
    Examined,
    Place,
    Plain,
    Refused,
    Sought,
)
from ingestd.tail.file_id import identify
from ingestd.tail.known import Known, Witness, birth_of, witness_before
from ingestd.tail.rotation import beginnings_of, codec_of, is_rotation_of, rotated_from
from ingestd.tail.text import open_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ingestd.tail.facts import Verdict
    from ingestd.tail.file_id import FileId
    from ingestd.tail.globs import Globs
    from ingestd.tail.text import Text

__all__ = ["Examination", "Looks", "Original", "Search", "Sighting", "Unreadable", "Walk"]

COMPARED_BYTES: Final = 4096
"""So many of the last bytes of a copy are compared with its original, and its first ones."""

_WHOLE_BYTES: Final = 4 << 20
"""Compressed files of at most this size are decoded to see whether they are complete."""

_WHOLE_TEXT_BYTES: Final = 64 << 20
"""The same for their text. Zeros are a thousand times as long as their compressed form."""

_LINKS_MOST: Final = 40
_TRIES: Final = 10
"""So often a search begins again where names shift under it."""

_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


class Sighting(NamedTuple):
    """What a look at a path showed: a file, or what stands there instead.

    `through`: links on the way, and where they lead, as paths: a rename of any changes what the path stands for.
    """

    path: str
    place: Place | None = None
    through: tuple[str, ...] = ()
    trouble: str | None = None


@dataclass(slots=True)
class Walk:
    """One look into every directory that can hold a file of the globs."""

    sightings: list[Sighting] = field(default_factory=list)
    present: set[str] = field(default_factory=set)
    """Paths that the globs match, whether they were looked at or not."""
    directories: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Those that were listed: device, inode and modification time before that."""
    troubles: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Original:
    """A generation that a new file may be a copy of. `reading`: its reader may know more than is known here.

    `akin`: the file is called like a rotation of its log. Another one waits only for a content that it is seen to have.
    """

    source: str
    path: str
    file: FileId
    position: int
    witness: Witness | None
    reading: bool
    akin: bool = True


@dataclass(frozen=True, slots=True)
class Examination:
    """A file to examine. `at_end`: what is in it now is not read. `binary`: whatever is in it is taken.

    `patient`: it may be examined again once readers have told more. `in_the_making`: it may be compressed just now.
    """

    place: Place
    originals: tuple[Original, ...] = ()
    at_end: bool = False
    binary: bool = False
    patient: bool = True
    in_the_making: bool = False


class Unreadable(Refused):
    """It can not be opened now. That may change without a modification."""


@dataclass(frozen=True, slots=True)
class Search:
    """A generation to find. `names`: base names that it was written under; `elsewhere`: files of other directories."""

    source: str
    known: Known
    position: int
    directories: tuple[str, ...]
    names: tuple[str, ...]
    elsewhere: tuple[str, ...]
    rotated: Globs
    """Where rotated files go that nobody sees going."""
    others: tuple[Known, ...]
    """Other generations, of logs with alike names: a compressed file may have the content of one."""
    newest: bool
    """Whether nothing is known to have come after it."""
    taken: Callable[[FileId], bool]
    """Whether a file is a generation that nobody looks for."""
    matched: Callable[[str], bool]
    """Whether a path is found by a glob anyway."""
    kin: tuple[str, ...] = ()
    """Base names of other logs that its own looks like a rotation of: it may be rotated further as theirs are."""
    since: int = 0
    """What came after it was modified later than this (ns)."""
    unseen_since: int = 0
    """What was modified later than this is sought, too; 0: nothing more."""
    new_since: int = 0
    """Only what was made, and modified, later than this is sought; 0: it does not matter."""
    over: Callable[[FileId], Known | None] = field(default=lambda _: None)
    """What is known of a file, if it is a generation of the same log that was read: its content may be another now."""


class Looks:
    """The real file system. One thread uses it at a time."""

    def __init__(self) -> None:
        self.steps = 0
        """Counts all looks. A caller that waits sees from it whether there is progress."""
        self._listings: dict[str, _Listing] = {}
        self._listed: dict[str, tuple[int, int, int]] = {}
        self._rotated: dict[int, _Moved] = {}
        """Of each tail, what is where rotated files are moved to."""

    def look(self, path: str) -> Sighting:
        """Look at what stands at a path now, through links, without opening it for reading."""
        self.steps += 1
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            through = links_of(path)
            gone = isinstance(error, FileNotFoundError | NotADirectoryError)
            trouble = f"can not be read: {error.strerror}" if not gone else None
            return Sighting(path, None, through, "a symbolic link that leads nowhere" if gone and through else trouble)
        try:
            status = os.fstat(descriptor)
            real = os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
            through = () if real == path else links_of(path)
            if not stat.S_ISREG(status.st_mode):
                kind = next((name for test, name in _KINDS if test(status.st_mode)), "something special")
                return Sighting(path, None, through, f"{kind}, not a file")
            return Sighting(path, _place(real, identify(descriptor, status), status), through)
        except OSError as error:
            return Sighting(path, None, (), f"can not be read: {error.strerror}")
        finally:
            os.close(descriptor)

    def walk(self, globs: Globs, enter: Callable[[str], None], known: Callable[[str, int], bool]) -> Walk:
        """Look at every file that the globs match, but those `known` to be under this path with this inode number."""
        walk = Walk()

        def entered(directory: str) -> None:
            enter(directory)
            self.steps += 1
            walk.directories[directory] = _stamp(directory)

        for entry in globs.walk(entered, walk.troubles.setdefault):
            walk.present.add(entry.path)
            if entry.is_symlink() or not known(entry.path, entry.inode()):
                walk.sightings.append(self.look(entry.path))
        return walk

    def changed(self, directories: dict[str, tuple[int, int, int]]) -> bool:
        """Whether one of the directories was made anew, or names came or went in it, since it was listed."""
        for path, before in directories.items():
            try:
                if _stamp(path) != before:
                    return True
            except OSError:
                return True
        return False

    # What a file is.

    def examine(self, wanted: Sequence[Examination]) -> list[Examined | None]:
        """Say what files are, and where. None: it is not in its directory any more; these are listed once for all."""
        found = [self._examine_at(each, [each.place.path]) for each in wanted]
        for _ in range(2):  # names may shift meanwhile
            missing = [index for index, each in enumerate(found) if each is None]
            paths = _paths_of([wanted[index].place for index in missing])
            for index in missing:
                place = wanted[index].place
                found[index] = self._examine_at(wanted[index], [place.path, *paths.get(place.file.inode, ())])
        return found

    def _examine_at(self, wanted: Examination, paths: Iterable[str]) -> Examined | None:
        self.steps += 1
        place = wanted.place
        for path in paths:
            try:
                with open_text(path, place.codec) as text:
                    status = text.status()
                    if not identify(text.descriptor, status).same(place.file):
                        continue
                    wanted = replace(wanted, place=place._replace(path=path))
                    return Examined(wanted.place, self._examine(wanted, text, status.st_size))
            except FileNotFoundError:
                continue
            except OSError as error:
                return Examined(place, Unreadable(f"can not be read: {error.strerror}"))
        return None

    def _examine(self, wanted: Examination, text: Text, size: int) -> Verdict:
        if wanted.place.codec:
            made_of = wanted.place.path.removesuffix(f".{wanted.place.codec}")
            if os.path.lexists(made_of) or (wanted.in_the_making and not _is_whole(text, size)):
                return Empty()  # what it is made of goes when it is done
            return _compressed_of(text, wanted.originals) or Plain(0)
        head = text.read(0, HEAD_BYTES) if size else b""
        wrong = None if wanted.binary else not_text(head)
        if wrong is not None:
            return Refused(f'{wrong}; exclude it, or set binary = "accept"')
        begin = text_start(text.descriptor, head)
        if begin >= size:
            return Empty()
        copy = _copied_from(wanted, text, size, head)
        if copy is not None:
            return copy
        start = max(begin, last_line_start(text.descriptor, size)) if wanted.at_end else begin
        witness = witness_before(text, size)
        return Empty() if witness is None else Plain(start, witness)  # it was truncated just now

    # Where a generation is.

    def search(self, searches: Sequence[Search]) -> list[Sought]:
        """Find generations. Directories are listed once for all of them, and again for those that names shifted for."""
        found: dict[int, Sought] = {}
        for _ in range(_TRIES):
            self._listings, self._rotated = {}, {}
            for index in range(len(searches)):
                if index not in found:
                    with suppress(_Shifted):
                        found[index] = self._seek(searches[index])
            if len(found) == len(searches):
                break
        nowhere = [Sought(search.source, unavailable=True) for search in searches]
        return [found.get(index, unavailable) for index, unavailable in enumerate(nowhere)]

    def _seek(self, search: Search) -> Sought:
        with suppress(OSError):
            if not _unavailable(search.known):
                return self._sought(search)
        return Sought(search.source, unavailable=True)

    def _sought(self, search: Search) -> Sought:
        known = search.known
        listings = [self._list(directory) for directory in search.directories]
        listed = {path: self._listed[path] for path in search.directories if path in self._listed}
        at = self._by_identity(listings, search)
        if at is not None and self._holds(at, known, search.position):
            return Sought(search.source, at, intact=True, between=self._between(search, at))
        rest = self._by_content(search, at)
        if (at is None or rest is None) and self.changed(listed):
            raise _Shifted
        return Sought(search.source, at, rest=rest, between=self._between(search, rest))

    def _list(self, directory: str) -> _Listing:
        if directory not in self._listings:
            self._listed.pop(directory, None)
            with suppress(FileNotFoundError, NotADirectoryError):
                self._listed[directory] = _stamp(directory)
            self._listings[directory] = _Listing.of(directory)
        return self._listings[directory]

    def _by_identity(self, listings: list[_Listing], search: Search) -> Place | None:
        known = search.known
        beside = [path for listing in listings for path in listing.under(known.file.inode)]
        for path in dict.fromkeys([known.path, *beside, *self._moved(search).under(known.file.inode)]):
            place = self.look(path).place
            if place is not None and (place.file.same(known.file) or place.file.resembles(known.file)):
                return place._replace(codec=known.codec)
        return None

    def _by_content(self, search: Search, at: Place | None) -> Place | None:
        """The copy, or the compressed successor, that has the bytes of the witness; the newest first.

        What stands where the log is written may be the next generation, with the same header: it comes last.
        """
        if search.known.witness is None:
            return None
        known = search.known
        found = [
            place
            for place in self._rotations(search)
            if not (at is not None and place.file.same(at.file))
            and (not search.taken(place.file) or self._is_overwritten(place, search.over(place.file)))
            and (not place.codec or place.modified // 10**9 >= known.modified // 10**9)
        ]
        found.sort(key=lambda place: (os.path.basename(place.path) not in search.names, place.modified), reverse=True)
        return next((place for place in found if self._holds(place, known, search.position)), None)

    def _between(self, search: Search, now: Place | None) -> tuple[Place, ...]:
        """What came after it and was rotated away since, under names that no glob matches; the oldest first.

        `now`: where its content is.
        """
        known = search.known
        if not search.newest:
            return ()
        # Since it was last heard of. It may have been written to itself since then, later than what came after it.
        since = max(known.modified or (sys.maxsize if now is None else now.modified), search.since)
        since = search.new_since or min(since, search.unseen_since or since)
        # A file that was made after it came after it, whenever it was written to; but a copy from before it was known.
        made = max(known.file.birth or since, birth_of(search.source))
        found = [
            place
            for place in self._rotations(search, search.names, min(since, made))
            if place.modified > since or (not place.codec and place.file.birth > known.file.birth > 0)
            if not _names_of(place.path).isdisjoint(search.names)
            and not search.matched(place.path)
            and not search.taken(place.file)
            and not place.file.same(known.file)
            and not (search.new_since and place.file.birth <= search.new_since)
            and (now is None or not place.file.same(now.file))
            and not (place.codec and _has_one_of(place, (known, *search.others)))
        ]
        return tuple(sorted(found, key=lambda place: place.modified))

    def _rotations(self, search: Search, names: tuple[str, ...] = (), since: int = -1) -> Iterator[Place]:
        """What looks like rotations of what is sought, or of `names` only, and was modified after `since`."""
        seen: set[int] = set()
        for path, inode in self._rotated_names(search, names):
            if inode in seen:
                continue
            try:
                status = os.stat(path)
            except OSError:
                raise _Shifted from None
            seen.add(inode)
            if status.st_ino == inode and status.st_mtime_ns <= since:
                continue  # most are old: they cost no more than this
            place = self.look(path).place
            if place is None or place.file.inode != inode:
                raise _Shifted
            yield place._replace(codec=codec_of(path))

    def _rotated_names(self, search: Search, names: tuple[str, ...]) -> list[tuple[str, int]]:
        listings = [self._list(directory) for directory in search.directories]
        found = [each for listing in listings for each in listing.rotations((*search.names, *search.kin))]
        # Where a link led, the file may still be under its name.
        found += [each for listing in listings for name in search.names for each in listing.named(name)]
        for path in search.elsewhere:
            with suppress(OSError):
                found.append((path, os.stat(path).st_ino))
        return [*dict.fromkeys([*found, *self._moved(search).rotations(names)])]

    def _moved(self, search: Search) -> _Moved:
        key = id(search.rotated)
        if key not in self._rotated:
            self._rotated[key] = _Moved(search.rotated.walk(lambda _: None, lambda _, __: None))
        return self._rotated[key]

    @classmethod
    def _is_overwritten(cls, place: Place, known: Known | None) -> bool:
        """Whether a file that was read has another content by now: that of the next rotation, copied into it."""
        if known is None or known.witness is None or place.codec or place.modified <= known.modified:
            return False
        return not cls._holds(place, known, known.witness.at)

    @staticmethod
    def _holds(place: Place, known: Known, position: int) -> bool:
        try:
            with open_text(place.path, place.codec) as text:
                if not identify(text.descriptor).same(place.file):
                    raise _Shifted
                return (bool(place.codec) or text.size >= position) and known.holds(text)
        except FileNotFoundError:
            raise _Shifted from None
        except OSError:
            return False  # the content can not be found there


class _Shifted(Exception):
    """A file is not where it was seen a moment ago."""


class _Moved:
    """The regular files where rotated ones are moved to, by inode number and by what they may have been called."""

    def __init__(self, entries: Iterable[os.DirEntry[str]]) -> None:
        self._inodes: dict[int, list[str]] = {}
        self._names: dict[str, list[tuple[str, int]]] = {}
        for entry in entries:
            if entry.is_symlink() or entry.name.endswith(".tmp"):
                continue  # what it leads to was not moved here; what is in the making was not either
            self._inodes.setdefault(entry.inode(), []).append(entry.path)
            for name in _names_of(entry.path):
                self._names.setdefault(name, []).append((entry.path, entry.inode()))

    def under(self, inode: int) -> list[str]:
        return self._inodes.get(inode, [])

    def rotations(self, originals: Iterable[str]) -> Iterator[tuple[str, int]]:
        """What these names may have been rotated to; all that there is where there are none: paths, inode numbers."""
        if not originals:
            yield from ((path, inode) for inode, paths in self._inodes.items() for path in paths)
        for original in originals:
            yield from self._names.get(original, ())


class _Listing:
    """The regular files of one directory, by inode number and by name."""

    def __init__(self, directory: str, inodes: dict[int, list[str]], names: list[tuple[str, int]]) -> None:
        self._directory = directory
        self._inodes = inodes
        self._names = names

    @classmethod
    def of(cls, directory: str) -> _Listing:
        """Raises `OSError` but for a directory that is gone or closed to us: nothing can be found there."""
        inodes: dict[int, list[str]] = {}
        names = []
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError), ExitStack() as stack:
            for entry in stack.enter_context(os.scandir(directory)):
                if entry.is_file(follow_symlinks=False):
                    inodes.setdefault(entry.inode(), []).append(entry.path)
                    names.append((entry.name, entry.inode()))
        return cls(directory, inodes, sorted(names))

    def under(self, inode: int) -> list[str]:
        return self._inodes.get(inode, [])

    def named(self, name: str) -> Iterator[tuple[str, int]]:
        """The file with this name: path, inode number."""
        at = bisect_left(self._names, (name,))
        if at < len(self._names) and self._names[at][0] == name:
            yield f"{self._directory}/{name}", self._names[at][1]

    def rotations(self, originals: Iterable[str]) -> Iterator[tuple[str, int]]:
        """What looks like rotations of these names: paths, inode numbers.

        A compressed one only where the file itself is gone.
        """
        for original in originals:
            found = [each for stem in beginnings_of(original) for each in self._beginning_with(stem)]
            for name, inode in found:
                if not is_rotation_of(name, original) or name.endswith(".tmp"):
                    continue
                plain = name.rpartition(".")[0] if codec_of(name) else ""
                if not plain or plain == original or not any(each == plain for each, _ in self._beginning_with(plain)):
                    yield f"{self._directory}/{name}", inode

    def _beginning_with(self, stem: str) -> Iterator[tuple[str, int]]:
        at = bisect_left(self._names, (stem,))
        while at < len(self._names) and self._names[at][0].startswith(stem):
            yield self._names[at]
            at += 1


def _names_of(path: str) -> set[str]:
    """What a file may have been called before it was rotated, and its own name."""
    return {os.path.basename(name) for name in (path, *rotated_from(path))}


def _paths_of(places: Iterable[Place]) -> dict[int, list[str]]:
    """Where files are that were renamed within their directories, by inode number."""
    inodes: dict[str, set[int]] = {}
    for place in places:
        inodes.setdefault(os.path.dirname(place.path), set()).add(place.file.inode)
    found: dict[int, list[str]] = {}
    for directory, sought in inodes.items():
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                if entry.inode() in sought:
                    found.setdefault(entry.inode(), []).append(entry.path)
    return found


def links_of(path: str) -> tuple[str, ...]:
    """The symbolic links on the way to a path, as paths, directories that are links too; and where they lead."""
    found: list[str] = []
    ahead = path.split("/")[1:]
    at = ""
    while ahead and len(found) < _LINKS_MOST:
        name = ahead.pop(0)
        if name in {"", "."}:
            continue
        if name == "..":
            at = at.rpartition("/")[0]
            continue
        here = f"{at}/{name}"
        try:
            target = os.readlink(here)
        except OSError:
            at = here
            continue
        found.append(here)
        ahead = target.split("/") + ahead
        if target.startswith("/"):
            at = ""
    return tuple(dict.fromkeys((*found, at))) if found else ()


def _stamp(directory: str) -> tuple[int, int, int]:
    status = os.stat(directory)
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _place(path: str, file: FileId, status: os.stat_result, codec: str = "") -> Place:
    return Place(path, file, status.st_size, status.st_mtime_ns, status.st_nlink, codec)


def _copied_from(wanted: Examination, text: Text, size: int, head: bytes) -> Copy | Doubtful | None:
    doubtful = None
    for original in wanted.originals:
        verdict = _compare(text, size, head, original)
        if isinstance(verdict, Copy):
            return verdict
        doubtful = doubtful or verdict
    return doubtful if wanted.patient else None


def _compare(text: Text, size: int, head: bytes, original: Original) -> Copy | Doubtful | None:
    """Whether a file has the content of a known one, or had it before that one was truncated."""
    witness = original.witness
    holds = witness is not None and witness.fits(text)
    if not (holds or original.akin or witness is None) and witness.at <= size:
        return None  # what has its own bytes there is no copy of it
    may_hold = holds or (original.reading and original.akin)
    with suppress(OSError), open_text(original.path, "") as other:  # renamed, or gone: its content says what it is
        if identify(other.descriptor).same(original.file):
            least = original.position
            for _ in range(2):  # the second time to see that it was not truncated within the first
                now = other.size
                if now < least or not (witness is None or witness.fits(other)):
                    return Copy(original.source, 0, sure=False) if may_hold else None
                same = _same_beginning(text, size, head, other, original.source)
                if same is not None:
                    return same
                least = now
            # Both have all that is known, the same header perhaps: it was written to since, or truncated before that.
            later = other.status().st_mtime_ns >= text.status().st_mtime_ns
            return Doubtful() if holds and later and original.reading and original.akin else None
    return Copy(original.source, 0, sure=False) if holds else None


def _is_whole(text: Text, size: int) -> bool:
    """Whether a compressed file of `size` bytes is complete, if it is small enough to see."""
    position = 0
    with suppress(OSError):  # cut off: it is in the making
        while position <= _WHOLE_TEXT_BYTES and size <= _WHOLE_BYTES and (data := text.read(position, _WHOLE_BYTES)):
            position += len(data)
    return text.complete


def _compressed_of(text: Text, originals: Iterable[Original]) -> Copy | None:
    """Whether a compressed file has the content of a known one. Its text is read forward, once."""
    for original in sorted(originals, key=lambda each: each.position):
        with suppress(OSError):  # damaged, or not complete yet: its reader says so
            if original.witness is not None and original.witness.fits(text):
                return Copy(original.source, 0, sure=False)
    return None


def _has_one_of(place: Place, generations: Iterable[Known]) -> bool:
    """Whether a compressed file has the content of one of these. Its text is read forward, once."""
    witnesses = [known.witness for known in generations if known.witness is not None]
    try:
        with open_text(place.path, place.codec) as text:
            return any(witness.fits(text) for witness in sorted(witnesses, key=lambda witness: witness.at))
    except OSError:
        return False  # damaged or in the making: who examines it says so


def _same_beginning(text: Text, size: int, head: bytes, other: Text, source: str) -> Copy | None:
    if other.size < size or head != other.read(0, min(HEAD_BYTES, size)):
        return None
    at = max(0, size - COMPARED_BYTES)
    if text.read(at, size - at) != other.read(at, size - at):
        return None
    witness = witness_before(text, size)
    return None if witness is None else Copy(source, size, witness)  # None: both were truncated just now


def _unavailable(known: Known) -> bool:
    """Whether a file can not be looked for now: its log's directory is closed to us, or its file system not mounted.

    Then its directory is missing below another file system than the file's, or an empty mount point.
    """
    written_in = os.path.dirname(known.log)
    if os.path.isdir(written_in) and not os.access(written_in, os.R_OK | os.X_OK, effective_ids=True):
        return True
    directory = os.path.dirname(known.path)
    nearest = directory
    while not os.path.isdir(nearest) and nearest != "/":
        nearest = os.path.dirname(nearest)
    if os.stat(nearest).st_dev == known.file.device:
        return False
    return nearest != directory or not os.listdir(directory)
