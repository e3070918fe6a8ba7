"""Ways: the symbolic links that lead to the logs of one tail, and the directories that they lead into."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

__all__ = ["Ways"]


class Ways:
    """Links on the way to logs. A log is named by its path. A way is the paths it leads through, the file's last."""

    def __init__(self) -> None:
        self._through: dict[str, tuple[str, ...]] = {}
        self._leads: dict[str, set[str]] = {}
        """Links and where they lead, with the paths of the logs that are followed through them."""
        self._away: dict[str, str] = {}
        """Directories where links lead and that are not there, and the nearest one above each that is."""

    @property
    def through(self) -> Mapping[str, tuple[str, ...]]:
        """The ways by log."""
        return self._through

    def follow(self, log: str, through: tuple[str, ...]) -> None:
        """A log is followed through these paths, or, if there are none, through no links any more."""
        for path in self._through.pop(log, ()):
            self._leads[path].discard(log)
            if not self._leads[path]:
                del self._leads[path]
                self._lead_no_more(os.path.dirname(path))
        if through:
            self._through[log] = through
        for path in through:
            self._leads.setdefault(path, set()).add(log)

    def _lead_no_more(self, directory: str) -> None:
        """A link is gone, or leads elsewhere. The directory is of no interest unless something else leads into it."""
        if directory in self._away and directory not in self.directories:
            del self._away[directory]

    def logs(self, path: str) -> AbstractSet[str]:
        """The logs that are followed through a path."""
        return self._leads.get(path, frozenset())

    def log_of(self, path: str) -> str | None:
        """The log of which a path is the file; of several, whose links all lead there, always the same one."""
        return min((log for log in self.logs(path) if self._through[log][-1] == path), default=None)

    def into(self, directory: str) -> Iterator[str]:
        """The logs that are followed through something in a directory."""
        for path, logs in self._leads.items():
            if os.path.dirname(path) == directory:
                yield from logs

    @property
    def paths(self) -> AbstractSet[str]:
        """All links, and where they lead."""
        return self._leads.keys()

    @property
    def directories(self) -> set[str]:
        """The directories of all links, and of where they lead."""
        return {os.path.dirname(path) for path in self._leads}

    # Directories that are not there.

    def note_away(self, directories: Mapping[str, str]) -> None:
        """These are not there; with the nearest one above each that is."""
        leads = self.directories if directories else frozenset()
        self._away |= {each: above for each, above in directories.items() if each in leads}

    def away(self, under: str = "") -> list[str]:
        """Those that were not there, at this path or below it."""
        return [each for each in self._away if not under or each == under or each.startswith(f"{under}/")]

    def back(self, directory: str) -> None:
        """It may be there again."""
        self._away.pop(directory, None)

    @property
    def nearest(self) -> set[str]:
        """The nearest directories above those that are not there."""
        return set(self._away.values())
