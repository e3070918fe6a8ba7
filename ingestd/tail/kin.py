"""Kin: by their names, the generations that a new file is compared with, and where a missing file is searched for.

A name restricts which files are looked at. Content decides what a file is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ingestd.tail.generation import NOTHING, Phase
from ingestd.tail.known import Known
from ingestd.tail.listings import Near
from ingestd.tail.looks import Original
from ingestd.tail.rotation import families_of, is_rotated_from, names_of, rotated_from
from ingestd.tail.searching import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ingestd.daemon.source import Found
    from ingestd.tail.facts import Place
    from ingestd.tail.file_id import FileId
    from ingestd.tail.files import Files
    from ingestd.tail.generation import Generation
    from ingestd.tail.globs import Globs
    from ingestd.tail.known import Witness
    from ingestd.tail.log import Log

__all__ = ["Families", "Kin"]

_ALIKE_MOST: Final = 64
"""A family with more logs than this says nothing about the origin of a file."""

_STRANGERS_MOST: Final = 8
"""Of a family with more logs than this, a file is compared only with logs and files whose names it may have had, and
with other rotations of a log that it may be rotated from."""


_NAMES_MOST: Final = 64
"""So many names are remembered of a log: those that it was known by last, and its own."""


class Kin:
    """The logs of one tail by what their files are, or may be, called."""

    def __init__(
        self,
        logs: Mapping[str, Log],
        through: Mapping[str, tuple[str, ...]],
        files: Files,
        latest: Callable[[str], Found | None],
        rotated: Globs,
        *,
        once: bool,
    ) -> None:
        """`logs` by path; `through`: the ways of links, by log; `latest`: what a source's reader has."""
        self._logs = logs
        self._through = through
        self._files = files
        self._latest = latest
        self._rotated = rotated
        self._once = once
        self._named: dict[str, set[str]] = {}
        """Paths of logs by the families of the names that they, and what they lead to, are written under.

        By the family alone; by directory and family; by the directory's own name and family; and by directory."""
        self._names: dict[str, dict[str, None]] = {}
        """By log: these names, the last one last."""

    def name(self, path: str, log: str) -> None:
        """Files called like this path may hold copies of this log."""
        names = self._names.setdefault(log, {})
        names.pop(path, None)
        names[path] = None
        for key in _keys(path):
            self._named.setdefault(key, set()).add(log)
        if len(names) > _NAMES_MOST:
            self._drop_name(next(name for name in names if name != log), log)

    def name_also(self, paths: AbstractSet[str], log: str) -> None:
        """A file of a log has these names, too. Copies of it may be called like rotations of them."""
        for path in paths - {log}:
            self.name(path, log)

    def unname(self, log: str) -> None:
        """No file may hold a copy of this log any more. Safe for a log that has no name."""
        for path in [*self._names.get(log, ())]:
            self._drop_name(path, log)

    def _drop_name(self, path: str, log: str) -> None:
        names = self._names[log]
        del names[path]
        kept = {key for name in names for key in _keys(name)}
        for key in _keys(path) - kept:
            self._named[key].discard(log)
            if not self._named[key]:
                del self._named[key]
        if not names:
            del self._names[log]

    def written_in(self, directories: Collection[str]) -> list[str]:
        """Logs that are, or were, written in one of these directories."""
        return list(dict.fromkeys(log for each in directories for log in self._named.get(each, ())))

    def alike(self, path: str) -> AbstractSet[str]:
        """Logs that a file at this path may hold a copy of.

        Where they are too many: those beside it, above it, and in directories that are called like its own.
        """
        directory, name = os.path.split(path)
        for family in families_of(name):
            logs: AbstractSet[str] = self._named.get(family, set())
            if len(logs) > _ALIKE_MOST:
                near = (*_from(directory), os.path.basename(directory))
                found: list[AbstractSet[str]] = [self._named.get(f"{each}/{family}", frozenset()) for each in near]
                if any(len(each) > _ALIKE_MOST for each in found):
                    continue  # without a look at all of them
                logs = frozenset().union(*found)
            if 0 < len(logs) <= _ALIKE_MOST:
                return logs
        return frozenset()

    def eldest(self, path: str) -> str:
        """The log that all that are called like this path may be copies of: app.log, of app-1.log.1.

        It is one for all that are alike. Without app.log that is app-1.log, also of app-2.log.1.
        """
        eldest = path if path in self._logs else min(self.alike(path), key=_age, default=path)
        while _age(elder := min(self.alike(eldest), key=_age, default=eldest)) < _age(eldest):
            eldest = elder  # app-1.log.1 may be a copy of app-1.log, and that one of app.log
        return eldest

    def directories(self) -> set[str]:
        """Where logs are written, and where their generations are."""
        paths = {*self._logs, *(path for through in self._through.values() for path in through)}
        paths |= {each.known.path for log in self._logs.values() for each in log.generations}
        return {os.path.dirname(path) for path in paths}

    def originals(
        self, place: Place, called: Iterable[str] = (), apart: Callable[[Generation], bool] = lambda _: False
    ) -> tuple[Original, ...]:
        """What a file is compared with: generations that it may be a copy of. `called`: other paths that it has.

        `apart`: says of which of them it is no copy.
        """
        paths = dict.fromkeys((place.path, *called))
        alike = dict.fromkeys(log for path in paths for log in self.alike(path))
        logs = [self._logs[path] for path in alike if path in self._logs]
        if not logs:
            return ()
        names = frozenset().union(*map(names_of, paths))
        written = [each for path in paths for each in rotated_from(path) if each in self._logs]
        likely = {
            log.path
            for log in logs
            if self._is_called(log, names) or any(is_rotated_from(log.path, each) for each in written)
        }
        ends = tuple(f"/{name}" for name in names)
        owned = self._files.find(place.file)
        unread = owned is not None and owned.generation.copy_of == NOTHING

        def possible(of: Callable[[Log], Sequence[Generation]]) -> Iterator[tuple[Log, Generation]]:
            for log in logs:
                whatever_called = len(logs) <= _STRANGERS_MOST or log.path in likely
                for each in of(log):
                    if unread and each.copy_of == NOTHING and _made(place.file) < _made(each.known.file):
                        continue  # of files that seemed to be empty, each would wait for the others
                    if _may_be_copied(each, log, place) and (whatever_called or each.known.path.endswith(ends)):
                        yield log, each

        # Several logs may have one generation. What its own log is called decides then, so that comes last.
        found = {each.source: (log, each) for log, each in possible(self._linked)}
        own = possible(lambda log: log.generations)
        found |= {each.source: (log, each) for log, each in own if not apart(each)}
        of = {log for log, _ in found.values()}
        rotated = {log for log in of if any(is_rotated_from(log.path, path) for path in paths)}

        names_at = {path: names_of(path) for path in paths}

        def is_akin(log: Log, generation: Generation) -> bool:
            """Many directories have an app.log: only what is beside it, or below it, is called after it."""
            written_at = {log.path, *self._through.get(log.path, ()), generation.known.path}
            return log in rotated or any(
                os.path.basename(each) in names and path.startswith(f"{os.path.dirname(each)}/")
                for each in written_at
                for path, names in names_at.items()
            )

        return tuple(self._original(log, each, akin=is_akin(log, each)) for log, each in found.values())

    def _linked(self, log: Log) -> list[Generation]:
        """What stands at a log's path and is a generation of another log of the tail, which has met it before."""
        owned = None if log.here is None else self._files.find(log.here)
        if owned is None or owned.log is log or self._logs.get(owned.log.path) is not owned.log:
            return []
        return [owned.generation]

    def _is_called(self, log: Log, names: AbstractSet[str]) -> bool:
        """Whether a log, or what leads to it, has one of these names."""
        return not names.isdisjoint(map(os.path.basename, (log.path, *self._through.get(log.path, ()))))

    def _original(self, log: Log, generation: Generation, *, akin: bool) -> Original:
        known, position = self._newest(generation)
        # In a run with an end nobody hears what a reader finds.
        reading = generation.phase is Phase.READING and not self._once
        path = log.newest_path(generation, known) if generation.links else ""
        return Original(generation.source, path, known.file, position, known.witness, reading, akin, known.modified)

    def _newest(self, generation: Generation) -> tuple[Known, int]:
        """What is known of a generation, and how far it is read, as its reader has it if there is one."""
        latest = self._latest(generation.source) if generation.phase is Phase.READING else None
        if latest is None or latest.position == generation.position:
            return generation.known, generation.position
        return Known.told(latest.detail), latest.position

    def _is_common(self, path: str) -> bool:
        """Whether too many logs are called like this, to the last number."""
        return len(self._named.get(families_of(os.path.basename(path))[-1], ())) > _ALIKE_MOST

    def _families(self, path: str) -> Iterator[str]:
        """What a log's rotations are called, numbers left out, unless too many logs beside it are called so, too."""
        directory, name = os.path.split(path)
        for family in families_of(name):
            if family and len(self._named.get(f"{directory}/{family}", ())) <= _ALIKE_MOST:
                yield family

    def search(self, log: Log, generation: Generation, called: Iterable[str] = (), more: Iterable[str] = ()) -> Search:
        """Where a generation's file, or its content, may be; and what may have come after it unseen.

        `called`: other paths at which the file was seen. `more`: other directories that it may have names in.
        """

        def taken(place: Place) -> bool:
            owned = self._files.find(place.file)
            if owned is None or owned.generation.copy_of == generation.source:
                return False
            if owned.generation.copy_of == NOTHING:
                return not place.size  # else it was written to since
            if owned.generation.may_begin_alike:
                # It may be a copy that was made of this one, and only begin like what it repeats.
                later = place.file.birth > generation.known.file.birth > 0
                return not (later and is_rotated_from(place.path, log.path))
            return owned.generation.copy_of is None or not log.may_be_copy(place.file)

        def over(file: FileId) -> Known | None:
            other = log.of(file)
            if other is None or other is generation or other.phase is Phase.READING:
                return None  # its reader may know more
            return other.known

        def copied(file: FileId) -> Witness | None:
            owned = self._files.find(file)
            if owned is None or owned.generation.copy_of != generation.source:
                return None
            return owned.generation.known.witness

        paths = [generation.known.path, log.path, *self._through.get(log.path, ()), *log.written_at, *called]
        names = tuple(dict.fromkeys(map(os.path.basename, paths)))
        kin = [self._logs[path] for path in rotated_from(log.path) if path in self._logs]
        alike = [self._logs[path] for path in sorted({log.path, *self.alike(log.path)} & self._logs.keys())]
        rotations = [each for each in alike if is_rotated_from(each.path, log.path)]
        for each in (each for other in (log, *kin, *rotations) for each in other.generations):
            latest = self._latest(each.source) if each.phase is Phase.READING else None
            paths.append(each.known.path if latest is None else str(latest.detail.get("path", each.known.path)))
        newest = generation.source == log.asked or generation in log.generations[-1:]
        newest = newest or generation.cut or log.stands(generation.known.file)
        held_by = alike if newest else [log]
        others = [self._newest(each)[0] for it in held_by for each in it.generations if each is not generation]
        own = dict.fromkeys(map(os.path.dirname, paths))
        common = self._is_common(log.path)
        beside = os.path.basename(os.path.dirname(log.path))
        return Search(
            generation.source,
            generation.known,
            generation.position,
            tuple(dict.fromkeys((*own, *more))),
            names,
            tuple(log.waiting),
            self._rotated,
            tuple(others),
            newest,
            None if newest else log.here,
            taken,
            self._files.match,
            tuple({*self._families(log.path), *(os.path.basename(each.path) for each in kin)}),
            log.since,
            log.met,
            log.unseen_since,
            log.new_since,
            Near(beside, tuple(own)) if common else None,
            () if common else tuple({os.path.dirname(each.path) for each in alike} - own.keys()),
            beside if common else "",
            frozenset(more) - own.keys(),
            log.rotated and generation.untold and generation.phase is Phase.SOUGHT,
            over,
            copied,
            log.stands(generation.known.file),
        )


