"""`ingestd check`: what can be known of a configuration without starting anything."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

from ingestd.cli.configured import route_kinds
from ingestd.daemon.configuration import NOTHING_TO_RUN
from ingestd.daemon.listening import unlistenable
from ingestd.daemon.positions import PositionFile, PositionsUnavailable
from ingestd.daemon.source import Surroundings
from ingestd.daemon.state_files import host_id, nearest, unusable, without_room
from ingestd.errors import ConfigurationError, IngestdError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ingestd.client.client import Client
    from ingestd.daemon.configuration import Configuration

__all__ = ["check_positions", "check_start", "warnings"]


def check_start(configuration: Configuration) -> list[str]:
    """Refuse the files and directories that a start would end with 2 for. The result: warnings about security.

    Raises `ConfigurationError`, naming the keys.
    """
    problems = []
    for key, directory in _directories(configuration):
        there = nearest(directory)
        if not there.is_dir():
            problems.append(f"{key}: {there} is not a directory; expected one")
    problems += unusable(configuration)
    problems += unlistenable(configuration)
    if os.access(configuration.daemon.state / "host", os.R_OK):
        with _noting(problems):
            host_id(configuration.daemon.state)
    warned: list[str] = []
    for name, cluster in configuration.clusters.items():
        if not cluster.embedded:
            _check_security(configuration, name, problems, warned)
    if problems:
        raise ConfigurationError("\n".join(f"{configuration.file}: {problem}" for problem in problems))
    return warned


@contextlib.contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    """Note the `ConfigurationError` that the block ends with, if it does."""
    try:
        yield
    except ConfigurationError as error:
        problems.append(str(error))


def _check_security(configuration: Configuration, name: str, problems: list[str], warned: list[str]) -> None:
    """Add what is wrong with a cluster's security to `problems`, or to `warned` where a start may do without.

    A start reads nothing of a cluster that no route uses. A service may have variables that this process does not have.
    """
    is_used = any(name in route.clusters for route in configuration.routes)
    secrets = configuration.clusters[name].secrets()
    with _logged() as logged:
        found = configuration.security_problems(name)
    warned += (f"clusters.{name}: {line}" for line in logged)
    for key, problem in found:
        is_variable = key in secrets and secrets[key].environment is not None
        said = problems if is_used and not is_variable else warned
        said.append(f"clusters.{name}.{key}: {problem}")


class _Lines(logging.Handler):
    """Keeps the messages that are logged."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """What is logged meanwhile, and would be logged at a start. It goes nowhere else."""
    handler, log = _Lines(logging.WARNING), logging.getLogger("ingestd")
    log.addHandler(handler)
    log.propagate, before = False, log.propagate
    try:
        yield handler.lines
    finally:
        log.propagate = before
        log.removeHandler(handler)


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
    if not (configuration.runs or configuration.pipelines):
        yield NOTHING_TO_RUN
    for key, directory in _directories(configuration):
        there = nearest(directory)
        if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
            doing = "written" if there == directory else "created"
            yield f"{key}: {directory} can not be {doing} by this user"
    yield from without_room(configuration)
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
