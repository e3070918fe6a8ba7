"""Awaited: files that are known and not read yet. They are empty, may not be read, or repeat another file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from ingestd.tail.facts import Place
    from ingestd.tail.file_id import FileId
    from ingestd.tail.files import Files
    from ingestd.tail.log import Log
    from ingestd.tail.watches import Watches

__all__ = ["Awaited"]

COPY_PATIENCE: Final = 10.0
"""Seconds after which a file that begins as another one is no copy that was made to truncate that one."""


class Awaited:
    """Awaited files of one tail. Each is watched, so that a write to it is told."""

    def __init__(self, watches: Watches, files: Files) -> None:
        self._watches = watches
        self._files = files
        self._held: dict[FileId, tuple[Log, Place]] = {}
        self._expected: dict[str, set[FileId]] = {}
        """By path that is being looked at: the files that should be there."""
        self._lengths: dict[FileId, tuple[int, float]] = {}
        """The size of each file, and since when (seconds) it has that size."""

    def __contains__(self, file: object) -> bool:
        return file in self._held

    def __iter__(self) -> Iterator[FileId]:
        return iter(self._held)

    def hold(self, log: Log, place: Place, now: float) -> bool:
        """Wait for a write to a file. `now`: seconds of a steady clock. False: it has changed since it was seen."""
        self._held[place.file] = log, place
        if self._lengths.get(place.file, (-1, 0.0))[0] != place.size:
            self._lengths[place.file] = place.size, now
        return self._watches.file(place)

    def release(self, file: FileId, *, read: bool = True) -> None:
        """Stop waiting for a file. Unless it is `read`, its size and since when it has it are remembered."""
        if read:
            self._lengths.pop(file, None)
        if self._held.pop(file, None) is not None:
            self._watches.drop(file)

    def still(self, now: float) -> list[tuple[Log, Place]]:
        """The files that are no copies in the making: nobody wrote to them for `COPY_PATIENCE`."""
        return [held for file, held in self._held.items() if self.is_still(file, now)]

    def is_still(self, file: FileId, now: float) -> bool:
        """Whether a file is one of these."""
        if file not in self._held:
            return False
        size, since = self._lengths.get(file, (-1, 0.0))
        return size == self._held[file][1].size and now - since > COPY_PATIENCE

    def repeating(self) -> list[Place]:
        """The files that repeat another one."""
        held = [(log.of(file), place) for file, (log, place) in self._held.items()]
        return [place for copy, place in held if copy is not None and copy.copy_of]

    def expect(self, file: Hashable) -> tuple[Log, str]:
        """The log that awaits a file, and where the file should be: to be looked at, and `missed` to be asked then."""
        log, path = self._where(cast("FileId", file))
        self._expected.setdefault(path, set()).add(cast("FileId", file))
        return log, path

    def below(self, directory: str) -> Iterator[tuple[Log, str]]:
        """The files that are in a directory, or below it: their logs, and where they are."""
        for log, path in map(self._where, self._held):
            if path.startswith(f"{directory}/"):
                yield log, path

    def _where(self, file: FileId) -> tuple[Log, str]:
        log, place = self._held[file]
        owned = self._files.find(place.file)
        return log, place.path if owned is None else owned.generation.known.path

    def missed(self, path: str, found: FileId | None) -> Log | None:
        """A look found this at a path. Returns the log of a file that should be there and is not."""
        for file in self._expected.pop(path, ()):
            if file != found and file in self._held:
                log, where = self._where(file)
                if where == path:
                    return log
        return None
