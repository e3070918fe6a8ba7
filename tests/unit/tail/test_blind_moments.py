"""Whatever is done to a log before the tail looks again, each line is read once.

Random histories of real files, each repeated by its seed. Between two looks, the log is written to, renamed, copied and
truncated, and its rotated files are compressed, in any order: the daemon was frozen, starved of CPU, or down. The order
of the lines is another matter: see README, Order.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from rotator import Rotator

if TYPE_CHECKING:
    from pathlib import Path

HISTORIES = 40


def blind_moment(rotator: Rotator, chance: random.Random) -> None:
    """One to seven steps before the tail looks: nothing is awaited between them."""
    for step in chance.choices(
        (rotator.write, rotator.rename, rotator.copy, rotator.compress), (3, 1, 2, 1), k=chance.randint(1, 7)
    ):
        step()


@pytest.mark.parametrize("seed", range(HISTORIES))
async def test_no_line_is_lost_and_none_comes_twice(follow: Any, tmp_path: Path, seed: int) -> None:
    """Blind moments: one or two while the tail is up, then one while it is down, and one just after the start."""
    log, chance = tmp_path / "a.log", random.Random(seed)
    rotator = Rotator(log)
    rotator.write()
    follower = follow(log.name)
    await follower.settle()
    blind_moment(rotator, chance)
    if chance.random() < 0.5:
        await follower.settle()
        blind_moment(rotator, chance)
    settled = chance.random() < 0.7
    if settled:
        await follower.settle()
    follower.stop()
    blind_moment(rotator, chance)
    follower.start()
    if chance.random() < 0.5:
        blind_moment(rotator, chance)
    await follower.until(lambda: {*follower.texts} >= {*rotator.lines})
    await follower.settle()
    assert {*follower.texts} == {*rotator.lines}
    assert not settled or len(follower.texts) == len(rotator.lines), "lines came twice"
    assert not follower.losses
