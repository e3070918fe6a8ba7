"""Directories as they were listed: where rotated files are, what they are called, and whether names shifted since."""

from __future__ import annotations

import itertools
import os
import sys
import time
from bisect import bisect_left
from contextlib import suppress
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from ingestd.tail.content import is_in_the_making
from ingestd.tail.file_id import lists_other_inodes
from ingestd.tail.rotation import beginnings_of, codec_of, is_rotation_of, may_have_been

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from ingestd.tail.globs import Globs

__all__ = [
    "Listing",
    "Moved",
    "Near",
    "Stamp",
    "files_in",
    "inodes_in",
    "is_unchanged",
    "joined",
    "settled_stamp",
    "stamp_of",
]

_TICK_NS: Final = 20_000_000
"""The clock of a file system's times may stand still for this long."""

_RUN_SECONDS: Final = 3600
"""A run of logrotate over many large logs lasts no longer than this."""

_Named = TypeVar("_Named", bound="tuple[str, *tuple[Any, ...]]")

_File: TypeAlias = tuple[str, str, int]
"""Base name, path, inode number."""

Stamp: TypeAlias = "tuple[int, int, int]"
"""A directory's device, inode and modification time (ns): names came or went if it is another one."""


class Near(NamedTuple):
    """Directories with the base name `called`; and `own` ones, with what is below them."""

    called: str
    own: tuple[str, ...]


class Moved:
    """The regular files where rotated ones are moved to, by inode number and by name. There may be years of them."""

    def __init__(self, globs: Globs) -> None:
        self._inodes: dict[int, list[str]] = {}
        self._by_age: list[tuple[int, str, int]] | None = None
        self._stamps: dict[str, Stamp | None] = {}
        found = self._list(globs)
        if not self.stands():
            found = joined(found, self._list(globs))
        for path, inode in found:
            self._inodes.setdefault(inode, []).append(path)
        paths = {path for path, _ in found}
        self._names = sorted(
            (os.path.basename(path), path, inode)
            for path, inode in found
            if _plain(path) not in paths or not is_in_the_making(path)
        )

    def _list(self, globs: Globs) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        stamps: dict[str, Stamp | None] = {}
        inodes: dict[str, Callable[[os.DirEntry[str]], int]] = {}

        def entered(directory: str) -> None:
            stamps[directory] = settled_stamp(directory)
            with suppress(OSError):  # it is gone, or closed to us: nothing of it is listed
                inodes[directory] = inodes_in(directory)

        roots = {pattern.text: pattern.root for pattern in globs.patterns}

        def not_listed(thing: str, _: str) -> None:
            """A directory, or a glob that matches nothing. The stamp of a directory that was listed tells of news."""
            if roots.get(thing) not in stamps:
                stamps[thing] = None  # it may be there the next time, or open to us

        for entry in globs.walk(entered, not_listed):
            if not entry.is_file(follow_symlinks=False) or entry.name.endswith(".tmp"):
                continue  # what a link leads to was not moved here; what is in the making was not either
            inode = inodes.get(os.path.dirname(entry.path), _listed)(entry)
            found.append((entry.path, inode))
        self._stamps = stamps
        return found

    def stands(self) -> bool:
        """Whether all directories are as they were listed, for sure."""
        return all(is_unchanged(path, stamp) for path, stamp in self._stamps.items())

    def forget_ages(self) -> None:
        """What was modified since then counts from now on."""
        self._by_age = None

    def under(self, inode: int) -> list[str]:
        """The paths of the file with this inode number."""
        return self._inodes.get(inode, [])

    def rotations(self, originals: Iterable[str], near: Near | None = None) -> Iterator[tuple[str, int]]:
        """What these names may have been rotated to, anywhere or in what is near: paths, inode numbers."""
        places = [self._names] if near is None else self._directories.near(near)
        for names, original in itertools.product(places, originals):
            for stem in beginnings_of(original):
                for name, path, inode in _beginning_with(stem, names):
                    if may_have_been(name, original):
                        yield path, inode

    @cached_property
    def _directories(self) -> _Directories:
        return _Directories(self._names)

    def later_than(self, modified: int, part: str = "") -> Iterator[tuple[str, int]]:
        """What was modified in the second of `modified` (ns) or later: paths with this part, inode numbers.

        A copy, or what was moved here from another file system, is never older than what it was made of; but what
        logrotate compressed may be, by as long as its run took. There may be years of archives here.
        """
        if self._by_age is None:
            self._by_age = sorted(self._ages())
        since = modified // 10**9
        at = bisect_left(self._by_age, since - _RUN_SECONDS, key=itemgetter(0))
        for age, path, inode in itertools.islice(self._by_age, at, None):
            if part in path and (age >= since or codec_of(path)):
                yield path, inode

    def _ages(self) -> Iterator[tuple[int, str, int]]:
        for _, path, inode in self._names:
            try:
                modified = os.stat(path, follow_symlinks=False).st_mtime_ns // 10**9
            except FileNotFoundError:
                modified = sys.maxsize  # it is elsewhere by now: who looks at it sees that
            yield modified, path, inode


