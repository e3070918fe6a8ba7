"""Generations that begin alike, with the same header, rotated and compressed within moments: all is read, once."""

from __future__ import annotations

import asyncio
import gzip
import os
from typing import TYPE_CHECKING, Any

from ingestd.tail import awaited

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

HEADER = "# header"


def write(log: Path, lines: tuple[str, ...]) -> None:
    """At once, as a program does that buffers what it writes."""
    with log.open("ab") as stream:
        stream.write("".join(f"{line}\n" for line in lines).encode())


def compress(path: Path) -> None:
    if path.exists():
        status, made = path.stat(), path.with_name(f"{path.name}.gz")
        made.write_bytes(gzip.compress(path.read_bytes()))
        os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))
        path.unlink()


class Numbered:
    """app.log.1 and on. `delay`: compressed at the rotation after, else at once."""

    def __init__(self, log: Path, *, delay: bool) -> None:
        self.log, self.delay = log, delay

    def rotated(self, number: int, ending: str = "") -> Path:
        return self.log.with_name(f"{self.log.name}.{number}{ending}")

    def rotate(self) -> None:
        for number in range(9, 0, -1):
            for ending in ("", ".gz"):
                if self.rotated(number, ending).exists():
                    self.rotated(number, ending).rename(self.rotated(number + 1, ending))
        if self.delay:
            compress(self.rotated(2))
        self.log.rename(self.rotated(1))
        if not self.delay:
            compress(self.rotated(1))


class Dated:
    """app-1.log and on, which the glob takes too. The one before is compressed."""

    def __init__(self, log: Path) -> None:
        self.log, self.count = log, 0

    def rotate(self) -> None:
        self.count += 1
        compress(self.log.with_name(f"app-{self.count - 1}.log"))
        self.log.rename(self.log.with_name(f"app-{self.count}.log"))


async def rotates(follow: Any, log: Path, rotator: Any, generations: str, waits: tuple[float, ...]) -> None:
    """Of each generation, H is a header alone, L a header and a line, E empty.

    waits: seconds before each rotation.
    """

    def lines_of(number: int) -> tuple[str, ...]:
        return {"H": (HEADER,), "L": (HEADER, f"line {number}"), "E": ()}[generations[number]]

    write(log, lines_of(0))
    follower = follow("*.log", leave_after=0.15, rescan_interval=2.0)
    await follower.reads(*lines_of(0))
    for number, wait in enumerate(waits, 1):
        for _ in range(round(wait * 100)):
            follower.drain()
            await asyncio.sleep(0.01)
        rotator.rotate()
        write(log, lines_of(number))
    wanted = [line for number in range(len(generations)) for line in lines_of(number)]
    await follower.reads(*wanted, ordered=False)
    assert not follower.losses


async def test_a_new_log_with_a_header_alone_is_read_at_once(follow: Any, tmp_path: Path) -> None:
    """It waited for ten seconds, because it may have been a copy of the one before; and was compressed meanwhile."""
    log = tmp_path / "app.log"
    await rotates(follow, log, Numbered(log, delay=True), "LHHHLH", (0.25, 0.12, 0.12, 0, 0.5))


async def test_names_that_the_glob_takes_rotated_twice_within_a_moment(follow: Any, tmp_path: Path) -> None:
    """The line was said to have vanished, though it was there for seconds."""
    log = tmp_path / "app.log"
    await rotates(follow, log, Dated(log), "HLHHEHH", (0.1, 0, 0.3, 0.05, 0.1, 0.05))


async def test_a_line_that_was_compressed_before_anybody_saw_it_is_read(follow: Any, tmp_path: Path) -> None:
    """It begins as the generation before, and as the next one, which are there: it counted as a copy of them."""
    log = tmp_path / "app.log"
    await rotates(follow, log, Numbered(log, delay=False), "HHLH", (0.1, 0.1, 0))


async def test_what_was_compressed_is_renamed_while_something_older_is_sought(follow: Any, tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    await rotates(follow, log, Numbered(log, delay=False), "LHLEH", (0.25, 0.12, 0, 0.12))


async def test_content_that_is_gone_is_not_sought_in_a_longer_one_that_begins_so(follow: Any, tmp_path: Path) -> None:
    """The line came twice: it was read, and compressed while the next one, a header alone, was sought."""
    log = tmp_path / "app.log"
    await rotates(follow, log, Numbered(log, delay=True), "HLHHH", (0.1, 0.05, 0.1, 0))


async def test_what_stands_at_the_path_is_not_taken_for_a_generation_before_the_last(
    follow: Any, tmp_path: Path
) -> None:
    """One with a header alone was deleted while it was still open. The new log counted as the rest of it."""
    log = tmp_path / "app.log"
    write(log, (HEADER,))
    follower = follow("app.log", leave_after=5.0)
    await follower.until(lambda: follower.texts == [HEADER.encode()])
    log.rename(tmp_path / "app.log-20260101")
    write(log, (HEADER,))
    await follower.until(lambda: follower.texts == [HEADER.encode()] * 2)
    (tmp_path / "app.log-20260101").unlink()
    follower.stop()
    await asyncio.sleep(0.02)  # longer than the grain of times of modification
    write(log, ("line 1",))
    log.rename(tmp_path / "app.log-20260102")
    await asyncio.sleep(0.02)
    write(log, (HEADER, "line 2"))
    follower.start()
    await follower.until(lambda: len(follower.texts) == 5)
    assert follower.texts[2:] == [b"line 1", HEADER.encode(), b"line 2"]


async def test_equal_generations_that_were_moved_to_another_directory_while_nothing_ran_are_read(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a number, as logrotate's `olddir` makes it. The second one counted as a copy of the first."""
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.2)
    log, old = tmp_path / "app.log", tmp_path / "old"
    old.mkdir()
    write(log, (HEADER, "line"))
    follower = follow("app.log", leave_after=0.01, rescan_interval=0.05, rotated=(f"{old}/*",))
    await follower.reads(HEADER, "line")

    def rotate() -> None:
        for number in (2, 1):
            if (rotated := old / f"app.log.{number}").exists():
                rotated.rename(old / f"app.log.{number + 1}")
        log.rename(old / "app.log.1")

    rotate()
    write(log, (HEADER,))
    await follower.until(lambda: follower.texts.count(HEADER.encode()) == 2)
    follower.stop()
    for _ in range(2):
        await asyncio.sleep(0.02)
        rotate()
        write(log, (HEADER,))
    write(log, ("last",))
    follower.start()
    await follower.reads("line", "last", *[HEADER] * 4, ordered=False)
