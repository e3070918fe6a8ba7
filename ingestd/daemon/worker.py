"""Worker: one process, one loop, one arena. Owns sources, encodes for itself and for peers, produces.

Forked by the supervisor, or started as `python -m ingestd.daemon.worker_main CONTROL WIRING ARENA` with descriptors: a
control stream, a `SOCK_SEQPACKET` socket on which peers are announced (message and descriptors), its arena's memfd.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import resource
import signal
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ingestd.daemon.arena import Arena
from ingestd.daemon.control import (
    Answered,
    Asked,
    Assign,
    Conclude,
    Configure,
    ControlChannel,
    Drain,
    Drained,
    IdentityWanted,
    Leased,
    MetadataPushed,
    PositionsReported,
    Refused,
    Revoke,
    RouteFailed,
    SourceEnded,
    SourceLost,
    SourceTroubled,
    StatisticsReported,
    Wire,
    Withdrawn,
)
from ingestd.daemon.encode import EncodeStage
from ingestd.daemon.runner import Workplace
from ingestd.daemon.statistics import RouteCounters, SourceGauges, WorkerStatistics
from ingestd.daemon.worker_cluster import WorkerCluster
from ingestd.errors import ConnectionLost, DeadlineExceeded, IngestdError, KafkaError
from ingestd.logs import configure_logs, get_logger
from ingestd.retry import Deadline
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ingestd.daemon.runner import Runner
    from ingestd.daemon.source import Assignment, End, Loss, Route
    from ingestd.producer.identity import ProducerIdentity

    OpenControl: TypeAlias = Callable[[Callable[[Any], None], Callable[[], None]], Awaitable[ControlChannel]]
    """Opens the channel to the supervisor, given what takes its messages, and what hears that it is gone."""

__all__ = ["OpenControl", "Worker", "main", "take_descriptors"]

_NOT_HEARD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What `pkill`, or a shutdown, sends to all processes: the supervisor hears it, and has workers deliver the rest."""

ANSWER_TIMEOUT = 30.0
"""Seconds to wait for what the supervisor is asked for."""