class Families:
    """Logs of which files may be alike. A file with names of two of them makes one family of both."""

    def __init__(self) -> None:
        """Each log is a family of its own."""
        self._joined: dict[str, str] = {}

    def join(self, first: str, *others: str) -> str:
        """Make these logs one family. Returns one of them, which `of` takes."""
        family = self.of(first)
        for other in map(self.of, others):
            if other != family:
                self._joined[other] = family
        return family

    def of(self, log: str) -> str:
        """The log that stands for the family."""
        while log in self._joined:
            log = self._joined[log]
        return log


def _keys(path: str) -> set[str]:
    """What is in common with this path: families, alone and by directory."""
    directory, name = os.path.split(path)
    beside = (directory, os.path.basename(directory))
    keys = {key for family in families_of(name) for key in (family, *(f"{each}/{family}" for each in beside))}
    return {directory or "/", *keys}


def _from(directory: str) -> Iterator[str]:
    """A directory, and all above it."""
    while directory:
        yield directory
        directory = directory.rpartition("/")[0]


def _age(path: str) -> tuple[int, str]:
    """A log has a shorter name than what is rotated from it. Of several as short, one has to be the first for all."""
    return len(path), path


def _made(file: FileId) -> tuple[int, int]:
    """Orders files by when they were made."""
    return file.birth, file.inode


def _may_be_copied(generation: Generation, log: Log, place: Place) -> bool:
    """Whether a file may be a copy of a generation. It is called like this log."""
    known, file = generation.known, place.file
    if generation.is_apart and place.codec and not known.codec:
        return True  # the copy may have been compressed to this file
    if not generation.links and known.file.resembles(file):
        return True  # it is back, if it has its content
    if known.codec and known.done and not place.codec and place.modified == known.read_modified:
        return True  # that may have been decompressed to this file
    later = known.file.birth > file.birth > 0  # that one may be a copy, to truncate this one next
    # What stands where a log is written is its next generation: as long as the one before is there, no copy.
    if log.stands(file) and not later and not log.misses(generation):
        return False
    return generation.copy_of in {None, NOTHING} and not known.codec and not known.file.same(file)
