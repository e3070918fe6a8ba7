"""Sealing: the indexes of segments that no longer change are written on the disk threads, after an fsync."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from ingestd.broker.log.files import sync_directory
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor, Future
    from pathlib import Path

    from ingestd.broker.log.segment import Segment

__all__ = ["Sealer"]

_log = get_logger(__name__)


class Sealer:
    """Seals the segments of one log. If an fsync fails, `failed` is called, on a disk thread.

    Invariants
        After a failed fsync no index is written.
        After `delete` returns, nothing is written into the directory: another log may use its name.
    """

    def __init__(self, partition: str, disk: Executor, failed: Callable[[], None]) -> None:
        self._partition = partition
        self._disk = disk
        self._say_failed = failed
        self._begun: dict[int, Future[None]] = {}
        self._indexing = threading.Lock()
        self._stopped = False
        self._unsealed_said = False
        self.names_synced = False
        """Whether the names that there were at `begin_names` are on the disk."""

    def begin(self, segment: Segment) -> Future[None]:
        """Seal a segment on a disk thread, unless it is being sealed already. Raises `OSError`."""
        begun = self._begun.get(segment.base_offset)
        if begun is None or begun.done():
            self._begun = {base: future for base, future in self._begun.items() if not future.done()}
            begun = self._disk.submit(self._seal, segment, os.dup(segment.descriptor))
            self._begun[segment.base_offset] = begun
        return begun

    def begin_names(self, directory: Path) -> Future[None]:
        """Bring the names in the log's directory to the disk, on a disk thread."""
        return self._disk.submit(self._sync_names, directory)

    def _sync_names(self, directory: Path) -> None:
        try:
            self.names_synced = self.in_directory(lambda: sync_directory(directory))
        except OSError as error:
            self._say_unsealed(error)

    def begin_if_possible(self, segment: Segment) -> None:
        """Seal a segment. If that can not begin now, the close does it, or the next start reads the whole segment."""
        try:
            self.begin(segment)
        except OSError as error:
            self._say_unsealed(error)

    def stop(self) -> None:
        """Write no more indexes."""
        self._stopped = True

    def in_directory(self, work: Callable[[], object]) -> bool:
        """Let `work` change files of the log's directory, on any thread. Returns whether it may.

        It may not once the log was deleted, because the directory may be another log's, or an fsync has failed.
        """
        with self._indexing:
            if not self._stopped:
                work()
            return not self._stopped

    def delete(self, directory: Path, grave: Path) -> None:
        """Rename the directory away, while no index is being written, and write none from then on. Raises `OSError`."""
        with self._indexing:
            directory.rename(grave)
            self._stopped = True

    def _say_unsealed(self, error: OSError) -> None:
        if not self._unsealed_said:
            _log.warning("segments not sealed", partition=self._partition, error=str(error))
        self._unsealed_said = True

    def _seal(self, segment: Segment, descriptor: int) -> None:
        try:
            os.fsync(descriptor)
        except OSError as error:
            # The kernel reports it once. The fsync that an acknowledgement waits for may not get the error.
            _log.error("fsync failed; the partition takes no more batches", segment=str(segment.path), error=str(error))
            self._say_failed()
            return
        finally:
            os.close(descriptor)
        segment.unflushed = False
        with self._indexing:
            if self._stopped:
                return
            try:
                segment.seal()
            except OSError as error:
                # The next start finds no index and reads the whole segment.
                self._say_unsealed(error)
