"""Configuration for the verbs: which route class each table is, and the cluster that a tool shall talk to."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ingestd.cli.reaching import saying_who_is_not_reached
from ingestd.client.client import Client
from ingestd.client.settings import ClientSettings
from ingestd.daemon.configuration import load, parse_address
from ingestd.errors import ConfigurationError
from ingestd.wire.connection import ConnectionSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from ingestd.daemon.configuration import Configuration
    from ingestd.daemon.source import Route

__all__ = ["ClusterAccess", "cluster_access", "load_configuration", "route_kinds"]


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """How a tool reaches its cluster: whom to ask first, and how connections are made and secured."""

    bootstrap: tuple[str, ...]
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)

    @contextlib.asynccontextmanager
    async def client(self, *, allow_auto_topic_creation: bool = False) -> AsyncIterator[Client]:
        """A client of the cluster, closed at the end; brokers that it can not reach are said on standard error."""
        settings = ClientSettings(self.connection, allow_auto_topic_creation=allow_auto_topic_creation)
        async with Client(self.bootstrap, settings) as client, saying_who_is_not_reached(client, self.bootstrap):
            yield client


def route_kinds() -> Mapping[str, type[Route]]:
    """The tables of routes that a configuration file may have, and what each is made into."""
    from ingestd.tail.route import TailRoute  # noqa: PLC0415 - tools that need no configuration do without the tails

    kinds: dict[str, Any] = {"tails": TailRoute}
    return kinds


def load_configuration(path: Path) -> Configuration:
    """The daemon's configuration in a file, all route kinds known. Raises `FaultyConfiguration`."""
    return load(path, route_kinds())


def cluster_access(brokers: Sequence[str], configuration: Path | None, cluster: str | None) -> ClusterAccess:
    """The cluster that a tool was told: `HOST:PORT[,HOST:PORT…]`, or a cluster of a configuration file.

    `cluster` may be None where the file has one cluster only. Raises `ConfigurationError` for anything else.
    """
    if configuration is None:
        if cluster is not None:
            raise ConfigurationError("--cluster NAME: expected --config FILE as well")
        return ClusterAccess(_addresses(brokers))
    if brokers:
        raise ConfigurationError("--brokers and --config: expected one of them")
    loaded = load_configuration(configuration)
    if cluster is None:
        if len(loaded.clusters) != 1:
            known = ", ".join(loaded.clusters) or "none"
            raise ConfigurationError(f"{configuration}: expected --cluster NAME, one of its clusters: {known}")
        (cluster,) = loaded.clusters
    loaded.check_security(cluster)
    return ClusterAccess(loaded.bootstrap(cluster), loaded.cluster(cluster).connection("ingestd"))


def _addresses(brokers: Sequence[str]) -> tuple[str, ...]:
    addresses = tuple(address for text in brokers for address in text.split(",") if address)
    if not addresses:
        raise ConfigurationError("no brokers: expected --brokers HOST:PORT, or --config FILE")
    for address in addresses:
        try:
            parse_address(address)
        except ValueError as error:
            raise ConfigurationError(f"--brokers: {error}") from None
    return addresses
