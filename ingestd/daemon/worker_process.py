"""Worker process as the supervisor holds it: child process, control channel, arena, last sign of life."""

from __future__ import annotations

import array
import asyncio
import contextlib
import gc
import os
import pickle
import signal
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestd.daemon.arena import Arena
from ingestd.daemon.control import ControlChannel, Drained, Wire
from ingestd.daemon.processes import ChildProcess, fork, spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingestd.daemon.control import Configure
    from ingestd.daemon.processes import Process
    from ingestd.retry import Deadline

__all__ = ["NewWorker", "WorkerProcess", "fork_worker", "spawn_worker"]


@dataclass(frozen=True, slots=True)
class NewWorker:
    """A new worker that has got no message yet: its process, our ends of two socket pairs, its arena's memfd."""

    process: Process
    control: socket.socket
    wiring: socket.socket
    arena: int

    def discard(self) -> None:
        """Kill it before it got any message."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.control.close()
        self.wiring.close()
        os.close(self.arena)


def spawn_worker(arena_bytes: int) -> NewWorker:
    """A worker in a fresh interpreter. Raises `OSError`."""
    module = "ingestd.daemon.worker_main"
    return _new_worker(arena_bytes, lambda descriptors: spawn(module, list(map(str, descriptors)), descriptors))


def fork_worker(arena_bytes: int) -> NewWorker:
    """A worker in a fork of this process, see `processes.fork`. Raises `OSError`."""
    from ingestd.daemon.worker import main  # noqa: PLC0415 - a supervisor that spawns its workers does not need it

    gc.freeze()  # a collection in the child would write to, and so copy, memory that both share
    return _new_worker(arena_bytes, lambda descriptors: fork(lambda: main(*descriptors), descriptors))


def _new_worker(arena_bytes: int, start: Callable[[Sequence[int]], Process]) -> NewWorker:
    with contextlib.ExitStack() as made:
        arena = Arena.create(arena_bytes)
        made.callback(os.close, arena)
        wiring, their_wiring = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.enter_context(wiring)
        control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        made.enter_context(control)
        with their_control, their_wiring:
            process = start((their_control.fileno(), their_wiring.fileno(), arena))
        made.pop_all()
    return NewWorker(process, control, wiring, arena)


class WorkerProcess:
    """One incarnation of a slot."""

    def __init__(
        self,
        configure: Configure,
        new: NewWorker,
        received: Callable[[WorkerProcess, Any], None],
        exited: Callable[[WorkerProcess, str], None],
    ) -> None:
        self.slot = configure.slot
        self.incarnation = configure.incarnation
        self.last_sign = time.monotonic()
        self.drained: asyncio.Future[Drained] = asyncio.get_running_loop().create_future()
        """What it could not deliver. A worker that dies before it says so counts as one source."""
        self._configure = configure
        self._received = received
        self._exited = exited
        self._arena = new.arena
        self._wiring = new.wiring
        self._control = new.control
        self._channel: ControlChannel | None = None
        self.process = ChildProcess(new.process, self._end)

    async def connect(self) -> None:
        """Open the control channel and send `Configure`."""
        self._channel = await ControlChannel.over(self._control, self._message, lambda: None)
        self._channel.send(self._configure)

    def tell(self, message: object) -> None:
        """Send the worker a message. Nothing happens if it is gone."""
        if self._channel is not None:
            self._channel.send(message)

    def wire(self, other: WorkerProcess) -> None:
        """Connect two workers: each gets the other's arena and one end of a new socket pair."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine, theirs:
            self._introduce(other, mine)
            other._introduce(self, theirs)

    def _introduce(self, other: WorkerProcess, pair: socket.socket) -> None:
        message = pickle.dumps(Wire(other.slot, other.incarnation))
        descriptors = array.array("i", [other._arena, pair.fileno()])
        try:
            self._wiring.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        except (BrokenPipeError, ConnectionResetError):
            return  # It just died. Its exit will be reported, and its successor will be connected.

    async def end(self, deadline: Deadline) -> None:
        """Close its control channel, which stops it. It is killed at the deadline."""
        if self._channel is not None:
            self._channel.close()
        await self.process.end(deadline, terminate=False)

    def _message(self, message: Any) -> None:
        self.last_sign = time.monotonic()
        self._received(self, message)

    def _end(self, how: str) -> None:
        if self._channel is not None:
            self._channel.close()
        self._wiring.close()
        os.close(self._arena)
        if not self.drained.done():
            self.drained.set_result(Drained(1))
        self._exited(self, how)
