"""A follower: finder and sources of one tail driven by hand, with positions that survive a restart. No daemon."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ingestd.tail.reader  # noqa: F401 - later, a test's user may not be allowed to read the module
from ingestd.daemon.source import Assignment, StoredPosition
from ingestd.tail.finder import TailFinder
from ingestd.tail.route import TailRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ingestd.daemon.source import End, Found, Loss
    from ingestd.tail.looks import Looks
    from ingestd.tail.reader import TailReader
    from ingestd.tail.remote import RemoteSource
    from ingestd.tail.source import TailSource

SLAB = 14 * 65536
PATIENCE = 20.0
"""Seconds until what is awaited counts as never to come."""

_QUIET_ROUNDS = 4
_ROUND = 0.03
"""Seconds; longer than a finder gathers events."""


class Follower:
    """Finds, opens, reads and acknowledges. Everything happens when it is told to, on the test's own loop.

    Lines are in `texts`, in the order in which they were read. What is told of troubles, losses and ends is kept.
    """

    def __init__(
        self, route: TailRoute, *, once: bool = False, beside: Sequence[Follower] = (), looks: Looks | None = None
    ) -> None:
        self.route = route
        self.once = once
        self.beside = beside
        self.looks = looks
        self.stored: dict[str, StoredPosition] = {}
        self.has_run = False
        self.since = self.found_until = 0.0
        self.lines: list[tuple[str, bytes]] = []
        self.troubles: dict[str, str] = {}
        self.present_troubles: dict[str, str] = {}
        self.told: list[tuple[str, str]] = []
        self.losses: list[Loss] = []
        self.overflows = 0
        self.files_gone = 0
        self.gone_to: dict[str, int] = {}
        self.found: list[Found] = []
        self.ended: dict[str, End] = {}
        self.concluded: set[str] = set()
        self.shortened = 0
        self.sources: dict[str, TailSource | RemoteSource] = {}
        self.unopened: list[Found] | None = None
        """Where a list, what appears is put there and not opened."""
        self.readied: list[str] = []
        self.changed: list[str] = []
        self.unacknowledged: dict[str, list[tuple[int, list[bytes]]]] = {}
        self.repeatable: list[bytes] = []
        self.running: asyncio.Task[None] | None = None
        self.finder: TailFinder
        self.reader: TailReader
        self.start()

    def start(self) -> None:
        self.finder = TailFinder(
            self.route,
            [*self.stored.values()],
            once=self.once,
            since=self.since,
            first_run=not self.has_run,
            others=[each.finder for each in self.beside],
            looks=self.looks,
        )
        self.scanned = False
        self.reader = self.route.opener(self.readied.append, self.changed.append)  # type: ignore[assignment]

    def stop(self) -> None:
        """As if killed: what is not acknowledged is forgotten."""
        if self.running is not None:
            self.check_running()
            self.running.cancel()
            self.running = None
        self.finder.close()
        for pieces in self.unacknowledged.values():
            for _, lines in pieces:
                self.repeatable += lines
        self.unacknowledged.clear()
        self.sources.clear()
        self.concluded.clear()
        self.reader.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def restart_worker(self) -> None:
        """As if the worker were killed: the finder goes on, and another worker opens what was open where it stands."""
        found = {source: self.latest(source) for source in self.sources}
        for pieces in self.unacknowledged.values():
            for _, lines in pieces:
                self.repeatable += lines
        self.unacknowledged.clear()
        self.sources.clear()
        self.reader.close()
        self.reader = self.route.opener(self.readied.append, self.changed.append)  # type: ignore[assignment]
        for source, before in found.items():
            assert before is not None
            self.sources[source] = self.reader.open(Assignment(self.route.name, before, 2))

    # Sources

    def appeared(self, found: Found) -> None:
        assert found.source not in self.sources, "a source appears once"
        self.found.append(found)
        self.concluded.discard(found.source)
        self.store(StoredPosition(found.source, found.position, dict(found.detail)))
        if self.unopened is None:
            self.open(found)
        else:
            self.unopened.append(found)

    def open(self, found: Found) -> None:
        self.sources[found.source] = self.reader.open(Assignment(self.route.name, found, 1))

    def open_all(self) -> None:
        """Open what was held back."""
        unopened, self.unopened = self.unopened or [], None
        for found in unopened:
            self.open(found._replace(last=found.last or found.source in self.concluded))

    def conclude(self, source: str) -> None:
        self.concluded.add(source)
        if source in self.sources:
            self.sources[source].conclude()

    def store(self, position: StoredPosition) -> None:
        self.stored[position.source] = position
        self.since = self.found_until or self.since

    def found_all(self, until: float) -> None:
        self.found_until = until

    def forget(self, source: str) -> None:
        self.stored.pop(source, None)

    def latest(self, source: str) -> Found | None:
        found = next((each for each in reversed(self.found) if each.source == source), None)
        if found is None or source not in self.sources:
            return None
        stored = self.stored[source]
        last = found.last or source in self.concluded
        return found._replace(position=stored.position, detail=stored.detail, last=last)

    def leased(self, until: float) -> None:
        pass

    def looked(self, problem: str | None) -> None:
        pass

    def given_up(self, reason: str) -> None:
        raise AssertionError(reason)

    def trouble_over(self, thing: str) -> None:
        del self.present_troubles[thing]

    def trouble(self, thing: str, reason: str) -> None:
        self.troubles[thing] = self.present_troubles[thing] = reason
        self.told.append((thing, reason))

    def unmatched(self, entry: str, reason: str) -> None:
        self.trouble(entry, reason)

    def overflowed(self) -> None:
        self.overflows += 1

    def gone(self, read_to: Sequence[tuple[str, int]]) -> None:
        self.files_gone += len(read_to)
        self.gone_to.update(read_to)

    def lost(self, loss: Loss) -> None:
        self.losses.append(loss)

    # What the daemon does

    async def scan(self) -> list[Found]:
        """A complete pass, the first that the finder makes."""
        before = len(self.found)
        self.scanned = True
        await self.finder.scan(self)
        self.has_run = True
        self.since = self.found_until or self.since
        return self.found[before:]

    async def cut_short(self, begin: asyncio.Task[None]) -> None:
        """Stop in the middle of a start, which `begin` makes."""
        begin.cancel()
        await asyncio.wait([begin])
        if not begin.cancelled():
            begin.result()
        self.stop()

    async def begin(self) -> None:
        """Scan, then go on finding."""
        await self.scan()
        self.running = asyncio.ensure_future(self.finder.run(self))

    def read(self, source: str, slab: int = SLAB) -> bool:
        opened = self.sources[source]
        buffer = memoryview(bytearray(slab))
        position = self.unacknowledged.get(source, [(self.stored[source].position, [])])[-1][0]
        piece = opened.read(buffer)
        if piece is None:
            return False
        assert piece.start == position, "pieces follow each other"
        assert piece.end > piece.start
        data = bytes(buffer[: piece.length])
        assert data.endswith(b"\n"), "pieces are whole lines"
        lines = data[:-1].split(b"\n")
        self.lines += [(source, line) for line in lines]
        self.shortened += piece.lines_shortened
        self.unacknowledged.setdefault(source, []).append((piece.end, lines))
        return True

    def acknowledge(self, source: str, pieces: int | None = None) -> None:
        waiting = self.unacknowledged.get(source, [])
        done = waiting[:pieces]
        if done:
            moved = StoredPosition(source, done[-1][0], dict(self.sources[source].detail()))
            self.finder.moved()
            self.store(moved)
            self.unacknowledged[source] = waiting[len(done) :]
            if not self.unacknowledged[source]:
                del self.unacknowledged[source]
        self.check_end(source)

    def check_end(self, source: str) -> None:
        opened = self.sources[source]
        if opened.finished is None or source in self.unacknowledged:
            return
        found = self.latest(source)
        assert found is not None
        found = found._replace(detail=dict(opened.detail()))
        self.ended[source] = opened.finished
        opened.close()
        del self.sources[source]
        self.finder.ended(found, self.ended[source])

    def drain(self, slab: int = SLAB) -> None:
        """Read and acknowledge all there is."""
        for source in list(self.sources):
            self.sources[source].look()
            while self.read(source, slab):
                pass
            self.acknowledge(source)

    def check_running(self) -> None:
        if self.running is not None and self.running.done() and not self.running.cancelled():
            self.running.result()

    async def have_begun(self) -> None:
        """A run with an end looks for files once."""
        if self.once and not self.scanned:
            await self.scan()
        elif self.running is None and not self.once:
            await self.begin()

    async def until(self, holds: Callable[[], object]) -> None:
        """Find, read and acknowledge until this holds."""
        await self.have_begun()
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while not holds():
            self.check_running()
            assert asyncio.get_running_loop().time() < deadline, "it never came to that"
            self.drain()
            await asyncio.sleep(_ROUND / 10)

    async def settle(self) -> None:
        """Until looks and reads bring nothing more, for longer than a file that leaves is waited for."""
        await self.have_begun()
        quiet = 0
        while quiet < _QUIET_ROUNDS:
            self.check_running()
            before = self._progress
            self.drain()
            await asyncio.sleep(_ROUND + self.route.leave_after)
            await self.finder._thread.ask(lambda: None)  # what it was asked before is done
            busy = self.finder._due or self.finder._watches.waiting
            quiet = 0 if busy or before != self._progress else quiet + 1

    @property
    def _progress(self) -> tuple[int, ...]:
        return len(self.lines), len(self.found), len(self.ended), len(self.losses), len(self.told), len(self.concluded)

    async def reads(self, *texts: str, ordered: bool = True) -> None:
        """It reads these lines, all in all, and no others."""
        await self.until(lambda: len(self.lines) >= len(texts))
        await self.settle()
        expected = [text.encode() for text in texts]
        assert (self.texts if ordered else sorted(self.texts)) == (expected if ordered else sorted(expected))

    def paths(self, found: Iterable[Found] | None = None) -> list[str]:
        """Base names of what was found, sorted."""
        each = self.found if found is None else found
        return sorted(str(one.detail["path"]).rpartition("/")[2] for one in each)

    @property
    def texts(self) -> list[bytes]:
        return [line for _, line in self.lines]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A directory of another file system."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:  # a tmpfs everywhere
        assert Path(directory).stat().st_dev != tmp_path.stat().st_dev
        yield Path(directory)


@pytest.fixture
def make_route(tmp_path: Path) -> Callable[..., TailRoute]:
    """A route over `*.log` in the test's directory; anything may be set otherwise."""

    def make(*globs: str, directory: Path = tmp_path, **settings: Any) -> TailRoute:
        paths = tuple(str(directory / glob) for glob in globs or ("*.log",))
        settings.setdefault("leave_after", 0.001)
        settings.setdefault("linger", 0.0)
        settings.setdefault("rescan_interval", 3600.0)  # events are enough, where a test does not say otherwise
        name = settings.pop("name", "access")
        return TailRoute(name, paths, "local", "access", **settings)

    return make


@pytest.fixture
def make_follower(make_route: Callable[..., TailRoute]) -> Callable[..., Follower]:
    """Makes a follower of `make_route`'s route, for who stops it; needs a running loop."""
    return lambda *globs, **settings: Follower(make_route(*globs, **settings))


@pytest.fixture
async def follow(make_route: Callable[..., TailRoute]) -> Any:
    """A follower of `make_route`'s route."""
    followers = []

    def make(
        *globs: str,
        once: bool = False,
        beside: Sequence[Follower] = (),
        looks: Looks | None = None,
        **settings: Any,
    ) -> Follower:
        follower = Follower(make_route(*globs, **settings), once=once, beside=beside, looks=looks)
        followers.append(follower)
        return follower

    yield make
    for follower in followers:
        follower.stop()
