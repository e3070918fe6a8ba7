"""Status: the values that /status and the live view show, and the part of the supervisor that HTTP uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingestd.daemon.losses import LossStatus
    from ingestd.daemon.totals import Totals

__all__ = [
    "ClusterStatus",
    "DaemonStatus",
    "DaemonView",
    "GoneSource",
    "GroupStatus",
    "NotTaken",
    "RouteStatus",
    "SourceStatus",
    "WorkerStatus",
]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker slot. `pid` is None while the slot waits for a restart."""

    slot: int
    pid: int | None
    incarnation: int
    restarts: int
    cpu_seconds: float
    arena_bytes: int
    arena_used_bytes: int


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source: bytes that are there and not read yet, and the position before which everything is acknowledged.

    label: its name for people. path: where its bytes are now, if its route has paths. lag: of a partition, how many
    offsets there are from the position to the end of its log.
    """

    source: str
    label: str
    unread: int
    position: int
    path: str = ""
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class NotTaken:
    """A file that is not taken, with the fields of the log event `file not taken`: when it was logged last, and why."""

    time: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class GoneSource:
    """A source that is gone or was cut off while nobody read it: when that was logged, and up to where it was read.

    What was written behind that position, if anything, may be lost.
    """

    time: str
    file: str
    position: int


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A consumer group whose offsets a mirror translates, as far as this host's partitions go.

    partitions: in how many it has committed at the source. translated: of those, in how many its offset on the target
    is the right one, or a later one. problem: why it is not in the others; None where it is in all. ahead: in how many
    it is a later one: the group has read there, or was set back at the source.
    """

    group: str
    partitions: int
    translated: int
    problem: str | None = None
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """One route: acknowledged records and bytes, bytes read, errors, since the daemon's start; and its sources now.

    stopped: why nothing of it is sent until a restart; None while it goes on.
    problem: why its sources can not be looked for now; None while they can.
    losses: the last ones, oldest first. not_taken: the last files that are not taken, oldest first.
    gone: the last sources that are gone or were cut off while nobody read them, oldest first.
    waiting: how many files wait, because they begin as other ones do and may be copies of them.
    groups: whose offsets it translates.
    """

    name: str
    cluster: str
    topic: str
    records: int
    bytes_read: int
    bytes_acknowledged: int
    errors: Mapping[str, int] = field(default_factory=dict)
    sources: Sequence[SourceStatus] = ()
    losses: Sequence[LossStatus] = ()
    not_taken: Sequence[NotTaken] = ()
    gone: Sequence[GoneSource] = ()
    waiting: int = 0
    stopped: str | None = None
    problem: str | None = None
    groups: Sequence[GroupStatus] = ()


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """One cluster as the supervisor knows it: the brokers' addresses; `error` while none can be reached."""

    name: str
    embedded: bool
    brokers: Sequence[str] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """What /status answers, as JSON with these names."""

    version: str
    pid: int
    uptime_seconds: float
    ready: bool
    workers: Sequence[WorkerStatus] = ()
    routes: Sequence[RouteStatus] = ()
    clusters: Sequence[ClusterStatus] = ()


class DaemonView(Protocol):
    """The part of the supervisor that the HTTP endpoint uses. No call waits."""

    @property
    def totals(self) -> Totals:
        """What all workers counted."""
        ...

    def unhealthy(self) -> str | None:
        """Which of the daemon's processes does not run, or None. Only problems that a restart can mend count."""
        ...

    def not_ready(self) -> str | None:
        """Why not everything can be delivered (what the start waits for, what has stopped), a line each; or None."""
        ...

    def status(self) -> DaemonStatus:
        """The whole status."""
        ...
