"""A random file-action interpreter against a model: whatever writers and rotation do, and whenever the tail restarts,
every line arrives, in order within its file; one arrives again only if its position was not stored before a restart."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingestd.tail import discovery

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ("a.log", "b.log")

names = st.sampled_from(NAMES)
action = st.one_of(
    st.tuples(st.just("write"), names, st.integers(1, 30)),
    st.tuples(st.just("write_partial"), names, st.integers(13, 40)),
    st.tuples(st.just("rename"), names, st.booleans()),
    st.tuples(st.just("copytruncate"), names, st.integers(0, 3)),
    st.tuples(st.just("delete"), names, st.none()),
    st.tuples(st.just("scan"), st.none(), st.none()),
    st.tuples(st.just("read"), st.sampled_from([65536, 65536 + 7, 200_000]), st.integers(1, 3)),
    st.tuples(st.just("acknowledge"), st.integers(0, 3), st.none()),
    st.tuples(st.just("settle"), st.none(), st.none()),
    st.tuples(st.just("restart"), st.none(), st.none()),
    st.tuples(st.just("restart_worker"), st.none(), st.none()),
)


class Writer:
    """An application that appends to one path, and what was written: the model."""

    def __init__(self, path: Path, padding: int) -> None:
        self.path = path
        self.padding = padding
        self.stream: Any = None
        self.lines: list[bytes] = []
        self.partial = b""
        self.unseen = True
        self.number = 0
        self.rotations = 0

    def _line(self) -> bytes:
        self.number += 1
        return f"{self.path.name} {self.number:06d} ".encode() + b"." * self.padding

    def _append(self, data: bytes) -> None:
        if self.stream is None:
            self.stream = self.path.open("ab", buffering=0)
        self.stream.write(data)

    def write(self, count: int) -> None:
        self.end_partial()
        written = [self._line() for _ in range(count)]
        self._append(b"".join(line + b"\n" for line in written))
        self.lines += written

    def write_partial(self, length: int) -> None:
        if not self.partial:
            self.partial = self._line()[:length]
            self._append(self.partial)

    def end_partial(self) -> None:
        if self.partial:
            self._append(b"\n")
            self.cut_partial()

    def cut_partial(self) -> None:
        """The line stays without newline: it is a line all the same when its file is complete."""
        if self.partial:
            self.lines.append(self.partial)
            self.partial = b""

    @property
    def size(self) -> int:
        return os.fstat(self.stream.fileno()).st_size if self.stream is not None else 0

    def rotated(self) -> Path:
        self.rotations += 1
        return self.path.with_name(f"{self.path.name}.{self.rotations}")

    def rename(self, *, late: bool) -> None:
        if self.stream is None:
            return
        if self.unseen:
            self.end_partial()  # nobody could know that a file found under this name only will not go on
        self.path.rename(self.rotated())
        if late:
            self.write(2)  # it has not heard of the rotation yet
        self.reopen()
        self.stream = self.path.open("ab", buffering=0)

    def reopen(self) -> None:
        self.cut_partial()
        self.stream.close()
        self.stream = None
        self.unseen = True

    def copytruncate(self, again: int) -> None:
        if self.stream is None:
            return
        if self.unseen:
            self.end_partial()
        shutil.copyfile(self.path, self.rotated())
        os.truncate(self.path, 0)
        self.cut_partial()
        self.unseen = True
        if again:
            # Grown back to more than before, before anybody looks.
            self.write(again * 20)

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()


async def play(actions: list[tuple[str, Any, Any]], follower: Any, directory: Path, padding: int) -> None:
    everything = any("log*" in path for path in follower.route.paths)
    writers = {name: Writer(directory / name, padding) for name in NAMES}
    try:
        for verb, first, second in actions:
            await act(verb, first, second, follower, writers, everything)
        for writer in writers.values():
            writer.end_partial()
        await follower.settle()
        discovery.COPY_PATIENCE = 0.0
        await follower.settle()
    finally:
        for writer in writers.values():
            writer.close()
    check(follower, writers)


async def act(verb: str, first: Any, second: Any, follower: Any, writers: dict[str, Writer], everything: bool) -> None:
    if verb in {"write", "write_partial", "rename", "copytruncate", "delete"}:
        await act_as_writer(verb, second, follower, writers[first], everything)
    elif verb == "read":
        for source in list(follower.sources):
            for _ in range(second):
                if not follower.read(source, first):
                    break
    elif verb == "acknowledge":
        for source in list(follower.sources):
            follower.acknowledge(source, first)
    elif verb == "settle":
        await follower.settle()
        for writer in writers.values():
            writer.unseen = writer.unseen and not writer.size
    elif verb == "restart":
        follower.restart()
    elif verb == "restart_worker":
        follower.restart_worker()
    else:
        await follower.scan()


async def act_as_writer(verb: str, amount: Any, follower: Any, writer: Writer, everything: bool) -> None:
    if verb == "write":
        writer.write(amount)
    elif verb == "write_partial":
        writer.write_partial(amount)
    elif verb == "delete":
        await follower.settle()
        if writer.stream is not None:
            writer.path.unlink()
            writer.end_partial()
            writer.reopen()
            follower.drain()
    # What is rotated to a name that no glob matches, unseen, can not be known of.
    elif everything or not writer.unseen or not (writer.size or (verb == "rename" and amount)):
        if verb == "rename":
            writer.rename(late=amount)
        else:
            writer.copytruncate(amount)


def check(follower: Any, writers: dict[str, Writer]) -> None:
    delivered = Counter(follower.texts)
    delivered.pop(b"", None)
    written = Counter(line for writer in writers.values() for line in writer.lines)
    assert not written - delivered, "a line is missing"
    repeats = delivered - written
    assert not repeats - Counter(follower.repeatable), "a line arrived again although its position was stored"
    firsts: dict[str, list[bytes]] = {}
    seen = set()
    for source, line in follower.lines:
        if line and line not in seen:
            seen.add(line)
            firsts.setdefault(source, []).append(line)
    order = {line: index for writer in writers.values() for index, line in enumerate(writer.lines)}
    for lines in firsts.values():
        places = [order[line] for line in lines]
        assert places == sorted(places), "lines of one file are out of order"


@pytest.mark.parametrize("globs", [("*.log",), ("*.log*",)], ids=["rotated names do not match", "rotated names match"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(action, max_size=25), padding=st.sampled_from([5, 60, 3000]))
def test_every_line_arrives_whatever_happens_to_its_file(
    globs: tuple[str, ...],
    actions: list[tuple[str, Any, Any]],
    padding: int,
    make_route: Callable[..., Any],
    follow: Any,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = tmp_path_factory.mktemp("logs")
    monkeypatch.setattr(discovery, "COPY_PATIENCE", 1000.0)

    async def run() -> None:
        follower = follow(*globs, directory=directory)
        try:
            await play(actions, follower, directory, padding)
        finally:
            follower.stop()

    asyncio.run(run())
    shutil.rmtree(directory)
