"""The offset at which each leader epoch of a partition began (KIP-101). By it clients notice that a log was cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from ingestd.broker.log.files import write_whole
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LeaderEpochs"]

_FILE: Final = "leader-epochs.json"
_log = get_logger(__name__)


class LeaderEpochs:
    """Pairs (epoch, first offset), both rising. Stored in one small file of the partition's directory.

    A log with batches and no file began in epoch 0. A file for only that would cost every new partition an fsync.
    """

    __slots__ = ("_entries", "_path")

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._entries: list[tuple[int, int]] = []

    def load(self, end_offset: int) -> None:
        """Read the file, without epochs that begin at or after the log's end: they were cut off. Raises `OSError`."""
        try:
            entries = orjson.loads(self._path.read_bytes())
            self._entries = [(epoch, start) for epoch, start in entries if start < end_offset]
        except FileNotFoundError:
            self._entries = [(0, 0)] if end_offset > 0 else []
        except (ValueError, TypeError) as error:
            # Clients that ask where an epoch ended are then told that it is not known.
            _log.warning("leader epochs can not be read", path=str(self._path), error=str(error))
            self._entries = []

    @property
    def latest(self) -> int:
        """The epoch of the newest batch, -1 in an empty log."""
        return self._entries[-1][0] if self._entries else -1

    def begin(self, epoch: int, offset: int) -> bool:
        """Note that `epoch` begins at `offset`. The file is written before the batch. Raises `OSError`.

        Returns whether the file was replaced. It is on the disk when the directory is synced.
        """
        if epoch <= self.latest:
            return False
        entries = [*self._entries, (epoch, offset)]
        replaces = entries != [(0, 0)]
        if replaces:
            write_whole(self._path, orjson.dumps(entries))
        self._entries = entries
        return replaces

    def at(self, offset: int) -> int:
        """The epoch in which the batch at `offset` was written; -1 if it is not known."""
        found = -1
        for epoch, start in self._entries:
            if start > offset:
                break
            found = epoch
        return found

    def end_of(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch`, and the offset at which it ended; (-1, -1) if none is known."""
        found = -1, -1
        for at, (known, _start) in enumerate(self._entries):
            if known > epoch:
                break
            end = self._entries[at + 1][1] if at + 1 < len(self._entries) else end_offset
            found = known, end
        return found
