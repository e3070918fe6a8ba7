"""Workers: the slots that the supervisor fills with processes, connects with each other, and restarts when they die."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingestd.daemon.control import Configure, Drain, Drained, Unacknowledged
from ingestd.daemon.processes import can_fork
from ingestd.daemon.worker_process import WorkerProcess, fork_worker, spawn_worker
from ingestd.errors import DeadlineExceeded, IngestdError
from ingestd.logs import get_logger
from ingestd.retry import Backoff, Deadline
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ingestd.daemon.configuration import ClusterSettings, DaemonSettings
    from ingestd.daemon.source import Route
    from ingestd.daemon.worker_process import NewWorker

__all__ = ["SILENCE", "EngineLost", "Hire", "HiredProcess", "HiredWorker", "Workers"]

STATISTICS_INTERVAL: Final = 0.5
POSITION_INTERVAL: Final = 0.1
SILENCE: Final = 30.0
"""Seconds without a message after which a worker counts as hung and is killed. It sends two messages a second."""

DRAIN_GRACE: Final = 1.0
"""Seconds after a drain's deadline in which workers may still report what they could not deliver. One time for all."""

STEADY: Final = 60.0
"""Seconds that a worker must live until the backoff of its slot starts over."""


class EngineLost(IngestdError):
    """What started workers elsewhere has ended. It starts no more of them, so the daemon can not go on."""


