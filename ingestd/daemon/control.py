"""Control: the messages between supervisor and workers, and the channel that carries them in order.

Messages are pickled. They go between processes of one daemon, over a private socket pair. Record bytes never go here.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias, cast

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from ingestd.client.metadata import ClusterMetadata
    from ingestd.daemon.configuration import ClusterSettings
    from ingestd.daemon.source import Assignment, End, Loss, Route
    from ingestd.daemon.statistics import WorkerStatistics
    from ingestd.errors import ErrorCode

__all__ = [
    "Answered",
    "Asked",
    "Assign",
    "Conclude",
    "Configure",
    "ControlChannel",
    "Drain",
    "Drained",
    "IdentityWanted",
    "LeaderHinted",
    "Leased",
    "MetadataPushed",
    "MetadataWanted",
    "Moved",
    "PositionsReported",
    "Refused",
    "Revoke",
    "RouteFailed",
    "SourceEnded",
    "SourceLost",
    "SourceTroubled",
    "StatisticsReported",
    "Unacknowledged",
    "Wire",
    "Withdrawn",
]

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogFormat: TypeAlias = Literal["auto", "text", "json"]


# Supervisor to worker.


@dataclass(frozen=True, slots=True)
class Configure:
    """The first message: who the worker is, and all routes with their clusters. Peers name a route by its index.

    workers: how many workers the daemon has.
    """

    slot: int
    incarnation: int
    routes: tuple[Route, ...]
    clusters: Mapping[str, ClusterSettings]
    log_level: LogLevel
    log_format: LogFormat
    statistics_interval: float
    position_interval: float
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Wire:
    """A peer is there. Its arena and this worker's end of their socket pair come with it, as descriptors."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Assign:
    """Open these sources."""

    assignments: Sequence[Assignment]


@dataclass(frozen=True, slots=True)
class Conclude:
    """Nothing more is expected of these sources of a route. They end once they are read to their ends and quiet."""

    route: str
    sources: Sequence[str]


@dataclass(frozen=True, slots=True)
class Revoke:
    """Close these sources of a route. What was read of them and is not with the producer counts as not read.

    With a `ticket` the worker answers `Withdrawn` once nothing of them is with the producer any more.
    """

    route: str
    sources: Sequence[str]
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class Leased:
    """A route may be sent until then, on this machine's monotonic clock, and no longer without another such message."""

    route: str
    until: float


@dataclass(frozen=True, slots=True)
class MetadataPushed:
    """A cluster's newest metadata."""

    cluster: str
    metadata: ClusterMetadata


@dataclass(frozen=True, slots=True)
class Answered:
    """What was asked for under `ticket`: a `ProducerIdentity`, or what a route's finder answers."""

    ticket: int
    answer: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no answer for `ticket`. With a `code` it is refused for good; without one the worker asks again."""

    ticket: int
    reason: str
    code: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop reading, deliver what was read within `seconds`, then answer `Drained`."""

    seconds: float


# Worker to supervisor.


class Moved(NamedTuple):
    """Every byte of a source before `position` is acknowledged. Also sent if only the detail changed.

    note: for the route's `PositionKeeper`, once (see `StoredPosition`).
    """

    route: str
    source: str
    generation: int
    position: int
    detail: Mapping[str, Any]
    note: Any = None


@dataclass(frozen=True, slots=True)
class PositionsReported:
    """Positions that moved, and details that changed, since the last report."""

    moved: Sequence[Moved]


class SourceEnded(NamedTuple):
    """A source is finished and everything of it is acknowledged. Its last position was reported before."""

    route: str
    source: str
    generation: int
    end: End


@dataclass(frozen=True, slots=True)
class SourceTroubled:
    """A source can not be opened or read now. The worker tries again with backoff."""

    route: str
    source: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The sources of a `Revoke` are closed, and nothing of them is sent any more. Their positions were reported."""

    ticket: int


@dataclass(frozen=True, slots=True)
class SourceLost:
    """Data of a source can no longer be read. The worker goes on behind it."""

    route: str
    source: str
    generation: int
    loss: Loss


@dataclass(frozen=True, slots=True)
class RouteFailed:
    """A record can not be delivered, and the route's policy is to stop: nothing after it is read."""

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
    """A producer id is needed. `previous`: the id and epoch that must be replaced by a newer epoch."""

    ticket: int
    cluster: str
    previous: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A route's runner asks the route's finder something that only they understand."""

    ticket: int
    route: str
    question: Any


@dataclass(frozen=True, slots=True)
class StatisticsReported:
    """The worker's counters. They also prove that its main loop runs."""

    statistics: WorkerStatistics


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """What was read and is not acknowledged of one route. It is read and sent again at the next start.

    `deleted`: of files without a name, the bytes that are not acknowledged, read or not, by the file's last path.
    They are not among `sources` and `bytes`: only where there is a copy of such a file can it be read again.
    """

    sources: int = 0
    bytes: int = 0
    deleted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drained:
    """Everything that was read is acknowledged and reported, or the deadline passed with `unacknowledged` sources left.

    `routes` has the routes that have something left.
    """

    unacknowledged: int
    routes: Mapping[str, Unacknowledged] = field(default_factory=dict)


class ControlChannel(asyncio.Protocol):
    """One end of the control socket: whole messages in order, and the news that the other end is gone.

    `send` never waits. The other end reads as fast as it can, and what is sent is small and bounded by what happens
    (metadata snapshots, positions that moved, two statistics messages a second). What is sent in one turn of the loop
    is written together. So it wakes the other end once, which takes it in one turn too.
    """

    _header: ClassVar[struct.Struct] = struct.Struct("=I")
    """What goes before each message. Its first value is the length of the message, in bytes."""

    def __init__(self, received: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._largest = (1 << 32) - 1
        """Bytes of a message. A longer one ends the connection."""
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
        """Send a message. Nothing happens if the other end is gone: `lost` was called for that."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._said:
            asyncio.get_running_loop().call_soon(self._write)
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._said += self._header_of(body)
        self._said += body

    def _header_of(self, body: bytes) -> bytes:
        return self._header.pack(len(body))

    def _is_theirs(self, _body: bytes) -> bool:
        """Whether the other end wrote a message. Further values of its header are arguments too."""
        return True

    def _write(self) -> None:
        said, self._said = self._said, bytearray()
        if said and self._transport is not None and not self._transport.is_closing():
            self._transport.write(said)

    def close(self) -> None:
        """Flush and close."""
        self._write()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once. What was not sent is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= self._header.size:
            length, *proof = self._header.unpack_from(self._buffer, start)
            begin = start + self._header.size
            end = begin + length
            if length > self._largest:
                self.abort()
                return
            if end > len(self._buffer):
                break
            body = bytes(memoryview(self._buffer)[begin:end])
            if not self._is_theirs(body, *proof):
                self.abort()
                return
            start = end
            self._received(pickle.loads(body))  # noqa: S301 - own process, or `_is_theirs` has checked it
        del self._buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - any end is the same end
        """Called by the event loop."""
        self._lost()
