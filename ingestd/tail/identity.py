"""Identity: knows a file again by what is in it; device and inode are only hints.

A file that is followed only grows. So its first bytes, and any bytes once read at a place, stay what they were: a
hash of the first ones (`Fingerprint`) and of the last ones read (`Witness`) tell a file from one that took its name or
its inode, from one with the same header, and from itself after it was truncated and written anew.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

__all__ = [
    "HEAD_BYTES",
    "WITNESS_BYTES",
    "Fingerprint",
    "Identity",
    "Nearby",
    "Witness",
    "birth_of",
    "find_again",
    "is_rotation_of",
    "name_source",
    "opened",
    "possible_originals",
    "printable",
    "regular_files",
    "rotated_from",
    "same_content",
    "stored_path",
]

HEAD_BYTES: Final = 1024
"""A fingerprint covers at most this many bytes from the start of a file."""

WITNESS_BYTES: Final = 256
"""A witness covers at most this many bytes before a place in a file."""

_ADDED: Final = re.compile(r"\d|\b(old|prev|bak)\b|~$")
"""What rotation adds to a name."""

_NOT_UTF8: Final = "bytes:"

_SHORTAGE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What is short is short for every file: such an error says nothing of the one that was asked for."""

_births = itertools.count(time.time_ns())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The hash of the first `length` bytes of a file."""

    length: int
    digest: str

    @classmethod
    def of(cls, head: bytes) -> Fingerprint:
        """The fingerprint of a file that begins with `head`; no more than `HEAD_BYTES` of it count."""
        head = head[:HEAD_BYTES]
        return cls(len(head), _digest(head))

    def fits(self, head: bytes) -> bool:
        """Whether a file that begins with `head` (its first `HEAD_BYTES`, or all of it) may be the file of this."""
        return len(head) >= self.length and _digest(head[: self.length]) == self.digest


@dataclass(frozen=True, slots=True)
class Witness:
    """The hash of the `length` bytes before position `at`."""

    at: int
    length: int
    digest: str

    @classmethod
    def of(cls, at: int, data: bytes) -> Witness:
        """The witness of `data`, which ends at position `at`."""
        return cls(at, len(data), _digest(data))

    def fits(self, descriptor: int) -> bool:
        """Whether the open file has these bytes there. Raises `OSError`."""
        data = os.pread(descriptor, self.length, self.at - self.length)
        return len(data) == self.length and _digest(data) == self.digest


@dataclass(frozen=True, slots=True)
class Identity:
    """What is stored of a file so that it is known again.

    `origin` is the path it was found under first; `size` its bytes when last looked at; `copy`: whether it is the copy
    that was made of the followed file before that was truncated, so that no more will come of it.
    """

    path: str
    origin: str
    device: int
    inode: int
    fingerprint: Fingerprint
    witness: Witness | None = None
    size: int = 0
    copy: bool = False

    def to_detail(self) -> dict[str, Any]:
        """As JSON values, for `Found.detail`."""
        detail: dict[str, Any] = {
            "path": _to_text(self.path),
            "origin": _to_text(self.origin),
            "device": self.device,
            "inode": self.inode,
            "fingerprint": self.fingerprint.digest,
            "fingerprint_bytes": self.fingerprint.length,
            "size": self.size,
        }
        if self.copy:
            detail["copy"] = True
        if self.witness is not None:
            detail["witness"] = self.witness.digest
            detail["witness_at"] = self.witness.at
            detail["witness_bytes"] = self.witness.length
        return detail

    @classmethod
    def from_detail(cls, detail: Mapping[str, Any]) -> Identity:
        """From what `to_detail` made. Raises `KeyError` or `ValueError` for anything else."""
        witness = None
        if "witness" in detail:
            witness = Witness(int(detail["witness_at"]), int(detail["witness_bytes"]), str(detail["witness"]))
        path = stored_path(str(detail["path"]))
        return cls(
            path=path,
            origin=stored_path(str(detail.get("origin", path))),
            device=int(detail["device"]),
            inode=int(detail["inode"]),
            fingerprint=Fingerprint(int(detail["fingerprint_bytes"]), str(detail["fingerprint"])),
            witness=witness,
            size=int(detail.get("size", 0)),
            copy=bool(detail.get("copy", False)),
        )

    def at(self, path: str, status: os.stat_result) -> Identity:
        """The same file, now found at `path`."""
        return replace(self, path=path, device=status.st_dev, inode=status.st_ino)

    def read_to(self, descriptor: int, position: int) -> Identity:
        """The same file, open here, known by what is in it before `position` too. Raises `OSError`."""
        length = min(position, WITNESS_BYTES)
        witness = Witness.of(position, os.pread(descriptor, length, position - length)) if length else None
        return replace(self, fingerprint=Fingerprint.of(os.pread(descriptor, HEAD_BYTES, 0)), witness=witness)

    def is_at(self, status: os.stat_result) -> bool:
        """Whether device and inode, the hints, say that it is this file."""
        return (status.st_dev, status.st_ino) == (self.device, self.inode)

    def is_in(self, descriptor: int, position: int) -> bool:
        """Whether the open file has the content of this one, up to `position` at least. Raises `OSError`."""
        if os.fstat(descriptor).st_size < position:
            return False
        if not self.fingerprint.fits(os.pread(descriptor, HEAD_BYTES, 0)):
            return False
        return self.witness is None or self.witness.fits(descriptor)


def name_source(status: os.stat_result, fingerprint: Fingerprint) -> str:
    """A name for a file found for the first time; no two calls give the same."""
    return f"{status.st_dev:x}-{status.st_ino:x}-{fingerprint.digest[:8]}-{next(_births):x}"


def printable(path: str) -> str:
    """A path that may not be UTF-8, for people."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _to_text(path: str) -> str:
    """A path as JSON can hold it: as it is, or its bytes if they are not UTF-8."""
    return path if printable(path) == path else _NOT_UTF8 + os.fsencode(path).hex()


