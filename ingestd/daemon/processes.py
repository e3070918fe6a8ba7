"""Child processes of the supervisor: started with only the descriptors they need, watched, never left behind.

Most are fresh interpreters. A process that has one thread and no event loop yet may also fork children. A fork has all
modules without importing them, which saves a tenth of a second of CPU for each child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final, Protocol

from ingestd import imports
from ingestd.errors import DeadlineExceeded
from ingestd.logs import get_logger
from ingestd.output import finish_outputs
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ChildProcess", "Process", "can_fork", "fork", "spawn"]

KILL_TIMEOUT: Final = 5.0
"""Seconds that a killed process is waited for."""

_log = get_logger("ingestd.supervisor")


class Process(Protocol):
    """A child to be waited for, as `subprocess.Popen` is."""

    pid: int

    def wait(self) -> int:
        """Wait for its end. Returns its exit code, or the negative number of the signal that killed it."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Send it a signal. Only before `wait` has returned: after that its pid may belong to another process."""
        ...


def spawn(module: str, arguments: Sequence[str], descriptors: Sequence[int]) -> Process:
    """`python -m MODULE ARGUMENTS…`, a fresh interpreter that inherits the descriptors named. Raises `OSError`."""
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [*imports.command_of(module), *arguments],
        pass_fds=tuple(descriptors),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


class _Forked:
    """A forked child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def can_fork() -> bool:
    """Whether this process has one thread. In a fork, locks that other threads held would stay locked for ever."""
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208 - `threading` does not know threads made in C


def fork(work: Callable[[], object], descriptors: Sequence[int]) -> Process:
    """Fork a child that does `work` and nothing else. It keeps standard output and error, and `descriptors`.

    Call it before there is an event loop, and if `can_fork`. Raises `OSError`.
    """
    pid = os.fork()
    if pid:
        return _Forked(pid)
    code = 1
    try:
        _become_a_child(descriptors)
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - the frames above belong to the parent
        sys.excepthook(*sys.exc_info())
    finally:
        finish_outputs()
        os._exit(code)  # exit handlers belong to the parent too


def _become_a_child(descriptors: Sequence[int]) -> None:
    """Close what belongs to the parent. Its objects stay, in frames that are never returned to, and do nothing."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    kept = {1, 2, *descriptors}
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers, not paths
        if descriptor not in kept:
            with contextlib.suppress(OSError):  # the descriptor that this listing itself used
                os.close(descriptor)
    os.open(os.devnull, os.O_RDONLY)  # gets the lowest free number, which is standard input
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # a live view may have replaced them


class ChildProcess:
    """One child, watched.

    Invariants
        `exited` is called exactly once, on the event loop, with how it ended.
        After `end` the process is gone; or it was killed and the kernel does not end it, which is logged.
    """

    def __init__(self, process: Process, exited: Callable[[str], None]) -> None:
        self._process = process
        self._exited = exited
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
        """Send SIGKILL, unless it is gone."""
        if self.alive:
            self._process.send_signal(signal.SIGKILL)

    async def end(self, deadline: Deadline, *, terminate: bool) -> None:
        """Wait for its end, after SIGTERM if `terminate`. It is killed at the deadline."""
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
