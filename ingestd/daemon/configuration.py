"""Configuration: frozen values that pickle, and `load`, which makes them from a TOML file or says all that is wrong.

Only values, so that a worker process, which gets them from the supervisor, imports no TOML reader. The reader is
`configuration_file`, which only `load` imports.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ingestd.checks import Checks
from ingestd.daemon.arena import PAGE_BYTES
from ingestd.daemon.security import SaslSettings  # noqa: TC001 - types of fields are looked up when a file is read
from ingestd.errors import ConfigurationError, WrongSetting
from ingestd.wire.connection import ConnectionSettings
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings, client_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ingestd.daemon.source import Route

__all__ = [
    "ClusterSettings",
    "Configuration",
    "DaemonSettings",
    "Fault",
    "FaultyConfiguration",
    "PipelineSettings",
    "PipelineSink",
    "PipelineSource",
    "WrongSetting",
    "load",
    "parse_address",
    "prepare_state",
]

SMALLEST_ARENA_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in a configuration file. `value` is None if there is none to show, or if it may hold a secret."""

    file: str
    key: str
    value: str | None
    problem: str

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}" if self.key else self.file
        return f"{place}: {self.problem}" if self.value is None else f"{place} = {self.value}: {self.problem}"


class FaultyConfiguration(ConfigurationError):
    """All faults in one configuration file. The message has one line for each."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` (`[HOST]:PORT` for IPv6) as host and port. Port 0 means any free port. Raises `ValueError`."""
    host, colon, digits = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r} is not HOST:PORT; an IPv6 address stands in brackets, [HOST]:PORT")
    if not colon or not host or not (digits.isascii() and digits.isdigit()) or int(digits) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(digits)


def _is_address(text: str) -> bool:
    try:
        parse_address(text)
    except ValueError:
        return False
    return True


def _require_address(key: str, text: str) -> None:
    if not _is_address(text):
        raise WrongSetting(key, 'an address "HOST:PORT"')


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """`[daemon]`: the processes, where their state is, how they show themselves."""

    workers: int = 0
    """Worker processes; 0: one for each core that this process may use."""
    state: Path = Path("/var/lib/ingestd")
    """Directory of positions and of embedded brokers' data."""
    http: str = "127.0.0.1:9464"
    """Address of /metrics, /healthz, /readyz and /status; empty: none."""
    drain_timeout: float = 30.0
    """Seconds that a stopping daemon may take to deliver what it has read; a second signal cuts it short."""
    once_patience: float = 60.0
    """Seconds without any acknowledgement after which `run --once` gives up. What is acknowledged is kept. Counted from
    the moment all files were found. `drain_timeout` comes on top if lines are under way."""
    arena_bytes: int = 64 * 1024 * 1024
    """Shared memory of each worker, in bytes. It bounds what is read and not yet acknowledged."""
    restart_backoff: float = 0.2
    """Seconds before a dead worker is started again, the first time; doubles with each death in a row."""
    restart_backoff_maximum: float = 30.0
    """The longest such wait, in seconds."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged."""
    log_format: Literal["auto", "text", "json"] = "auto"
    """`auto`: text on a terminal, JSON otherwise."""

    def __post_init__(self) -> None:
        checks = Checks()
        checks.require("workers", "0 (one per core) to 256", holds=0 <= self.workers <= 256)
        checks.require("drain_timeout", "seconds, more than 0", holds=self.drain_timeout > 0)
        checks.require("once_patience", "seconds, more than 0", holds=self.once_patience > 0)
        whole_pages = self.arena_bytes % PAGE_BYTES == 0
        expected = f"a multiple of {PAGE_BYTES}, at least {SMALLEST_ARENA_BYTES}"
        checks.require("arena_bytes", expected, holds=whole_pages and self.arena_bytes >= SMALLEST_ARENA_BYTES)
        checks.require("restart_backoff", "seconds, more than 0", holds=self.restart_backoff > 0)
        checks.require(
            "restart_backoff_maximum",
            "seconds, at least restart_backoff",
            holds=self.restart_backoff_maximum >= self.restart_backoff,
            beside=["restart_backoff"],
        )
        if self.http:
            with checks.noting():
                _require_address("http", self.http)
        checks.finish()

    @property
    def worker_count(self) -> int:
        """How many workers to start: `workers`, or the number of cores that this process may use."""
        return self.workers or len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """`[clusters.NAME]`: a cluster somewhere (`bootstrap`), or one that the daemon runs itself (`embedded`)."""

    name: str
    embedded: bool = False
    """Run the cluster's broker as a process of the daemon."""
    bootstrap: tuple[str, ...] = ()
    """Addresses (`HOST:PORT`) to ask first for the cluster's brokers."""
    tls: TlsSettings | None = None
    """TLS, with keys as below; `{}` verifies brokers with the authorities that the system trusts."""
    sasl: SaslSettings | None = None
    """The account of this host at the cluster's brokers, with keys as below."""
    create_topics: bool = True
    """Whether a topic that is not there may be created by writing to it."""
    listen: str = "127.0.0.1:0"
    """The embedded broker's address; port 0: any free one."""
    data: Path | None = None
    """The embedded broker's data directory; None: `broker/NAME` in the daemon's state directory."""
    partitions: int = 1
    """Partitions of a topic that the embedded broker creates on demand."""

    def __post_init__(self) -> None:
        checks = Checks()
        both = self.embedded and self.bootstrap
        checks.require("embedded", "`embedded = true` or `bootstrap`, not both", holds=not both)
        expected = 'addresses, as in ["kafka-1:9092"], or `embedded = true`'
        checks.require("bootstrap", expected, holds=self._has_a_broker, beside=["embedded"])
        wrong = [f"bootstrap[{at}]" for at, address in enumerate(self.bootstrap) if not _is_address(address)]
        expected = f'addresses "HOST:PORT" with ports up to 65535; not so: {", ".join(wrong)}'
        checks.require("bootstrap", expected, holds=not wrong)
        with checks.noting():
            _require_address("listen", self.listen)
        checks.require("partitions", "1 to 10000", holds=1 <= self.partitions <= 10_000)
        with checks.noting(beside=["tls", "sasl"]):
            self.connection("")
        checks.finish()

    def connection(self, client_id: str) -> ConnectionSettings:
        """How connections to the cluster's brokers are made. Call it once in a process: the result keeps tokens."""
        sasl = None if self.sasl is None else self.sasl.as_mechanism()
        return ConnectionSettings(client_id=client_id, tls=self.tls, sasl=sasl)

    def secrets(self) -> dict[str, Secret]:
        """The cluster's secrets, by key."""
        found = {} if self.tls is None else {"tls.key_password": self.tls.key_password}
        if self.sasl is not None:
            found |= {"sasl.password": self.sasl.password, "sasl.client_secret": self.sasl.client_secret}
        return {key: secret for key, secret in found.items() if isinstance(secret, Secret)}

    @property
    def _has_a_broker(self) -> bool:
        return self.embedded or bool(self.bootstrap)

    def data_directory(self, state: Path) -> Path:
        """Where the embedded broker keeps its logs, given the daemon's state directory."""
        return self.data if self.data is not None else state / "broker" / self.name


