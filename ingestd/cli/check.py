"""`ingestd check`: what can be known of a configuration without starting anything."""

from __future__ import annotations

import os
import stat
from itertools import islice
from typing import TYPE_CHECKING, Final

from ingestd.errors import ConfigurationError
from ingestd.tail.route import TailRoute

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ingestd.daemon.configuration import Configuration

__all__ = ["check_directories", "warnings"]

_MOST_SAID: Final = 10
"""Warnings about one tail: a directory of thousands of files that this user may not read is one fault."""


def check_directories(configuration: Configuration) -> None:
    """The state directory, and those of embedded brokers, are directories where they are there at all.

    Raises `ConfigurationError`, naming the key.
    """
    for key, directory in _directories(configuration):
        there = _nearest(directory)
        if not there.is_dir():
            raise ConfigurationError(f"{configuration.file}: {key}: {there} is not a directory; expected one")


def warnings(configuration: Configuration) -> Iterator[str]:
    """What keeps a start of this user from doing all that is configured. Another user may be allowed more."""
    for key, directory in _directories(configuration):
        there = _nearest(directory)
        if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
            doing = "written" if there == directory else "created"
            yield f"{key}: {directory} can not be {doing} by this user"
    for name, cluster in configuration.clusters.items():
        if not cluster.embedded:
            try:
                configuration.check_security(name)
            except ConfigurationError as error:
                yield str(error).removeprefix(f"{configuration.file}: ")
    owners: dict[tuple[int, int], str] = {}
    for route in configuration.routes:
        if isinstance(route, TailRoute):
            found = _of_tail(route, owners)
            yield from islice(found, _MOST_SAID)
            more = sum(1 for _ in found)
            if more:
                yield f"tails.{route.name}.paths: {more} more like these"


def _directories(configuration: Configuration) -> Iterator[tuple[str, Path]]:
    state = configuration.daemon.state
    yield "daemon.state", state
    for name, cluster in configuration.clusters.items():
        if cluster.embedded and cluster.data is not None:
            yield f"clusters.{name}.data", cluster.data


def _nearest(path: Path) -> Path:
    """The path, or the nearest above it that is there."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def _of_tail(route: TailRoute, owners: dict[tuple[int, int], str]) -> Iterator[str]:
    """What of the files that a tail's globs match now it does not take. `owners` are the tails of those before."""
    key = f"tails.{route.name}.paths"
    troubles: list[str] = []

    def trouble(thing: str, reason: str) -> None:
        troubles.append(f"{key}: {thing}: {reason}")

    for entry in route.globs.walk(lambda _: None, trouble):
        try:
            found = entry.stat()
        except OSError as error:
            yield f"{key}: {entry.path}: {error.strerror}"
            continue
        owner = owners.setdefault((found.st_dev, found.st_ino), route.name)
        if stat.S_ISDIR(found.st_mode):
            yield f'{key}: {entry.path} is a directory; expected files, as in "{entry.path}/*"'
        elif not stat.S_ISREG(found.st_mode):
            yield f"{key}: {entry.path} is no regular file"
        elif owner != route.name:
            yield f"{key}: {entry.path} is [tails.{owner}]'s too, which takes it"
        elif not os.access(entry.path, os.R_OK):
            yield f"{key}: {entry.path} can not be read by this user"
    yield from troubles
