"""A start may be cut short at any moment: each line is read once at the next one, and in its order.

While nothing runs, a log is written to and rotated several times. The start after that is killed after each of the
things that it stores.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOMENTS_MOST = 40
QUIET = 0.3
"""Seconds without a change after which a start is over."""


def rename(log: Path) -> None:
    log.rename(log.with_name(f"{log.name}.1"))
    log.touch()


def copy(log: Path) -> None:
    shutil.copyfile(log, log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)


def compress(path: Path) -> None:
    if path.exists():
        made, status = path.with_name(f"{path.name}.gz"), path.stat()
        made.write_bytes(gzip.compress(path.read_bytes()))
        os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))
        path.unlink()


class Writer:
    """Writes a log and rotates it. `lines`: what it wrote."""

    def __init__(self, log: Path, rotate: Callable[[Path], None], compressed: int) -> None:
        """`compressed`: the number of the rotated file that is compressed at each rotation; 0: none is."""
        self.lines: list[bytes] = []
        self.log = log
        self._rotate = rotate
        self._compressed = compressed

    def write(self) -> None:
        # Each has a length of its own: nobody can tell a file that was truncated and grew back to the same length.
        number = len(self.lines)
        self.lines.append(b"line %d %s" % (number, b"x" * (number * 37 % 61)))
        with self.log.open("ab") as stream:
            stream.write(self.lines[-1] + b"\n")
        time.sleep(0.005)  # so that no two steps have the same time of modification

    def rotate(self) -> None:
        for number in range(8, 0, -1):
            for ending in ("", ".gz"):
                rotated = self.log.with_name(f"{self.log.name}.{number}{ending}")
                if rotated.exists():
                    rotated.rename(self.log.with_name(f"{self.log.name}.{number + 1}{ending}"))
        self._rotate(self.log)
        compress(self.log.with_name(f"{self.log.name}.{self._compressed}"))
        time.sleep(0.005)


async def start_and_kill(follower: Any, changes: int, *, reads: bool) -> bool:
    """Start, and kill it once it has stored so many changes. `reads`: brokers are there. False: it stored fewer.

    Changes that are made in one turn of the loop are one, as they are for the daemon: one transaction.
    """
    follower.start()
    begin = asyncio.ensure_future(follower.begin())
    made, before, quiet = 0, dict(follower.stored), time.monotonic() + QUIET
    while made < changes and time.monotonic() < quiet:
        if reads:
            follower.drain()
        await asyncio.sleep(0)
        if before != follower.stored:
            made, before, quiet = made + 1, dict(follower.stored), time.monotonic() + QUIET
    begin.cancel()
    await asyncio.wait([begin])
    if not begin.cancelled():
        begin.result()
    follower.stop()
    return made == changes


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("compressed", [0, 1, 2])
@pytest.mark.parametrize("rotate", [rename, copy])
async def test_nothing_is_lost_at_whatever_moment_a_start_is_cut_short(
    make_follower: Callable[..., Any],
    tmp_path: Path,
    rotate: Callable[[Path], None],
    compressed: int,
    reads: bool,
    known: bool,
) -> None:
    """`known`: the log was there in the run before."""
    for changes in range(1, MOMENTS_MOST):
        writer = Writer(tmp_path / str(changes) / "a.log", rotate, compressed)
        writer.log.parent.mkdir()
        follower = make_follower("a.log", directory=writer.log.parent)
        if known:
            writer.write()
        await follower.scan()
        follower.drain()
        follower.stop()
        for _ in range(2):
            writer.write()
            writer.rotate()
        writer.write()
        in_time = await start_and_kill(follower, changes, reads=reads)
        follower.start()
        try:
            await follower.reads(*(line.decode() for line in writer.lines))
        finally:
            follower.stop()
        assert not follower.losses, f"killed after {changes} changes"
        if not in_time:
            return
    pytest.fail(f"the start still goes on after {MOMENTS_MOST} changes")
