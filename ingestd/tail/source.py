"""TailSource: one open file. Reads whole lines in place, keeps to its content whatever its name, knows its end."""

from __future__ import annotations

import errno
import math
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from ingestd.daemon.source import End, Piece
from ingestd.logs import get_logger
from ingestd.tail.content import HEAD_BYTES
from ingestd.tail.file_id import DELETED_SUFFIX
from ingestd.tail.known import WITNESS_BYTES, Known, Sample, Witness, printable
from ingestd.tail.lines import TRUNCATED_MARK, cut_at, find_newline, has_long_line, line_end, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingestd.daemon.source import Assignment
    from ingestd.tail.route import TailRoute
    from ingestd.tail.text import Text

__all__ = ["Kind", "Owner", "TailSource"]

Kind: TypeAlias = Literal["taken", "concluded", "deleted", "truncated", "gone", "damaged"]
"""`End.kind`: at `until`; nothing more was expected; no link left; its content is gone; not found; not readable."""

_LOOKED_FOR: Final = ("truncated", "gone", "damaged")
"""After these, the finder looks for what is in the file's place now, or for where its content went."""

CHUNKS_PER_READ: Final = 8
"""How many times `into` is filled in one `read` to find the end of a line; then others get their turn."""

_HELD_UP: Final = 1.0
"""Seconds without a read after which reading seems to be held up. From then on `unread` notes what comes, so that it
counts as lost if it goes unread."""

IN_THE_MAKING: Final = 60.0
"""Seconds without a change after which a compressed file that ends too early is damaged, and one that grew does so no
more, for now."""

_log = get_logger(__name__)


class Owner(Protocol):
    """What a source needs of its reader."""

    route: TailRoute

    def wake(self, source: TailSource, delay: float) -> None:
        """Call `ready` for the source in `delay` seconds, and not when an earlier call said.

        0: as soon as others had their turn, and when an earlier call said as well.
        """
        ...

    def find(self, source: TailSource, known: Known) -> tuple[Known, Text] | None:
        """Open the known file, wherever it is now, and watch it; None where it is nowhere. Raises `OSError`."""
        ...

    def moved(self, source: TailSource) -> None:
        """The source's detail is another one: have it stored."""
        ...

    def closed(self, source: TailSource) -> None:
        """The source is closed: forget it."""
        ...


