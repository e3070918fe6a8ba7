"""Control: what supervisor and workers say to each other. Values, and the channel that carries them in order.

Messages are pickled, between processes of one daemon, over a private socket pair; record bytes never travel here.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from ingestd.client.metadata import ClusterMetadata
    from ingestd.daemon.configuration import ClusterSettings
    from ingestd.daemon.source import Assignment, End, Route
    from ingestd.daemon.statistics import WorkerStatistics
    from ingestd.errors import ErrorCode

__all__ = [
    "Assign",
    "Conclude",
    "Configure",
    "ControlChannel",
    "Drain",
    "Drained",
    "IdentityGranted",
    "IdentityRefused",
    "IdentityWanted",
    "LeaderHinted",
    "MetadataPushed",
    "MetadataWanted",
    "Moved",
    "PositionsReported",
    "Revoke",
    "RouteFailed",
    "SourceEnded",
    "SourceTroubled",
    "StatisticsReported",
    "Unacknowledged",
    "Wire",
]

_LENGTH = struct.Struct("=I")

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogFormat: TypeAlias = Literal["auto", "text", "json"]


# Supervisor to worker.


@dataclass(frozen=True, slots=True)
class Configure:
    """First message: who the worker is, all routes in the order by which peers name them, and their clusters."""

    slot: int
    incarnation: int
    routes: tuple[Route, ...]
    clusters: Mapping[str, ClusterSettings]
    log_level: LogLevel
    log_format: LogFormat
    statistics_interval: float
    position_interval: float


@dataclass(frozen=True, slots=True)
class Wire:
    """A peer is there: its arena and this worker's end of their socket pair come as descriptors with it."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Assign:
    """Open these sources."""

    assignments: Sequence[Assignment]


@dataclass(frozen=True, slots=True)
class Conclude:
    """Nothing more is expected of these sources of a route: they end once they are read to their ends and quiet."""

    route: str
    sources: Sequence[str]


@dataclass(frozen=True, slots=True)
class Revoke:
    """Close these sources of a route; what was read of them and is not acknowledged counts as not read."""

    route: str
    sources: Sequence[str]


@dataclass(frozen=True, slots=True)
class MetadataPushed:
    """A cluster's newest metadata."""

    cluster: str
    metadata: ClusterMetadata


@dataclass(frozen=True, slots=True)
class IdentityGranted:
    """The producer id and epoch asked for under `ticket`."""

    ticket: int
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class IdentityRefused:
    """No producer id could be had for `ticket`. With a `code` it is refused for good; else the worker asks again."""

    ticket: int
    reason: str
    code: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """Read no more, deliver what was read, within `seconds`; then say `Drained`."""

    seconds: float


# Worker to supervisor.


class Moved(NamedTuple):
    """Every byte of a source before `position` is acknowledged; or only its detail is another one than before."""

    route: str
    source: str
    generation: int
    position: int
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PositionsReported:
    """Positions that moved, and details that changed, since the last report."""

    moved: Sequence[Moved]


class SourceEnded(NamedTuple):
    """Nothing more will come of a source, and all that came is acknowledged (its last position was reported before)."""

    route: str
    source: str
    generation: int
    end: End


@dataclass(frozen=True, slots=True)
class SourceTroubled:
    """A source can not be opened or read now; tried again with backoff."""

    route: str
    source: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class RouteFailed:
    """A record can not be delivered and the route's policy is to stop: nothing behind it is read any more."""

    route: str
    reason: str


@dataclass(frozen=True, slots=True)
class MetadataWanted:
    """Metadata of these topics is missing or out of date."""

    cluster: str
    topics: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class LeaderHinted:
    """A produce answer named a new leader (KIP-951)."""

    cluster: str
    topic: str
    partition: int
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class IdentityWanted:
    """A producer id is needed (`previous`: the one whose epoch has to be left behind)."""

    ticket: int
    cluster: str
    previous: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class StatisticsReported:
    """The worker's counters; also the proof that its main loop runs."""

    statistics: WorkerStatistics


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """What was read and not acknowledged of one route: it is read and sent again at the next start."""

    sources: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Drained:
    """All that was read is acknowledged and reported, or the deadline passed with `unacknowledged` sources left.

    `routes` has those that have something left.
    """

    unacknowledged: int
    routes: Mapping[str, Unacknowledged] = field(default_factory=dict)


class ControlChannel(asyncio.Protocol):
    """One end of the control socket: whole messages in order, and the news that the other end is gone.

    `send` never waits; the other end reads as fast as it can, and what is sent is small and bounded by what happens
    (metadata snapshots, positions that moved, one statistics message a second). What is said in one turn of the loop
    is written at once: it wakes the other end once, which takes it in one turn, too.
    """

    def __init__(self, received: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._buffer = bytearray()
        self._said = bytearray()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def over(
        cls, sock: socket.socket, received: Callable[[Any], None], lost: Callable[[], None]
    ) -> ControlChannel:
        """The channel over a connected AF_UNIX stream socket."""
        _, channel = await asyncio.get_running_loop().create_unix_connection(lambda: cls(received, lost), sock=sock)
        return channel

    def send(self, message: object) -> None:
        """Send a message; silently nothing after the other end is gone, since `lost` has said so."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._said:
            asyncio.get_running_loop().call_soon(self._write)
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._said += _LENGTH.pack(len(body))
        self._said += body

    def _write(self) -> None:
        said, self._said = self._said, bytearray()
        if said and self._transport is not None and not self._transport.is_closing():
            self._transport.write(said)

    def close(self) -> None:
        """Flush and close."""
        self._write()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + length
            if end > len(self._buffer):
                break
            message = pickle.loads(memoryview(self._buffer)[start + _LENGTH.size : end])  # noqa: S301 - own process
            start = end
            self._received(message)
        del self._buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - any end is the same end
        """Called by the event loop."""
        self._lost()
