"""Group commit: one fsync for all produce requests that wait for a partition's bytes to be on the disk."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

from ingestd.broker.log.files import sync_directory
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from ingestd.broker.log.partition_log import PartitionLog

__all__ = ["GroupCommit"]

_log = get_logger(__name__)


class GroupCommit:
    """Flushes one log. While one fsync runs, new waiters wait together for the next.

    Invariants
        A waiter is answered by an fsync that began after it came.
        Once an fsync has failed, every waiter fails: the kernel reports the error once, and not for which bytes.
        At most one fsync of a log runs at a time.
    """

    def __init__(self, log: PartitionLog, disk: Executor) -> None:
        self._partition_log = log
        self._disk = disk
        self._next: asyncio.Future[None] | None = None
        self._running: asyncio.Future[None] | None = None

    def flushed(self) -> asyncio.Future[None]:
        """Done when everything in the log now is on the disk. Fails with `KafkaError` (KAFKA_STORAGE_ERROR)."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        waiting = self._next
        if self._running is None:
            self._start()
        return waiting

    def _start(self) -> None:
        group, self._next = self._next, None
        assert group is not None
        try:
            descriptors = self._partition_log.take_unflushed()
        except OSError as error:
            # No fsync was tried (descriptors have run out, for instance). Another attempt may succeed.
            _log.error("fsync not begun", partition=self._partition_log.directory.name, error=str(error))
            self._refuse(group, error)
            return
        names = self._partition_log.take_unsynced_names()
        self._running = asyncio.get_running_loop().run_in_executor(self._disk, _sync, descriptors, names)
        self._running.add_done_callback(lambda done: self._done(group, done))

    def _done(self, group: asyncio.Future[None], done: asyncio.Future[None]) -> None:
        self._running = None
        error = done.exception()
        if error is None and self._partition_log.failed:
            error = OSError(errno.EIO, "another fsync failed meanwhile")
        if error is not None:
            self._failed(group, error)
        elif not group.done():
            group.set_result(None)
        if self._next is not None:
            self._start()

    def _failed(self, group: asyncio.Future[None], error: BaseException) -> None:
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
