"""`ingestd check`: what can be known of a configuration without starting anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ingestd.cli.configured import route_kinds
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ingestd.daemon.configuration import Configuration

__all__ = ["check_directories", "warnings"]


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
    for name, pipeline in configuration.pipelines.items():
        yield from (f"pipelines.{name}.{warning}" for warning in pipeline.warnings())
    for kind in route_kinds().values():
        yield from kind.warnings([route for route in configuration.routes if type(route) is kind])


def _directories(configuration: Configuration) -> Iterator[tuple[str, Path]]:
    state = configuration.daemon.state
    yield "daemon.state", state
    for name, cluster in configuration.clusters.items():
        if cluster.embedded and cluster.data is not None:
            yield f"clusters.{name}.data", cluster.data


def _nearest(path: Path) -> Path:
    """The path, or the nearest above it that is there."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))
