"""Child processes of the supervisor: started with just the descriptors they need, watched, never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from ingestd.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingestd.retry import Deadline

__all__ = ["ChildProcess"]


class ChildProcess:
    """One child: `python -m MODULE ARGUMENTS…`, a fresh interpreter, nothing inherited but the descriptors named.

    Invariants
        `exited` is called exactly once, on the event loop, with how it ended.
        After `end` the process is gone.
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
            await self._gone

    def _reap(self) -> None:
        self._loop.remove_reader(self._watch)
        os.close(self._watch)
        code = self._process.wait()
        self._gone.set_result(None)
        self._exited(f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