class Worker:
    """One worker's life, from `Configure` to the end of the control channel."""

    def __init__(self, arena: Arena, wiring: socket.socket) -> None:
        self._arena = arena
        self._wiring = wiring
        self._log = get_logger("ingestd.worker")
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._tasks = TaskOwner(self._crashed)
        self._control: ControlChannel | None = None
        self._early: list[object] = []
        """What was told before the channel was known here: the first messages may come while it is opened."""
        self._clusters: dict[str, WorkerCluster] = {}
        self._runners: dict[str, Runner] = {}
        self._counters: list[RouteCounters] = []
        self._tickets: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._kick_due = False
        self._settled = asyncio.Event()
        self._positions_due: asyncio.TimerHandle | None = None
        self._ended_sources: list[SourceEnded] = []
        """Ends that are told right after the next positions."""
        self._encoding: EncodeStage | None = None
        self.configure: Configure

    async def run(self, open_control: OpenControl) -> None:
        """Serve until the supervisor closes the channel, or is gone."""
        self._control = await open_control(self._received, self._lost)
        for message in self._early:
            self._control.send(message)
        self._early.clear()
        self._loop.set_exception_handler(self._defect)
        try:
            await self._ended
        finally:
            await self._close()

    def tell(self, message: object) -> None:
        """Send the supervisor a message."""
        if self._control is None:
            self._early.append(message)
        else:
            self._control.send(message)

    async def identity(self, cluster: str, previous: tuple[int, int] | None) -> ProducerIdentity:
        """Ask the supervisor for a producer id. Raises `ConnectionLost` if it can give none now."""
        ticket = next(self._numbers)
        wanted = IdentityWanted(ticket, cluster, previous)
        identity: ProducerIdentity = await self._answer_to(ticket, wanted, f"a producer id for cluster {cluster}")
        return identity

    async def _ask_finder(self, route: str, question: Any) -> Any:
        ticket = next(self._numbers)
        return await self._answer_to(ticket, Asked(ticket, route, question), f"an answer of the finder of {route}")

    async def _answer_to(self, ticket: int, message: object, doing: str) -> Any:
        answer = self._tickets[ticket] = self._loop.create_future()
        self.tell(message)
        try:
            return await Deadline.after(ANSWER_TIMEOUT).wait_for(answer, doing)
        finally:
            del self._tickets[ticket]

    # What the supervisor says.

    def _received(self, message: Any) -> None:
        match message:
            case Configure():
                self._configure(message)
            case Assign(assignments):
                for assignment in assignments:
                    self._runners[assignment.route].assign(assignment)
            case Conclude(route, sources):
                for source in sources:
                    self._runners[route].conclude(source)
            case Revoke():
                self._revoke(message)
            case Leased(route, until):
                self._runners[route].leased(until)
            case MetadataPushed():
                self._pushed(message)
            case Answered(ticket, answer):
                self._answer(ticket, answer)
            case Refused(ticket, reason, code):
                self._answer(ticket, ConnectionLost(reason) if code is None else KafkaError(code, reason))
            case Drain(seconds):
                self._tasks.start(self._drain(seconds), "drain")
            case _:
                raise AssertionError(f"not a message for a worker: {message!r}")

    def _revoke(self, revoke: Revoke) -> None:
        for source in revoke.sources:
            self._runners[revoke.route].revoke(source)
        self._settled.set()
        if revoke.ticket is not None:
            withdrawal = self._withdraw(revoke.route, revoke.sources, revoke.ticket)
            self._tasks.start(withdrawal, f"withdrawal {revoke.ticket}")

    async def _withdraw(self, route: str, sources: Sequence[str], ticket: int) -> None:
        while self._runners[route].holds(sources):
            self._settled.clear()
            await self._settled.wait()
        self._tell_positions()
        self.tell(Withdrawn(ticket))

    def _answer(self, ticket: int, answer: Any) -> None:
        waiting = self._tickets.get(ticket)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, IngestdError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _pushed(self, pushed: MetadataPushed) -> None:
        cluster = self._clusters.get(pushed.cluster)
        if cluster is not None:  # else it is an embedded one that no route writes to
            cluster.metadata.push(pushed.metadata)
            self._kick_soon()

    def _configure(self, configure: Configure) -> None:
        self.configure = configure
        configure_logs(configure.log_level, configure.log_format, process=f"worker-{configure.slot}")
        self._counters = [RouteCounters() for _ in configure.routes]
        self._encoding = EncodeStage(self._arena, self._counters)
        used = dict.fromkeys(cluster for route in configure.routes for cluster in route.clusters)
        self._clusters = {name: WorkerCluster(configure.clusters[name], configure.slot, self) for name in used}
        share = self._arena.usable_pages // max(1, len(configure.routes))
        for number, route in enumerate(configure.routes):
            self._runners[route.name] = route.runner(
                Workplace(
                    number,
                    arena=self._arena,
                    share=share,
                    encoding=self._encoding,
                    clusters={name: self._clusters[name] for name in route.clusters},
                    counters=self._counters[number],
                    news=self,
                    workers=configure.workers,
                    ask=partial(self._ask_finder, route.name),
                )
            )
        self._arena.freed = self._pages_freed
        self._wiring.settimeout(0)
        self._loop.add_reader(self._wiring.fileno(), self._wire)
        self._tasks.start(self._report_statistics(), "statistics")

    def _wire(self) -> None:
        while True:
            try:
                body, descriptors, _, _ = socket.recv_fds(self._wiring, 4096, 2)
            except BlockingIOError:
                return
            if not body:
                self._loop.remove_reader(self._wiring.fileno())
                return
            message = pickle.loads(body)  # noqa: S301 - from our supervisor, over an inherited socket
            assert isinstance(message, Wire)
            assert self._encoding is not None, "listened to after Configure only"
            arena, pair = descriptors
            self._encoding.connect(message.slot, arena, socket.socket(fileno=pair))

    def _lost(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    # What runners say.

    def ended(self, assignment: Assignment, end: End) -> None:
        """See `RunnerNews`. The last position is sent before this."""
        self._ended_sources.append(SourceEnded(assignment.route, assignment.found.source, assignment.generation, end))
        if end.at_once:
            self._tell_positions()
        else:
            self.moved()

    def troubled(self, assignment: Assignment, reason: str) -> None:
        """See `RunnerNews`."""
        self.tell(SourceTroubled(assignment.route, assignment.found.source, assignment.generation, reason))

    def lost(self, assignment: Assignment, loss: Loss) -> None:
        """See `RunnerNews`."""
        self.tell(SourceLost(assignment.route, assignment.found.source, assignment.generation, loss))

    def failed(self, route: Route, reason: str) -> None:
        """See `RunnerNews`."""
        self._tell_positions()
        self.tell(RouteFailed(route.name, reason))
        self._settled.set()

    def moved(self) -> None:
        """See `RunnerNews`. Reported a moment later, together with what moves until then."""
        if self._positions_due is None:
            self._positions_due = self._loop.call_later(self.configure.position_interval, self._tell_positions)

    def settled(self) -> None:
        """See `RunnerNews`."""
        self._settled.set()

    def _pages_freed(self) -> None:
        if not self._kick_due and any(runner.starved for runner in self._runners.values()):
            self._kick_soon()

    def _kick_soon(self) -> None:
        if not self._kick_due:
            self._kick_due = True
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        self._kick_due = False
        for runner in self._runners.values():
            runner.kick()

    # Reports.

    def _tell_positions(self) -> None:
        if self._positions_due is not None:
            self._positions_due.cancel()
            self._positions_due = None
        moved = [move for runner in self._runners.values() for move in runner.moved()]
        if moved:
            self.tell(PositionsReported(moved))
            self._tell_counters({})  # If it is killed now, its counters agree with its positions.
        for ended in self._ended_sources:
            self.tell(ended)
        self._ended_sources.clear()

    async def _report_statistics(self) -> None:
        while True:
            self._tell_statistics()
            await asyncio.sleep(self.configure.statistics_interval)

    def _tell_statistics(self) -> None:
        self._tell_counters(
            {
                (route, source): gauges
                for route, runner in self._runners.items()
                for source, gauges in runner.gauges().items()
            }
        )

    def _tell_counters(self, sources: dict[tuple[str, str], SourceGauges | None]) -> None:
        names = [route.name for route in self.configure.routes]
        self.tell(
            StatisticsReported(
                WorkerStatistics(
                    slot=self.configure.slot,
                    incarnation=self.configure.incarnation,
                    cpu_seconds=time.process_time(),
                    arena_pages=self._arena.usable_pages,
                    arena_pages_used=self._arena.used_pages,
                    routes=dict(zip(names, self._counters, strict=True)),
                    waiting={name: runner.waiting for name, runner in self._runners.items()},
                    oldest={name: runner.oldest for name, runner in self._runners.items()},
                    sources=sources,
                )
            )
        )

    # The end.

    async def _drain(self, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        for runner in self._runners.values():
            runner.drain()
        while not all(runner.settled for runner in self._runners.values()) and not deadline.expired:
            self._settled.clear()
            with contextlib.suppress(DeadlineExceeded):  # The loop ends then, and what is left is counted.
                await deadline.wait_for(self._settled.wait(), "drain")
        unacknowledged = {name: runner.unacknowledged for name, runner in self._runners.items()}
        left = {name: part for name, part in unacknowledged.items() if part.sources or part.deleted}
        self._tell_positions()
        self._tell_statistics()
        self.tell(Drained(sum(part.sources for part in left.values()), left))

    def _defect(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._crashed(context.get("exception") or RuntimeError(context["message"]))

    def _crashed(self, error: BaseException) -> None:
        self._log.error("worker failed", error=repr(error), exc_info=error)
        if not self._ended.done():
            self._ended.set_exception(error)

    async def _close(self) -> None:
        await self._tasks.close()
        await asyncio.gather(*(runner.close() for runner in self._runners.values()))
        if self._encoding is not None:
            self._encoding.close()
        for cluster in self._clusters.values():
            await cluster.close()
        if self._control is not None:
            self._control.close()
        self._loop.remove_reader(self._wiring.fileno())
        self._wiring.close()


async def _serve(control: socket.socket, wiring: socket.socket, arena: int) -> None:
    await Worker(Arena(arena), wiring).run(partial(ControlChannel.over, control))


def take_descriptors() -> None:
    """Let this process have as many descriptors as its user may. Each followed file needs one; shells allow few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(control: int, wiring: int, arena: int) -> None:
    """Run a worker over the inherited descriptors."""
    for number in _NOT_HEARD:
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (control, wiring, arena):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - the standard library's signature
    take_descriptors()
    import uvloop  # noqa: PLC0415 - a worker needs it, importers of this module do not

    uvloop.run(_serve(socket.socket(fileno=control), socket.socket(fileno=wiring), arena))
