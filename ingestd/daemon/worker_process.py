"""Worker process as the supervisor holds it: child process, control channel, arena, last sign of life."""

from __future__ import annotations

import array
import asyncio
import os
import pickle
import socket
import time
from typing import TYPE_CHECKING, Any

from ingestd.daemon.arena import Arena
from ingestd.daemon.control import ControlChannel, Wire
from ingestd.daemon.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.daemon.control import Configure
    from ingestd.retry import Deadline

__all__ = ["WorkerProcess"]


class WorkerProcess:
    """One incarnation of a slot."""

    def __init__(
        self,
        configure: Configure,
        arena_bytes: int,
        received: Callable[[WorkerProcess, Any], None],
        exited: Callable[[WorkerProcess, str], None],
    ) -> None:
        self.slot = configure.slot
        self.incarnation = configure.incarnation
        self.last_sign = time.monotonic()
        self.drained: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """How many sources it was left with; one that dies before it says so counts as 1."""
        self._configure = configure
        self._received = received
        self._exited = exited
        self._arena = Arena.create(arena_bytes)
        self._wiring, wiring = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel: ControlChannel | None = None
        descriptors = (control.fileno(), wiring.fileno(), self._arena)
        with control, wiring:
            try:
                self.process = ChildProcess(
                    "ingestd.daemon.worker_main",
                    [str(descriptor) for descriptor in descriptors],
                    descriptors,
                    self._end,
                )
            except OSError:
                self._control.close()
                self._wiring.close()
                os.close(self._arena)
                raise

    async def connect(self) -> None:
        """Open the control channel and send `Configure`."""
        self._channel = await ControlChannel.over(self._control, self._message, lambda: None)
        self._channel.send(self._configure)

    def tell(self, message: object) -> None:
        """Send the worker a message; one that is gone is told nothing."""
        if self._channel is not None:
            self._channel.send(message)

    def wire(self, other: WorkerProcess) -> None:
        """Join two workers: each gets the other's arena and one end of a new pair."""
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
            return  # It just died; its exit is about to be reported, and its successor will be wired anew.

    async def end(self, deadline: Deadline) -> None:
        """Let it go: its control channel closes, so it stops; killed at the deadline."""
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
            self.drained.set_result(1)
        self._exited(self, how)
