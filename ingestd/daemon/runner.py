"""Runner: what moves the sources of one route in one worker. A route makes its own; the worker knows no other kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from ingestd.daemon.arena import Arena
    from ingestd.daemon.control import Moved, Unacknowledged
    from ingestd.daemon.encode import EncodeStage
    from ingestd.daemon.source import Assignment, End, Loss, Route
    from ingestd.daemon.statistics import RouteCounters, SourceGauges
    from ingestd.daemon.worker_cluster import WorkerCluster

__all__ = ["Runner", "RunnerNews", "Workplace"]


class RunnerNews(Protocol):
    """What a runner tells its worker."""

    def ended(self, assignment: Assignment, end: End) -> None:
        """A source is finished and all of it acknowledged."""
        ...

    def troubled(self, assignment: Assignment, reason: str) -> None:
        """A source can not be opened or read now."""
        ...

    def lost(self, assignment: Assignment, loss: Loss) -> None:
        """Data of a source can no longer be read. The runner goes on behind it."""
        ...

    def failed(self, route: Route, reason: str) -> None:
        """The route can not go on: something can not be delivered."""
        ...

    def moved(self) -> None:
        """A position or a detail changed, for the first time since `Runner.moved` was called."""
        ...

    def settled(self) -> None:
        """Something more is acknowledged, while draining; or nothing of a revoked source is with the producer now."""
        ...


@dataclass(frozen=True, slots=True)
class Workplace:
    """What a worker gives a route's runner to work with.

    number: the route's index in the configuration, by which peers name it.
    share: how many pages of the arena the route may use.
    clusters: the clusters that the route uses, by name.
    workers: how many workers the daemon has, this one among them.
    ask: asks the route's finder, in the supervisor (`Finder.answer`). Raises `IngestdError` if it can not tell.
    """

    number: int
    arena: Arena
    share: int
    encoding: EncodeStage
    clusters: Mapping[str, WorkerCluster]
    counters: RouteCounters
    news: RunnerNews
    ask: Callable[[Any], Awaitable[Any]]
    workers: int = 1


class Runner(Protocol):
    """Moves a route's sources in one worker, from reading to positions. Called on the worker's event loop; never waits.

    A position moves once everything before it is acknowledged. What is reported is reported per source and generation.
    """

    def assign(self, assignment: Assignment) -> None:
        """Open a source and follow it. If it is open under an older generation, that one is given up first."""
        ...

    def revoke(self, source: str) -> None:
        """Close a source. What of it is not with the producer yet counts as not read, and is not sent."""
        ...

    def conclude(self, source: str) -> None:
        """Nothing more is expected of a source. If it is not open yet, it is opened as concluded."""
        ...

    def leased(self, until: float) -> None:
        """Send nothing that was not sent yet from then on, in `time.monotonic()`, until told again.

        Without a first call there is no such limit.
        """
        ...

    def kick(self) -> None:
        """Go on where it stopped because pages or metadata were missing."""
        ...

    def holds(self, sources: Collection[str]) -> bool:
        """Whether anything of these sources, which were revoked, is with the producer still."""
        ...

    @property
    def starved(self) -> bool:
        """Whether reading waits for pages of the arena."""
        ...

    def drain(self) -> None:
        """Stop reading. What was read goes on to its end."""
        ...

    @property
    def settled(self) -> bool:
        """Whether everything that was read is acknowledged or given up. After `drain`: whether it is drained."""
        ...

    @property
    def unacknowledged(self) -> Unacknowledged:
        """How many sources have something that was read and is not acknowledged, and how many bytes."""
        ...

    @property
    def waiting(self) -> float:
        """Seconds since anything was acknowledged, while batches are with the producer; 0 while none is."""
        ...

    @property
    def oldest(self) -> float:
        """Seconds since the oldest batch that is with the producer was first sent; 0 while none is."""
        ...

    def moved(self) -> Sequence[Moved]:
        """Positions that moved, and details that changed, since the last call."""
        ...

    def gauges(self) -> Mapping[str, SourceGauges | None]:
        """The sources that changed since the last call, as they are now; None for one that is no longer open."""
        ...

    async def close(self) -> None:
        """Close all sources, after `drain` or to give up. Leaves no task, and ends within a second."""
        ...
