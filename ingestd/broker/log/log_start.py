"""Log start: the offset where a log begins, and the removal of the segments before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.log.files import no_room, sync_directory, write_atomically
from ingestd.broker.settings import Flush

if TYPE_CHECKING:
    from pathlib import Path

    from ingestd.broker.log.segment import Segment

__all__ = ["START_OFFSET_FILE", "LogStart"]

START_OFFSET_FILE: Final = "log-start-offset"


class LogStart:
    """Where one log begins. The methods take the log's segments, and remove those that are before the start.

    Invariants
        The start never goes back. The last segment stays.
        With `Flush.always` a loss of power leaves no gap, which would count as damage: the start is on the disk before
        segments go, or each segment is gone before the next one goes.
        On a full disk room is made all the same. Then the segments that are left say where the log starts.
    """

    def __init__(self, directory: Path, flush: Flush, offset: int = 0) -> None:
        self.offset = offset
        self._directory = directory
        self._flush = flush
        self._written = 0

    def delete_before(self, offset: int, segments: list[Segment]) -> None:
        """Start at `offset`, for a client. Raises `OSError`.

        On a full disk, segments may be removed although it raises: it is called to make room.
        """
        try:
            self._write(offset)
        except OSError:
            whole = [segment.next_offset for segment in segments[:-1] if segment.next_offset <= offset]
            if not whole:
                raise
            self.offset = max(self.offset, whole[-1])
            self.remove(segments)
            self._write(offset)
        self.remove(segments)

    def retain_from(self, offset: int) -> None:
        """Start at `offset`, where a segment begins. Raises `OSError`, but not on a full disk."""
        if self._flush is Flush.always:
            try:
                self._write(offset)
            except OSError as error:
                if not no_room(error):
                    raise
        self.offset = offset

    def remove(self, segments: list[Segment]) -> None:
        """Remove the segments before the start. Raises `OSError`."""
        while len(segments) > 1 and segments[0].next_offset <= self.offset:
            removed = segments[0]
            removed.delete()
            del segments[0]
            if self._flush is Flush.always and removed.next_offset > self._written:
                sync_directory(self._directory)

    def _write(self, offset: int) -> None:
        if offset > self.offset:
            write_atomically(self._directory / START_OFFSET_FILE, str(offset).encode("ascii"))
            self._written = self.offset = offset
