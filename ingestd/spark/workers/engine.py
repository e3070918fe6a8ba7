"""Engine: the daemon's workers on Spark's executors. The supervisor, and all that it owns, is in the driver.

    driver                                               executor
    Workers ── Hire ── SparkEngine ── a job of one task ──▶ run_worker ── Worker
                          ▲                                    │
                          └────────── KeyedChannel ◀───────────┘

A worker is one task, for its whole life, and takes one core. It has the code of a worker on this host, and the same
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import InheritableThread

from ingestd.daemon.control import Drained, Leased
from ingestd.daemon.workers import EngineLost
from ingestd.errors import ConfigurationError, DeadlineExceeded, IngestdError
from ingestd.logs import get_logger
from ingestd.mirror.route import MirrorRoute
from ingestd.retry import Deadline
from ingestd.spark.executors import warn_of_slow
from ingestd.spark.pipelines.failures import reason_of
from ingestd.spark.pipelines.session import ENDED, NO_ANSWER, has_ended, start_session, stop_session
from ingestd.spark.workers.channel import ID_BYTES, Beat, Hello, KeyedChannel, Offer, Sign
from ingestd.spark.workers.task import SentWorker, boot_id
from ingestd.tail.route import TailRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from ingestd.daemon.configuration import DaemonSettings
    from ingestd.daemon.control import Configure
    from ingestd.daemon.source import Route
    from ingestd.daemon.workers import HiredWorker

__all__ = ["SparkEngine", "started"]

_INTRODUCTION: Final = 10.0
"""Seconds that a connection has to say which it is."""
_SAID_AGAIN: Final = 30.0
"""Seconds after which a worker that waits for Spark is logged again."""
_KILL_SECONDS: Final = 5.0
_LOOPBACK: Final = "127.0.0.1"
_PORT: Final = "spark.ingestd.port"
_HIGHEST_PORT: Final = 65_535

_log = get_logger("ingestd.supervisor")


class SparkEngine:
    """Hires workers of Spark. See `ingestd.daemon.workers.Hire`.

    Invariant: a connection that does not prove that it has the key of an offer is closed, and reaches nobody.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._offers: dict[bytes, SparkWorker] = {}
        self._tasks = 0
        """That run. While there are some, connections are taken."""
        self.arena_bytes = 0

    def settings(self, daemon: DaemonSettings) -> DaemonSettings:
        """The settings with as many workers as they say, or as Spark has cores."""
        self.arena_bytes = daemon.arena_bytes
        return daemon if daemon.workers else replace(daemon, workers=self._context.defaultParallelism)

    async def __call__(
        self,
        configure: Configure,
        received: Callable[[HiredWorker, Any], None],
        exited: Callable[[HiredWorker, str], None],
    ) -> HiredWorker:
        """See `Hire`."""
        if has_ended(self._spark):
            raise EngineLost(ENDED)
        configure = replace(configure, routes=tuple(_share(route, configure.workers) for route in configure.routes))
        offer = Offer(
            self._context.getConf().get("spark.driver.host") or _LOOPBACK,
            await self._listening(),
            secrets.token_bytes(ID_BYTES),
            secrets.token_bytes(32),
            self.arena_bytes,
            configure,
        )
        worker = SparkWorker(self._spark, offer, received, exited, self._task_ended)
        self._offers[offer.connection] = worker
        self._tasks += 1
        try:
            await worker.start()
        finally:
            self._offers.pop(offer.connection, None)
        return worker

    async def _listening(self) -> int:
        """The port where workers are awaited. Raises `ConfigurationError`, and `OSError` if it is taken."""
        async with self._opening:
            if self._server is None:
                conf = self._context.getConf()
                host = conf.get("spark.driver.bindAddress") or conf.get("spark.driver.host") or _LOOPBACK
                port = _port(conf.get(_PORT) or "0")
                loop = asyncio.get_running_loop()
                self._server = await loop.create_server(lambda: _Introduction(self._offers), host, port)
            return int(self._server.sockets[0].getsockname()[1])

    def _task_ended(self) -> None:
        self._tasks -= 1
        if not self._tasks and self._server is not None:
            self._server.close()
            self._server = None


@contextmanager
def started(master: str, settings: Mapping[str, str]) -> Iterator[SparkEngine]:
    """An engine on a Spark of its own, which is stopped at the end. Raises `ConfigurationError`."""
    spark = start_session("ingestd", master, settings)
    try:
        yield SparkEngine(spark)
    finally:
        stop_session(spark)


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= _HIGHEST_PORT):
        raise ConfigurationError(f"{_PORT} is {text!r}; expected a port up to {_HIGHEST_PORT}; 0: any free one")
    return int(text)


