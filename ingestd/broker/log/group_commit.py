"""Group commit: one fsync for all that was appended to a partition meanwhile. It moves the high watermark."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from typing import TYPE_CHECKING, Final

from ingestd.broker.log.files import sync_directory
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from pathlib import Path

    from ingestd.broker.log.partition_log import PartitionLog
    from ingestd.broker.log.transactions import LogEnd

__all__ = ["FlushTurns", "GroupCommit"]

_AT_ONCE: Final = 16
"""Logs whose descriptors wait for a disk thread or are in work. There are four threads."""

_log = get_logger(__name__)


class FlushTurns:
    """Bounds the descriptors that wait for the disk. A request may be about thousands of logs; they flush in turn."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._free = at_once
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, begin: Callable[[], None]) -> None:
        """Call `begin` now, or when those before it are through. It is through when it calls `give_back`."""
        if not self._free:
            self._waiting.append(begin)
            return
        self._free -= 1
        begin()

    def give_back(self) -> None:
        """Let the next one begin."""
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._waiting.popleft())
        else:
            self._free += 1


class GroupCommit:
    """Flushes one log. While one fsync runs, new waiters wait together for the next.

    With `Flush.always` a reader gets only what an fsync has brought to the disk. So every append asks for one, also
    where nobody waits for it (acks=0).

    Invariants
        A waiter is answered by an fsync that began after it came.
        Once an fsync has failed, every waiter fails: the kernel reports the error once, and not for which bytes.
        At most one fsync of a log runs at a time.
    """

    def __init__(self, log: PartitionLog, disk: Executor, turns: FlushTurns) -> None:
        self._partition_log = log
        self._disk = disk
        self._turns = turns
        self._next: asyncio.Future[None] | None = None
        self._running: asyncio.Future[None] | None = None
        self._begun = False

    def flushed(self) -> asyncio.Future[None]:
        """Done when everything in the log now is on the disk. Fails with `KafkaError` (KAFKA_STORAGE_ERROR)."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            # Looked at, since perhaps nobody waits. The failure is logged here.
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())
        waiting = self._next
        if self._running is None and not self._begun:
            # Not at once: pipelined requests that are already here append first, and share this fsync.
            self._ask_for_turn()
        return waiting

    def _ask_for_turn(self) -> None:
        self._begun = True
        asyncio.get_running_loop().call_soon(self._turns.take, self._start)

    def _start(self) -> None:
        self._begun = False
        group, self._next = self._next, None
        assert group is not None
        if self._partition_log.closed:
            self._turns.give_back()
            self._refuse(group, OSError(errno.ENOENT, "the log is closed"))
            return
        end = self._partition_log.log_end
        try:
            descriptors = self._partition_log.take_unflushed()
        except OSError as error:
            # No fsync was tried (descriptors have run out, for instance). Another attempt may succeed.
            _log.error("fsync not begun", partition=self._partition_log.directory.name, error=str(error))
            self._turns.give_back()
            self._refuse(group, error)
            return
        names = self._partition_log.take_unsynced_names()
        self._running = asyncio.get_running_loop().run_in_executor(self._disk, _sync, descriptors, names)
        self._running.add_done_callback(lambda done: self._done(group, end, done))

    def _done(self, group: asyncio.Future[None], end: LogEnd, done: asyncio.Future[None]) -> None:
        self._running = None
        self._turns.give_back()
        error = done.exception()
        if error is None and self._partition_log.failed:
            error = OSError(errno.EIO, "another fsync failed meanwhile")
        if error is not None:
            self._failed(group, error)
        else:
            self._partition_log.synced(end)
            if not group.done():
                group.set_result(None)
        if self._next is not None:
            self._ask_for_turn()

    def _failed(self, group: asyncio.Future[None], error: BaseException) -> None:
        # The directory of a log that is being deleted has another name by now.
        if not (self._partition_log.closed and isinstance(error, FileNotFoundError)):
            directory = self._partition_log.directory.name
            _log.error("fsync failed; the partition takes no more batches", partition=directory, error=str(error))
        self._partition_log.fail()
        self._refuse(group, error)

    def _refuse(self, group: asyncio.Future[None], error: BaseException) -> None:
        if not group.done():
            directory = self._partition_log.directory.name
            group.set_exception(KafkaError(ErrorCode.kafka_storage_error, f"{directory}: {error}"))


def _sync(descriptors: list[int], names: Path | None) -> None:
    try:
        for descriptor in descriptors:
            os.fdatasync(descriptor)
        if names is not None:
            # An fsync of a new file may not write its name to the disk (fsync(2)).
            sync_directory(names)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
