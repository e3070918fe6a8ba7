"""A random interpreter of what happens to one file, against a model: a source gives each of its bytes at its position,
once, whatever the file is called; what it gives is never of other content than what it gave before."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingestd.daemon.source import Assignment, Found
from ingestd.tail import source as source_module
from ingestd.tail.file_id import identify
from ingestd.tail.known import Known, witness_before
from ingestd.tail.reader import TailReader
from ingestd.tail.route import TailRoute
from ingestd.tail.text import PlainText

if TYPE_CHECKING:
    import pytest

ROUTE = TailRoute("access", ("/*.log",), "local", "access", linger=0.0, max_line_bytes=500_000)

action = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 30)),
    st.tuples(st.just("write_partial"), st.integers(1, 40)),
    st.tuples(st.sampled_from(["rename", "link", "unlink"]), st.booleans()),
    st.tuples(st.just("rewrite"), st.integers(0, 60)),
    st.tuples(st.just("cut"), st.integers(1, 2000)),
    st.tuples(st.just("read"), st.sampled_from([65536, 65536 + 7, 200_000])),
    st.tuples(st.sampled_from(["look", "release", "conclude"]), st.booleans()),
    st.tuples(st.just("restart"), st.booleans()),
)


class World:
    """One file with its writer, and one source of it after the other: each is one content."""

    def __init__(self, directory: Path, padding: int, clock: Any) -> None:
        self.directory = directory
        self.padding = b"." * padding
        self.clock = clock
        self.number = 0
        self.names = 0
        self.reader = TailReader(ROUTE, lambda _: None, lambda _: None)
        self.begin()

    def begin(self) -> None:
        """A new file, and a source of it."""
        self.names += 1
        self.path = self.directory / f"{self.names}.log"
        self.writer = self.path.open("ab", buffering=0)
        self.follow()

    def follow(self) -> None:
        """A new source, of what is in the file now."""
        text = PlainText(os.open(f"/proc/self/fd/{self.writer.fileno()}", os.O_RDONLY))
        known = Known(
            str(self.path), str(self.path), identify(text.descriptor), witness_before(text, text.size), text.size
        )
        text.close()
        self.given = b""
        self.read_to = 0
        self.most = known.size
        self.open(known, 0)

    def open(self, known: Known, position: int) -> None:
        self.source: Any = self.reader.open(Assignment("access", Found("it", position, known.to_detail()), 1))
        self.ends = [position]

    @property
    def content(self) -> bytes:
        return Path(f"/proc/self/fd/{self.writer.fileno()}").read_bytes()

    def append(self, data: bytes) -> None:
        self.writer.write(data)
        self.most = max(self.most, os.fstat(self.writer.fileno()).st_size)

    # What writers and rotation do.

    def write(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            # What tells two contents apart is near the position, as in logs: 256 bytes before it are compared.
            self.append(b"%06d%s%06d\n" % (self.number, self.padding, self.number))

    def write_partial(self, length: int) -> None:
        self.number += 1
        self.append((b"%06d" % self.number * 7)[:length])

    def rename(self, new: bool) -> None:
        self.names += 1
        if self.path.exists():
            self.path = self.path.rename(self.directory / f"{self.names}.log")
            if new:
                self.path.with_name(f"{self.names - 1}.log").write_bytes(b"of another file\n" * 1000)

    def link(self, _: bool) -> None:
        if self.path.exists():
            self.names += 1
            link = self.directory / f"{self.names}.log"
            link.hardlink_to(self.path)
            self.path.unlink()
            self.path = link

    def unlink(self, _: bool) -> None:
        self.path.unlink(missing_ok=True)

    def rewrite(self, count: int) -> None:
        os.ftruncate(self.writer.fileno(), 0)
        self.write(count)

    def cut(self, length: int) -> None:
        """Cut off what was not read, or some of it."""
        size = os.fstat(self.writer.fileno()).st_size
        os.ftruncate(self.writer.fileno(), max(min(size, self.read_to), size - length))

    # What the daemon does.

    def read(self, slab: int) -> bool:
        buffer = memoryview(bytearray(slab))
        piece = self.source.read(buffer)
        if piece is None:
            if self.source.finished is not None:
                self.end()
            return False
        assert piece.start == len(self.given), "pieces follow each other"
        data = bytes(buffer[: piece.length])
        assert data.endswith(b"\n")
        self.given += data[: piece.end - piece.start]
        self.read_to = max(self.read_to, piece.end)  # also by an earlier worker: its witness may be there
        assert self.given == self.content[: piece.end], "bytes of other content, or under a wrong position"
        self.ends.append(piece.end)
        return True

    def end(self) -> None:
        end = self.source.finished
        assert end.position == len(self.given)
        assert end.position <= end.size <= self.most, "what it never held can not be lost"
        if end.kind == "truncated":
            assert self.given != self.content[: end.position] or not self.given, "it has the content still"
        elif end.kind == "gone":
            assert not self.path.exists()
        else:
            assert end.kind == ("concluded" if self.path.exists() else "deleted")
            assert self.given == self.content, "read to its end"
        self.source.close()
        if end.kind == "truncated" and self.path.exists():
            self.follow()
        else:
            self.writer.close()
            self.begin()

    def look(self, _: bool) -> None:
        self.source.look()

    def release(self, _: bool) -> None:
        self.source.release_if_read()

    def conclude(self, _: bool) -> None:
        self.source.conclude()
        self.clock.now += 5

    def restart(self, acknowledged: bool) -> None:
        """Another worker goes on from what is acknowledged; the last piece may not be."""
        known = Known.from_detail(self.source.detail())
        position = self.ends[-1] if acknowledged else self.ends[max(-2, -len(self.ends))]
        self.source.close()
        self.given = self.given[:position]
        self.open(known, position)

    def settle(self) -> None:
        """Until the last source has ended."""
        self.source.conclude()
        source = self.source
        for _ in range(100):
            self.clock.now += 11
            self.read(1 << 20)
            if self.source is not source:
                return
        raise AssertionError("it does not end")


async def play(world: World, actions: list[tuple[str, Any]]) -> None:
    try:
        for verb, amount in actions:
            getattr(world, verb)(amount)
        world.settle()
    finally:
        world.reader.close()
        with suppress(OSError):
            world.writer.close()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(action, max_size=25), padding=st.sampled_from([5, 60, 3000]))
def test_each_byte_is_given_once_at_its_position_whatever_happens_to_the_file(
    actions: list[tuple[str, Any]],
    padding: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(source_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    directory = tmp_path_factory.mktemp("logs")

    async def run() -> None:
        await play(World(directory, padding, clock), actions)

    asyncio.run(run())
    shutil.rmtree(directory)