class HiredProcess(Protocol):
    """Where a worker runs. `WorkerProcess.process` is one on this host."""

    @property
    def pid(self) -> int:
        """Its process id there."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        ...

    def kill(self) -> None:
        """End it without a drain, unless it is gone."""
        ...


class HiredWorker(Protocol):
    """One incarnation of a slot. `WorkerProcess` is one on this host."""

    slot: int
    incarnation: int
    last_sign: float
    """When it was heard of last, of the monotonic clock."""
    drained: asyncio.Future[Drained]
    """What it could not deliver. A worker that dies before it says so counts as one source."""

    @property
    def process(self) -> HiredProcess:
        """Where it runs."""
        ...

    def tell(self, message: object) -> None:
        """Send it a message. Nothing happens if it is gone."""
        ...

    def wire(self, other: Any) -> None:
        """Let two workers help each other. Raises `OSError`."""
        ...

    async def end(self, deadline: Deadline) -> None:
        """Stop it. It is killed at the deadline."""
        ...


class Hire(Protocol):
    """Starts workers elsewhere than on this host."""

    async def __call__(
        self,
        configure: Configure,
        received: Callable[[HiredWorker, Any], None],
        exited: Callable[[HiredWorker, str], None],
    ) -> HiredWorker:
        """A worker that has its configuration. Waits until there is room for it.

        `received` gets its messages. `exited` is called once, with how it ended; then nothing of it runs any more.
        Raises `IngestdError` if it can not start, and `EngineLost` if none can any more.
        """
        ...


class Workers:
    """All slots.

    Invariants
        A slot has at most one living process. Its successor starts after it is gone.
        `started` is called for every incarnation once messages reach it, `died` for every one that ends by itself.
    """

    def __init__(
        self,
        settings: DaemonSettings,
        routes: tuple[Route, ...],
        clusters: Mapping[str, ClusterSettings],
        *,
        received: Callable[[int, Any], None],
        started: Callable[[int], None],
        died: Callable[[int], None],
        crashed: Callable[[BaseException], None],
        hire: Hire | None = None,
    ) -> None:
        """`crashed` is told of a defect, and of `EngineLost`: some slot then stays empty.

        `hire` starts workers elsewhere. Without it they are children of this process.
        """
        self._hire = hire
        self.count = settings.worker_count
        self.restarts = [0] * self.count
        self._settings = settings
        self._routes = routes
        self._clusters = {name: clusters[name] for route in routes for name in route.clusters}
        self._received = received
        self._started = started
        self._died = died
        self._living: dict[int, HiredWorker] = {}
        self._forked: list[NewWorker] = []
        self._incarnations = [0] * self.count
        self._backoffs = [
            Backoff(settings.restart_backoff, settings.restart_backoff_maximum) for _ in range(self.count)
        ]
        self._born = [math.inf] * self.count
        """When the present process of a slot began its work; infinity until it does."""
        self._closing = False
        self._log = get_logger("ingestd.supervisor")
        self._tasks = TaskOwner(crashed)

    def __iter__(self) -> Iterator[HiredWorker]:
        return iter(list(self._living.values()))

    def fork(self) -> None:
        """Fork the first process of each slot, if `can_fork`. Call it before there is a loop. Raises `OSError`."""
        if not can_fork():
            return
        for route in self._routes:
            route.import_runner()
        try:
            for _ in range(self.count):
                self._forked.append(fork_worker(self._settings.arena_bytes))
        except OSError:
            self._discard_forked()
            raise

    async def start(self) -> None:
        """Start every slot. Raises what `Hire` raises."""
        if self._hire is None:
            for slot in range(self.count):
                await self._start(slot)
        else:
            await self._start_together()
        self._tasks.start(self._watch_silence(), "liveness of workers")

    async def _start_together(self) -> None:
        try:
            async with asyncio.TaskGroup() as starting:
                for slot in range(self.count):
                    starting.create_task(self._start(slot))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed

    def get(self, slot: int) -> HiredWorker | None:
        """The living process of a slot; None while it has none."""
        return self._living.get(slot)

    def tell(self, slot: int, message: object) -> bool:
        """Send a message to a slot's worker. It is dropped while the slot has no process; `started` makes up for it.

        Returns whether there is a process.
        """
        worker = self._living.get(slot)
        if worker is not None:
            worker.tell(message)
        return worker is not None

    def tell_all(self, message: object) -> None:
        """Tell every living worker."""
        for worker in self:
            worker.tell(message)

    def drained(self, slot: int, drained: Drained) -> None:
        """A slot's worker has drained, as `drain` asked."""
        worker = self._living.get(slot)
        if worker is not None and not worker.drained.done():
            worker.drained.set_result(drained)

    async def drain(self, deadline: Deadline) -> Drained:
        """Let all workers deliver what they read. Returns what all of them together could not deliver."""
        self._closing = True
        await self._tasks.close()
        self.tell_all(Drain(deadline.remaining))
        left = []
        # Workers keep the deadline themselves. One that does not answer shortly after it counts as having data left.
        answers = Deadline.after(deadline.remaining + DRAIN_GRACE)
        for worker in self:
            try:
                left.append(await answers.wait_for(worker.drained, "drain"))
            except DeadlineExceeded:
                left.append(Drained(1))
        return _together(left)

    def abandon(self) -> None:
        """Kill all workers, which ends a drain. What they did not report as acknowledged is read again next time."""
        self._closing = True
        for worker in self:
            worker.process.kill()

    async def close(self, deadline: Deadline) -> None:
        """End all processes; kill what has not ended by the deadline."""
        self._closing = True
        await self._tasks.close()
        self._discard_forked()
        await asyncio.gather(*(worker.end(deadline) for worker in self))

    def _discard_forked(self) -> None:
        while self._forked:
            self._forked.pop().discard()

    async def _start(self, slot: int) -> None:
        self._incarnations[slot] += 1
        self._born[slot] = math.inf
        configure = Configure(
            slot=slot,
            incarnation=self._incarnations[slot],
            routes=self._routes,
            clusters=self._clusters,
            log_level=self._settings.log_level,
            log_format=self._settings.log_format,
            statistics_interval=STATISTICS_INTERVAL,
            position_interval=POSITION_INTERVAL,
            workers=self.count,
        )
        worker = await self._hired(configure)
        if not worker.process.alive:
            return  # `_exited` has started its successor.
        try:
            for other in self:
                worker.wire(other)
        except OSError as error:
            self._log.error("worker can not be joined with the others", worker=slot, error=str(error))
            worker.process.kill()
            return  # as above
        self._living[slot] = worker
        self._born[slot] = time.monotonic()
        self._log.info("worker started", worker=slot, pid=worker.process.pid, incarnation=worker.incarnation)
        self._started(slot)

    async def _hired(self, configure: Configure) -> HiredWorker:
        if self._hire is not None:
            return await self._hire(configure, self._message, self._exited)
        new = self._forked.pop() if self._forked else spawn_worker(self._settings.arena_bytes)
        try:
            worker = WorkerProcess(configure, new, self._message, self._exited)
        except OSError:
            new.discard()
            raise
        try:
            await worker.connect()
        except asyncio.CancelledError:
            await worker.end(Deadline.after(0))
            raise
        return worker

    def _message(self, worker: HiredWorker, message: Any) -> None:
        self._received(worker.slot, message)

    def _exited(self, worker: HiredWorker, how: str) -> None:
        if self._living.get(worker.slot) is worker:
            del self._living[worker.slot]
        if self._closing:
            return
        slot = worker.slot
        if time.monotonic() - self._born[slot] > STEADY:
            self._backoffs[slot].reset()
        delay = self._backoffs[slot].next_delay()
        self.restarts[slot] += 1
        self._log.error("worker died", worker=slot, pid=worker.process.pid, how=how, restart_in=round(delay, 3))
        self._died(slot)
        self._tasks.start(self._restart(slot, delay), f"restart of worker {slot}")

    async def _restart(self, slot: int, delay: float) -> None:
        while True:
            await asyncio.sleep(delay)
            try:
                await self._start(slot)
            except EngineLost:
                raise
            except (OSError, IngestdError) as error:
                delay = self._backoffs[slot].next_delay()
                self._log.error("worker not started", worker=slot, error=str(error), restart_in=round(delay, 3))
            else:
                return

    async def _watch_silence(self) -> None:
        interval = SILENCE / 10
        while True:
            asleep = time.monotonic()
            await asyncio.sleep(interval)
            # If this process itself stood still, messages of workers wait to be read.
            late = time.monotonic() - asleep - interval
            for worker in self:
                silence = time.monotonic() - worker.last_sign - late
                if silence > SILENCE:
                    self._log.error("worker is silent", worker=worker.slot, seconds=round(silence))
                    worker.process.kill()


def _together(drained: Iterable[Drained]) -> Drained:
    total, routes = 0, dict[str, Unacknowledged]()
    for one in drained:
        total += one.unacknowledged
        for route, left in one.routes.items():
            known = routes.get(route, Unacknowledged())
            deleted = Counter(known.deleted) + Counter(left.deleted)
            routes[route] = Unacknowledged(known.sources + left.sources, known.bytes + left.bytes, deleted)
    return Drained(total, routes)
