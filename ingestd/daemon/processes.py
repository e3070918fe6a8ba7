"""Child processes of the supervisor: started with just the descriptors they need, watched, never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from ingestd.errors import DeadlineExceeded
from ingestd.logs import get_logger
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ChildProcess"]

KILL_TIMEOUT: Final = 5.0
"""Seconds that a killed process is waited for."""

_log = get_logger("ingestd.supervisor")


class ChildProcess:
    """One child: `python -m MODULE ARGUMENTS…`, a fresh interpreter, nothing inherited but the descriptors named.

    Invariants
        `exited` is called exactly once, on the event loop, with how it ended.
        After `end` the process is gone, or killed and held by the kernel, which is said.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], descriptors: Sequence[int], exited: Callable[[str], None]
    ) -> None:
        self._exited = exited
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", module, *arguments],
            pass_fds=tuple(descriptors),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._watch = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._watch, self._reap)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return not self._gone.done()

    def kill(self) -> None:
        """SIGKILL, for one that does not answer."""
        if self.alive:
            self._process.send_signal(signal.SIGKILL)

    async def end(self, deadline: Deadline, *, terminate: bool) -> None:
        """Wait for its end (having sent SIGTERM where `terminate`), and kill it at the deadline."""
        if self.alive and terminate:
            self._process.send_signal(signal.SIGTERM)
        try:
            await deadline.wait_for(asyncio.shield(self._gone), f"end of process {self.pid}")
        except DeadlineExceeded:
            self.kill()
            await self._await_killed()

    async def _await_killed(self) -> None:
        try:
            await Deadline.after(KILL_TIMEOUT).wait_for(asyncio.shield(self._gone), "end of a killed process")
        except DeadlineExceeded:
            _log.error("a killed process does not end: a disk or a mount does not answer it", pid=self.pid)

    def _reap(self) -> None:
        self._loop.remove_reader(self._watch)
        os.close(self._watch)
        code = self._process.wait()
        self._gone.set_result(None)
        self._exited(f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
