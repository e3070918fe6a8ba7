"""Whatever is done to a log before the tail looks again, each line is read once.

Random histories of real files, each repeated by its seed. Between two looks, the log is written to, renamed, copied and
truncated, and its rotated files are compressed, in any order: the daemon was frozen, starved of CPU, or down. The order
of the lines is another matter: see README, Order.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

HISTORIES = 40
ROTATED_MOST = 20


class Rotator:
    """Writes a log and rotates it at random. `lines`: what it wrote."""

    def __init__(self, log: Path, chance: random.Random) -> None:
        self.lines: list[bytes] = []
        self._log = log
        self._chance = chance

    def blind_moment(self) -> None:
        """Take one to seven steps before the tail looks: nothing is awaited between them."""
        for step in self._chance.choices(
            (self.write, self._rename, self._copy, self._compress), (3, 1, 2, 1), k=self._chance.randint(1, 7)
        ):
            step()
            time.sleep(0.01)  # so that no two steps have the same time of modification

    def write(self) -> None:
        # Each has a length of its own: nobody can tell a file that was truncated and grew back to the same length.
        number = len(self.lines)
        self.lines.append(b"line %d %s" % (number, b"x" * (number * 37 % 61)))
        with self._log.open("ab") as stream:
            stream.write(self.lines[-1] + b"\n")

    def _rename(self) -> None:
        self._make_room()
        self._log.rename(self._rotated(1))
        self._log.touch()

    def _copy(self) -> None:
        self._make_room()
        shutil.copyfile(self._log, self._rotated(1))
        os.truncate(self._log, 0)

    def _compress(self) -> None:
        for number in range(1, ROTATED_MOST):
            rotated = self._rotated(number)
            if not rotated.exists():
                continue
            status = rotated.stat()
            compressed = self._rotated(number, ".gz")
            compressed.write_bytes(gzip.compress(rotated.read_bytes()))
            os.utime(compressed, ns=(status.st_atime_ns, status.st_mtime_ns))
            rotated.unlink()

    def _make_room(self) -> None:
        for number in range(ROTATED_MOST, 0, -1):
            for codec in ("", ".gz"):
                if (rotated := self._rotated(number, codec)).exists():
                    rotated.rename(self._rotated(number + 1, codec))

    def _rotated(self, number: int, codec: str = "") -> Path:
        return self._log.with_name(f"{self._log.name}.{number}{codec}")


@pytest.mark.parametrize("seed", range(HISTORIES))
async def test_no_line_is_lost_and_none_comes_twice(follow: Any, tmp_path: Path, seed: int) -> None:
    """Blind moments: one or two while the tail is up, then one while it is down, and one just after the start."""
    log, chance = tmp_path / "a.log", random.Random(seed)
    rotator = Rotator(log, chance)
    rotator.write()
    follower = follow(log.name)
    await follower.settle()
    rotator.blind_moment()
    if chance.random() < 0.5:
        await follower.settle()
        rotator.blind_moment()
    settled = chance.random() < 0.7
    if settled:
        await follower.settle()
    follower.stop()
    rotator.blind_moment()
    follower.start()
    if chance.random() < 0.5:
        rotator.blind_moment()
    await follower.until(lambda: {*follower.texts} >= {*rotator.lines})
    await follower.settle()
    assert {*follower.texts} == {*rotator.lines}
    assert not settled or len(follower.texts) == len(rotator.lines), "lines came twice"
    assert not follower.losses
