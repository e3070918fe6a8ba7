"""Candidate: a file that a glob matches and no source stands for yet; and what speaks against taking it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.tail.identity import Identity, opened, same_content

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Candidate", "holds", "kind_of", "may_repeat", "truncated", "unavailable"]


@dataclass(slots=True)
class Candidate:
    """A regular file that is not empty, as it was when it was opened: its first bytes, and where its text begins."""

    path: str
    status: os.stat_result
    head: bytes
    text_start: int

    @property
    def file(self) -> tuple[int, int]:
        """Device and inode."""
        return (self.status.st_dev, self.status.st_ino)


def holds(path: str, identity: Identity, position: int) -> bool:
    """Whether the file at `path` has the content of a known one, up to `position` at least."""
    try:
        with opened(path) as descriptor:
            return identity.is_in(descriptor, position)
    except OSError:
        return False


def may_repeat(candidate: Candidate, identity: Identity, path: str) -> bool:
    """Whether a file has the content of the known one at `path`, or had it before that one got other content."""
    if not identity.fingerprint.fits(candidate.head):
        return False
    try:
        with opened(candidate.path) as copy, opened(path) as original:
            return same_content(copy, original) or not identity.is_in(original, 0)
    except OSError:
        return False


def truncated(identity: Identity, path: str) -> bool:
    """Whether the known file is at `path` and has other content now: its reader has yet to see that, and will."""
    try:
        with opened(path) as descriptor:
            return identity.is_at(os.fstat(descriptor)) and not identity.is_in(descriptor, 0)
    except OSError:
        return False


def unavailable(identity: Identity) -> bool:
    """Whether a file can not be looked for now: its directory or file system is not there, or it can not be opened."""
    try:
        if os.stat(os.path.dirname(identity.path)).st_dev != identity.device:
            return True
        with opened(identity.path):
            return False
    except FileNotFoundError:
        return not os.path.isdir(os.path.dirname(identity.path))
    except OSError:
        return True


def kind_of(mode: int) -> str:
    """What a thing that is not a regular file is called."""
    kinds: tuple[tuple[Callable[[int], bool], str], ...] = (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    )
    return next((name for test, name in kinds if test(mode)), "something special")
