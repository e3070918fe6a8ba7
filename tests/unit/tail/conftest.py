"""A follower: finder and sources of one tail driven by hand, with positions that survive a restart. No daemon."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.daemon.source import Assignment, StoredPosition
from ingestd.tail.route import TailRoute

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ingestd.daemon.source import Found
    from ingestd.tail.discovery import TailFinder
    from ingestd.tail.opener import TailOpener
    from ingestd.tail.source import TailSource

SLAB = 14 * 65536


class Follower:
    """Finds, opens, reads and acknowledges. Everything happens when it is told to, on the test's own loop."""

    def __init__(self, route: TailRoute, *, once: bool = False) -> None:
        self.route = route
        self.once = once
        self.stored: dict[str, StoredPosition] = {}
        self.has_run = False
        self.lines: list[tuple[str, bytes]] = []
        self.troubles: dict[str, str] = {}
        self.found: list[Found] = []
        self.ended: dict[str, str] = {}
        self.shortened = 0
        self.sources: dict[str, TailSource] = {}
        self.readied: list[str] = []
        self.unacknowledged: dict[str, list[tuple[int, list[bytes]]]] = {}
        self.repeatable: list[bytes] = []
        self.start()

    def start(self) -> None:
        stored = list(self.stored.values()) if self.has_run else None
        self.finder: TailFinder = self.route.finder(stored, once=self.once)
        self.opener: TailOpener = self.route.opener(self.readied.append)

    def stop(self) -> None:
        """As if killed: what is not acknowledged is forgotten."""
        for pieces in self.unacknowledged.values():
            for _, lines in pieces:
                self.repeatable += lines
        self.unacknowledged.clear()
        self.sources.clear()
        self.opener.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def restart_worker(self) -> None:
        """As if the worker were killed: the finder goes on, and another worker opens what was open where it stands."""
        found = {source: opened.assignment.found for source, opened in self.sources.items()}
        self.stop()
        self.opener = self.route.opener(self.readied.append)
        for source, before in found.items():
            stored = self.stored[source]
            again = replace(before, position=stored.position, detail=stored.detail)
            self.sources[source] = self.opener.open(Assignment(self.route.name, again, 2))

    # Sources

    def appeared(self, found: Found) -> None:
        assert found.source not in self.sources, "a source appears once"
        self.found.append(found)
        self.stored[found.source] = StoredPosition(found.source, found.position, dict(found.detail))
        self.sources[found.source] = self.opener.open(Assignment(self.route.name, found, 1))

    def trouble(self, thing: str, reason: str) -> None:
        self.troubles[thing] = reason

    # What the daemon does

    async def scan(self) -> list[Found]:
        before = len(self.found)
        await self.finder.scan(self)
        self.has_run = True
        return self.found[before:]

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
            self.stored[source] = StoredPosition(source, done[-1][0], dict(self.sources[source].detail()))
            self.unacknowledged[source] = waiting[len(done) :]
            if not self.unacknowledged[source]:
                del self.unacknowledged[source]
        self.check_end(source)

    def check_end(self, source: str) -> None:
        opened = self.sources[source]
        if opened.finished is None or source in self.unacknowledged:
            return
        self.ended[source] = opened.finished
        opened.close()
        del self.sources[source]
        self.finder.ended(source, self.ended[source])

    def drain(self, slab: int = SLAB) -> None:
        """Read and acknowledge all there is."""
        for source in list(self.sources):
            while self.read(source, slab):
                pass
            self.acknowledge(source)

    async def settle(self) -> None:
        """Until passes and reads bring nothing more, for longer than a file that leaves is waited for."""
        quiet = 0
        while quiet < 3:
            before = (len(self.lines), len(self.found), len(self.ended))
            await self.scan()
            self.drain()
            await asyncio.sleep(self.route.leave_after)
            quiet = quiet + 1 if before == (len(self.lines), len(self.found), len(self.ended)) else 0

    @property
    def texts(self) -> list[bytes]:
        return [line for _, line in self.lines]


@pytest.fixture
def make_route(tmp_path: Path) -> Callable[..., TailRoute]:
    """A route over `*.log` in the test's directory; anything may be set otherwise."""

    def make(*globs: str, directory: Path = tmp_path, **settings: Any) -> TailRoute:
        paths = tuple(str(directory / glob) for glob in globs or ("*.log",))
        settings.setdefault("leave_after", 0.001)
        settings.setdefault("linger", 0.0)
        return TailRoute("access", paths, "local", "access", **settings)

    return make


@pytest.fixture
def follow(make_route: Callable[..., TailRoute]) -> Any:
    """A follower of `make_route`'s route; needs a running loop."""
    followers = []

    def make(*globs: str, once: bool = False, **settings: Any) -> Follower:
        follower = Follower(make_route(*globs, **settings), once=once)
        followers.append(follower)
        return follower

    yield make
    for follower in followers:
        follower.stop()
