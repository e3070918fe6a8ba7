"""State files: those that a daemon finds in its state directory must be its user's. A trial as root leaves root's.

And there must be room for what it writes.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ingestd.daemon.configuration import Configuration

__all__ = ["host_id", "nearest", "require_usable", "unusable", "without_room", "write_whole"]

ROOM: Final = 1 << 20
"""Bytes that must be free: for `positions.sqlite`, the files that SQLite makes beside it, and an embedded broker's."""


def require_usable(configuration: Configuration) -> None:
    """Raises `ConfigurationError` if there is anything `unusable`.

    SQLite would open positions that it can not write, and each store would fail.
    """
    problems = list(unusable(configuration))
    if problems:
        raise ConfigurationError("\n".join(problems))


def unusable(configuration: Configuration) -> Iterator[str]:
    """What the daemon needs of its state, and of embedded brokers' data, and this user can not write or read.

    What is not there yet is not said, nor what others keep there.
    """
    for key, directory, files in _needed(configuration):
        # `Path.exists` raises below a directory that is closed to this user.
        there = [path for path in files if os.access(path, os.F_OK)]
        unwritable = [path for path in there if not os.access(path, _access_to(path))]
        if unwritable:
            named = ", ".join(map(str, unwritable))
            if os.statvfs(directory).f_flag & os.ST_RDONLY:
                yield f"{key}: {directory} is mounted read-only; mount it to be written to (`rw`), or name another one"
                continue
            remedy = f"chown -R USER {directory} gives the daemon's user all of it"
            yield f"{key}: {named} can not be written by this user; {remedy}"


def without_room(configuration: Configuration) -> Iterator[str]:
    """The directories that have no space for what the daemon writes: its state, and embedded brokers' data."""
    for key, directory, _ in _needed(configuration):
        try:
            disk = os.statvfs(nearest(directory))
        except OSError:
            continue  # it went just now, or its disk fails: whoever writes there says so
        free = disk.f_bavail * disk.f_frsize
        if not disk.f_blocks:
            yield f"{key}: {directory} is on a file system without any space, as /proc is one; expected one on a disk"
        elif free < ROOM:
            sizes = f"{free >> 10} KiB are free on its disk, {ROOM >> 10} KiB are needed"
            yield f"{key}: not enough space in {directory}: {sizes}; make room there"


def host_id(state: Path) -> str:
    """This daemon's name among those of other hosts, which its first start wrote.

    Raises `ConfigurationError` if the file was damaged, `OSError`.
    """
    file = state / "host"
    name = file.read_bytes().strip()
    if not re.fullmatch(rb"[!-~]+", name):
        raise ConfigurationError(
            f"{file}: expected this daemon's name among other hosts, found {name[:40]!r}; delete it for a new one"
        )
    return name.decode()


def write_whole(path: Path, text: str) -> None:
    """Make a file with this text, for its owner alone, or put it in the place of the one that is there.

    Raises `OSError`, naming the file.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.touch(mode=0o600)
        fresh.write_text(text)
        fresh.rename(path)
    except OSError as error:  # that of a write names no file
        raise OSError(error.errno, error.strerror, str(path)) from error


def nearest(path: Path) -> Path:
    """The path, or the nearest above it that is there."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def _needed(configuration: Configuration) -> Iterator[tuple[str, Path, list[Path]]]:
    """What is needed: the key of a directory, the directory, and what is needed in it."""
    state = configuration.daemon.state
    names = ["lock", "host", "positions.sqlite", "positions.sqlite-wal", "positions.sqlite-shm"]
    needed = [state / name for name in names]
    elsewhere = []
    for name, cluster in configuration.clusters.items():
        if not cluster.embedded:
            continue
        if cluster.data is None:
            data = cluster.data_directory(state)
            needed += [data.parent, data, data / ".lock"]
        else:
            elsewhere.append((f"clusters.{name}.data", cluster.data, [cluster.data / ".lock"]))
        needed.append(state / "clusters")
    yield "daemon.state", state, list(dict.fromkeys(needed))
    yield from elsewhere


def _access_to(path: Path) -> int:
    if path.is_dir():
        return os.R_OK | os.W_OK | os.X_OK
    return os.R_OK if path.name == "host" else os.R_OK | os.W_OK  # nobody writes to `host` once it is there
