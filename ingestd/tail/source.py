"""TailSource: one open file. Reads whole lines in place, keeps to its content whatever its name, knows its end."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingestd.daemon.source import Piece
from ingestd.tail.identity import HEAD_BYTES, WITNESS_BYTES, Fingerprint, Witness, find_again
from ingestd.tail.lines import TRUNCATED_MARK, cut_at, has_long_line, line_end, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.daemon.source import Assignment
    from ingestd.tail.globs import Globs
    from ingestd.tail.identity import Identity
    from ingestd.tail.route import TailRoute

__all__ = ["COPIED", "RENAMED", "TAKEN", "Owner", "TailSource"]

RENAMED: Final = "renamed to "
COPIED: Final = "truncated, its copy "
TAKEN: Final = "taken to its present end"
"""How reasons for an end begin; all end with ", read to " and the position."""

CHUNKS_PER_READ: Final = 8
"""How many times `into` is filled in one `read` to find the end of a line; then others get their turn."""


class Owner(Protocol):
    """What a source needs of its opener."""

    route: TailRoute
    globs: Globs

    def wake(self, source: TailSource, delay: float) -> None:
        """Call `ready` for the source in `delay` seconds; 0: as soon as others had their turn."""
        ...

    def reopen(self, path: str) -> int:
        """A descriptor of the file at `path`. Raises `OSError`."""
        ...

    def watch(self, source: TailSource, descriptor: int) -> None:
        """Watch the open file for the source; instead of another one, if it had one."""
        ...

    def closed(self, source: TailSource) -> None:
        """The source is closed: forget it."""
        ...


class TailSource:
    """Reads one file's lines in order. What the file is, its bytes say (`identity`); where it is, its descriptor.

    Invariants
        The position is behind a newline, but for parts of a split line and for the end of a finished file.
        What was read counts only once head and last read bytes were seen unchanged after it: a file that was truncated
        meanwhile, even if it is longer again already, gives no byte under a wrong position.
        A file that was renamed or deleted is read to its end before it is finished; so is the copy of a truncated one.
    """

    def __init__(self, owner: Owner, assignment: Assignment, identity: Identity, descriptor: int | None) -> None:
        self.assignment = assignment
        self._owner = owner
        self._identity = identity
        self._descriptor = descriptor
        self._position = assignment.found.position
        self._until = assignment.found.until
        self._head = b""
        self._tail = b""
        self._size = max(identity.size, self._position)
        self._scanned = 0
        self._within_split = False
        self._leaving: str | None = None
        self._leave_at = 0.0
        self._left_path = identity.path
        self._finished: str | None = None
        self._news_at = time.monotonic()
        if descriptor is not None:
            self._head = os.pread(descriptor, HEAD_BYTES, 0)
            self._tail = _before(descriptor, self._position)
            self._follow_to(identity.path, os.fstat(descriptor), left=identity.origin)

    # What the owner asks.

    @property
    def path(self) -> str:
        """Where the file is, as far as known."""
        return self._identity.path

    @property
    def finished(self) -> str | None:
        """See `ingestd.daemon.source.Source.finished`."""
        return self._finished

    @property
    def unread(self) -> int:
        """See `ingestd.daemon.source.Source.unread`."""
        if self._finished is not None:
            return 0
        if self._descriptor is not None:
            with suppress(OSError):  # a stale handle: the next read says so
                self._size = os.fstat(self._descriptor).st_size
        end = self._size if self._until is None else min(self._size, self._until)
        return max(0, end - self._position)

    def detail(self) -> Mapping[str, Any]:
        """See `ingestd.daemon.source.Source.detail`: the file's identity by what was read of it up to now."""
        return self._identity_now().to_detail()

    def _identity_now(self) -> Identity:
        known = self._identity
        head = Fingerprint.of(self._head) if self._head else known.fingerprint
        witness = Witness.of(self._position, self._tail) if self._tail else known.witness
        return replace(known, fingerprint=head, witness=witness, size=self._size)

    def close(self) -> None:
        """Release the descriptor and the watch. Safe to call twice."""
        self._owner.closed(self)
        self._release_descriptor()

    def _release_descriptor(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # What the opener tells.

    def vanished(self) -> None:
        """The file was gone before it could be opened."""
        self._finish("vanished")

    def copied(self) -> None:
        """The file was truncated: what is open is the copy that was made of it first, and complete."""
        self._identity = replace(self._identity, copy=True)
        self._leaving = COPIED + self.path
        self._leave_at = 0.0

    def written(self) -> None:
        """The file may have grown."""
        self._news_at = time.monotonic()

    def look(self) -> bool:
        """Look at what stands at the path now. Returns whether there is something to read or to end."""
        if self._finished is not None:
            return True
        try:
            status = os.stat(self.path)
        except OSError:
            status = None
        if status is None or not self._identity.is_at(status):
            self._moved()
            return True
        size, self._size = self._size, status.st_size
        if self._size != size:
            self.written()
        return self._leaving is not None or self._size != self._position + self._scanned

    def release_if_idle(self, now: float) -> None:
        """Close the descriptor when there was no news for `release_after`; the next read opens the file again."""
        idle = now - self._news_at >= self._owner.route.release_after
        if idle and self._descriptor is not None and self._leaving is None and not self.unread:
            self._release_descriptor()

    def release(self) -> None:
        """Close the descriptor for now: there are too few of them."""
        self._release_descriptor()

    def _moved(self) -> None:
        """The file is no longer at its path: follow it to one that the globs match, else it is leaving."""
        if self._leaving is not None and not self._leaving.startswith(RENAMED):
            return
        if self._descriptor is None:
            self._find_moved()
        elif os.fstat(self._descriptor).st_nlink == 0:
            self._leave("deleted")
        else:
            self._follow_to(os.readlink(f"/proc/self/fd/{self._descriptor}"), os.fstat(self._descriptor))

    def _follow_to(self, path: str, status: os.stat_result, *, left: str | None = None) -> None:
        left = self.path if left is None else left
        self._identity = self._identity.at(path, status)
        if self._owner.globs.matches(path):
            self._leaving = None
        elif self._leaving is None:
            self._leave(RENAMED + path)
            self._left_path = left
        else:
            self._leaving = RENAMED + path  # once more

    def _find_moved(self) -> None:
        """A released file has left its path: open it where it is now, or end."""
        found = find_again(self._identity_now(), self._position, besides=set())
        if found is None:
            self._finish("deleted")
            return
        path, status = found
        self._descriptor = self._owner.reopen(path)
        self._follow_to(path, status)

    def _leave(self, why: str) -> None:
        self._leaving = why
        self._leave_at = time.monotonic() + self._owner.route.leave_after

    def _finish(self, why: str) -> None:
        self._finished = f"{why}, read to {self._position}"
        self._release_descriptor()

    # Reading.

    def read(self, into: memoryview) -> Piece | None:
        """See `ingestd.daemon.source.Source.read`."""
        try:
            return self._read(into)
        except OSError as error:
            if error.errno == errno.ESTALE:
                self._release_descriptor()  # of no use any more: the next read opens the file again
            raise

    def _read(self, into: memoryview) -> Piece | None:
        if self._finished is not None:
            return None
        if self._descriptor is None and not self._open_again():
            return None
        if self._scanned:
            seen = self._scanned
            end = self._scan(into)
            if end is None:
                return None
            if self._scanned > self._limit:
                # With its newline; what is in the slab already may leave less.
                return self._take_truncated(into, end) if len(into) > self._limit else self._postpone()
            self._scanned = seen  # what is lost, should all that was found now be other content
        return self._read_lines(into)

    def _read_lines(self, into: memoryview) -> Piece | None:
        length = self._fill(into, self._position)
        if not self._unchanged():
            return self._truncated(into)
        if has_long_line(into, length, self._limit):
            return self._shorten(into, length)
        whole = line_end(into, 0, length)
        if whole:
            self._within_split = False
            return self._take(into, whole, self._position + whole)
        return self._postpone() if length == len(into) else self._at_end(into, length)

    def _at_end(self, into: memoryview, length: int) -> Piece | None:
        """Nothing but `length` bytes without newline is there: hold them, or take them as the last line."""
        self._scanned = length
        if not self._complete():
            return None
        if not length:
            self._finish(self._leaving or TAKEN)
            return None
        return self._take_last(into, length) if length < len(into) else self._postpone()

    @property
    def _limit(self) -> int:
        return self._owner.route.max_line_bytes

    def _open_again(self) -> bool:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            status = None
        if status is None or not self._identity.is_at(status):
            self._find_moved()
            return self._finished is None
        self._descriptor = self._owner.reopen(self.path)
        return True

    def _fill(self, into: memoryview, position: int) -> int:
        assert self._descriptor is not None
        want = len(into) if self._until is None else min(len(into), self._until - position)
        return os.preadv(self._descriptor, [into[:want]], position) if want > 0 else 0

    def _unchanged(self) -> bool:
        """Whether the file is still the one that was read up to the position."""
        assert self._descriptor is not None
        head = os.pread(self._descriptor, HEAD_BYTES, 0)
        if not head.startswith(self._head):
            return False
        self._head = head
        return _before(self._descriptor, self._position, len(self._tail)) == self._tail

    def _complete(self) -> bool:
        """At the end of the file, or at `until`: whether this is all that will ever come."""
        if self._until is not None:
            return True
        now = time.monotonic()
        if self._leaving is None:
            return self._scanned > 0 and self._rotated(now)
        if now < self._leave_at:
            self._owner.wake(self, self._leave_at - now)
            return False
        return not self._leaving.startswith(RENAMED) or self._replaced(self._left_path, now)

    def _rotated(self, now: float) -> bool:
        """Whether the file is still followed, but was renamed, and there is a new one where it stood."""
        if self.path == self._identity.origin:
            return False
        still = self._news_at + self._owner.route.leave_after - now
        if still > 0:
            self._owner.wake(self, still)
            return False
        return self._replaced(self._identity.origin, now)

    def _replaced(self, path: str, now: float) -> bool:
        """Whether a new file stands where this one stood; if not, its writer may go on with this one for a while."""
        if now - self._news_at >= self._owner.route.release_after or os.path.exists(path):
            return True
        self._owner.wake(self, self._owner.route.leave_after)
        return False

    def _postpone(self) -> Piece | None:
        """A line does not fit in what is left of a slab; there is room in a fresh one."""
        self._owner.wake(self, 0)
        return None

    # What was read.

    def _take(self, into: memoryview, length: int, end: int, *, shortened: int = 0) -> Piece:
        self._tail = (self._tail + bytes(into[max(0, length - WITNESS_BYTES) : length]))[-WITNESS_BYTES:]
        return self._piece(length, end, shortened)

    def _piece(self, length: int, end: int, shortened: int) -> Piece:
        start, self._position = self._position, end
        self._size = max(self._size, end)
        self._scanned = 0
        self._news_at = time.monotonic()
        # A renamed file's writer may go on with it; the copy of a truncated one (0.0) was complete before we saw it.
        if self._leaving is not None and self._leave_at:
            self._leave_at = max(self._leave_at, self._news_at + self._owner.route.leave_after)
        return Piece(length, start, end, shortened)

    def _take_last(self, into: memoryview, length: int) -> Piece:
        """The last line of a complete file has no newline: it is given one."""
        leave_at = self._leave_at
        piece = self._take(into, length, self._position + length)
        self._leave_at = leave_at
        into[length] = 0x0A
        return Piece(length + 1, piece.start, piece.end, piece.lines_shortened)

    def _shorten(self, into: memoryview, length: int) -> Piece | None:
        raw = bytes(into[:length])
        done = shorten(raw, self._limit, self._owner.route.long_lines, into, within=self._within_split)
        if not done.length:
            self._scanned = length
            self._owner.wake(self, 0)
            return None
        self._within_split = done.within
        self._tail = (self._tail + raw[max(0, done.consumed - WITNESS_BYTES) : done.consumed])[-WITNESS_BYTES:]
        return self._piece(done.length, self._position + done.consumed, done.lines)

    def _scan(self, scratch: memoryview) -> int | None:
        """Look for the end of a line whose first `_scanned` bytes have none: in bounded memory, each byte once.

        Returns the position behind its newline, or of the end of a complete file; None when there is neither yet.
        """
        for _ in range(CHUNKS_PER_READ):
            begin = self._position + self._scanned
            length = self._fill(scratch, begin)
            if not length:
                if not self._unchanged():
                    return self._position
                return begin if self._complete() else None
            found = bytes(scratch[:length]).find(b"\n")
            if found >= 0:
                self._scanned += found
                return begin + found + 1
            self._scanned += length
            if self._scanned > self._limit and self._owner.route.long_lines == "split":
                self._scanned = 0
                return self._position
        self._owner.wake(self, 0)
        return None

    def _take_truncated(self, into: memoryview, end: int) -> Piece | None:
        """Take the line that ends at `end` and is over the limit: its beginning, and the mark."""
        assert self._descriptor is not None
        length = self._fill(into[: self._limit], self._position)
        tail = _before(self._descriptor, end)
        if not self._unchanged() or length < self._limit:
            return self._truncated(into)
        kept = cut_at(bytes(into[:length]), self._limit - len(TRUNCATED_MARK))
        into[kept : kept + len(TRUNCATED_MARK)] = TRUNCATED_MARK
        into[kept + len(TRUNCATED_MARK)] = 0x0A
        self._tail = tail
        return self._piece(kept + len(TRUNCATED_MARK) + 1, end, 1)

    # What was truncated.

    def _truncated(self, into: memoryview) -> Piece | None:
        """The content is gone from this file. If it was copied first (copytruncate), the copy has the rest."""
        own = {(self._identity.device, self._identity.inode)}
        found = find_again(self._identity_now(), self._position, besides=own)
        if found is None:
            lost = self._scanned  # seen, and without a newline yet
            self._finish(f"truncated with at least {lost} bytes unread" if lost > 0 else "truncated")
            return None
        path, status = found
        descriptor = self._owner.reopen(path)
        self._release_descriptor()
        self._descriptor = descriptor
        self._owner.watch(self, descriptor)
        self._identity = self._identity.at(path, status)
        self.copied()
        self._scanned = 0
        return self.read(into)


def _before(descriptor: int, position: int, most: int = WITNESS_BYTES) -> bytes:
    """The last bytes before a position."""
    length = min(position, most)
    return os.pread(descriptor, length, position - length)
