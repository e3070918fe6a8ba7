"""Logs are rotated while the tail starts, or is killed: each line is read at last, and all in order after renames.

Random histories of real files. A history has one way to rotate. The tail is stopped, as if it were killed, at a random
moment of its start, three times; the log is written to and rotated before, meanwhile and after. README says when copies
may come out of order.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from rotator import Rotator

if TYPE_CHECKING:
    from pathlib import Path

HISTORIES = 8
STARTS = 3
TURNS = (0, 1, 2, 5, 10, 30)
"""So many turns of the loop pass between two steps."""


def step(rotator: Rotator, rotate: str, compressed: int, chance: random.Random) -> None:
    """Write, rotate, or both."""
    writes, rotates = chance.choice(((True, False), (True, False), (False, True), (True, True)))
    if writes:
        rotator.write()
    if rotates:
        getattr(rotator, rotate)()
        if compressed:
            rotator.compress(compressed)
        if chance.random() < 0.8:
            rotator.write()


async def some_turns(follower: Any, chance: random.Random) -> None:
    """Let the tail do some of its steps; now and then what it read is acknowledged."""
    for _ in range(chance.choice(TURNS)):
        await asyncio.sleep(chance.choice((0, 0, 0.0005, 0.003)))
        if chance.random() < 0.3:
            follower.drain()


async def start_and_kill(follower: Any, steps: Any, chance: random.Random) -> None:
    """Start, go on with these steps, and kill it at a random moment."""
    follower.start()
    begin = asyncio.ensure_future(follower.begin())
    for _ in range(chance.randint(1, 4)):
        await some_turns(follower, chance)
        steps()
    await some_turns(follower, chance)
    await follower.cut_short(begin)


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize(
    ("rotate", "compressed"), [("rename", 0), ("rename", 1), ("rename", 2), ("copy", 0), ("copy", 1)]
)
async def test_all_lines_are_read_in_order(
    follow: Any, tmp_path: Path, rotate: str, compressed: int, seed: int
) -> None:
    """`compressed`: which rotated file is compressed each time; 0: none."""
    chance = random.Random(seed)
    rotator = Rotator(tmp_path / "a.log")

    def steps() -> None:
        step(rotator, rotate, compressed, chance)

    rotator.write()
    follower = follow(chance.choice(("a.log", "*.log")))
    await follower.settle()
    follower.stop()
    for _ in range(STARTS):
        for _ in range(chance.randint(0, 3)):
            steps()
        await start_and_kill(follower, steps, chance)
    steps()
    follower.start()
    await follower.until(lambda: {*follower.texts} >= {*rotator.lines})
    assert not follower.losses
    assert rotate == "copy" or [*dict.fromkeys(follower.texts)] == rotator.lines


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize("own_directory", [False, True])
async def test_new_logs_that_are_rotated_at_once_are_read_after_a_kill(
    follow: Any, tmp_path: Path, own_directory: bool, seed: int
) -> None:
    """They come while the tail runs, and before it has seen what was rotated it is killed: 13 of 120 lost one."""
    chance = random.Random(seed)
    lines: list[bytes] = []

    def append(path: Path, content: str) -> None:
        lines.append(content.encode())
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as stream:
            stream.write(lines[-1] + b"\n")

    async def write_and_rotate(number: int) -> None:
        path = tmp_path / (f"{number}/app.log" if own_directory else f"{number}.log")
        await asyncio.sleep(chance.random() * 0.05)
        append(path, f"{number} first")
        await asyncio.sleep(chance.random() * 0.01)
        path.rename(f"{path}.1")
        append(path, f"{number} second")

    append(tmp_path / ("old/app.log" if own_directory else "old.log"), "old")
    follower = follow("*/app.log" if own_directory else "*.log")
    await follower.reads("old")
    writers = [asyncio.ensure_future(write_and_rotate(number)) for number in range(10)]
    for _ in range(chance.randint(20, 100)):
        await asyncio.sleep(0.001)
        if chance.random() < 0.3:
            follower.drain()
    follower.stop()
    await asyncio.gather(*writers)
    follower.start()
    await follower.until(lambda: {*follower.texts} >= {*lines})
    assert not follower.losses
