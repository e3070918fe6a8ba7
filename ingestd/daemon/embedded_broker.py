"""Embedded broker: the child process that is the only broker of an `embedded = true` cluster."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any

from ingestd.checks import address_text
from ingestd.daemon.processes import ChildProcess, spawn
from ingestd.daemon.state_files import write_whole
from ingestd.errors import ConfigurationError, IngestdError
from ingestd.logs import get_logger
from ingestd.retry import Backoff, Deadline
from ingestd.tasks import TaskOwner, end_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.daemon.configuration import ClusterSettings, DaemonSettings

__all__ = ["EmbeddedBroker"]

READY_TIMEOUT = 60.0
"""Seconds that an embedded broker may take to recover its logs and listen."""

GIVEN_UP_TIMEOUT = 2.0
"""Seconds that an embedded broker has to end after its start was given up."""

STEADY = 60.0
"""Seconds that it must have listened until the backoff between restarts starts over."""


class EmbeddedBroker:
    """The broker process of an `embedded = true` cluster. It is restarted on its port if it dies, and ends with us."""

    def __init__(self, settings: ClusterSettings, daemon: DaemonSettings, restarted: Callable[[], None]) -> None:
        self._settings = settings
        self._daemon = daemon
        self._state = daemon.state
        self._restarted = restarted
        self._log = get_logger("ingestd.supervisor").bind(cluster=settings.name)
        self._tasks = TaskOwner()
        self._process: ChildProcess | None = None
        self._life: socket.socket | None = None
        self._backoff = Backoff(initial=0.1, maximum=10.0)
        self._closing = False
        self.address = ""

    async def start(self) -> None:
        """Start the broker and wait until it listens.

        Raises `ConfigurationError` if its data directory can not be created, `IngestdError` if it does not listen.
        """
        settings = self._settings
        data = settings.data_directory(self._state)
        try:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            said = f"clusters.{settings.name}.data: {data} can not be created: {error.strerror}"
            raise ConfigurationError(said) from error
        life, theirs = socket.socketpair()
        died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        with theirs:
            channel = str(theirs.fileno())
            arguments = [
                *("--data", str(data), "--listen", self.address or settings.listen),
                *("--ready-fd", channel, "--parent-fd", channel, "--default-partitions", str(settings.partitions)),
                *("--flush", settings.flush, "--log-level", self._daemon.log_level),
                *("--log-format", self._daemon.log_format),
                *([] if settings.create_topics else ["--no-auto-create-topics"]),
                *(["--insecure"] if settings.insecure else []),
            ]
            try:
                process = ChildProcess(spawn("ingestd.broker", arguments, [theirs.fileno()]), died.set_result)
            except OSError:
                life.close()
                raise
        self._process = process
        life.settimeout(0)
        try:
            host, port = await self._await_ready(life, died)
            self.address = address_text(host, int(port))
            self._publish_address()
        except BaseException:
            life.close()
            # The next attempt needs its port and its data.
            await process.end(Deadline.after(GIVEN_UP_TIMEOUT), terminate=True)
            raise
        self._log.info("embedded broker listens", address=self.address, data=str(data))
        self._life = life
        listened_at = time.monotonic()
        died.add_done_callback(lambda how: self._exited(how.result(), time.monotonic() - listened_at))

    async def _await_ready(self, life: socket.socket, died: asyncio.Future[str]) -> tuple[str, str]:
        name = self._settings.name
        said = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(life, 256))
        try:
            either: list[asyncio.Future[Any]] = [said, died]
            waiting = asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            await Deadline.after(READY_TIMEOUT).wait_for(waiting, f"start of embedded broker {name}")
        finally:
            await end_task(said)
        words = [] if said.cancelled() or said.exception() else said.result().decode().split()
        if died.done() or len(words) != len(("ready", "host", "port")):
            how = died.result() if died.done() else "it ended"
            remedy = f"the line above says why; `listen` of [clusters.{name}] may name another address"
            raise IngestdError(f"cluster {name}: the embedded broker did not start: {how}; {remedy}")
        return words[1], words[2]

    def _publish_address(self) -> None:
        """Write `clusters/NAME.address` for tools and pipelines that look for the broker."""
        directory = self._state / "clusters"
        directory.mkdir(mode=0o700, exist_ok=True)
        write_whole(directory / f"{self._settings.name}.address", self.address + "\n")

    def _exited(self, how: str, lived: float) -> None:
        if self._closing:
            return
        self._let_go()
        self._log.error("embedded broker died", how=how)
        if lived > STEADY:
            self._backoff.reset()
        self._tasks.start(self._restart(), "broker restart")

    def _let_go(self) -> None:
        if self._life is not None:
            self._life.close()
            self._life = None

    async def _restart(self) -> None:
        while True:
            await asyncio.sleep(self._backoff.next_delay())
            try:
                await self.start()
            except (IngestdError, OSError) as error:
                self._log.error("embedded broker not restarted", error=str(error))
                continue
            self._restarted()
            return

    async def close(self, deadline: Deadline) -> None:
        """End the broker: SIGTERM, and SIGKILL at the deadline."""
        self._closing = True
        await self._tasks.close()
        if self._process is not None:
            await self._process.end(deadline, terminate=True)
        self._let_go()
        (self._state / "clusters" / f"{self._settings.name}.address").unlink(missing_ok=True)