class _Directories:
    """Files by the directories that they are in. There are as many of these as logs."""

    def __init__(self, files: Iterable[_File]) -> None:
        self._files: dict[str, list[_File]] = {}
        for each in files:
            self._files.setdefault(os.path.dirname(each[1]), []).append(each)
        self._below = sorted((f"{directory}/", directory) for directory in self._files)
        self._called: dict[str, list[str]] = {}
        for directory in self._files:
            self._called.setdefault(os.path.basename(directory), []).append(directory)

    def near(self, near: Near) -> list[list[_File]]:
        """The files of each directory that is near, by name."""
        below = (found for own in near.own for _, found in _beginning_with(f"{own}/", self._below))
        return [self._files[each] for each in dict.fromkeys((*self._called.get(near.called, ()), *below))]


class Listing:
    """The regular files of one directory, by inode number and by name."""

    def __init__(self, directory: str, stamp: Stamp | None, files: Iterable[tuple[str, int]]) -> None:
        """`files`: names and inode numbers; where names shifted, one name may have been that of several files.

        `stamp`: of the directory before it was listed, if that says whether it has changed since.
        """
        self._directory = directory
        self._stamp = stamp
        self._names = sorted(files)
        self._inodes: dict[int, list[str]] = {}
        for name, inode in self._names:
            self._inodes.setdefault(inode, []).append(name)

    def stands(self) -> bool:
        """Whether the directory is as it was listed, for sure."""
        return is_unchanged(self._directory, self._stamp)

    def under(self, inode: int) -> list[str]:
        """The paths of the file with this inode number."""
        return [f"{self._directory}/{name}" for name in self._inodes.get(inode, ())]

    def named(self, name: str) -> Iterator[tuple[str, int]]:
        """The file with this name: path, inode number."""
        for found, inode in _beginning_with(name, self._names):
            if found != name:
                return
            yield f"{self._directory}/{name}", inode

    def rotations(self, originals: Iterable[str]) -> Iterator[tuple[str, int]]:
        """What looks like rotations of these names: paths, inode numbers. Not what is compressed and in the making."""
        for original in originals:
            found = [each for stem in beginnings_of(original) for each in _beginning_with(stem, self._names)]
            for name, inode in found:
                if not is_rotation_of(name, original) or name.endswith(".tmp"):
                    continue
                plain, path = _plain(name), f"{self._directory}/{name}"
                if not plain or plain == original or not any(self.named(plain)) or not is_in_the_making(path):
                    yield path, inode


def _plain(name: str) -> str:
    """What a compressed file was called before, by its name or path; empty for another one."""
    return name.rpartition(".")[0] if codec_of(name) else ""


def _beginning_with(stem: str, names: Sequence[_Named]) -> Iterator[_Named]:
    """The entries of `names`, which is sorted, whose name begins with `stem`."""
    at = bisect_left(names, stem, key=itemgetter(0))
    while at < len(names) and names[at][0].startswith(stem):
        yield names[at]
        at += 1


def joined(first: Iterable[tuple[str, int]], second: Collection[tuple[str, int]]) -> list[tuple[str, int]]:
    """Two listings of the same: names or paths, inode numbers. What was renamed while one was made is in the other.

    The name that a file had the first time may be another file's the second time.
    """
    here = {inode for _, inode in second}
    return [*(each for each in first if each[1] not in here), *second]


def files_in(directory: str) -> dict[str, int]:
    """Names and inode numbers of the regular files in a directory; none where it is gone, or closed to us.

    Raises `OSError` for every other reason: what can not be looked at now may be there.
    """
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(directory) as entries:
        inode = inodes_in(directory)
        return {entry.name: inode(entry) for entry in entries if entry.is_file(follow_symlinks=False)}
    return {}


def inodes_in(directory: str) -> Callable[[os.DirEntry[str]], int]:
    """What says the inode numbers of the files that are listed in a directory. Raises `OSError`."""
    return _asked if lists_other_inodes(directory) else _listed


def _listed(entry: os.DirEntry[str]) -> int:
    return entry.inode()


def _asked(entry: os.DirEntry[str]) -> int:
    """An overlay whose layers are on several file systems lists a file that was written to under its layer's number."""
    try:
        return entry.stat(follow_symlinks=False).st_ino
    except FileNotFoundError:
        return entry.inode()  # it has another name by now


def stamp_of(directory: str) -> Stamp:
    """The stamp of a directory now. Raises `OSError`."""
    status = os.stat(directory)
    return status.st_dev, status.st_ino, status.st_mtime_ns


def settled_stamp(directory: str) -> Stamp | None:
    """The stamp of a directory; None where it may still change without another one, or there is no directory."""
    with suppress(OSError):
        stamp = stamp_of(directory)
        return stamp if stamp[2] < time.time_ns() - _TICK_NS else None
    return None


def is_unchanged(directory: str, stamp: Stamp | None) -> bool:
    """Whether a directory is there and has this stamp. None, as of one that was not settled, is never the same."""
    with suppress(OSError):
        return stamp is not None and stamp_of(directory) == stamp
    return False