@dataclass(frozen=True, slots=True)
class PipelineSource:
    """What a pipeline reads."""

    cluster: str
    topics: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.topics:
            raise WrongSetting("topics", "at least one topic")


@dataclass(frozen=True, slots=True)
class PipelineSink:
    """Where a pipeline writes. `mode` is Spark's save mode: what happens to data that is already there."""

    path: str
    format: Literal["parquet"] = "parquet"
    mode: Literal["errorifexists", "append", "overwrite", "ignore"] = "errorifexists"


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """`[pipelines.NAME]`: topics, through SQL over the view `source`, to files; run on Spark."""

    name: str
    source: PipelineSource
    sink: PipelineSink
    sql: str = "SELECT * FROM source"
    """A query over the view `source`, which has the columns of Spark's Kafka connector."""
    master: str = "local[*]"
    """Spark's master URL."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration file, validated: every route's and pipeline's cluster is one of `clusters`."""

    file: Path
    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    clusters: Mapping[str, ClusterSettings] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    pipelines: Mapping[str, PipelineSettings] = field(default_factory=dict)

    def cluster(self, name: str) -> ClusterSettings:
        """One of the clusters. Raises `ConfigurationError` if it is not configured."""
        settings = self.clusters.get(name)
        if settings is None:
            known = ", ".join(self.clusters) or "none is configured"
            raise ConfigurationError(f"{self.file}: no such [clusters.NAME]: {name} ({known})")
        return settings

    def check_security(self, cluster: str) -> None:
        """Read the files and variables that a cluster's security names. Raises `ConfigurationError`, naming the key."""
        settings = self.cluster(cluster)
        checks: dict[str, Callable[[], object]] = {key: each.read for key, each in settings.secrets().items()}
        if settings.tls is not None:
            checks["tls"] = partial(client_context, settings.tls)
        if settings.sasl is not None and settings.sasl.token_ca_file is not None:
            checks["sasl.token_ca_file"] = partial(client_context, TlsSettings(ca_file=settings.sasl.token_ca_file))
        for key, check in checks.items():
            try:
                check()
            except ConfigurationError as error:
                raise ConfigurationError(f"{self.file}: clusters.{cluster}.{key}: {error}") from error

    def bootstrap(self, cluster: str) -> tuple[str, ...]:
        """Addresses of a cluster's brokers, for other programs. A running daemon publishes those of embedded brokers.

        Raises `ConfigurationError` for a cluster that is not configured, and for an embedded one that does not run.
        """
        settings = self.cluster(cluster)
        if not settings.embedded:
            return settings.bootstrap
        published = self.daemon.state / "clusters" / f"{cluster}.address"
        try:
            return (published.read_text().strip(),)
        except FileNotFoundError:
            raise ConfigurationError(
                f"{self.file}: clusters.{cluster} is embedded and does not run; `ingestd run {self.file}` runs it"
            ) from None
        except OSError as error:
            raise ConfigurationError(f"{published}: can not be read: {error.strerror}") from error


def load(path: str | Path, kinds: Mapping[str, type[Route]]) -> Configuration:
    """Read and validate a configuration file.

    `kinds` has the route class for each kind of table: `{"tails": TailRoute}` for `[tails.NAME]`. A route class is a
    dataclass. Its fields, except `name`, are the table's keys, and are checked strictly by their types. It may raise
    `WrongSetting` from `__post_init__`. Nothing outside the file is looked at. Raises `FaultyConfiguration`.
    """
    from ingestd.daemon.configuration_file import read_configuration  # noqa: PLC0415 - brings a TOML reader in

    return read_configuration(Path(path), kinds)


def prepare_state(settings: DaemonSettings) -> Path:
    """Create the state directory, only for its owner, if it does not exist. Raises `ConfigurationError`, naming it."""
    state = settings.state
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigurationError(f"daemon.state: {state} is not a directory") from None
    except OSError as error:
        raise ConfigurationError(f"daemon.state: {state} can not be created: {error.strerror}") from error
    if not os.access(state, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigurationError(f"daemon.state: {state} can not be written by this user")
    return state
