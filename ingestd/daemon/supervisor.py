"""Supervisor: the parent of all processes. Metadata, producer ids, who owns which source, positions, signals, the end.

It touches no record bytes. A signal only sets an event. `Supervisor.run` has the whole life in order.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ingestd import __version__
from ingestd.daemon.answering import answered
from ingestd.daemon.checkpoint import Checkpoint
from ingestd.daemon.configuration import NOTHING_TO_RUN, prepare_state
from ingestd.daemon.control import (
    Asked,
    Drained,
    IdentityWanted,
    LeaderHinted,
    Leased,
    MetadataPushed,
    MetadataWanted,
    PositionsReported,
    Revoke,
    RouteFailed,
    SourceEnded,
    SourceLost,
    SourceTroubled,
    StatisticsReported,
    Unacknowledged,
    Withdrawn,
)
from ingestd.daemon.delivery_watch import DELIVERY_PATIENCE, DeliveryWatch
from ingestd.daemon.finding import Finding
from ingestd.daemon.handover import Handover
from ingestd.daemon.listening import require_listenable
from ingestd.daemon.notify import Notifier
from ingestd.daemon.positions import PositionStore
from ingestd.daemon.shards import Shards
from ingestd.daemon.state_files import host_id, require_usable, without_room, write_whole
from ingestd.daemon.statistics import GONE, NOT_TAKEN, OVERFLOW, POSITIONS, RouteCounters
from ingestd.daemon.status import DaemonStatus
from ingestd.daemon.status_report import cluster_status, route_statuses, worker_status
from ingestd.daemon.summary import RouteSummary, Summary
from ingestd.daemon.supervised_cluster import SupervisedCluster
from ingestd.daemon.totals import Totals
from ingestd.daemon.workers import Workers
from ingestd.errors import ConfigurationError
from ingestd.figures import in_count
from ingestd.logs import get_logger
from ingestd.retry import Deadline
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

    from ingestd.daemon.configuration import Configuration
    from ingestd.daemon.control import Moved
    from ingestd.daemon.http import HttpServer
    from ingestd.daemon.source import Loss, Route
    from ingestd.daemon.status import GroupStatus
    from ingestd.daemon.workers import Hire

__all__ = ["Supervisor", "run"]

_IGNORED: Final = {
    signal.SIGHUP: "the configuration is read at a start only",
    signal.SIGUSR1: "it means nothing to this program",
    signal.SIGUSR2: "it means nothing to this program",
}
"""Signals that end nothing here, and why: for people. Scripts of rotation send them to whatever writes logs."""

READY_PATIENCE: Final = 15.0
"""Seconds after which systemd is told that the daemon is up, even if sources of some routes are still being found."""

FOUND_LOOK: Final = 1.0
"""Seconds between two looks at whether a run with an end still finds something."""

TROUBLES_BEFORE_THE_END: Final = 5
"""How many failed reads of a source, with backoff in between, a run with an end takes until it gives up on it."""

TROUBLE_SAID_AGAIN: Final = 60.0
"""Seconds after which a trouble of a source that lasts is logged again."""

SOURCES_NAMED: Final = 5
"""So many sources that were not delivered are named in one line."""

_DELETED: Final = {
    "paths": "the last ones of the deleted files; others may be there by now",
    "then": "the next start looks for copies, compressed or not, and says `data lost` of what is in none",
}
"""What is said of deleted files that a stop leaves. Whether anything of them is lost, the next start knows."""

END_TIMEOUT: Final = 5.0
"""Seconds that processes have to end when they have nothing left to do."""


def run(
    configuration: Configuration,
    *,
    once: bool = False,
    progress: Callable[[DaemonStatus], None] | None = None,
    fork: bool = False,
    hire: Hire | None = None,
) -> Summary:
    """Run the daemon until a signal ends it or, with `once`, until every source is at the end it had at the start.

    `progress` is given the status twice a second, on the event loop. Raises `ConfigurationError` (state directory, HTTP
    address) and `IngestdError` (positions, embedded broker) when it can not start.

    With `fork` the first workers are forks of this process, if it has one thread. That saves their imports. The process
    must hold nothing that it would not share with them. Workers that start later are always fresh interpreters.
    `hire` starts workers elsewhere.
    """
    import uvloop  # noqa: PLC0415 - only the process that runs the daemon needs it

    if not configuration.runs:
        raise ConfigurationError(f"{configuration.file}: {NOTHING_TO_RUN}")
    require_listenable(configuration)
    supervisor = Supervisor(configuration, once=once, progress=progress, hire=hire)
    if fork:
        supervisor.fork_workers()
    return uvloop.run(supervisor.run())


@dataclass(slots=True)
class _Trouble:
    """What keeps a source from being read."""

    count: int = 0
    _reason: str = ""
    _said: float = 0.0

    def is_to_be_said(self, reason: str, now: float) -> bool:
        """Count one more failed read. Returns whether it is news, or lasts for so long that it is to be said again."""
        self.count += 1
        if reason == self._reason and now - self._said < TROUBLE_SAID_AGAIN:
            return False
        self._reason, self._said = reason, now
        return True


class Supervisor:
    """One daemon's life.

    Invariants
        A position is stored only after it is acknowledged, and never past a hole.
        A route that failed is read no further. Its reason is shown until the daemon ends.
        Whatever happens, `run` leaves no process behind.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        once: bool = False,
        progress: Callable[[DaemonStatus], None] | None = None,
        hire: Hire | None = None,
    ) -> None:
        self._configuration = configuration
        self._once = once
        self._progress = progress
        self._began = time.monotonic()
        self._moved_at = self._began
        """When a position last moved."""
        self._finding_since = self._began
        """When sources began to be found."""
        self._log = get_logger("ingestd.supervisor")
        self._crash: BaseException | None = None
        self._tasks = TaskOwner(self._crashed)
        self._answers = TaskOwner(self._crashed)
        """To what workers ask. They do while they drain, too."""
        self._stop = asyncio.Event()
        self._all_ended = asyncio.Event()
        self._started = False
        self._stopped_by = ""
        """The first signal that stopped it."""
        self._draining = False
        self._left = Drained(0)
        self._failures: list[str] = []
        self._route_failures: dict[str, str] = {}
        self._leases: dict[str, Leased] = {}
        """By route, until when its workers may send, as they were told last."""
        self._troubles: dict[tuple[str, str], _Trouble] = {}
        """By route and source."""
        self._drain_deadline: Deadline | None = None
        self.totals = Totals()
        self._notifier = Notifier.from_environment()
        self._routes = {route.name: route for route in configuration.routes}
        for route in configuration.routes:
            self.totals.losses.expect(route.name, route.loss_reasons)
            self.totals.expect(route.name)
        self._http: HttpServer | None = None
        state = prepare_state(configuration.daemon)
        require_usable(configuration)
        self._lock = _lock(state)
        self._positions = PositionStore(state / "positions.sqlite")
        self._checkpoint = Checkpoint(self._positions, lambda route: self.totals.error(route, POSITIONS))
        self._clusters = self._supervised()
        self._workers = Workers(
            configuration.daemon,
            configuration.routes,
            configuration.clusters,
            received=self._received,
            started=self._worker_started,
            died=self._worker_died,
            crashed=self._crashed,
            hire=hire,
        )
        self._shards = Shards(self._workers.count)
        self._handover = Handover(self._shards, self._checkpoint, self._workers.tell)
        self._finding = Finding(
            configuration.routes,
            self._positions,
            self._checkpoint,
            self._handover,
            self,
            once=once,
            client=lambda cluster: self._clusters[cluster].opened,
            host=_host_id(state),
        )
        self._delivery = DeliveryWatch(
            self._routes, self._clusters, self.totals, self._finding, self._route_failures.keys()
        )

    def _supervised(self) -> dict[str, SupervisedCluster]:
        topics: dict[str, dict[str, list[str]]] = {name: {} for name in self._configuration.clusters}
        for route in self._configuration.routes:
            for topic in route.fixed_topics:
                topics[route.cluster].setdefault(topic, []).append(route.name)
        wanted = {name for route in self._configuration.routes for name in route.clusters}
        used = {
            name: settings
            for name, settings in self._configuration.clusters.items()
            if name in wanted or settings.embedded
        }
        self.totals.reachable.update(dict.fromkeys(used, False))
        return {
            name: SupervisedCluster(
                settings,
                topics[name],
                self._configuration.daemon,
                self._push,
                partial(self.totals.reachable.__setitem__, name),
            )
            for name, settings in used.items()
        }

    def fork_workers(self) -> None:
        """Fork the first workers, if this process can be forked. Call it before `run`. Raises `OSError`."""
        self._workers.fork()

    async def run(self) -> Summary:
        """Start, work, drain, end. Returns what was done. Raises what kept it from starting, or a defect in itself."""
        try:
            with _collecting_nothing():
                await self._until_stop(self._start())
                if not self._stop.is_set():
                    self._finding_since = time.monotonic()
                    self._finding.start(self._tasks, self._all_found)
                    patience = self._configuration.daemon.once_patience if self._once else READY_PATIENCE
                    await self._until_stop(self._finding.finished_within(min(patience, READY_PATIENCE)))
            if not self._stop.is_set():
                await self._work()
            self._notifier.stopping()
            await self._drain()
        finally:
            gc.unfreeze()
            await self._end()
        if self._crash is not None:
            raise self._crash
        return self._summary()

    # From start to end.

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        for number, reason in _IGNORED.items():
            loop.add_signal_handler(number, self._ignored, number, reason)
        if self._progress is not None:
            self._tasks.start(self._show_progress(self._progress), "progress")
        for name in self._clusters:
            self._configuration.check_security(name)
        import kio.serial  # noqa: F401, PLC0415 - requests need it; imported later, it would block HTTP

        if self._configuration.daemon.http:
            from ingestd.daemon.http import serve  # noqa: PLC0415 - aiohttp is a third of a start, and may be switched off

            self._http = await serve(self._configuration.daemon.http, self)
            self._log.info("serving", address=self._http.address)
        try:
            async with asyncio.TaskGroup() as starting:  # if one fails, the other ends, which may wait for a cluster
                starting.create_task(self._finding.prepare())
                starting.create_task(self._start_workers())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        self._tasks.start(self._notifier.feed_watchdog(), "watchdog")
        self._tasks.start(self._watch_delivery(), "watch delivery")

    async def _start_workers(self) -> None:
        await asyncio.gather(*(cluster.start() for cluster in self._clusters.values()))
        await self._workers.start()
        self._started = True

    async def _work(self) -> None:
        self._notifier.ready(self._in_a_line())
        if not self._once:
            await self._stop.wait()
            return
        # What it delivers and can not note, each further run sends again.
        stored = self._give_up_after(lambda: self._checkpoint.failing_seconds, "positions could not be stored")
        self._tasks.start(stored, "patience with positions that can not be stored")
        await self._until_stop(self._find_all())
        if len(self._shards) and not self._stop.is_set():
            self._moved_at = time.monotonic()
            moved = self._give_up_after(lambda: time.monotonic() - self._moved_at, "nothing was acknowledged")
            self._tasks.start(moved, "patience of a run with an end")
            await self._until_stop(self._all_ended.wait())

    def _all_found(self) -> None:
        self.totals.ready = True
        self._notifier.status(self._in_a_line())
        self._check_all_ended()

    def _in_a_line(self) -> str:
        unfinished = self._finding.unfinished
        more = f"; sources are being found: {', '.join(unfinished)}" if unfinished else ""
        return f"{in_count(len(self._shards), 'source')}, {in_count(self._workers.count, 'worker')}{more}"

    async def _until_stop(self, work: Coroutine[Any, Any, object]) -> None:
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait([working])
        if not working.cancelled():
            working.result()

    async def _find_all(self) -> None:
        """Wait until all that is there is found. Give up if for long nothing is found and nothing moves."""
        patience = self._configuration.daemon.once_patience
        found, found_at = 0, self._finding_since
        while not await self._finding.finished_within(min(FOUND_LOOK, patience)):
            now = time.monotonic()
            if self._finding.count != found:
                found, found_at = self._finding.count, now
            elif now - max(found_at, self._moved_at) >= patience:
                unfinished = ", ".join(self._finding.unfinished)
                self._give_up(f"nothing was found for {patience:g} s of what is to be read by {unfinished}")
                return

    def _give_up(self, why: str) -> None:
        self._failures.append(f"gave up: {why}")
        self._failures += [cluster.trouble for cluster in self._clusters.values() if cluster.trouble]
        self._failures += without_room(self._configuration)
        self._stop.set()

    async def _give_up_after(self, lasts: Callable[[], float], what: str) -> None:
        """End a run with an end once something `lasts` longer than `once_patience`; in seconds."""
        patience = self._configuration.daemon.once_patience
        # Positions move, and are stored, ten times a second. No need to wake for each.
        while (left := patience - lasts()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left)
        self._give_up(f"{what} for {patience:g} s")

    async def _drain(self) -> None:
        deadline = self._drain_deadline = Deadline.after(self._configuration.daemon.drain_timeout)
        self._draining = True
        self._log.info("draining", within=self._configuration.daemon.drain_timeout)
        if not self._once:
            await self._finding.rest()
        await self._tasks.close()
        self._left = await self._workers.drain(deadline)
        for route, left in self._left.routes.items():
            if left.sources:
                again = "read and sent again at the next start"
                said = {"sources": left.sources, "bytes": left.bytes, "then": again}
                self._log.warning("data not acknowledged", route=route, **said)
            if left.deleted:
                some = dict([*left.deleted.items()][:SOURCES_NAMED])
                said = {"files": len(left.deleted), "bytes": sum(left.deleted.values()), "of": some, **_DELETED}
                self._log.warning("deleted files not delivered", route=route, **said)
        if not self._once:
            return
        stopped = f"stopped by {self._stopped_by}" if self._stopped_by else "stopped"
        if self._finding.unfinished:
            self._failures.append(f"{stopped} before all sources were found")
        elif len(self._shards):
            ends = [(shard.found.until or 0, shard.found.position) for shard in self._shards]
            size = sum(max(0, until - position) for until, position in ends)
            sources = in_count(len(ends), "source")
            named = ", ".join(shard.found.display_name for shard in islice(self._shards, SOURCES_NAMED))
            more = ", …" if len(ends) > SOURCES_NAMED else ""
            rest = f"at least {size} bytes are not delivered" if size else "how much is not delivered is not known"
            self._failures.append(f"{stopped} before the end of {sources} ({named}{more}): {rest}")

    async def _end(self) -> None:
        deadline = Deadline.after(END_TIMEOUT)
        await self._tasks.close()
        await self._workers.close(deadline)
        await self._answers.close()
        not_stored = await self._checkpoint.finish(self._drain_deadline or deadline)
        if not_stored is not None:
            self._failures.append(not_stored)
        for cluster in self._clusters.values():
            await cluster.close(Deadline.after(END_TIMEOUT))
        if self._http is not None:
            await self._http.close()
        self._positions.close()
        self._notifier.close()
        os.close(self._lock)

    def _signalled(self, number: signal.Signals) -> None:
        name = signal.Signals(number).name
        if not self._draining:
            self._log.info("signal", signal=name)
            self._stopped_by = self._stopped_by or name
            self._stop.set()
        else:
            self._log.warning("signal while draining; what is not acknowledged is read again next time", signal=name)
            self._workers.abandon()
            self._checkpoint.hurry()

    def _ignored(self, number: signal.Signals, reason: str) -> None:
        self._log.warning("signal ignored", signal=number.name, reason=reason)

    def _crashed(self, error: BaseException) -> None:
        self._log.error("supervisor task failed", exc_info=error)
        self._crash = error
        self._stop.set()

    def _summary(self) -> Summary:
        totals = self.totals.routes()
        routes = tuple(self._route_summary(name, totals.get(name, RouteCounters())) for name in self._routes)
        cpu = time.process_time() + sum(self.totals.cpu_seconds().values())
        seconds = time.monotonic() - self._began
        return Summary(routes, seconds, cpu, self._left.unacknowledged, tuple(self._failures))

    def _route_summary(self, name: str, counters: RouteCounters) -> RouteSummary:
        left = self._left.routes.get(name, Unacknowledged())
        return RouteSummary(
            name,
            self._routes[name].words,
            self._finding.taken(name),
            counters.records_acknowledged,
            counters.bytes_acknowledged,
            counters.compressed_bytes_acknowledged,
            self._route_failures.get(name),
            counters.helped_bytes,
            left.sources,
            left.bytes,
            left.deleted,
        )

    async def _show_progress(self, progress: Callable[[DaemonStatus], None]) -> None:
        while True:
            progress(self.status())
            await asyncio.sleep(0.5)

    async def _watch_delivery(self) -> None:
        while True:
            self._checkpoint.look()
            self._delivery.look()
            await asyncio.sleep(1.0)

    # What finders say.

    def untakeable(self, route: Route, thing: str, reason: str) -> None:
        """See `IntakeNews`."""
        self.totals.error(route.name, NOT_TAKEN)
        if self._once:
            self._failures.append(f"{route.name}: {thing}: {reason}")

    def given_up(self, route: Route, reason: str) -> None:
        """See `IntakeNews`."""
        self._failures.append(f"{route.name}: {reason}")

    def overflowed(self, route: Route) -> None:
        """See `IntakeNews`."""
        self.totals.error(route.name, OVERFLOW)

    def gone(self, route: Route, sources: int) -> None:
        """See `IntakeNews`."""
        self.totals.error(route.name, GONE, sources)

    def lost(self, route: Route, loss: Loss) -> None:
        """See `IntakeNews`."""
        self.totals.losses.count(route.name, loss)
        if self._once:
            least = "" if loss.exact else "at least "
            many = f"{least}{loss.length}" if loss.length or loss.exact else "nobody knows how many"
            what = f"{many} {loss.unit} from {loss.start} on"
            why = f" ({loss.why})" if loss.why else ""
            self._failures.append(f"{route.name}: {loss.thing}: data lost: {loss.reason}{why}, {what}")

    def leased(self, route: Route, until: float) -> None:
        """See `IntakeNews`. Workers that start later are told of it before they get sources."""
        lease = self._leases[route.name] = Leased(route.name, until)
        self._workers.tell_all(lease)

    def groups(self, route: Route, groups: Sequence[GroupStatus]) -> None:
        """See `IntakeNews`."""
        self.totals.groups[route.name] = groups

    # What workers say.

    def _worker_started(self, slot: int) -> None:
        if self._workers.restarts[slot]:
            self.totals.worker_restarted(slot)
        else:
            self.totals.worker_started(slot)
        for name, cluster in self._clusters.items():
            snapshot = cluster.metadata
            if snapshot is not None and snapshot.version:
                self._workers.tell(slot, MetadataPushed(name, snapshot))
        for lease in self._leases.values():
            self._workers.tell(slot, lease)
        self._handover.worker_started(slot)

    def _worker_died(self, slot: int) -> None:
        self.totals.worker_ended(slot)
        self._handover.worker_died(slot)
        self._shards.renew(slot)

    def _push(self, pushed: MetadataPushed) -> None:
        self._workers.tell_all(pushed)

    def _received(self, slot: int, message: Any) -> None:
        match message:
            case PositionsReported(moved):
                self._positions_moved(moved)
            case StatisticsReported(statistics):
                self.totals.take(statistics)
            case SourceEnded():
                self._source_ended(message)
            case SourceTroubled():
                self._source_troubled(message)
            case SourceLost(route, source, generation, loss):
                shard = self._shards.get(route, source)
                if shard is not None and shard.generation == generation:
                    self._finding.lost(route, loss)
            case RouteFailed(route, reason):
                self._route_failed(route, reason)
            case Withdrawn(ticket):
                self._handover.withdrawn(ticket)
            case Drained():
                self._workers.drained(slot, message)
            case _:
                self._cluster_wish(slot, message)

    def _positions_moved(self, moved: Sequence[Moved]) -> None:
        self._moved_at = time.monotonic()
        for route in {move.route for move in moved}:
            self._finding.moved(route)
        for move in moved:
            shard = self._shards.moved(move)
            if shard is not None:
                self._checkpoint.remember(move.route, replace(shard.stored, note=move.note))

    def _cluster_wish(self, slot: int, message: Any) -> None:
        match message:
            case MetadataWanted(cluster, topics, reason):
                self._clusters[cluster].wanted(topics, reason)
            case LeaderHinted():
                self._clusters[message.cluster].hint(message)
            case IdentityWanted():
                worker = self._workers.get(slot)
                if worker is not None:
                    self._clusters[message.cluster].identify(message, worker.tell)
            case Asked():
                worker = self._workers.get(slot)
                if worker is not None:
                    self._answers.start(self._answer(message, worker.tell), f"answer for ticket {message.ticket}")
            case _:
                raise AssertionError(f"not a message for the supervisor: {message!r}")

    async def _answer(self, asked: Asked, tell: Callable[[object], None]) -> None:
        tell(await answered(asked.ticket, self._finding.answer(asked.route, asked.question)))

    def _source_ended(self, ended: SourceEnded) -> None:
        shard = self._shards.end(ended.route, ended.source, ended.generation)
        if shard is None:
            return
        self._troubles.pop((ended.route, ended.source), None)
        self._finding.ended(ended.route, shard.found, ended.end)
        self._check_all_ended()

    def _source_troubled(self, troubled: SourceTroubled) -> None:
        route, source, reason = troubled.route, troubled.source, troubled.reason
        known = self._shards.get(route, source)
        label = source if known is None else known.found.display_name
        trouble = self._troubles.setdefault((route, source), _Trouble())
        if trouble.is_to_be_said(reason, time.monotonic()):
            self._log.warning("source can not be read now", route=route, source=source, file=label, reason=reason)
        if not self._once or trouble.count < TROUBLES_BEFORE_THE_END:
            return
        shard = self._shards.end(route, source, troubled.generation)
        if shard is not None:
            self._failures.append(f"{route}: {shard.found.display_name}: {reason}")
            self._workers.tell(shard.slot, Revoke(route, [source]))
            self._check_all_ended()

    def _route_failed(self, route: str, reason: str) -> None:
        if route in self._route_failures:
            return
        self._route_failures[route] = reason
        self.totals.stopped[route] = True
        self._log.error("route stopped", route=route, reason=reason)
        self._handover.drop_route(route)
        self._check_all_ended()

    def _check_all_ended(self) -> None:
        if not self._finding.unfinished and not len(self._shards):
            self._all_ended.set()

    # What people see.

    def unhealthy(self) -> str | None:
        """See `DaemonView`."""
        down = [slot for slot in range(self._workers.count) if self._workers.get(slot) is None]
        return f"workers between two lives: {down}" if down and self._started else None

    def not_ready(self) -> str | None:
        """See `DaemonView`."""
        if self._stop.is_set():
            return "stopping"
        reasons = [f"route {name} stopped: {reason}" for name, reason in self._route_failures.items()]
        reasons += self._delivery.reasons()
        if self._checkpoint.failing is not None:
            reasons.append(self._checkpoint.failing)
        if unfinished := self._finding.unfinished:
            reasons.append(f"sources are being found: {', '.join(unfinished)}")
        reasons += [
            f"waiting for {cluster.trouble or f'cluster {name}'}"
            for name, cluster in self._clusters.items()
            if not cluster.ready
        ]
        reasons += [
            f"{cluster.trouble} (for {cluster.silent_seconds:.0f} s now)"
            for cluster in self._clusters.values()
            if cluster.ready and cluster.silent_seconds > DELIVERY_PATIENCE
        ]
        return "\n".join(reasons) or None

    def status(self) -> DaemonStatus:
        """See `DaemonView`."""
        return DaemonStatus(
            version=__version__,
            pid=os.getpid(),
            uptime_seconds=time.monotonic() - self._began,
            ready=self.not_ready() is None,
            workers=[worker_status(slot, self._workers, self.totals) for slot in range(self._workers.count)],
            routes=route_statuses(
                self._routes,
                self.totals,
                self._shards,
                self._finding,
                self._route_failures,
            ),
            clusters=[cluster_status(name, cluster) for name, cluster in self._clusters.items()],
        )


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """No garbage collection during the start: what a start makes stays, and each collection would block the loop."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def _host_id(state: Path) -> str:
    """The same as `host_id`; this daemon's first start makes it."""
    file = state / "host"
    if not file.exists():
        write_whole(file, f"{uuid.uuid4().hex}\n")
    return host_id(state)


def _lock(state: Path) -> int:
    """Lock the state directory for this process. Raises `ConfigurationError` if another daemon has it."""
    descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        why = f"daemon.state: {state} is in use by another ingestd: stop that one, or give this one another state"
        raise ConfigurationError(why) from None
    return descriptor
