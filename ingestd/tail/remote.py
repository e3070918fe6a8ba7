"""Remote files: on network and FUSE mounts any call may hang with its server. A thread for each mount makes them."""

from __future__ import annotations

import errno
import math
import os
import re
import threading
import time
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ingestd.tail.source import TailSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingestd.daemon.source import Assignment, End, Piece
    from ingestd.tail.known import Known
    from ingestd.tail.reader import TailReader
    from ingestd.tail.text import Text

__all__ = ["Do", "RemoteSource", "mount_thread", "remote_mount"]

PATIENCE: Final = 30.0
"""Seconds without an answer after which a mount is said to hang."""

_MOUNTS_READ_EVERY: Final = 10.0
_REMOTE: Final = re.compile(
    "nfs4?|cifs|smb3?|fuse(blk|[.].*)?|9p|virtiofs|afs|ceph|lustre|gpfs|beegfs|pvfs2|coda|vboxsf"
)


def remote_mount(path: str) -> str | None:
    """The network or FUSE mount that a path without links is on, or None. Asks the kernel, never a server."""
    now = int(time.monotonic() / _MOUNTS_READ_EVERY)
    return _remote(path, now) if path in _mounts(now) else _remote(os.path.dirname(path), now)


@lru_cache(maxsize=64)
def _remote(path: str, now: int) -> str | None:
    mounts = _mounts(now)
    while path not in mounts and path not in {"/", ""}:
        path = os.path.dirname(path)
    return path if _REMOTE.fullmatch(mounts.get(path, "")) else None


@lru_cache(maxsize=1)
def _mounts(_: int) -> dict[str, str]:
    """Mount points and their types; of several mounts on one, the last."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        mounts = [line.split(" ") for line in lines]
    octal = partial(re.sub, r"\\(\d{3})", lambda code: chr(int(code[1], 8)))  # proc(5): spaces and the like
    return {octal(fields[4]): fields[fields.index("-") + 1] for fields in mounts}


Do: TypeAlias = "Callable[[Callable[[], object] | None], None]"
"""Has something done in a mount's thread, behind what was asked before; None: that is all."""


def mount_thread(mount: str) -> Do:
    """A thread that nobody joins: where its mount hangs, it ends with the process."""
    jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    def work() -> None:
        while (job := jobs.get()) is not None:
            job()

    threading.Thread(target=work, name=f"mount {mount}", daemon=True).start()
    return jobs.put


class RemoteSource:
    """A `TailSource` that lives in its mount's thread, as the loop sees it: what it reads is fetched ahead.

    Invariants
        The thread alone calls the inner source, whose owner this is; the loop alone calls everything else.
        One fetch is under way at a time, however long the mount hangs.
    """

    remote = True

    def __init__(self, reader: TailReader, assignment: Assignment, do: Do) -> None:
        self.assignment, self.name, self.route = assignment, assignment.found.source, reader.route
        self.finished: End | None = None
        self.unread = 0
        self.deleted = ""
        self.held_back = False
        self.news_at = 0.0
        self._reader = reader
        self._do = do
        self._inner = TailSource(self, assignment)
        self._detail = assignment.found.detail
        self._fetched: tuple[Piece, memoryview] | OSError | None = None
        self._room = 0
        self._since = 0.0  # when the fetch that is under way began
        self._again = False

    # On the loop; see `TailSource`.

    def read(self, into: memoryview) -> Piece | None:
        """What was fetched, if that fits; and have more fetched."""
        if self.held_back or self.finished is not None:
            return None
        if self._since and time.monotonic() - self._since > PATIENCE:
            raise OSError(errno.ETIMEDOUT, f"its mount has not answered for {PATIENCE:.0f} seconds")
        fetched, piece = self._fetched, None
        self._room = max(self._room, len(into))
        if isinstance(fetched, tuple) and fetched[0].length > len(into):
            self._reader.wake(self, 0)  # there is room in a fresh slab
            return None
        self._fetched = None
        if isinstance(fetched, OSError):
            raise fetched
        if fetched is not None:
            piece, data = fetched
            into[: piece.length] = data[: piece.length]
        self._fetch(lambda: True)
        return piece

    def look(self) -> bool:
        """Have it looked at, and read if there is something."""
        if self._fetched is None and not self.held_back:
            self._fetch(self._inner.look)
        return self._fetched is not None or time.monotonic() - (self._since or math.inf) > PATIENCE

    def detail(self) -> Mapping[str, Any]:
        """As it was when something was fetched last."""
        return self._detail

    def has_news(self) -> bool:
        """Nobody waits for a mount to say."""
        return False

    def conclude(self) -> None:
        """In its turn."""
        self._do(self._inner.conclude)

    def close(self) -> None:
        """In its turn, if that comes."""
        self._reader.closed(self)
        self._do(self._inner.close)

    def when_read(self, tell: Callable[[], None]) -> None:
        """Tell on the loop."""
        self._do(partial(self._inner.when_read, partial(self._reader.call, tell)))

    def release_if_read(self, *, unfinished: bool = False) -> bool:  # noqa: ARG002 - as of other sources
        """Never: to close a file may hang too."""
        return False

    def _fetch(self, due: Callable[[], bool]) -> None:
        if self._since:
            self._again = True
        else:
            self._since = time.monotonic()
            self._do(partial(self._fetch_there, due, self._room))

    def _take(self, fetched: tuple[Piece, memoryview] | OSError | None, state: tuple[Any, int, str, Any]) -> None:
        self._fetched, self._since = fetched, 0.0
        self.finished, self.unread, self.deleted, self._detail = state
        if fetched is not None or self.finished is not None or self._again:
            self._again = False
            self._reader.wake(self, 0)

    # In the thread; see `ingestd.tail.source.Owner`.

    def _fetch_there(self, due: Callable[[], bool], room: int) -> None:
        fetched: tuple[Piece, memoryview] | OSError | None = None
        into = memoryview(bytearray(room))
        try:
            piece = self._inner.read(into) if due() else None
            fetched = None if piece is None else (piece, into)
        except OSError as error:
            fetched = error
        inner = self._inner
        self._reader.call(self._take, fetched, (inner.finished, inner.unread, inner.deleted, inner.detail()))

    def wake(self, _: TailSource, delay: float) -> None:
        """Read it again then."""
        self._reader.call(self._reader.wake, self, delay)

    def find(self, _: TailSource, known: Known) -> tuple[Known, Text] | None:
        """Open and watch it."""
        found = self._reader.locate(known)
        if found is not None:
            self._reader.call(self._reader.watch, self, found[1].descriptor)
        return found

    def moved(self, _: TailSource) -> None:
        """Have it stored."""
        self._reader.call(self._reader.moved, self)

    def closed(self, _: TailSource) -> None:
        """It is forgotten already."""
