"""Atomic writes of files, a bounded set of open descriptors, and the lock of a data directory."""

from __future__ import annotations

import errno
import fcntl
import os
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ingestd.broker.descriptors import end_of_segments
from ingestd.broker.log.recent import RecentlyUsed
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "DirectoryLock",
    "OpenFiles",
    "make_directory",
    "make_lasting_directory",
    "no_room",
    "sync_directory",
    "write_all",
    "write_atomically",
    "write_replaceable",
    "write_whole",
]

INDEX_BYTES: Final = 64 << 20
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


def no_room(error: OSError) -> bool:
    """Whether the disk or a quota is full: something that an operator, or retention, can mend while the broker runs."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


def make_directory(path: Path) -> None:
    """Make a directory that only its owner may enter, with its parents, if it does not exist.

    Raises `NotADirectoryError` if there is something else, and other `OSError`.
    """
    if path.is_dir():
        return
    if path.exists():
        raise NotADirectoryError(errno.ENOTDIR, "it is a file; expected a directory, or a name for a new one", path)
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def make_lasting_directory(path: Path) -> None:
    """As `make_directory`, and a loss of power does not take it. Raises `OSError`."""
    missing = [one for one in (path, *path.parents) if not one.is_dir()]
    make_directory(path)
    for made in missing:
        sync_directory(made.parent)


def sync_directory(path: Path) -> None:
    """Fsync a directory, so that added and removed names survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: memoryview, position: int) -> None:
    """Write everything at `position`, in as many calls as needed. Raises `OSError`."""
    written = os.pwrite(descriptor, content, position)
    while written < len(content):
        # A disk that becomes full in the middle first gives a short write. The next call raises ENOSPC.
        step = os.pwrite(descriptor, content[written:], position + written)
        if step == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += step


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file's content. Whatever happens, it has the old or the new content, never a part. Raises `OSError`."""
    write_whole(path, content)
    sync_directory(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """As `write_atomically`. But a loss of power may bring the old content back until the directory is synced."""
    _replace(path, content, os.fsync)


def write_replaceable(path: Path, content: bytes) -> None:
    """Replace a file whose reader notices damage and can do without the file. Raises `OSError`.

    As `write_atomically`, but without waiting for the disk: after a loss of power the file may be damaged.
    """
    _replace(path, content, lambda _descriptor: None)


def _replace(path: Path, content: bytes, settle: Callable[[int], None]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        try:
            write_all(descriptor, memoryview(content), 0)
            settle(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


class OpenFiles:
    """Descriptors of segment files. Opened when used; at most `limit` are open, the last used ones.

    If clients took most of the descriptors, fewer are open: some are left for what else the broker opens.

    `indexes` bounds the memory of the same files' indexes to `index_bytes` in all.

    Not for threads: a descriptor is valid until the next call here. A thread works on an `os.dup` of it.
    """

    def __init__(self, limit: int, index_bytes: int = INDEX_BYTES) -> None:
        self.indexes = RecentlyUsed(index_bytes)
        self._limit = limit
        self._open: OrderedDict[Path, int] = OrderedDict()

    def get(self, path: Path) -> int:
        """The file's descriptor for reading and writing. The file is made if it is missing. Raises `OSError`."""
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        while len(self._open) >= self._limit:
            self._close_oldest()
        descriptor = _open(path)
        if self._open and descriptor >= end_of_segments():
            os.close(descriptor)
            self._close_oldest()
            descriptor = _open(path)
        self._open[path] = descriptor
        return descriptor

    def _close_oldest(self) -> None:
        os.close(self._open.popitem(last=False)[1])

    def close(self, path: Path) -> None:
        """Close one file, if it is open."""
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        """Close every file."""
        while self._open:
            os.close(self._open.popitem()[1])


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)


class DirectoryLock:
    """A lock that allows one broker per data directory. The kernel holds it until this process ends or closes it."""

    def __init__(self, directory: Path) -> None:
        path = directory / ".lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise ConfigurationError(f"{directory}: in use by another broker (process {holder})") from None
        self._descriptor = descriptor
        # The holder's name is only for people. If the disk is full it is left out; the lock is held all the same.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the directory."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