class TailSource:
    """Reads one file's lines in order. It decides nothing about rotation: it ends when told so, or with its content.

    Invariants
        The position is behind a newline, but for parts of a split line and for the end of a finished file.
        What was read counts only once the last bytes seen before it were found unchanged after it: a file that was
        truncated meanwhile, even if it is longer again already, gives no byte under a wrong position.
        What is known of a size was seen before that same check: the next content's bytes are never called lost.
    """

    remote = False
    """Whether others may write to the file without inotify knowing of it."""

    def __init__(self, owner: Owner, assignment: Assignment) -> None:
        found = assignment.found
        self.assignment = assignment
        self.name = found.source
        self.finished: End | None = None
        """See `ingestd.daemon.source.Source.finished`."""
        self.held_back = False
        """Whether nothing is read yet, since another source comes first."""
        self.news_at = time.monotonic()
        """When something was read last."""
        self._owner = owner
        self._limit = owner.route.max_line_bytes
        self._known = Known.told(found.detail)
        self._text: Text | None = None
        self._position = found.position
        self._until = found.until
        self._concluded = found.last
        self._linked = True
        self._deleted = False  # and nothing was written to it since
        self._met = False  # its content was there when it was read
        self._gone = ""  # its last path, if the kernel says that it was deleted: there is no name to look for
        self._seen: Sample | None = None  # of what was seen last
        self._before: Sample | None = None  # of what stood before the position when the reading began
        self._head: bytes = b""  # how the text begins, as far as it is known
        self._size = self._most = max(self._known.size, found.position)
        self._modified, self._links = self._known.modified, self._known.links
        self._read_to_end = self._known.read_size, self._known.read_modified
        self._told = (self._known.path, self._known.size, self._known.deleted)
        self._scanned = 0
        self._within_split = False
        self._waits = False  # for more of a compressed file, and that was said
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._next_size = 0
        """Bytes of what was written to the file after it was truncated, when last looked at."""

    # What the runner asks.

    @property
    def unread(self) -> int:
        """See `ingestd.daemon.source.Source.unread`."""
        if self.finished is not None:
            return 0
        if self._text is not None:
            with suppress(OSError):  # a stale handle: the next read says so
                self._size = self._text.size
                if self._size > self._most and time.monotonic() - self.news_at > _HELD_UP:
                    self._unchanged(self._text)
        end = max(self._size, self._most)  # what was cut off may be in a copy
        return max(0, (end if self._until is None else min(end, self._until)) - self._position)

    @property
    def deleted(self) -> str:
        """See `ingestd.daemon.source.Source.deleted`."""
        return printable(self._gone)

    def detail(self) -> Mapping[str, Any]:
        """See `ingestd.daemon.source.Source.detail`: what is known of the file, with the bytes last read."""
        self._told = (self._known.path, self._most, self._deleted)
        witness = self._known.witness
        if self._seen is not None:
            witness = Witness.of(self._seen, witness).with_head(self._head)
        read_size, read_modified = self._read_to_end
        return self._known._replace(
            witness=witness,
            size=self._most,
            modified=self._known.modified if self._known.codec else self._modified,
            links=self._links,
            read_size=read_size,
            read_modified=read_modified,
            deleted=self._deleted,
        ).to_detail()

    def has_news(self) -> bool:
        """Whether the file is larger than `detail` told last, deleted or, as a `look` has shown, elsewhere."""
        with suppress(OSError):
            if self._text is not None:
                links = self._text.status().st_nlink
                if self._text.size > self._most or (links > 0) != self._linked:
                    self._unchanged(self._text)
        return self._told != (self._known.path, self._most, self._deleted)

    def conclude(self) -> None:
        """See `ingestd.daemon.source.Source.conclude`."""
        if not self._concluded:
            self._concluded = True
            self.news_at = time.monotonic()  # its writer may not have heard yet
            self._owner.wake(self, self._owner.route.leave_after)

    def close(self) -> None:
        """Release the descriptor and the watch. Safe to call twice."""
        self._owner.closed(self)
        self.release()
        self._let_pass(math.inf)

    # What the reader asks.

    def open(self) -> None:
        """Open the file. Where it is nowhere, the source is finished. Raises `OSError`."""
        found = self._owner.find(self, self._known)
        if found is None:
            self._finish("gone")
            return
        known, self._text = found
        self._gone = ""
        if known != self._known:
            self._known = known
            self._owner.moved(self)

    def look(self) -> bool:
        """Look where the file is, and how large. Returns whether there is something to read or to end."""
        with suppress(OSError):
            return self._look()
        return True  # `read` meets the error too, and may raise it

    def _look(self) -> bool:
        if self.finished is not None:
            self._look_at_next(self.finished)
            return False
        if self._text is None:
            there = _status_at(self._known.path)
            if there is None or there.st_ino != self._known.file.inode:
                return True
            status = there
        else:
            status = self._text.status()
            if not self._gone and not _is_at(self._known.path, status):
                self._follow(self._text, status)
        # What is concluded needs no look: since it was read last, there is a time at which it wakes its reader.
        expected = self._modified, self._position + self._scanned, self._linked
        return (status.st_mtime_ns, status.st_size, status.st_nlink > 0) != expected

    def _look_at_next(self, finished: End) -> None:
        """What comes after a truncation is read once all before it is acknowledged. It may be truncated before that."""
        there = _status_at(self._known.path) if finished.kind == "truncated" else None
        if there is None or there.st_ino != self._known.file.inode:
            return
        if there.st_size < self._next_size:
            self.finished = finished._replace(unread_since=finished.unread_since + 1)
        self._next_size = there.st_size

    def _follow(self, text: Text, status: os.stat_result) -> None:
        """Where the file is now, the kernel says."""
        path = os.readlink(f"/proc/self/fd/{text.descriptor}")
        if not status.st_nlink and path.endswith(DELETED_SUFFIX):
            self._gone = path.removesuffix(DELETED_SUFFIX)
            return
        # After `link` and `unlink` it says "… (deleted)" of a file that has a name, and does not know which.
        if path != self._known.path and _is_at(path, status):
            self._known = self._known._replace(path=path)
            self._owner.moved(self)

    def when_read(self, tell: Callable[[], None]) -> None:
        """Tell once all that the file holds now is read, or in hand as an unfinished line; or nothing more comes."""
        _ = self.unread  # asks for the size
        self._waiting.append((self._size, tell))
        self._let_pass(self._position + self._scanned)

    def _let_pass(self, read_to: float) -> None:
        while self._waiting:
            # What was cut off is not waited for. A compressed text's size is known at its end.
            most = math.inf if self._known.codec else min(self._waiting[0][0], self._size)
            if read_to < most and self.finished is None:
                return
            self._waiting.popleft()[1]()

    def release(self) -> None:
        """Close the descriptor; the next read opens the file again."""
        if self._text is not None:
            text, self._text = self._text, None
            text.close()

    def release_if_read(self, *, unfinished: bool = False) -> bool:
        """Close the descriptor if that loses nothing: all is read, and the file is found again where it is.

        `unfinished`: all but the beginning of a line is enough. If the file is deleted then, that is not read any more.
        """
        if self._text is None or self._known.codec:
            return False
        with suppress(OSError):  # a file system that is gone: the next read says so
            status = self._text.status()
            read_to = self._position + (self._scanned if unfinished else 0)
            if status.st_size == read_to and _is_at(self._known.path, status):
                self.release()
                return True
        return False

    def _finish(self, kind: Kind, why: str = "") -> Piece | None:
        if self._text is not None and not self._gone:
            with suppress(OSError):
                self._follow(self._text, self._text.status())
        size = max(self._most, self._position)
        at_once = kind in _LOOKED_FOR
        self.finished = End(kind, self._known.path, self._position, size, seen=self._met, at_once=at_once, why=why)
        self._look_at_next(self.finished)
        self.release()
        self._let_pass(math.inf)
        return None

    # Reading.

    def read(self, into: memoryview) -> Piece | None:
        """See `ingestd.daemon.source.Source.read`."""
        if self.held_back:
            return None
        try:
            piece = self._read(into)
        except OSError as error:
            if error.errno == errno.EBADMSG and self._known.codec and self._text is not None:
                return self._damaged(self._text, error.strerror or "")
            if error.errno == errno.ESTALE:
                self.release()  # of no use any more: the next read opens the file again
            elif error.errno == errno.EIO:
                self._let_pass(math.inf)  # a bad sector holds up no other file
            raise
        if self._waiting:
            self._let_pass(self._position + self._scanned)
        return piece

    def _read(self, into: memoryview) -> Piece | None:
        if self._text is None and self.finished is None:
            self.open()
        text = self._text
        if text is None or not self._reached(into, text):
            return None
        if self._scanned:
            end = self._scan(into, text)
            if end is None:
                return None
            if self._scanned > self._limit:
                # With its newline; what is in the slab already may leave less.
                return self._take_truncated(into, end, text) if len(into) > self._limit else self._postpone()
        return self._read_lines(into, text)

    def _reached(self, into: memoryview, text: Text) -> bool:
        """Whether a compressed text is decoded up to the position; if not, decode some more."""
        if not self._known.codec:
            return True
        for _ in range(CHUNKS_PER_READ):
            missing = self._position - text.size
            if missing <= 0 or not text.read_into(into[:missing], text.size):
                return True
        self._postpone()
        return False

    def _read_lines(self, into: memoryview, text: Text) -> Piece | None:
        length = self._fill(into, self._position, text)
        if not self._unchanged(text):
            return self._finish("truncated")
        if length > self._scanned:
            self.news_at = time.monotonic()
        if has_long_line(into, length, self._limit):
            return self._shorten(into, length)
        whole = line_end(into, 0, length)
        if whole:
            self._within_split = False
            self._see(into[:whole], self._position + whole)
            # What comes later is told. What may be the end is read once more, to see whether it is.
            end = self._concluded or not self._linked or self._until is not None or bool(self._known.codec)
            return self._piece(whole, self._position + whole, exhausted=whole == length < len(into) and not end)
        if length == len(into):
            return self._postpone()
        self._hold(into, length)
        return self._end(into, length, text)

    def _end(self, into: memoryview, length: int, text: Text) -> Piece | None:
        """No newline is in the `length` bytes up to the end: the last line of a complete file is given one."""
        kind = self._complete(text, unfinished=length > 0)
        if kind is None or not length:
            return None if kind is None else self._finish(kind)
        end = self._position + length
        self._see(into[:length], end)
        into[length] = 0x0A
        return replace(self._piece(length, end), length=length + 1)

    def _fill(self, into: memoryview, position: int, text: Text) -> int:
        want = len(into) if self._until is None else min(len(into), self._until - position)
        return text.read_into(into[:want], position) if want > 0 else 0

    def _unchanged(self, text: Text) -> bool:
        """Whether the text is still the one that was read up to the position; if so, its size counts as known."""
        status = text.status()  # first: what is found unchanged behind it had this size
        size = text.size if self._known.codec else status.st_size
        if not (size >= self._position and self._is_content(text)):
            return False
        self._met = True
        self._size, self._modified, self._links = size, status.st_mtime_ns, max(self._links, status.st_nlink)
        self._most = max(self._most, size)
        # Some FUSE file systems count no links.
        linked = status.st_nlink > 0 or (not self._gone and _is_at(self._known.path, status))
        if self._linked and not linked:
            self.news_at = time.monotonic()
        self._linked = linked
        self._deleted = not linked and status.st_mtime_ns < status.st_ctime_ns  # the last change was no write
        return True

    def _is_content(self, text: Text) -> bool:
        compressed, witness = bool(self._known.codec), self._known.witness
        if self._seen is not None:
            return compressed or (text.read(0, len(self._head)) == self._head and self._seen.is_in(text))
        if compressed and witness is not None and witness.at > self._position:
            return True  # to go back in a compressed text is slow
        before = (
            b"" if compressed else text.read(max(0, self._position - WITNESS_BYTES), min(self._position, WITNESS_BYTES))
        )
        self._before = Sample(self._position, before)
        if compressed or witness is None:
            return witness is None or witness.ends(text)
        self._head = text.read(0, witness.head_bytes)
        return witness.begins(self._head) and witness.ends(text)

    def _complete(self, text: Text, *, unfinished: bool) -> Kind | None:
        """At the end of what is there: how the source ends, if this is all that will ever come.

        `unfinished`: a line in hand has no newline.
        """
        if self._until is not None:
            return self._complete_at(self._until, unfinished=unfinished)
        if self._known.codec:
            return self._complete_packed(text)
        if (self._linked and not self._concluded) or self._wait():
            return None
        return "concluded" if self._linked else "deleted"

    def _complete_packed(self, text: Text) -> Kind | None:
        """The same for a compressed file. One that grew after it was read to its end may go on growing."""
        if not text.complete:
            self._postpone()  # the next read meets the damage
            return None
        self._read_to_end = text.packed, self._modified
        if self._concluded:
            return "concluded"
        self._let_pass(math.inf)
        if self._wait(IN_THE_MAKING if self._linked else 0):
            return None
        return "concluded" if self._linked else "deleted"

    def _complete_at(self, until: int, *, unfinished: bool) -> Kind | None:
        """The same for a run with an end. A line that grew meanwhile is left to the next run.

        A deleted file is read to its end: no later run finds it.
        """
        more = self._size > until
        if more and not self._linked:
            self._until = self._size
            self._postpone()
            return None
        if more and unfinished:
            self._finish("taken")
            return None
        written_lately = time.time() < self._modified / 1e9 + self._owner.route.leave_after
        return None if unfinished and self._linked and written_lately and self._wait() else "taken"

    def _damaged(self, text: Text, why: str) -> Piece | None:
        """A compressed file is damaged here, or not written to its end: then it still changes."""
        self._most = max(self._most, text.size)
        status = text.status()
        if status.st_mtime_ns != self._modified:
            self._modified, self.news_at = status.st_mtime_ns, time.monotonic()
        making = 0.0
        if text.packed == status.st_size:
            # It may have been as it is for long when it was opened, which counts as news.
            left = IN_THE_MAKING - (time.time() - self._modified / 1e9)
            making = min(IN_THE_MAKING, left + time.monotonic() - self.news_at)
        if self._wait(making):
            self._tell_waiting(why, max(making, self._owner.route.leave_after))
            return None
        if text.size < self._position:
            return self._finish("truncated")  # and written anew
        self._read_to_end = status.st_size, self._modified
        return self._finish("damaged", why)

    def _tell_waiting(self, why: str, seconds: float) -> None:
        """A run with an end waits, and people with it. It is said once."""
        if not self._waits:
            self._waits = True
            entry = {"route": self._owner.route.name, "file": printable(self._known.path), "reason": why}
            _log.info("compressed file can not be read on: more of it is waited for", **entry, seconds=round(seconds))

    def _wait(self, least: float = 0) -> bool:
        """Whether there was news a short while ago, or within the `least` seconds; then look again."""
        wait = self.news_at + max(least, self._owner.route.leave_after) - time.monotonic()
        if wait > 0:
            self._owner.wake(self, wait)
        return wait > 0

    def _postpone(self) -> Piece | None:
        """A line does not fit in what is left of a slab; there is room in a fresh one."""
        self._owner.wake(self, 0)
        return None

    # What was read.

    def _see(self, data: memoryview, end: int) -> None:
        """Keep the last bytes before `end` in mind; `data`, which ends there, begins at the position."""
        if not self._position:
            self._head = bytes(data[:HEAD_BYTES])
        self._seen = Sample.of(end, data, self._seen or self._before)

    def _hold(self, into: memoryview, length: int) -> None:
        """`length` bytes from the position on have no newline. Where nothing is before them, they are kept in mind."""
        self._scanned = length
        if not self._position and length:
            self._see(into[:length], length)

    def _piece(self, length: int, end: int, shortened: int = 0, *, exhausted: bool = False) -> Piece:
        start, self._position = self._position, end
        self._scanned = 0
        return Piece(length, start, end, shortened, exhausted)

    def _shorten(self, into: memoryview, length: int) -> Piece | None:
        raw = bytes(into[:length])
        done = shorten(raw, self._limit, self._owner.route.long_lines, into, within=self._within_split)
        if not done.length:
            self._hold(memoryview(raw), length)
            return self._postpone()
        self._within_split = done.within
        end = self._position + done.consumed
        self._see(memoryview(raw)[: done.consumed], end)
        return self._piece(done.length, end, done.lines)

    def _scan(self, scratch: memoryview, text: Text) -> int | None:
        """Look for the end of a line whose first `_scanned` bytes have none: in bounded memory, each byte once.

        Returns the position behind its newline, or of the end of a complete file; None when there is neither yet; the
        present position to read from there again.
        """
        for _ in range(CHUNKS_PER_READ):
            begin = self._position + self._scanned
            length = self._fill(scratch, begin, text)
            if not length:
                if not self._unchanged(text) or self._size < begin:
                    self._scanned = 0
                    return self._position
                return begin if self._complete(text, unfinished=True) else None
            self.news_at = time.monotonic()
            found = find_newline(scratch, length)
            self._scanned += found if found >= 0 else length
            if self._scanned > self._limit and self._owner.route.long_lines == "split":
                self._scanned = 0
                return self._position
            if found >= 0:
                return begin + found + 1
        self._postpone()
        return None

    def _take_truncated(self, into: memoryview, end: int, text: Text) -> Piece | None:
        """Take the line that ends at `end` and is over the limit: its beginning, and the mark."""
        length = self._fill(into[: self._limit], self._position, text)
        seen = text.read(max(0, end - WITNESS_BYTES), min(end, WITNESS_BYTES))
        if not self._unchanged(text) or length < self._limit:
            return self._finish("truncated")
        first = bytes(into[: min(WITNESS_BYTES, end - self._position - len(seen))])
        self._seen = Sample(end, seen, end - self._position, first)
        kept = cut_at(bytes(into[:length]), self._limit - len(TRUNCATED_MARK))
        into[kept : kept + len(TRUNCATED_MARK)] = TRUNCATED_MARK
        into[kept + len(TRUNCATED_MARK)] = 0x0A
        return self._piece(kept + len(TRUNCATED_MARK) + 1, end, 1)


def _status_at(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_at(path: str, status: os.stat_result) -> bool:
    there = _status_at(path)
    return there is not None and os.path.samestat(there, status)
