"""Globs: which paths a tail takes. Walks only directories that can hold one; one `scandir` a directory, no more."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Globs", "is_closed"]

_MAGIC: Final = re.compile(r"[*?\[]")
_BRACES: Final = re.compile(r"\{[^{}/]*(,|\.\.)[^{}/]*\}")
"""What a shell makes several words of, before it looks for files."""

_CLASS: Final = re.compile(r"\[!?+.[^\]]*\]")
"""What stands for one character of several."""

_SHOWN: Final = r"(?!\.)"
"""At the beginning of a regular expression: no name that begins with a dot."""

_ANY_SHOWN: Final = re.compile(_SHOWN)
_DIRECTORIES_KEPT: Final = 1024
_name: Final = attrgetter("name")


def is_closed(glob: str) -> bool:
    """Whether each `[` of a glob has its `]`. One without stands for itself, which nobody means."""
    return not any("[" in _CLASS.sub("", part) for part in glob.split("/"))


def _part(part: str) -> re.Pattern[str]:
    return re.compile(translate(part))


def _file(part: str) -> re.Pattern[str]:
    """The same for names of files: as in a shell, a wildcard at the beginning stands for no dot."""
    return re.compile(_SHOWN + translate(part)) if _MAGIC.match(part) else _part(part)


def _parts(pattern: str) -> tuple[re.Pattern[str] | None, ...]:
    """A glob as one regular expression for each name of a path; None stands for `**`, any number of directories."""
    return tuple(None if part == "**" else _part(part) for part in pattern.split("/"))


def _fits(names: list[str], parts: tuple[re.Pattern[str] | None, ...]) -> bool:
    for index, part in enumerate(parts):
        if part is None:
            rest = parts[index + 1 :]
            return (not rest and len(names) > index) or any(
                _fits(names[skipped:], rest) for skipped in range(index, len(names))
            )
        if index >= len(names) or not part.match(names[index]):
            return False
    return len(names) == len(parts)


def _left(parts: tuple[str, ...], name: str) -> Iterator[tuple[str, ...]]:
    """The parts of a glob that are to match below a directory with this name. `**` matches the name, or no name."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield parts
    if rest:
        if part == "**":
            yield from _left(rest, name)
        elif _part(part).match(name):
            yield rest


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One glob, cut into a directory without wildcards and the parts below it."""

    text: str
    root: str
    parts: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> _Pattern:
        parts = text.split("/")[1:]
        fixed = 0
        while fixed < len(parts) - 1 and not _MAGIC.search(parts[fixed]):
            fixed += 1
        return cls(text, "/" + "/".join(parts[:fixed]), tuple(parts[fixed:]))

    def left(self, start: str) -> Iterable[tuple[str, ...]]:
        """The parts that are to match below a directory. With `**` a glob may lead there in several ways."""
        root = self.root.rstrip("/")
        if not f"{start}/".startswith(f"{root}/"):
            return ()
        ways = {self.parts: None}
        for name in filter(None, start[len(root) :].split("/")):
            ways = {left: None for parts in ways for left in _left(parts, name)}
        return ways

    def why_unmatched(self) -> str:
        """What is said where there is no such file, or no directory for it. It looks for that: the mount may hang."""
        said = "no file matches it yet" if _MAGIC.search(self.text) else "no such file"
        missing = _first_missing(self.root)
        if missing is not None:
            leads = "leads nowhere" if os.path.islink(missing) else "is missing"
            said = f"{said}: the directory {missing} {leads}"
        if braces := _BRACES.search(self.text):
            said = f"{said}; {braces[0]} is not expanded as in a shell: write a path for each"
        return said


class Globs:
    """The globs of one tail, less its excludes.

    Paths and globs are absolute. An exclude without a slash is matched with the file's name, any other with its path.
    A file whose name begins with a dot is taken only by a glob whose last part does: what rsync, editors and NFS keep
    for a while has such names.
    """

    def __init__(self, paths: Iterable[str], exclude: Iterable[str]) -> None:
        self.patterns = [_Pattern.of(path) for path in paths]
        wholes = [(pattern.parts[-1], _parts(pattern.text)) for pattern in self.patterns]
        self._wholes = [parts if last == "**" else (*parts[:-1], _file(last)) for last, parts in wholes]
        exclude = list(exclude)
        self._excluded_name = re.compile("|".join(translate(glob) for glob in exclude if "/" not in glob) or "(?!)")
        self._excluded_paths = [_parts(glob) for glob in exclude if "/" in glob]
        self._taken_of = lru_cache(_DIRECTORIES_KEPT)(self._names_in)

    def matches(self, path: str) -> bool:
        """Whether a tail with these globs takes the file at `path`."""
        directory, _, name = path.rpartition("/")
        for part in self._taken_of(directory):
            if part.match(name):
                return not self.excludes(path)
        return False

    def matched(self, paths: Iterable[str]) -> Iterator[str]:
        """The globs that take one of these paths."""
        names = [path.split("/") for path in paths]
        for pattern, parts in zip(self.patterns, self._wholes, strict=True):
            if any(_fits(each, parts) for each in names):
                yield pattern.text

    def _names_in(self, directory: str) -> list[re.Pattern[str]]:
        """What names of files the globs take in a directory."""
        names = [*directory.split("/"), ""]
        wholes = [parts for parts in self._wholes if _fits(names, (*parts[:-1], parts[-1] and _ANY_SHOWN))]
        return [parts[-1] or _ANY_SHOWN for parts in wholes]

    def leads_through(self, directory: str) -> bool:
        """Whether a walk looks into a directory at this path."""
        names = directory.split("/")
        # `**` at the end takes what is in directories, and looks into them.
        ends = ((parts, end) for parts in self._wholes for end in range(1, len(parts) + (parts[-1] is None)))
        return any(_fits(names, parts[:end]) for parts, end in ends)

    def excludes(self, path: str) -> bool:
        """Whether an exclude matches."""
        if self._excluded_name.match(path.rpartition("/")[2]):
            return True
        if not self._excluded_paths:
            return False
        names = path.split("/")
        return any(_fits(names, parts) for parts in self._excluded_paths)

    @property
    def roots(self) -> set[str]:
        """The directories without wildcards that the globs begin with."""
        return {pattern.root for pattern in self.patterns}

    def directories(self) -> set[str]:
        """Those that a walk lists, as far as they are there. It looks for them: a mount may hang."""
        entered: set[str] = set()
        for _ in self.walk(entered.add, lambda *_: None):
            pass
        return entered

    def unfit(self) -> Iterator[tuple[str, str]]:
        """Globs that can match no file as things are, and why: for people. It looks for that: a mount may hang."""
        for pattern in self.patterns:
            if os.path.isdir(pattern.text):
                yield pattern.text, f'a directory; expected files, as in "{pattern.text}/*"'
            elif not os.path.isdir(pattern.root):
                yield pattern.text, pattern.why_unmatched()

    def walk(self, enter: Callable[[str], object], trouble: Callable[[str, str], object]) -> Iterator[os.DirEntry[str]]:
        """Entries that the globs match, whatever they are, each path once.

        `enter` is called with each directory before it is listed. A directory that can not be read, a glob that has
        nothing to match, and a loop of symbolic links go to `trouble`.
        """
        given: set[str] = set()
        for pattern in self.patterns:
            found = False
            closed: list[str] = []

            def tell(path: str, reason: str, closed: list[str] = closed) -> None:
                closed.append(path)
                trouble(path, reason)

            for entry in self._below(pattern.root, pattern.parts, (), enter, tell):
                found = True
                if self._is_new(entry.path, given):
                    yield entry
            if not (found or closed):  # what can not be listed may have a match
                trouble(pattern.text, pattern.why_unmatched())

    def walk_below(
        self, start: str, enter: Callable[[str], object], trouble: Callable[[str, str], object]
    ) -> Iterator[os.DirEntry[str]]:
        """The same of one directory and what is below it; nothing if there is none, or no glob leads there."""
        given: set[str] = set()
        for pattern in self.patterns if os.path.isdir(start) else ():
            for parts in pattern.left(start):
                for entry in self._below(start, parts, _ids_above(start, pattern.root), enter, trouble):
                    if self._is_new(entry.path, given):
                        yield entry

    def _is_new(self, path: str, given: set[str]) -> bool:
        if path in given or self.excludes(path):
            return False
        given.add(path)
        return True

    def _below(
        self,
        directory: str,
        parts: tuple[str, ...],
        above: tuple[tuple[int, int], ...],
        enter: Callable[[str], object],
        trouble: Callable[[str, str], object],
    ) -> Iterator[os.DirEntry[str]]:
        try:
            status = os.stat(directory)
            if (status.st_dev, status.st_ino) in above:
                trouble(directory, "a loop of symbolic links: it leads back to a directory above it")
                return
            enter(directory)
            with os.scandir(directory) as scan:
                entries = list(scan)
        except FileNotFoundError:
            return
        except OSError as error:
            trouble(directory, f"directory can not be read: {error.strerror}")
            return
        within = (*above, (status.st_dev, status.st_ino))
        yield from self._match(entries, parts, within, enter, trouble)

    def _match(
        self,
        entries: list[os.DirEntry[str]],
        parts: tuple[str, ...],
        above: tuple[tuple[int, int], ...],
        enter: Callable[[str], object],
        trouble: Callable[[str, str], object],
    ) -> Iterator[os.DirEntry[str]]:
        part, rest = parts[0], parts[1:]
        if part == "**":
            if rest:
                yield from self._match(entries, rest, above, enter, trouble)
            for entry in sorted(entries, key=_name):
                if _is_directory(entry):
                    yield from self._below(entry.path, parts, above, enter, trouble)
                elif not rest and _ANY_SHOWN.match(entry.name):
                    yield entry
            return
        expression = _part(part) if rest else _file(part)
        for entry in sorted((entry for entry in entries if expression.match(entry.name)), key=_name):
            if not rest:
                # A directory is of interest only where a name without wildcards asks for it.
                if not _MAGIC.search(part) or not _is_directory(entry):
                    yield entry
            elif _is_directory(entry):
                yield from self._below(entry.path, rest, above, enter, trouble)


def _first_missing(directory: str) -> str | None:
    """The first directory on the way to this one that is not there; None: it is there."""
    names = directory.split("/")
    ways = ("/".join(names[:end]) for end in range(2, len(names) + 1))
    return next((way for way in ways if not os.path.exists(way)), None)


def _ids_above(directory: str, root: str) -> tuple[tuple[int, int], ...]:
    """Of the directories above this one up to a root, as far as they are there."""
    found = []
    while directory != root:
        directory = os.path.dirname(directory)
        with suppress(OSError):
            status = os.stat(directory)
            found.append((status.st_dev, status.st_ino))
    return tuple(found)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that leads nowhere; whoever asks for it as a file is told so
