"""Directories: those that the globs of one tail lead to, as they were listed last, and what is on the way to them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ingestd.tail.looks import links_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ingestd.tail.globs import Globs
    from ingestd.tail.listings import Stamp
    from ingestd.tail.looks import Looks, Walk
    from ingestd.tail.watches import Round

__all__ = ["Directories", "Pass", "watch_toward"]


class Pass:
    """A look into all directories, made in the tail's thread. Each is watched before it is listed."""

    def __init__(self, globs: Globs, watched: Round, before: Mapping[str, Stamp]) -> None:
        self._globs = globs
        self._before = before
        self.watched = watched
        self.anew: set[str] = set()
        """Directories that were others at the pass before."""
        self.above = {path for root in globs.roots for path in _up_from(root)}
        """What leads to the directories of the globs; links on the way, and where they lead, too."""

    def walk(self, looks: Looks, certain: Callable[[str, int], bool]) -> Walk:
        """Look at all files that the globs match, but those that are `certain` to be at a path with an inode number."""
        for root in self._globs.roots:
            links = links_of(root)
            self.above.update(links)
            for above in (_nearest(os.path.dirname(root)), *(os.path.dirname(link) for link in links)):
                self._enter(above)
        return looks.walk(self._globs, self._enter, self._but_anew(certain))

    def walk_below(self, starts: Collection[str], looks: Looks, certain: Callable[[str, int], bool]) -> Walk:
        """The same of these directories and what is below them."""
        return looks.walk_below(starts, self._globs, self._enter, self._but_anew(certain))

    def _but_anew(self, certain: Callable[[str, int], bool]) -> Callable[[str, int], bool]:
        """In a directory that was mounted anew, other files may have the inode numbers of before."""
        return lambda path, inode: os.path.dirname(path) not in self.anew and certain(path, inode)

    def _enter(self, directory: str) -> None:
        self.watched.enter(directory)
        before = self._before.get(directory)
        if before is not None and before[:2] != _directory_id(directory):
            self.anew.add(directory)


class Directories:
    """What the last pass knows."""

    def __init__(self, globs: Globs) -> None:
        self._globs = globs
        self._stamps: dict[str, Stamp] = {}
        self._above = {path for root in globs.roots for path in _up_from(root)}

    @property
    def stamps(self) -> Mapping[str, Stamp]:
        """What each directory was when it was listed."""
        return self._stamps

    def look(self, watched: Round) -> Pass:
        """Begin a pass; `listed` is to be called afterwards."""
        return Pass(self._globs, watched, self._stamps)

    def listed(self, made: Pass, found: Walk) -> None:
        """A pass is made."""
        self._stamps, self._above = found.directories, made.above

    def listed_below(self, starts: Collection[str], found: Walk) -> None:
        """These, and what is below them, were listed alone."""
        for start in starts:
            self._stamps.pop(start, None)
        self._stamps |= found.directories

    def leads(self, path: str) -> bool:
        """Whether a directory of the tail is at this path, or was reached through it."""
        return path in self._stamps or self.is_above(path)

    def is_above(self, path: str) -> bool:
        """Whether the globs begin at this path, or below it: what is there concerns all."""
        return path in self._above


def watch_toward(directory: str, watched: Round) -> str:
    """Watch a directory, or the nearest one above it that is there: it says when more of the way is made."""
    above = ""
    while above != (above := _nearest(directory)) and watched.limit is None:
        watched.enter(above)
    return above


def _directory_id(directory: str) -> tuple[int, int] | None:
    try:
        status = os.stat(directory)
    except OSError:
        return None  # it goes: who lists it says so
    return status.st_dev, status.st_ino


def _nearest(directory: str) -> str:
    while not os.path.isdir(directory) and directory != "/":
        directory = os.path.dirname(directory)
    return directory


def _up_from(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:end]) or "/" for end in range(1, len(parts) + 1)}
