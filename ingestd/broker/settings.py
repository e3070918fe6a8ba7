"""Settings of the embedded broker: one frozen value, with Kafka's defaults where Kafka has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ingestd.broker.security.settings import OPEN, SecuritySettings
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "CLEANER_INTERVAL",
    "CONSUMER_ASSIGNORS",
    "HEARTBEAT_INTERVAL",
    "OFFSETS_RETENTION",
    "OFFSETS_RETENTION_CHECK_INTERVAL",
    "RETENTION_CHECK_INTERVAL",
    "SESSION_TIMEOUT",
    "TRANSACTION_VERSION",
    "BrokerSettings",
    "Flush",
]

MIB: Final = 1 << 20
MOST_NODES: Final = 100
CONSUMER_ASSIGNORS: Final = ("uniform", "range")
"""The assignors of the broker for groups of KIP-848, in Kafka's order."""
CLEANER_INTERVAL: Final = 15.0
"""Seconds between two looks for logs to compact, as in Kafka (`log.cleaner.backoff.ms`)."""
HEARTBEAT_INTERVAL: Final = 5.0
"""Seconds between heartbeats that members of KIP-848 groups are told, as in Kafka."""
SESSION_TIMEOUT: Final = 45.0
"""Seconds that members of KIP-848 groups may be silent, as in Kafka."""

OFFSETS_RETENTION: Final = 604_800.0
"""Seconds that the offsets of an empty group are kept, as in Kafka."""
OFFSETS_RETENTION_CHECK_INTERVAL: Final = 600.0
"""Seconds between two checks for expired offsets, as in Kafka."""
RETENTION_CHECK_INTERVAL: Final = 300.0
"""Seconds between two looks for records that are past their retention, as in Kafka."""
TRANSACTION_VERSION: Final = 2
"""The level of the feature `transaction.version`, as in Kafka 4."""


class Flush(Enum):
    """When appended batches are forced to the disk.

    `os`, Kafka's default: the kernel writes them in its own time. A killed process loses nothing; a machine that loses
    power may. `always`: before a produce request is acknowledged; requests that wait share one fsync. It is the default
    because there is no other replica that has what this machine loses.
    """

    os = "os"
    always = "always"


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """All settings of a broker.

    `nodes` is how many nodes the broker poses as, with ids from `node_id` on and ports from `port` on: a test aid.

    `control` is where a test says what shall go wrong (`control.py`), as (host, port) of loopback; None: nowhere.

    `data` is the directory of its topics; it is made if it is missing. `port` 0 takes a free port. Clients are told the
    address that they reached, unless `advertised` gives another as (host, port). `topic_defaults` are configurations
    (`retention.ms`, `segment.bytes` …) for topics that have no own value. `request_log` is a file that gets one JSON
    line per request. `cleaner_interval` is the time between two looks for logs to compact, and `cleaner_map_bytes` what
    the keys of one log may take meanwhile. `initial_rebalance_delay` is how long a new group waits for more members:
    none, as in the configuration that comes with Kafka. With an `offsets_retention` of 0, offsets do not expire.
    `consumer_…` is for groups of KIP-848. Members choose one of `consumer_assignors`; groups that do not choose get
    the first. `transaction_version` is the feature `transaction.version` (KIP-890): with 2, the end of each transaction
    raises the producer's epoch. `insecure` lets other machines reach a listener that lacks TLS or authentication;
    without it that is refused. Sizes are bytes, times are seconds.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 9092
    node_id: int = 1
    nodes: int = 1
    advertised: tuple[str, int] | None = None
    security: SecuritySettings = OPEN
    insecure: bool = False
    control: tuple[str, int] | None = None
    auto_create_topics: bool = True
    default_partitions: int = 1
    flush: Flush = Flush.always
    topic_defaults: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    request_log: Path | None = None
    retention_check_interval: float = RETENTION_CHECK_INTERVAL
    cleaner_interval: float = CLEANER_INTERVAL
    cleaner_map_bytes: int = 128 * MIB
    producer_expiry: float = 86_400.0
    offsets_partitions: int = 50
    offsets_retention: float = OFFSETS_RETENTION
    offsets_retention_check_interval: float = OFFSETS_RETENTION_CHECK_INTERVAL
    offset_metadata_bytes: int = 4096
    initial_rebalance_delay: float = 0.0
    min_session_timeout: float = 6.0
    max_session_timeout: float = 1800.0
    consumer_assignors: tuple[str, ...] = CONSUMER_ASSIGNORS
    consumer_session_timeout: float = SESSION_TIMEOUT
    consumer_heartbeat_interval: float = HEARTBEAT_INTERVAL
    transaction_version: int = TRANSACTION_VERSION
    transaction_partitions: int = 50
    max_transaction_timeout: float = 900.0
    transactional_id_expiry: float = 604_800.0
    transactional_id_check_interval: float = 3600.0
    max_request_bytes: int = 100 * MIB
    max_in_flight_bytes: int = 512 * MIB
    max_fetch_bytes: int = 55 * MIB
    max_fetch_sessions: int = 1_000
    max_connections: int = 10_000
    idle_timeout: float = 600.0
    shutdown_timeout: float = 2.0

    def __post_init__(self) -> None:
        if self.default_partitions < 1:
            raise ConfigurationError(f"default_partitions: {self.default_partitions} is not a number of partitions")
        if self.max_request_bytes > self.max_in_flight_bytes:
            raise ConfigurationError(
                f"max_in_flight_bytes: {self.max_in_flight_bytes} has no room for a request of {self.max_request_bytes}"
            )
        if self.offsets_retention < 0:
            raise ConfigurationError(f"offsets_retention: {self.offsets_retention} is negative")
        unknown = set(self.consumer_assignors).difference(CONSUMER_ASSIGNORS)
        twice = len(set(self.consumer_assignors)) < len(self.consumer_assignors)
        if unknown or twice or not self.consumer_assignors:
            raise ConfigurationError(
                f"consumer_assignors: {self.consumer_assignors} is not some of {' and '.join(CONSUMER_ASSIGNORS)}"
            )
        if self.transaction_version not in {0, 1, 2}:
            raise ConfigurationError(f"transaction_version: {self.transaction_version} is not one of 0, 1 and 2")
        if not self.insecure:
            self.security.check_reach(self.host)
        if self.cleaner_map_bytes < 1:
            raise ConfigurationError(f"cleaner_map_bytes: {self.cleaner_map_bytes} has no room for a key")
        self._check_intervals()
        self._check_addresses()

    def _check_intervals(self) -> None:
        for name in ("cleaner_interval", "retention_check_interval", "offsets_retention_check_interval"):
            seconds = getattr(self, name)
            if not seconds > 0:
                raise ConfigurationError(f"{name}: {seconds} is not a number of seconds above 0")

    def _check_addresses(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise ConfigurationError(f"port: {self.port} is not a TCP port")
        if self.node_id < 0:
            raise ConfigurationError(f"node_id: {self.node_id} is negative")
        if not 1 <= self.nodes <= MOST_NODES:
            raise ConfigurationError(f"nodes: {self.nodes} is not 1 to {MOST_NODES}")
        if self.port + self.nodes - 1 >= 1 << 16:
            raise ConfigurationError(f"nodes: {self.nodes} ports from {self.port} on are not all TCP ports")
        most = (1 << 16) - self.nodes
        if self.advertised is not None and not 1 <= self.advertised[1] <= most:
            raise ConfigurationError(f"advertised: port {self.advertised[1]} is not 1 to {most}")
