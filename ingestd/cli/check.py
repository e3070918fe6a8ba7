"""`ingestd check`: what can be known of a configuration without starting anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ingestd.cli.configured import route_kinds
from ingestd.daemon.positions import PositionFile, PositionsUnavailable
from ingestd.daemon.source import Surroundings
from ingestd.daemon.state_files import nearest, unusable, without_room
from ingestd.errors import ConfigurationError, IngestdError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ingestd.client.client import Client
    from ingestd.daemon.configuration import Configuration

__all__ = ["check_directories", "check_positions", "warnings"]


def check_directories(configuration: Configuration) -> None:
    """The state directory, and those of embedded brokers, are directories where they are there at all.

    Raises `ConfigurationError`, naming the key.
    """
    for key, directory in _directories(configuration):
        there = nearest(directory)
        if not there.is_dir():
            raise ConfigurationError(f"{configuration.file}: {key}: {there} is not a directory; expected one")


def check_positions(configuration: Configuration) -> str | None:
    """The stored positions are such that a daemon would start with them; why they can not be read now, else None.

    Raises `PositionsDamaged`, as a start would.
    """
    file = PositionFile(configuration.daemon.state / "positions.sqlite")
    if not os.access(file.path, os.F_OK):
        return None
    try:
        stored = file.check()
    except PositionsUnavailable as error:
        return f"daemon.state: {error}"
    for route in configuration.routes:
        if route.name in stored:
            with file.naming(route.name):
                route.finder(
                    stored[route.name].positions, Surroundings(once=True, others=(), client=_no_client, host="")
                )
    return None


def _no_client(cluster: str) -> Client:
    raise IngestdError(f"{cluster}: no broker is asked")


def warnings(configuration: Configuration) -> Iterator[str]:
    """What keeps a start of this user from doing all that is configured. Another user may be allowed more."""
    for key, directory in _directories(configuration):
        there = nearest(directory)
        if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
            doing = "written" if there == directory else "created"
            yield f"{key}: {directory} can not be {doing} by this user"
    yield from unusable(configuration)
    yield from without_room(configuration)
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
