"""A start may be cut short at any moment: each line is read once at the next one, and in its order.

While nothing runs, a log is written to and rotated several times. The start after that is killed after each of the
things that it stores.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from rotator import Rotator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOMENTS_MOST = 40
QUIET = 0.3
"""Seconds without a change after which a start is over."""


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
    await follower.cut_short(begin)
    return made == changes


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("compressed", [0, 1, 2])
@pytest.mark.parametrize("rotate", [Rotator.rename, Rotator.copy])
async def test_nothing_is_lost_at_whatever_moment_a_start_is_cut_short(
    make_follower: Callable[..., Any],
    tmp_path: Path,
    rotate: Callable[[Rotator], None],
    compressed: int,
    reads: bool,
    known: bool,
) -> None:
    """`compressed`: which rotated file is compressed each time; 0: none. `known`: the run before knew the log."""
    for changes in range(1, MOMENTS_MOST):
        rotator = Rotator(tmp_path / str(changes) / "a.log")
        rotator.log.parent.mkdir()
        follower = make_follower("a.log", directory=rotator.log.parent)
        if known:
            rotator.write()
        await follower.scan()
        follower.drain()
        follower.stop()
        for _ in range(2):
            rotator.write()
            rotate(rotator)
            rotator.compress(compressed)
        rotator.write()
        in_time = await start_and_kill(follower, changes, reads=reads)
        follower.start()
        try:
            await follower.reads(*(line.decode() for line in rotator.lines))
        finally:
            follower.stop()
        assert not follower.losses, f"killed after {changes} changes"
        if not in_time:
            return
    pytest.fail(f"the start still goes on after {MOMENTS_MOST} changes")
