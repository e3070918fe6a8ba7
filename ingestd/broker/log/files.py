"""Files that are whole or not there, descriptors within a bound, and the lock of a data directory."""

from __future__ import annotations

import errno
import fcntl
import os
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ingestd.broker.log.recent import RecentlyUsed
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "DirectoryLock",
    "OpenFiles",
    "make_directory",
    "no_room",
    "sync_directory",
    "write_all",
    "write_atomically",
    "write_replaceable",
]

INDEX_BYTES: Final = 64 << 20
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


def no_room(error: OSError) -> bool:
    """Whether the disk is full, or our share of it: what an operator, or we ourselves, can mend while we run."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


def make_directory(path: Path) -> None:
    """Make a directory that only its owner may enter, with its parents, if it is not there."""
    if path.is_dir():
        return
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def sync_directory(path: Path) -> None:
    """Make names that were added to or removed from a directory survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: memoryview, position: int) -> None:
    """Write everything at `position`, however many calls it takes. Raises `OSError`."""
    written = os.pwrite(descriptor, content, position)
    while written < len(content):
        # A short write is how a disk that fills up in the middle first shows; the next call says ENOSPC.
        step = os.pwrite(descriptor, content[written:], position + written)
        if step == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += step


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file's content: whatever happens, it is the old or the new, never a part. Raises `OSError`."""
    _replace(path, content, os.fsync)
    sync_directory(path.parent)


def write_replaceable(path: Path, content: bytes) -> None:
    """Replace a file that its reader can tell to be damaged and do without. Raises `OSError`.

    As `write_atomically`, but for a loss of power, after which it may be damaged: it costs no wait for the disk.
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
    """Descriptors of segment files, opened when used and closed when others were used since; at most `limit` open.

    `indexes` bounds the memory of what is known of the same files, `index_bytes` in all.

    Not for threads: a descriptor is good until the next call here. A thread works on an `os.dup` of it.
    """

    def __init__(self, limit: int, index_bytes: int = INDEX_BYTES) -> None:
        self.indexes = RecentlyUsed(index_bytes)
        self._limit = limit
        self._open: OrderedDict[Path, int] = OrderedDict()

    def get(self, path: Path) -> int:
        """The file's descriptor for reading and writing; the file is made when missing. Raises `OSError`."""
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        while len(self._open) >= self._limit:
            os.close(self._open.popitem(last=False)[1])
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        self._open[path] = descriptor
        return descriptor

    def close(self, path: Path) -> None:
        """Close one file, if it is open."""
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        """Close every file."""
        while self._open:
            os.close(self._open.popitem()[1])


class DirectoryLock:
    """One broker per data directory, held by the kernel until this process ends or closes it."""

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
        # Who holds it is said for people only, so a full disk is no reason to go without the lock.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let others have the directory."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
