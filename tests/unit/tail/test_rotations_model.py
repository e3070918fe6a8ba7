"""A random interpreter of writers, rotation and restarts on real files, against a model: every line arrives, in order
within its log; one arrives again only if its position was not stored before a restart; nothing is said to be lost."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("a.log", "b.log")

names = st.sampled_from(NAMES)
action = st.one_of(
    st.tuples(st.just("write"), names, st.integers(1, 30)),
    st.tuples(st.just("write_partial"), names, st.integers(13, 40)),
    st.tuples(st.sampled_from(["rename", "link", "chain"]), names, st.booleans()),
    st.tuples(st.just("copytruncate"), names, st.integers(0, 3)),
    st.tuples(st.sampled_from(["compress", "delete"]), names, st.none()),
    st.tuples(st.just("read"), st.sampled_from([65536, 65536 + 7, 200_000]), st.integers(1, 3)),
    st.tuples(st.just("acknowledge"), st.integers(0, 3), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.005, 0.03]), st.none()),
    st.tuples(st.just("settle"), st.none(), st.none()),
    st.tuples(st.sampled_from(["stop", "start", "restart_worker"]), st.none(), st.none()),
)


class Writer:
    """An application that appends to one path, and what was written: the model."""

    def __init__(self, path: Path, padding: int) -> None:
        self.path = path
        self.padding = padding
        self.lines: list[bytes] = []
        self.partial = b""
        self.unseen = True
        self.number = 0
        self.rotations = 0
        self.open()

    def open(self) -> None:
        self.stream = self.path.open("ab", buffering=0)

    def _line(self) -> bytes:
        self.number += 1
        return f"{self.path.name} {self.number:06d} ".encode() + b"." * self.padding

    def write(self, count: int) -> None:
        self.end_partial()
        written = [self._line() for _ in range(count)]
        self.stream.write(b"".join(line + b"\n" for line in written))
        self.lines += written

    def write_partial(self, length: int) -> None:
        if not self.partial:
            self.partial = self._line()[:length]
            self.stream.write(self.partial)

    def end_partial(self) -> None:
        if self.partial:
            self.stream.write(b"\n")
            self.lines.append(self.partial)
            self.partial = b""

    def _new_name(self) -> Path:
        self.rotations += 1
        return self.path.with_name(f"{self.path.name}.{self.rotations:03}")

    def _reopen(self, *, late: bool) -> None:
        if late:
            self.write(2)  # it has not heard of the rotation yet
        self.end_partial()
        self.stream.close()
        self.open()
        self.unseen = True

    def rename(self, late: bool) -> None:
        self.path.rename(self._new_name())
        self._reopen(late=late)

    def link(self, late: bool) -> None:
        os.link(self.path, self._new_name())
        self.path.unlink()
        self._reopen(late=late)

    def chain(self, late: bool) -> None:
        """All that was rotated gets another name."""
        for rotated in sorted(self.path.parent.glob(f"{self.path.name}.*"), reverse=True):
            if rotated.suffix != ".gz":
                rotated.rename(self._new_name())
        self.rename(late)

    def copytruncate(self, again: int) -> None:
        self.end_partial()
        shutil.copyfile(self.path, self._new_name())
        os.truncate(self.path, 0)
        self.unseen = True
        if again:
            self.write(again * 20)  # grown back to more than before, before anybody looks

    def compress(self) -> None:
        """The newest that was rotated."""
        rotated = [each for each in self.path.parent.glob(f"{self.path.name}.*") if each.suffix != ".gz"]
        for newest in sorted(rotated)[-1:]:
            status = newest.stat()
            packed = newest.with_name(f"{newest.name}.gz")
            with tempfile.NamedTemporaryFile(dir=newest.parent, suffix=".tmp", delete=False) as stream:
                stream.write(gzip.compress(newest.read_bytes()))
            Path(stream.name).rename(packed)
            os.utime(packed, ns=(status.st_atime_ns, status.st_mtime_ns))
            newest.unlink()

    def delete(self) -> None:
        self.end_partial()
        self.path.unlink()
        self._reopen(late=False)


class World:
    """Writers and the follower of their files."""

    def __init__(self, follower: Any, directory: Path, padding: int) -> None:
        self.follower = follower
        self.writers = {name: Writer(directory / name, padding) for name in NAMES}
        self.up = True

    async def act(self, verb: str, first: Any, second: Any) -> None:
        if isinstance(first, str):
            await self._act_as_writer(verb, self.writers[first], second)
        elif verb == "start":
            self.start()
        elif self.up:
            await self._act_as_daemon(verb, first, second)

    def start(self) -> None:
        if not self.up:
            self.follower.start()
            self.up = True

    async def _act_as_daemon(self, verb: str, first: Any, second: Any) -> None:
        if verb == "stop":
            self.follower.stop()
            self.up = False
        elif verb == "read":
            for source in list(self.follower.sources):
                for _ in range(second):
                    if not self.follower.read(source, first):
                        break
        elif verb == "acknowledge":
            for source in list(self.follower.sources):
                self.follower.acknowledge(source, first)
        elif verb == "wait":
            await asyncio.sleep(first)
        elif verb == "settle":
            await self.settle()
        else:
            self.follower.restart_worker()

    async def _act_as_writer(self, verb: str, writer: Writer, amount: Any) -> None:
        if verb in {"write", "write_partial"}:
            getattr(writer, verb)(amount)
            return
        if verb in {"compress", "delete"}:
            if verb == "delete" and not self.up:
                return
            if self.up:
                if verb == "delete":
                    writer.end_partial()
                await self.settle()  # what is deleted before it was seen nobody can read, the end of a line neither
            getattr(writer, verb)()
        elif verb != "copytruncate" or not writer.unseen:  # a copy of what nobody saw is a copy of nothing known
            getattr(writer, verb)(amount)

    async def settle(self) -> None:
        await self.follower.settle()
        # What comes behind a file that is gone waits for some seconds: more of that one may be found.
        await self.follower.until(lambda: not any(each.held_back for each in self.follower.sources.values()))
        await self.follower.settle()
        for writer in self.writers.values():
            writer.unseen = writer.unseen and not writer.path.stat().st_size

    def check(self) -> None:
        follower = self.follower
        delivered = Counter(follower.texts)
        written = Counter(line for writer in self.writers.values() for line in writer.lines)
        assert not written - delivered, "a line is missing"
        assert not delivered - written - Counter(follower.repeatable), "a line arrived again, its position was stored"
        assert not follower.losses
        firsts = list(dict.fromkeys(follower.lines))
        for source in {source for source, _ in firsts}:
            lines = [line for each, line in firsts if each == source]
            assert lines == sorted(lines), "lines of one file are out of order"


@pytest.mark.parametrize("globs", [("a.log", "b.log"), ("*.log",), ("*",)], ids=["names", "logs", "everything"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(action, max_size=20), padding=st.sampled_from([5, 60, 3000]))
def test_every_line_arrives_once_whatever_happens_to_its_file(
    globs: tuple[str, ...],
    actions: list[tuple[str, Any, Any]],
    padding: int,
    make_follower: Callable[..., Any],
) -> None:
    async def run(directory: Path) -> None:
        follower = make_follower(*globs, directory=directory, rescan_interval=0.05, leave_after=0.05)
        world = World(follower, directory, padding)
        try:
            await follower.settle()
            for verb, first, second in actions:
                await world.act(verb, first, second)
            for writer in world.writers.values():
                writer.end_partial()
            world.start()
            await world.settle()
            world.check()
        finally:
            for writer in world.writers.values():
                writer.stream.close()
            follower.stop()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))
