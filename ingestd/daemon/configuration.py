"""Configuration: the values of a configuration file. They are frozen and pickle: workers get them from the supervisor.

`configuration_file.py` reads them. A worker imports neither that nor what it needs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from ingestd.checks import Checks, is_loopback, parse_address
from ingestd.daemon.arena import PAGE_BYTES
from ingestd.daemon.fields import Address, BrokerAddress, Expected, Seconds, is_address
from ingestd.daemon.security import SaslSettings  # noqa: TC001 - types of fields are looked up when a file is read
from ingestd.errors import ConfigurationError, WrongSetting
from ingestd.wire.connection import ConnectionSettings
from ingestd.wire.secret import Secret, warn_if_others_can_read
from ingestd.wire.tls import TlsSettings, UnusableTls, client_context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingestd.daemon.pipelines import PipelineSettings
    from ingestd.daemon.source import Route

__all__ = [
    "NOTHING_TO_RUN",
    "ClusterSettings",
    "Configuration",
    "DaemonSettings",
    "prepare_state",
]

NOTHING_TO_RUN: Final = "nothing to run; expected [tails.NAME], [mirrors.NAME], or an embedded cluster"
"""Of a configuration that is for tools alone."""

SMALLEST_ARENA_BYTES: Final = 4 * 1024 * 1024


def _absolute(key: str, path: Path) -> Path:
    """A path that means the same wherever the daemon is started; elsewhere it would find nothing, and begin anew."""
    try:
        path = path.expanduser()
    except RuntimeError:
        raise WrongSetting(key, "a path; its ~ stands for no user that has a home directory") from None
    if not path.is_absolute():
        raise WrongSetting(key, "an absolute path, or one that begins with ~")
    return path


def holds_an_arena(size: int) -> bool:
    return size % PAGE_BYTES == 0 and size >= SMALLEST_ARENA_BYTES


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """`[daemon]`: the processes, where their state is, how they show themselves."""

    workers: Annotated[int, Expected("0 (one per core) to 256", range(257).__contains__)] = 0
    """Worker processes; 0: one for each core that this process may use."""
    state: Path = Path("/var/lib/ingestd")
    """Directory of positions and of embedded brokers' data: an absolute path, or one that begins with `~`."""
    http: Annotated[str, Expected('an address "HOST:PORT", or ""', lambda text: not text or is_address(text))] = (
        "127.0.0.1:9464"
    )
    """Address of /metrics, /healthz, /readyz and /status; empty: none."""
    drain_timeout: Seconds = 30.0
    """Seconds that a stopping daemon may take to deliver what it has read, or a pipeline to end its query; a second
    signal cuts it short."""
    once_patience: Seconds = 60.0
    """Seconds without any acknowledgement after which `run --once` gives up. What is acknowledged is kept. Counted from
    the moment all sources were found. While they are looked for, it also gives up after so many seconds in which none
    was found: let it be more than the 10 s that a run waits where new files are alike. It also gives up if positions
    could not be stored for so many seconds while it delivers. `drain_timeout` comes on top if lines are under way."""
    arena_bytes: Annotated[
        int, Expected(f"a multiple of {PAGE_BYTES}, at least {SMALLEST_ARENA_BYTES}", holds_an_arena)
    ] = 64 * 1024 * 1024
    """Shared memory of each worker, in bytes. It bounds what is read and not yet acknowledged."""
    restart_backoff: Seconds = 0.2
    """Seconds before a dead worker is started again, the first time; doubles with each death in a row."""
    restart_backoff_maximum: Seconds = 30.0
    """The longest such wait, in seconds."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged."""
    log_format: Literal["auto", "text", "json"] = "auto"
    """`auto`: text on a terminal, JSON otherwise."""

    def __post_init__(self) -> None:
        checks = Checks()
        with checks.noting():
            object.__setattr__(self, "state", _absolute("state", self.state))
        checks.require(
            "restart_backoff_maximum",
            "seconds, at least restart_backoff",
            holds=self.restart_backoff_maximum >= self.restart_backoff,
            beside=["restart_backoff"],
        )
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
    bootstrap: tuple[BrokerAddress, ...] = ()
    """Addresses (`HOST:PORT`) to ask first for the cluster's brokers."""
    tls: TlsSettings | None = None
    """TLS, with keys as below; `{}` verifies brokers with the authorities that the system trusts. Paths of files are
    absolute."""
    sasl: SaslSettings | None = None
    """The account of this host at the cluster's brokers, with keys as below. Paths of files are absolute."""
    create_topics: bool = True
    """Whether a topic that is not there may be created by writing to it."""
    listen: Address = "127.0.0.1:0"
    """The embedded broker's address; port 0: any free one. See `insecure`."""
    insecure: bool = False
    """Whether `listen` may be an address that other machines reach. The broker has neither TLS nor accounts: whoever
    reaches it can read, write and delete everything in it. `ingestd broker` runs one that has both."""
    data: Path | None = None
    """The embedded broker's data directory, absolute or beginning with `~`; by default `broker/NAME` in the daemon's
    state directory."""
    partitions: Annotated[int, Expected("1 to 10000", range(1, 10_001).__contains__)] = 1
    """Partitions of a topic that the embedded broker creates on demand."""
    flush: Literal["always", "os"] = "always"
    """When the embedded broker's records are forced to the disk: before they are acknowledged, or whenever the kernel
    does it. Without power, `os` loses what was acknowledged last, also of files whose positions are stored already."""

    def __post_init__(self) -> None:
        checks = Checks()
        both = self.embedded and self.bootstrap
        checks.require("embedded", "`embedded = true` or `bootstrap`, not both", holds=not both)
        expected = 'addresses, as in ["kafka-1:9092"], or `embedded = true`'
        checks.require("bootstrap", expected, holds=self.embedded or bool(self.bootstrap), beside=["embedded"])
        if self.embedded is not bool(self.bootstrap):  # else it is not clear which kind it is
            foreign = ("tls", "sasl") if self.embedded else ("listen", "insecure", "data", "partitions", "flush")
            expected = "none, in an embedded cluster" if self.embedded else "none, except in an embedded cluster"
            for each in fields(self):
                holds = each.name not in foreign or getattr(self, each.name) == each.default
                checks.require(each.name, expected, holds=holds, beside=["embedded", "bootstrap"])
        if self.embedded and not self.insecure and is_address(self.listen):
            holds = is_loopback(parse_address(self.listen)[0])
            checks.require("listen", "127.0.0.1, or `insecure = true` to let other machines in", holds=holds)
        if self.data is not None:
            with checks.noting():
                object.__setattr__(self, "data", _absolute("data", self.data))
        with checks.noting(beside=["tls", "sasl"]):
            self._check_connection()
        checks.finish()

    def _check_connection(self) -> None:
        mechanism = None if self.sasl is None else self.sasl.as_mechanism()
        if self.tls is None and mechanism is not None and mechanism.needs_tls:
            leave = f"`clusters.{self.name}.sasl.cleartext = true` to allow it"
            raise WrongSetting("tls", f"TLS, since {mechanism.name} sends a secret as it is, or {leave}")
        self.connection("")

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

    def data_directory(self, state: Path) -> Path:
        """Where the embedded broker keeps its logs, given the daemon's state directory."""
        return self.data if self.data is not None else state / "broker" / self.name


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration file, validated: every route's and pipeline's cluster is one of `clusters`."""

    file: Path
    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    clusters: Mapping[str, ClusterSettings] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    pipelines: Mapping[str, PipelineSettings] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """Whether there is anything in it for a daemon to do."""
        return bool(self.routes) or any(cluster.embedded for cluster in self.clusters.values())

    def cluster(self, name: str) -> ClusterSettings:
        """One of the clusters. Raises `ConfigurationError` if it is not configured."""
        settings = self.clusters.get(name)
        if settings is None:
            known = ", ".join(self.clusters) or "none is configured"
            raise ConfigurationError(f"{self.file}: no such [clusters.NAME]: {name} ({known})")
        return settings

    def check_security(self, cluster: str) -> None:
        """Read the files and variables that a cluster's security names.

        Raises `ConfigurationError`, with a line for each that is wrong, naming the key.
        """
        problems = self.security_problems(cluster)
        said = [f"{self.file}: clusters.{cluster}.{key}: {problem}" for key, problem in problems]
        if said:
            raise ConfigurationError("\n".join(said))

    def security_problems(self, cluster: str) -> list[tuple[str, str]]:
        """What is wrong with the files and variables that a cluster's security names: keys in it, each with why.

        What is less safe than it could be is logged: a secret that everybody can read.
        """
        settings = self.cluster(cluster)
        if any(secret.value is not None for secret in settings.secrets().values()):
            warn_if_others_can_read(self.file)
        checks: dict[str, Callable[[], object]] = {key: each.read for key, each in settings.secrets().items()}
        if settings.tls is not None:
            checks["tls"] = partial(client_context, settings.tls)
        if settings.sasl is not None and settings.sasl.token_ca_file is not None:
            checks["sasl.token_ca_file"] = partial(client_context, TlsSettings(ca_file=settings.sasl.token_ca_file))
        keys: dict[str, str] = {}
        for key, check in checks.items():
            try:
                check()
            except ConfigurationError as error:
                for which, problem in _each(key, error):
                    keys.setdefault(problem, which)  # a secret is read for itself, and for what needs it
        return [(key, problem) for problem, key in keys.items()]

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


def _each(key: str, error: ConfigurationError) -> list[tuple[str, str]]:
    """The keys that are wrong, each with why; `key` was checked. Of `tls`, those in it."""
    if key == "tls" and isinstance(error, UnusableTls):
        return [(f"tls.{name}", problem) for name, problem in error.problems]
    return [(key, problem) for problem in str(error).splitlines()]


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
