"""A program that writes a log, and what rotates it: real files, one step at a time."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ROTATED_MOST = 20

GRAIN = 0.01
"""Seconds: times of modification may be so coarse."""


class Rotator:
    """Rotated files are `a.log.1`, `a.log.2`, compressed or not, of `a.log`. `lines`: what was written.

    After each step it sleeps, so that no two have the same time of modification.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self.lines: list[bytes] = []

    def write(self) -> None:
        # Each has a length of its own: nobody can tell a file that was truncated and grew back to the same length.
        number = len(self.lines)
        self.lines.append(b"line %d %s" % (number, b"x" * (number * 37 % 61)))
        with self.log.open("ab") as stream:
            stream.write(self.lines[-1] + b"\n")
        time.sleep(GRAIN)

    def rename(self) -> None:
        self._make_room()
        self.log.rename(self._rotated(1))
        self.log.touch()
        time.sleep(GRAIN)

    def copy(self) -> None:
        """Copy and truncate."""
        self._make_room()
        shutil.copyfile(self.log, self._rotated(1))
        os.truncate(self.log, 0)
        time.sleep(GRAIN)

    def compress(self, *numbers: int) -> None:
        """Compress those of these rotated files that are there and are not yet compressed; all, if none is named."""
        for number in numbers or range(1, ROTATED_MOST):
            rotated = self._rotated(number)
            if not rotated.exists():
                continue
            status = rotated.stat()
            compressed = self._rotated(number, ".gz")
            compressed.write_bytes(gzip.compress(rotated.read_bytes()))
            os.utime(compressed, ns=(status.st_atime_ns, status.st_mtime_ns))
            rotated.unlink()
        time.sleep(GRAIN)

    def _make_room(self) -> None:
        for number in range(ROTATED_MOST, 0, -1):
            for codec in ("", ".gz"):
                if (rotated := self._rotated(number, codec)).exists():
                    rotated.rename(self._rotated(number + 1, codec))

    def _rotated(self, number: int, codec: str = "") -> Path:
        return self.log.with_name(f"{self.log.name}.{number}{codec}")
