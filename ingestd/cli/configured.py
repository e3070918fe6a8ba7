"""Configuration for the verbs: which route class each table is, and the cluster that a tool shall talk to."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ingestd.checks import parse_address
from ingestd.cli.properties import Properties
from ingestd.cli.reaching import saying_who_is_not_reached
from ingestd.client.client import Client
from ingestd.client.settings import ClientSettings
from ingestd.errors import ConfigurationError
from ingestd.records.loops import say_if_plain
from ingestd.wire.connection import ConnectionSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from ingestd.daemon.configuration import Configuration
    from ingestd.daemon.source import Route

__all__ = [
    "FIRST_ANSWER_TIMEOUT",
    "ClusterAccess",
    "cluster_access",
    "configured_access",
    "load_configuration",
    "route_kinds",
]

FIRST_ANSWER_TIMEOUT: Final = 30.0
"""Seconds that a tool waits for a first answer unless it is told otherwise."""

_PORT: Final = 9092


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """How a tool reaches its cluster: whom to ask first, how connections are made and secured, how long to wait."""

    bootstrap: tuple[str, ...]
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    timeout: float = FIRST_ANSWER_TIMEOUT
    """Seconds that the cluster has for a first answer."""
    properties: Properties = field(default_factory=Properties)
    """What else a tool was told of how to produce and consume."""

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of the cluster, which has answered; closed at the end.

        Brokers that it can not reach are said on standard error. Raises `DeadlineExceeded` when none answered in time,
        `AuthenticationFailed`.
        """
        say_if_plain()
        settings = ClientSettings(self.connection)
        async with Client(self.bootstrap, settings) as client, saying_who_is_not_reached(client, self.bootstrap):
            await client.metadata.refresh((), self.timeout)
            yield client


class _RouteKinds(Mapping[str, "type[Route]"]):
    """Imports a kind when it is looked up: a daemon without tails needs nothing of them."""

    def __getitem__(self, section: str) -> type[Route]:
        if section == "tails":
            from ingestd.tail.route import TailRoute  # noqa: PLC0415

            return TailRoute
        if section == "mirrors":
            from ingestd.mirror.route import MirrorRoute  # noqa: PLC0415

            return MirrorRoute
        raise KeyError(section)

    def __iter__(self) -> Iterator[str]:
        return iter(("tails", "mirrors"))

    def __len__(self) -> int:
        return 2


def route_kinds() -> Mapping[str, type[Route]]:
    """The tables of routes that a configuration file may have, and what each is made into."""
    return _RouteKinds()


def load_configuration(path: Path) -> Configuration:
    """The daemon's configuration in a file, all route kinds known. Raises `FaultyConfiguration`."""
    from ingestd.daemon.configuration_file import load  # noqa: PLC0415 - brings pydantic in

    return load(path, route_kinds())


def cluster_access(
    brokers: Sequence[str],
    configuration: Path | None,
    cluster: str | None,
    timeout: float = FIRST_ANSWER_TIMEOUT,
    properties: Properties | None = None,
) -> ClusterAccess:
    """The cluster that a tool was told: `HOST[:PORT][,HOST[:PORT]…]`, or a cluster of a configuration file.

    `cluster` may be None where the file has one cluster only. Raises `ConfigurationError` for anything else.
    """
    if not timeout > 0:
        raise ConfigurationError(f"--timeout: {timeout:g}; expected seconds, more than 0")
    properties = Properties() if properties is None else properties
    if configuration is None:
        if cluster is not None:
            raise ConfigurationError("--cluster NAME: expected --config FILE as well")
        if brokers and properties.brokers:
            raise ConfigurationError("--brokers and -X bootstrap.servers: expected one of them, not both")
        return ClusterAccess(_addresses(brokers or properties.brokers), properties.connection(), timeout, properties)
    foreign = ["--brokers"] if brokers else [f"-X {name}" for name in properties.about_connections]
    if foreign:
        raise ConfigurationError(f"{foreign[0]} and --config: expected one of them, not both")
    loaded = load_configuration(configuration)
    if cluster is None:
        if len(loaded.clusters) != 1:
            known = ", ".join(loaded.clusters) or "none"
            raise ConfigurationError(f"{configuration}: expected --cluster NAME, one of its clusters: {known}")
        (cluster,) = loaded.clusters
    return configured_access(loaded, cluster, timeout, properties)


def configured_access(
    loaded: Configuration,
    cluster: str,
    timeout: float = FIRST_ANSWER_TIMEOUT,
    properties: Properties | None = None,
) -> ClusterAccess:
    """One of a configuration's clusters. Raises `ConfigurationError`, also for an embedded one that does not run."""
    loaded.check_security(cluster)
    connection = loaded.cluster(cluster).connection("ingestd")
    return ClusterAccess(loaded.bootstrap(cluster), connection, timeout, properties or Properties())


def _addresses(brokers: Sequence[str]) -> tuple[str, ...]:
    addresses = tuple(_with_port(address) for text in brokers for address in text.split(",") if address)
    if not addresses:
        raise ConfigurationError("no brokers: expected --brokers HOST[:PORT], or --config FILE")
    for address in addresses:
        try:
            parse_address(address)
        except ValueError as error:
            raise ConfigurationError(f"--brokers: {error}") from None
    return addresses


def _with_port(address: str) -> str:
    """`localhost` and `[::1]` get Kafka's own port; what has a colon elsewhere stays as it is."""
    return address if ":" in address.rpartition("]")[2] else f"{address}:{_PORT}"
