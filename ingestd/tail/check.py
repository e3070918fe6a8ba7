"""What `ingestd check` says of tails: the files that their globs match now, and that they do not take."""

from __future__ import annotations

import os
import stat
from itertools import islice
from typing import TYPE_CHECKING, Final

from ingestd.tail.globs import Globs
from ingestd.tail.looks import LEADS_NOWHERE
from ingestd.tail.rotation import codec_of
from ingestd.tail.start import unfit_rotated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingestd.tail.route import TailRoute

__all__ = ["warnings"]

_MOST_SAID: Final = 10
"""Warnings about one tail: a directory of thousands of files that this user may not read is one fault."""


def warnings(tails: Sequence[TailRoute]) -> Iterator[str]:
    """What of the files and directories that are there now keeps the tails from taking files."""
    owners: dict[tuple[int, int], str] = {}
    for tail in tails:
        found = _of_tail(tail, owners)
        yield from islice(found, _MOST_SAID)
        more = sum(1 for _ in found)
        if more:
            yield f"tails.{tail.name}.paths: {more} more like these"


def _of_tail(route: TailRoute, owners: dict[tuple[int, int], str]) -> Iterator[str]:
    """What of the files that a tail's globs match now it does not take. `owners` are the tails of those before."""
    key = f"tails.{route.name}.paths"
    troubles: list[str] = []

    def trouble(thing: str, reason: str) -> None:
        troubles.append(f"{key}: {thing}: {reason}")

    matched: list[str] = []
    left = 0
    for entry in route.globs.walk(lambda _: None, trouble):
        matched += entry.path, os.path.realpath(entry.path)
        try:
            found = entry.stat()
        except OSError as error:
            dangles = isinstance(error, FileNotFoundError) and entry.is_symlink()
            yield f"{key}: {entry.path}: {LEADS_NOWHERE if dangles else error.strerror}"
            continue
        if route.compressed == "skip" and codec_of(entry.name) and stat.S_ISREG(found.st_mode):
            left += 1
            continue
        owner = owners.setdefault((found.st_dev, found.st_ino), route.name)
        if stat.S_ISDIR(found.st_mode):
            yield f'{key}: {entry.path} is a directory; expected files, as in "{entry.path}/*"'
        elif not stat.S_ISREG(found.st_mode):
            yield f"{key}: {entry.path} is no regular file"
        elif owner != route.name:
            yield f"{key}: {entry.path} is [tails.{owner}]'s too, which takes it"
        elif not os.access(entry.path, os.R_OK):
            yield f"{key}: {entry.path} can not be read by this user"
    yield from troubles
    for glob, reason in unfit_rotated(route, matched):
        yield f"tails.{route.name}.rotated: {glob}: {reason}"
    if left:
        left_alone, them = ("file that paths match is", "it") if left == 1 else ("files that paths match are", "them")
        yield f'{key}: {left} {left_alone} compressed and left alone; compressed = "read" takes {them}'
    if not matched:
        yield from _all_excluded(route)


def _all_excluded(route: TailRoute) -> Iterator[str]:
    """That the excludes leave none of the files that the globs match now, if there are any."""
    there = Globs(route.paths, ()).walk(lambda _: None, lambda *_: None)
    files = [entry.path for entry in there if os.path.isfile(entry.path)]
    if files:
        yield f"tails.{route.name}.exclude: leaves nothing to take: it matches {_these(files)}"


def _these(files: Sequence[str]) -> str:
    return files[0] if len(files) == 1 else f"all {len(files)} files that paths matches now, as {files[0]}"
