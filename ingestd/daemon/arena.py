"""Arena: one memfd, mapped by every worker, handed out by its owner in runs of 64 KiB pages.

The first page is the owner's notice board. It has the owner's load, which peers read when they look for help, and what
the owner has sent for each route whose bandwidth all workers share.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NOT_STARTED", "PAGE_BYTES", "Arena", "ArenaShare", "ArenaView", "Run", "largest_batch", "pages_for"]

PAGE_BYTES = 65536

NOT_STARTED = 1 << 32
"""The load of a worker that can not be given jobs yet."""

_FREE = 0
_USED = 1
_LOAD = struct.Struct("=Q")
_SENT = struct.Struct("=Q")
_ROUTES = PAGE_BYTES // _SENT.size - 1
"""So many routes have room on a notice board, behind the load."""


def pages_for(size: int) -> int:
    """Pages that `size` bytes need; at least one."""
    return max(1, -(-size // PAGE_BYTES))


def largest_batch(arena_bytes: int) -> int:
    """The most raw bytes of one batch in an arena of this size: it needs a run for them, and one that is a page larger.

    The notice board takes one more page. Without room for two such runs nothing would ever be read.
    """
    return (arena_bytes // PAGE_BYTES - 2) // 2 * PAGE_BYTES


def _sent_at(route: int) -> int:
    if route >= _ROUTES:
        raise ValueError(f"route {route}: a notice board has room for {_ROUTES} routes")
    return _LOAD.size + route * _SENT.size


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive pages: the number of the first, and how many."""

    page: int
    pages: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.pages * PAGE_BYTES


class ArenaView:
    """An arena as any worker sees it: memory that only its owner hands out."""

    def __init__(self, descriptor: int) -> None:
        self.pages = os.fstat(descriptor).st_size // PAGE_BYTES
        self._map = mmap.mmap(descriptor, self.pages * PAGE_BYTES)
        self._memory = memoryview(self._map)

    def view(self, page: int, length: int) -> memoryview:
        """`length` writable bytes from the start of `page`. Raises `ValueError` beyond the arena's end."""
        start = page * PAGE_BYTES
        if not (0 < page < self.pages and start + length <= len(self._memory)):
            raise ValueError(f"page {page}, {length} bytes: outside an arena of {self.pages} pages")
        return self._memory[start : start + length]

    @property
    def load(self) -> int:
        """Encoding jobs that the owner has to do. A hint, which may be out of date; `NOT_STARTED` before the first."""
        published = int(_LOAD.unpack_from(self._memory)[0])
        return published - 1 if published else NOT_STARTED

    def sent(self, route: int) -> int:
        """Bytes that the owner has published as sent for a route, by its number. A hint, which may be out of date."""
        return int(_SENT.unpack_from(self._memory, _sent_at(route))[0])

    def close(self) -> None:
        """Unmap it. If views of it are still held, it is unmapped with the last of them."""
        self._memory.release()
        try:
            self._map.close()
        except BufferError:
            return


class Arena(ArenaView):
    """An arena as its owner sees it. Only the owner hands out pages and takes them back.

    Invariants
        A page is in at most one run.
        Low pages are handed out first, so a light load uses little memory, which stays in the cache.
    """

    def __init__(self, descriptor: int, freed: Callable[[], None] = lambda: None) -> None:
        super().__init__(descriptor)
        self._state = bytearray(self.pages)
        self._state[0] = _USED
        self.used_pages = 0
        self.freed = freed

    @staticmethod
    def create(size: int) -> int:
        """A new memfd of `size` bytes, rounded up to pages, notice board included; the caller owns the descriptor."""
        descriptor = os.memfd_create("ingestd-arena", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, pages_for(size) * PAGE_BYTES)
        return descriptor

    @property
    def usable_pages(self) -> int:
        """All pages but the notice board."""
        return self.pages - 1

    def publish_load(self, jobs: int) -> None:
        """Tell peers how many encoding jobs this worker has to do, and by that, that it has started."""
        _LOAD.pack_into(self._memory, 0, jobs + 1)

    def publish_sent(self, route: int, total: int) -> None:
        """Tell peers how many bytes this worker has sent for a route, by its number."""
        _SENT.pack_into(self._memory, _sent_at(route), total)

    def allocate(self, size: int) -> Run | None:
        """A run of at least `size` bytes, or None when no such run is free."""
        pages = pages_for(size)
        page = self._state.find(bytes(pages))
        if page < 0:
            return None
        self._state[page : page + pages] = bytes([_USED]) * pages
        self.used_pages += pages
        return Run(page, pages)

    def trim(self, run: Run, size: int) -> Run:
        """Keep the first `size` bytes of a run. The pages after them are free at once."""
        keep = pages_for(size)
        if keep >= run.pages:
            return run
        self._give_back(run.page + keep, run.pages - keep)
        return Run(run.page, keep)

    def release(self, run: Run) -> None:
        """Take a run back. The caller makes sure that no transport and no peer uses it any more."""
        self._give_back(run.page, run.pages)
        self.freed()

    def put_back(self, run: Run) -> None:
        """Take back a run that was not used. `freed` is not called, because there is no more room than before."""
        self._give_back(run.page, run.pages)

    def _give_back(self, page: int, pages: int) -> None:
        if self._state[page : page + pages] != bytes([_USED]) * pages:
            raise AssertionError(f"pages {page} to {page + pages - 1} were not all handed out")
        self._state[page : page + pages] = bytes(pages)
        self.used_pages -= pages


class ArenaShare:
    """The part of an arena that one route may use.

    Invariants
        New work begins only if all its runs fit into the share, or if nothing is held. Begun work may use more.
    """

    def __init__(self, arena: Arena, pages: int) -> None:
        self._arena = arena
        self._pages = pages
        self._held = 0

    def begin(self, first: int, second: int) -> tuple[Run, Run] | None:
        """Two runs of at least `first` and `second` bytes for new work. None, and no run, if there is no room."""
        if self._held and self._held + pages_for(first) + pages_for(second) > self._pages:
            return None
        one = self._arena.allocate(first)
        other = None if one is None else self._arena.allocate(second)
        if one is None or other is None:
            if one is not None:
                self._arena.put_back(one)
            return None
        self._held += one.pages + other.pages
        return one, other

    def put_back(self, *runs: Run) -> None:
        """Take back runs that were not used. `Arena.freed` is not called."""
        for run in runs:
            self._held -= run.pages
            self._arena.put_back(run)

    def go_on(self, size: int) -> Run | None:
        """A run of at least `size` bytes for work that has begun; None if the arena has none."""
        run = self._arena.allocate(size)
        if run is not None:
            self._held += run.pages
        return run

    def view(self, run: Run, length: int) -> memoryview:
        """The first `length` bytes of a run."""
        return self._arena.view(run.page, length)

    def trim(self, run: Run, size: int) -> Run:
        """Keep the first `size` bytes of a run. The pages after them are free at once."""
        kept = self._arena.trim(run, size)
        self._held -= run.pages - kept.pages
        return kept

    def release(self, run: Run) -> None:
        """Take a run back. The caller makes sure that no transport and no peer uses it any more."""
        self._held -= run.pages
        self._arena.release(run)