def stored_path(text: str) -> str:
    """A path from what is stored for it in a detail. Raises `ValueError` for what no path is stored as."""
    return os.fsdecode(bytes.fromhex(text.removeprefix(_NOT_UTF8))) if text.startswith(_NOT_UTF8) else text


@contextmanager
def opened(path: str) -> Iterator[int]:
    """A descriptor of the file at `path`, closed at the end; never blocks on a FIFO. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def birth_of(source: str) -> int:
    """A number that is larger for sources named later; 0 for a name that is not of `name_source`."""
    try:
        return int(source.rpartition("-")[2], 16)
    except ValueError:
        return 0


def is_rotation_of(name: str, original: str) -> bool:
    """Whether a file name looks like a rotated `original`: access.log.1, access.log-20260101, access-20260101.log."""
    if name == original:
        return False
    if name.startswith(original):
        return True
    stem, dot, extension = original.rpartition(".")
    return (
        bool(dot and stem) and name.startswith((stem + "-", stem + ".", stem + "_")) and name.endswith(dot + extension)
    )


def rotated_from(path: str) -> list[str]:
    """The paths that a file at `path` may have been rotated from, if its name has a number, a date, or `old` added."""
    directory, name = os.path.split(path)
    return [
        os.path.join(directory, original)
        for original in possible_originals(name)
        if _ADDED.search(name[_common_prefix(name, original) :]) and is_rotation_of(name, original)
    ]


def _common_prefix(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def possible_originals(name: str) -> Iterator[str]:
    """All names that `is_rotation_of(name, …)` holds for, and some more."""
    stem, dot, extension = name.rpartition(".")
    for end in range(len(name) - 1, 0, -1):
        yield name[:end]
        if dot and end < len(stem) and name[end] in "-._":
            yield name[:end] + dot + extension


def regular_files(directory: str) -> list[os.DirEntry[str]]:
    """The regular files of a directory; none when it can not be read, for then nothing can be found in it.

    Raises `OSError` for want of descriptors or memory: that says nothing of the directory.
    """
    try:
        with os.scandir(directory) as entries:
            return [entry for entry in entries if entry.is_file(follow_symlinks=False)]
    except OSError as error:
        if error.errno in _SHORTAGE:
            raise
        return []


_FEW: Final = 8
"""So many names are compared with one faster than all that it may come from are listed."""

Places: TypeAlias = list[tuple[str, os.stat_result]]


class Nearby:
    """The regular files beside those that are looked for: each directory is read once, however many are.

    What is found is as old as the first look at its directory.
    """

    def __init__(self, sought: Iterable[Identity]) -> None:
        """`sought`: all that `of` will be asked about."""
        self._originals = {os.path.basename(path) for identity in sought for path in (identity.path, identity.origin)}
        self._files: dict[str, dict[tuple[int, int], Places]] = {}
        self._rotations: dict[tuple[str, str], Places] = {}

    def of(self, identity: Identity) -> tuple[Places, Places]:
        """What lies in the directory of a file's path: under its inode, and as its rotations.

        Raises `OSError` where one of the files there can not be looked at.
        """
        directory, original = os.path.split(identity.path)
        if directory not in self._files:
            self._files[directory] = self._read(directory)
        same = self._files[directory].get((identity.device, identity.inode), [])
        names = {original, os.path.basename(identity.origin)}
        rotated = {path: status for name in names for path, status in self._rotations.get((directory, name), ())}
        return same, list(rotated.items())

    def _read(self, directory: str) -> dict[tuple[int, int], Places]:
        files: dict[tuple[int, int], Places] = {}
        rotations: dict[tuple[str, str], Places] = {}
        for entry in regular_files(directory):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            files.setdefault((status.st_dev, status.st_ino), []).append((entry.path, status))
            likely = self._originals
            if len(likely) > _FEW:
                likely = likely.intersection(possible_originals(entry.name))
            for original in likely:
                if is_rotation_of(entry.name, original):
                    rotations.setdefault((directory, original), []).append((entry.path, status))
        self._rotations |= rotations
        return files


def find_again(
    identity: Identity, position: int, *, besides: Container[tuple[int, int]], nearby: Nearby | None = None
) -> tuple[str, os.stat_result] | None:
    """Where the content of a file that is no longer at its path lies now: renamed, or copied before it was truncated.

    Looks in the directory of its path, the same inode first, then its rotations, the newest first; never at the files
    `besides` (device, inode). `nearby` is for who looks for many. Raises `OSError` where one of them can not be looked
    at, and where descriptors or memory are short: then nothing is known, and who asks may ask again.
    """
    same, rotated = (nearby or Nearby([identity])).of(identity)
    rotated.sort(key=lambda found: found[1].st_mtime_ns, reverse=True)
    for path, status in same + rotated:
        if (status.st_dev, status.st_ino) in besides:
            continue
        try:
            with opened(path) as descriptor:
                if identity.is_in(descriptor, position):
                    return path, status
        except OSError as error:
            if error.errno in _SHORTAGE:
                raise
            continue  # gone or unreadable: the content can not be found there
    return None


def same_content(copy: int, original: int) -> bool:
    """Whether the open `copy` is a copy of the beginning of the open `original`, as far as its two ends tell."""
    size = os.fstat(copy).st_size
    if not size or os.fstat(original).st_size < size:
        return False
    if os.pread(copy, HEAD_BYTES, 0) != os.pread(original, min(HEAD_BYTES, size), 0):
        return False
    start = max(0, size - HEAD_BYTES)
    return os.pread(copy, size - start, start) == os.pread(original, size - start, start)
