"""Vanished files: events say that they came and went before anybody looked at them.

A search may find one where no event said that it went: under a second name, or compressed. The others are lost.
Where events are missing, nobody knows which files came and went: `Unseen` has the logs search for them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ingestd.tail.facts import Arrived, Listed, Missed
from ingestd.tail.rotation import plain_of, rotated_from
from ingestd.tail.thread import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ingestd.tail.facts import Fact
    from ingestd.tail.file_id import FileId
    from ingestd.tail.files import Files
    from ingestd.tail.kin import Kin
    from ingestd.tail.log import Log
    from ingestd.tail.names import Names
    from ingestd.tail.thread import Due

__all__ = ["Unseen", "Vanished", "VanishedFiles"]


class Vanished(NamedTuple):
    """A file that came and went. `log`: the path that it was written under. `file`: what a look showed, if any did."""

    log: str
    path: str
    file: FileId | None = None


class _Missing(NamedTuple):
    vanished: Vanished
    logs: Sequence[Log]
    until: float


class VanishedFiles:
    """The vanished files of one tail, until it is known whether they are lost.

    Invariants
        None is said to be lost while its log looks for what is missing, but for one that waits too long.
    """

    def __init__(self) -> None:
        self._missing: list[_Missing] = []
        self._found: set[FileId] = set()
        """Files that searches found since nothing was missing."""
        self._spare: Counter[Log] = Counter()
        """How many were found of which nobody told yet that they vanished."""
        self._unsought: set[Log] = set()

    def __bool__(self) -> bool:
        return bool(self._missing)

    @property
    def logs(self) -> set[Log]:
        """The logs that may find them."""
        return {*self._unsought, *self._spare, *(log for each in self._missing for log in each.logs)}

    def note(self, vanished: Vanished, logs: Sequence[Log], until: float) -> None:
        """A file vanished. `logs`: those that search for it. `until`: how long it is waited for; a steady clock."""
        found = next((log for log in logs if self._spare[log]), None)
        if found is None:
            self._missing.append(_Missing(vanished, logs, until))
        else:
            self._spare[found] -= 1

    def seek_later(self, log: Log) -> None:
        """A log is to search once it looks for nothing else."""
        self._unsought.add(log)

    @property
    def waits(self) -> bool:
        """Whether logs are to search for them once they look for nothing else."""
        return bool(self._unsought)

    def met(self, file: FileId) -> None:
        """This file is known now: it did not vanish."""
        if self._missing:
            self._missing = [each for each in self._missing if each.vanished.file != file]

    def found(self, log: Log, files: Collection[FileId]) -> None:
        """A search of a log found these files, of which no event told: as many of its vanished ones are these."""
        for _ in {*files} - self._found:
            mine = next((each for each in self._missing if log in each.logs), None)
            if mine is not None:
                self._missing.remove(mine)
            else:
                self._spare[log] += 1
        self._found.update(files)

    def compressed(self, paths: Collection[str]) -> None:
        """These files hold what is known. So what they were made of was a copy, and is no loss."""
        made_of = set(map(plain_of, paths))
        self._missing = [each for each in self._missing if each.vanished.path not in made_of]

    def take_unsought(self) -> list[Log]:
        """Logs that were busy when one of their files vanished, and can search now. They are given once."""
        ready = [log for log in self._unsought if log.missed]
        self._unsought -= {log for log in self._unsought if log.missed or not log.restless}
        return ready

    def take_lost(self, now: float, *, busy: bool) -> list[str]:
        """The paths of those that are lost. `busy`: there is more to be looked at. They are given once."""
        lost, kept = [], []
        for each in self._missing:
            waits = busy or any(log.restless for log in each.logs)
            if waits and now < each.until:
                kept.append(each)
            else:
                lost.append(each.vanished.path)
        self._missing = kept
        if not kept and not busy:
            self._found.clear()
            self._spare.clear()
        return lost


class Unseen:
    """What one tail may not have seen: its logs search for that.

    Invariants
        A log that may have missed files searches for them as soon as it looks for nothing else.
    """

    def __init__(
        self,
        logs: Mapping[str, Log],
        through: Mapping[str, tuple[str, ...]],
        files: Files,
        names: Names,
        kin: Kin,
        due: Due,
        apply: Callable[[Log, Fact], None],
    ) -> None:
        """`logs` by path; `through`: the ways of links, by log; `apply` tells a log a fact."""
        self._logs = logs
        self._through = through
        self._files = files
        self._names = names
        self._kin = kin
        self._due = due
        self._apply = apply
        self.vanished = VanishedFiles()
        self.all_known = 0
        """Until when (ns) no file went unseen: at first, in the last run."""
        self._entered: set[str] = set()
        """Directories that are watched since then. What came and went in them before, no event told of."""
        self._unwatched: dict[str, Log] = {}
        """By path, logs of which files may have come and gone where nobody watched, until they are searched for."""

    @property
    def logs(self) -> set[Log]:
        """The logs that may find something, or are to search for it."""
        return {*self.vanished.logs, *self._unwatched.values()}

    # Missing events.

    def miss(self) -> None:
        """Files of all logs may have come and gone."""
        for log in self._logs.values():
            self._apply(log, Missed(self.all_known))

    def miss_below(self, directories: Collection[str]) -> None:
        """Of what is, or was, below these directories, events are missing."""
        below = tuple(f"{directory.rstrip('/')}/" for directory in directories)
        for log in self._logs.values() if below else ():
            paths = (log.path, *self._through.get(log.path, ()), *(each.known.path for each in log.generations))
            if any(path.startswith(below) for path in paths):
                self._apply(log, Missed(self.all_known))

    def know_all(self, until: int) -> None:
        """No file went unseen until then (ns)."""
        self.all_known = until
        self._entered.clear()

    def new_since(self, log: str) -> int:
        """For a log that is new: since when (ns) files of it may have gone unseen; 0: none did."""
        return self.all_known if os.path.dirname(log) in self._entered else 0

    def miss_before_watches(self, new: AbstractSet[str]) -> None:
        """Files may have come and gone in a directory that is new, or where a link leads, before it was watched."""
        self._entered |= new
        for log in [self._logs[path] for path in self._kin.written_in(new) if path in self._logs]:
            through = self._through.get(log.path, ())
            if any(os.path.dirname(path) in new for path in (log.path, *through)):
                self._apply(log, Missed(self.all_known))
                self._unwatched[log.path] = log
                if through:
                    self._due.look(log.path, None)  # where its newest file still is, nothing was missed

    # Files that went, or came.

    def vanish(self, vanished: Vanished | None) -> None:
        """A file came and went before anybody looked at it, if one did."""
        if vanished is None:
            return
        if vanished.log in self._logs:
            self._due.look(vanished.log, None)
        paths = dict.fromkeys((vanished.log, *rotated_from(vanished.path)))
        logs = [self._logs[path] for path in paths if path in self._logs and self._logs[path].generations]
        self.vanished.note(vanished, logs, time.monotonic() + PATIENCE)
        self._search_compressed(logs)

    def _search_compressed(self, logs: Iterable[Log]) -> None:
        """Files of these logs went before they could be opened. They may have been compressed: search for that."""
        for log in logs:
            busy = log.restless
            if busy:
                self.vanished.seek_later(log)
            self._apply(log, Missed(self.all_known))
            if not busy:
                self._apply(log, Listed())

    def vanish_with_directory(self, vanished: Vanished) -> None:
        """A file that was seen, and not read yet, went with its directory; unless it is known by now, elsewhere."""
        if vanished.file is not None and self._files.find(vanished.file) is None:
            self.vanish(vanished)

    def miss_files(self, logs: Iterable[str]) -> None:
        """Files of these logs came and went, perhaps, before anybody looked at them."""
        self._search_compressed([self._logs[path] for path in logs if path in self._logs])

    def arrive(self, logs: Iterable[str]) -> None:
        """Files came beside these logs, from where nobody watches."""
        for log in [self._logs[path] for path in logs if path in self._logs]:
            self._apply(log, Arrived())

    @property
    def waits(self) -> bool:
        """Whether logs are to search once they look for nothing else."""
        return bool(self._unwatched or self.vanished.waits)

    def take_lost(self, *, busy: bool) -> list[str]:
        """The paths of those that are lost. `busy`: there is more to be looked at. They are given once."""
        lost = self.vanished.take_lost(time.monotonic(), busy=busy)
        return [path for path in lost if not self._names.has_compressed(path)]

    # Searches.

    def search(self, log: Log, since: int = 0) -> None:
        """Files of a log may have come and gone unseen: search for them now. `since`: as of `Missed`."""
        self._apply(log, Missed(since))
        self._apply(log, Listed())

    def seek(self, log: Log) -> None:
        """Search for what a log misses, if it misses anything."""
        if log.restless:
            self._apply(log, Listed())

    def search_again(self, looks: Container[str]) -> None:
        """Files vanished while something else was searched for, or came and went before their directory was watched.

        `looks`: paths that are to be looked at first.
        """
        for log in self.vanished.take_unsought():
            self._apply(log, Listed())
        for path, log in list(self._unwatched.items()):
            if path not in looks and not log.asked:
                del self._unwatched[path]
                self.seek(log)