def _share(route: Route, workers: int) -> Route:
    """The route for one of several workers that can not tell each other what they have sent."""
    if isinstance(route, MirrorRoute) and route.bandwidth is not None:
        return replace(route, bandwidth=max(1, route.bandwidth // workers))
    return route


class _Introduction(asyncio.Protocol):
    """A connection until it has said which it is."""

    def __init__(self, offers: dict[bytes, SparkWorker]) -> None:
        self._offers = offers
        self._said = b""
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(_INTRODUCTION, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._said += data
        if len(self._said) < ID_BYTES:
            return
        assert self._timer is not None, "set with the connection"
        self._timer.cancel()
        name, rest = self._said[:ID_BYTES], self._said[ID_BYTES:]
        # One connection for each offer: a task that runs again finds nobody here.
        worker = self._offers.pop(name, None)
        if worker is None:
            self._transport.abort()
            return
        channel = worker.channel
        self._transport.set_protocol(channel)
        channel.connection_made(self._transport)
        if rest:
            channel.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - any end is the same end
        if self._timer is not None:
            self._timer.cancel()


class SparkWorker:
    """One incarnation of a slot, in a task of Spark. See `HiredWorker`, and `HiredProcess`.

    Invariants
        `exited` is called once, after the task has ended, if `start` has returned.
        A worker that was not heard of for `SILENCE` has ended by itself, also where Spark can not reach it.
    """

    def __init__(
        self,
        spark: SparkSession,
        offer: Offer,
        received: Callable[[HiredWorker, Any], None],
        exited: Callable[[HiredWorker, str], None],
        left: Callable[[], None],
    ) -> None:
        """`left` is called when the task has ended, whether there was ever a worker in it or not."""
        self.slot, self.incarnation = offer.configure.slot, offer.configure.incarnation
        self.last_sign = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self.drained: asyncio.Future[Drained] = self._loop.create_future()
        self.pid = 0
        self.alive = False
        self.channel = KeyedChannel(offer.key, supervisor=True, received=self._message, lost=self._lost)
        self._context = spark.sparkContext
        self._offer = offer
        self._received, self._exited, self._left = received, exited, left
        self._group = f"ingestd worker {self.slot}, {offer.connection.hex()[:8]}"
        self._hello: asyncio.Future[Hello] = self._loop.create_future()
        self._gone: asyncio.Future[str] = self._loop.create_future()
        self._ahead = 0.0
        """By how much this clock is ahead of the worker's, or less: the way of a message is in it."""
        self._how = "its task ended"
        self._ending = False

    @property
    def process(self) -> SparkWorker:
        """Itself: a task is one worker."""
        return self

    async def start(self) -> None:
        """Run the task, and wait until the worker says hello. Raises `IngestdError` if the task fails before."""
        InheritableThread(target=self._run, name=self._group, daemon=True).start()
        try:
            hello = await self._greeted()
            self._check_host(hello)
        except BaseException:
            self.kill()
            raise
        if hello.slow:
            warn_of_slow(hello.slow)
        self.alive = True

    async def _greeted(self) -> Hello:
        either: list[asyncio.Future[Any]] = [self._hello, self._gone]
        while not (await asyncio.wait(either, timeout=_SAID_AGAIN, return_when=asyncio.FIRST_COMPLETED))[0]:
            _log.warning("worker waits for a free core of Spark", worker=self.slot)
        if self._gone.done():
            raise IngestdError(f"a worker can not start on Spark: {self._gone.result()}")
        return self._hello.result()

    def _check_host(self, hello: Hello) -> None:
        if hello.boot == boot_id():
            return
        where = f"a worker is on {hello.host}, which is another host than that of daemon.state"
        for route in self._offer.configure.routes:
            if isinstance(route, TailRoute):
                raise ConfigurationError(
                    f"--engine spark: tails.{route.name}: {where}. Its files are known by this host's file system; "
                    "expected executors on this host alone"
                )
        for name, cluster in self._offer.configure.clusters.items():
            if cluster.embedded:
                raise ConfigurationError(
                    f"--engine spark: clusters.{name}.embedded: {where}. It can not reach a broker inside the daemon"
                )

    def tell(self, message: object) -> None:
        """See `HiredWorker`."""
        if isinstance(message, Leased):
            # On its own clock, and never later than it is meant: `_ahead` has the way of the hello in it.
            message = replace(message, until=message.until - self._ahead)
        self.channel.send(message)

    def wire(self, other: SparkWorker) -> None:
        """See `HiredWorker`. They share no memory, so each encodes what it reads."""

    def kill(self) -> None:
        """See `HiredProcess`."""
        self.channel.abort()
        self._cancel()

    async def end(self, deadline: Deadline) -> None:
        """See `HiredWorker`."""
        self._ending = True
        self.channel.close()
        try:
            await deadline.wait_for(asyncio.shield(self._gone), f"end of worker {self.slot}")
        except DeadlineExceeded:
            self.kill()
            try:
                await Deadline.after(_KILL_SECONDS).wait_for(asyncio.shield(self._gone), "end of a killed task")
            except DeadlineExceeded:
                _log.error("a task that was cancelled does not end", worker=self.slot)

    # What the worker says.

    def _message(self, message: Any) -> None:
        self.last_sign = time.monotonic()
        if isinstance(message, Hello):
            self.pid, self._ahead = message.pid, self.last_sign - message.now
            self._hello.set_result(message)
        elif isinstance(message, Sign):
            self.channel.send(Beat(message.now))
        else:
            self._received(self, message)

    def _lost(self) -> None:
        """The connection is closed: the worker ends, or has ended. Spark is not to run the task again."""
        if not self._ending:
            self._how = "its connection was closed"
            self._cancel()

    # The task.

    def _run(self) -> None:
        how = ""
        try:
            self._context.setJobGroup(self._group, self._group, interruptOnCancel=True)
            self._context.parallelize([0], 1).mapPartitions(SentWorker(self._offer)).collect()
        except NO_ANSWER:
            how = ENDED
        except Exception as error:  # noqa: BLE001 - whatever Spark raises is the end of the task
            how = reason_of(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the supervisor has ended
            self._loop.call_soon_threadsafe(self._ended, how)

    def _ended(self, how: str) -> None:
        was_alive, self.alive = self.alive, False
        self.channel.abort()
        if not self.drained.done():
            self.drained.set_result(Drained(1))
        self._gone.set_result(how or self._how)
        self._left()
        if was_alive:
            self._exited(self, how or self._how)

    def _cancel(self) -> None:
        if not self._gone.done():
            InheritableThread(target=self._cancel_job, daemon=True).start()

    def _cancel_job(self) -> None:
        try:
            self._context.cancelJobGroup(self._group)
        except (*NO_ANSWER, Py4JError) as error:
            _log.warning("a task can not be cancelled", worker=self.slot, error=reason_of(error))
