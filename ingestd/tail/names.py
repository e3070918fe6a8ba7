"""Names: which file stands at which path of the watched directories, by events. Pure: no I/O, no clock.

A file that is renamed before anybody looked at it belongs to the log that it was written under. Events from before a
look may arrive after it. So the result of a look is certain one batch of events later.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ingestd.tail.rotation import CODECS, codec_of, may_have_been, possible_originals, rotated_from
from ingestd.tail.vanished import Vanished
from ingestd.tail.watch import CREATED, DELETED, MOVED_FROM, MOVED_TO

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from ingestd.tail.file_id import FileId

__all__ = ["Changes", "Names"]


@dataclass(slots=True)
class _Name:
    """What stands at a path. `log`: the path that it is, or was, written under. `file`: None until it was looked at."""

    log: str
    file: FileId | None = None
    judged: bool = False
    """Empty or refused: nothing is lost with it."""
    fresh: bool = True
    """Looked at after the last batch of events."""
    shown: FileId | None = None
    """The file that a look showed just before the rename. Most likely it is this one."""
    copy: bool = False
    """Made beside a log, perhaps as its copy. It may be anything: if it goes, nothing is said of it."""
    rotated: bool = False
    """Renamed before it was looked at, from where the log is written: it is no copy."""
    successor: bool = False
    """Made where a log is written, after what stood there was renamed to a rotation's name."""

    def vanished(self, path: str) -> Vanished:
        """It came and went at this path."""
        return Vanished(self.log, path, self.file or self.shown)


_LINK: Final = _Name("", judged=True)
"""A name made beside a log, perhaps a link to its file. If the log's name is deleted next, that is a rotation."""


_ANOTHERS: Final = _Name("", judged=True)
"""A log of another tail was renamed. If it goes under its new name, that tail knows what is lost with it."""


@dataclass(slots=True)
class Changes:
    """The result of a batch of events. `looks`: paths to look at, each with the log of the file there."""

    looks: dict[str, str | None] = field(default_factory=dict)
    vanished: list[Vanished] = field(default_factory=list)
    """Files that came and went without being seen."""
    deleted: list[tuple[FileId, str]] = field(default_factory=list)
    """Known files of which a name is gone."""
    moved: list[tuple[FileId, str]] = field(default_factory=list)
    """Known files that were renamed, and their new paths."""
    arrived: dict[str, None] = field(default_factory=dict)
    """Logs beside which a file came, renamed from where nobody watches, that is called like a rotation."""
    copied: dict[str, None] = field(default_factory=dict)
    """Logs beside which a file came, perhaps a copy, that went before it was looked at: compressed, perhaps."""
    left: dict[str, None] = field(default_factory=dict)
    """Logs of which a file was renamed before it was looked at; nothing says yet where to."""


class Names:
    """Paths of one tail.

    Invariants
        A file that was not seen is looked for where it was renamed to, or said to have vanished.
    """

    def __init__(
        self,
        log_at: Callable[[str], str | None],
        known: Callable[[FileId], bool],
        anothers: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`log_at`: the log that a file made at a path is of. `known`: whether a file is a generation of a log.

        `anothers`: whether a path is one of another tail, which comes first.
        """
        self._log_at = log_at
        self._known = known
        self._anothers = anothers
        self._names: dict[str, _Name] = {}
        self._fresh: set[str] = set()
        self._moving: dict[int, list[tuple[str, _Name | None]]] = {}
        """By cookie: where files were renamed from, and what stood there."""
        self._doubtful: dict[str, _Name] = {}
        self._links: dict[str, list[str]] = {}
        """Names that were made of late beside a log, by its path, and look like rotations of it."""
        self._late_links: dict[str, list[str]] = {}
        self._link_names: set[str] = set()
        self._vacated: set[str] = set()
        """Paths of logs that are free: what stood there was renamed to a rotation's name."""
        self._examined: set[FileId] = set()
        """Files of which the content was looked at after the last batch of events."""
        self._listed: AbstractSet[str] = frozenset()
        """Paths that were listed just now; what looks at them have shown is yet to be told."""
        self._left: set[str] = set()
        """Those of them that a file has left since."""

    def listed(self, paths: AbstractSet[str]) -> None:
        """These paths were listed. What looks at them have shown is told next, but for those that were left by then."""
        self._listed, self._left = paths, set()

    def was_left(self, path: str) -> bool:
        """Whether a file has left a path since that was listed: what was seen there need not be there any more."""
        return path in self._left

    def holds(self, path: str, inode: int) -> bool:
        """Whether a path is certain to stand for the known file with this inode number."""
        name = self._names.get(path)
        if name is None or name.file is None or name.fresh or name.judged:
            return False
        return name.file.inode == inode and self._known(name.file)

    def expects(self, path: str) -> bool:
        """Whether events tell of a file at a path that is not known yet."""
        name = self._names.get(path)
        return name is not None and self._unseen(name)

    def was_rotated(self, path: str) -> bool:
        """Whether what stands at a path was written as a log there, as events tell, and renamed."""
        return path in self._names and self._names[path].rotated

    def is_successor(self, path: str, file: FileId) -> bool:
        """Whether this file was made in place of a rotated one. It is no copy, whatever it begins as."""
        name = self._names.get(path)
        return name is not None and name.successor and file in {name.file, name.shown}

    def has(self, path: str) -> bool:
        """Whether something stands at a path, as far as events tell."""
        return path in self._names or path in self._doubtful

    def has_compressed(self, path: str) -> bool:
        """Whether there is a compressed file beside a path that is called after it, and is read."""
        return any(self.has(f"{path}.{codec}") for codec in CODECS if codec)

    def paths_of(self, files: Collection[FileId]) -> dict[FileId, list[str]]:
        """The paths at which these files were seen last. It looks through all names: ask for many files at once."""
        found: dict[FileId, list[str]] = {file: [] for file in files}
        for path, name in self._names.items() if found else ():
            if name.file in found:
                found[name.file].append(path)
        return found

    def looked(self, path: str, log: str, file: FileId | None) -> Vanished | None:
        """A look showed this. Returns the file that vanished unseen before it, if one did."""
        before = self._doubtful.pop(path, None)
        if file is None:
            # What was to be seen there went meanwhile: events that are to come say how.
            if path in self._names and not self._unseen(self._names[path]):
                del self._names[path]
            self._fresh.discard(path)
        else:
            known = self._names.get(path) or _Name(log)
            self._names[path] = replace(known, log=log, file=file, judged=known.copy, fresh=True, shown=None)
            self._fresh.add(path)
        return None if before is None or before.file == file or not self._unseen(before) else before.vanished(path)

    def judge(self, path: str, *, judged: bool) -> None:
        """`judged`: no data is lost if the file at a path goes. It is False again once the file is written to."""
        name = self._names.get(path)
        if name is not None:
            name.judged = judged or name.copy

    def examined(self, file: FileId) -> None:
        """The content of a file was looked at. The next events may tell of what happened to it before."""
        self._examined.add(file)

    @property
    def moving(self) -> bool:
        """Whether files were renamed, and nothing says yet where to."""
        return bool(self._moving)

    def over(self, file: FileId, path: str = "") -> None:
        """A file is known no more. Events that say later that it went, or is gone from `path`, tell of no loss."""
        for name in (self._names.get(path), *(left for froms in self._moving.values() for _, left in froms)):
            if name is not None and name.file == file:
                name.judged = True

    def standing(self) -> Mapping[str, object]:
        """All names as they are now, to be given to `forget`."""
        return dict(self._names)

    def forget(self, present: Iterable[str], standing: Mapping[str, object]) -> list[Vanished]:
        """Drop all names but these paths, those that a rename brought about, and what was heard of after `standing`.

        Returns what was seen there and is not known yet: its directory went, with all that is in it.
        """
        kept = set(present)
        gone = [path for path in self._names if path not in kept and self._log_at(path) == path]
        vanished = self._drop(path for path in gone if self._names[path] is standing.get(path))
        beside = set(map(os.path.dirname, self._names)) if self._vacated else set()
        self._vacated = {path for path in self._vacated if os.path.dirname(path) in beside}
        return vanished

    def replaced(self, directory: str) -> list[Vanished]:
        """Another directory may be here now: what stood at paths in it says nothing of the files there.

        Returns what was seen there and is not known yet.
        """
        return self._drop([path for path in self._names if os.path.dirname(path) == directory])

    def _drop(self, paths: Iterable[str]) -> list[Vanished]:
        dropped = [(path, self._names.pop(path)) for path in paths]
        self._fresh.difference_update(path for path, _ in dropped)
        return [name.vanished(path) for path, name in dropped if self._unseen(name) and (name.file or name.shown)]

    def heard(self, events: Iterable[tuple[str, int, int]]) -> Changes:
        """Take a batch of events (path, mask, cookie). It has all events from before it was read."""
        changes = Changes()
        late, fresh = self._moving, self._fresh
        self._moving, self._fresh = {}, set()
        self._late_links, self._links = self._links, {}
        self._link_names = {path for paths in self._late_links.values() for path in paths}
        for path, mask, cookie in events:
            if mask & MOVED_FROM:
                self._moving.setdefault(cookie, []).append((path, self._take(path)))
                changes.looks.pop(path, None)
            elif mask & MOVED_TO:
                before, name = _taken(self._moving, cookie, path) or _taken(late, cookie, path) or ("", None)
                self._vacated.discard(path)
                self._came(name, path, changes)
                if self._log_at(before) and may_have_been(os.path.basename(path), os.path.basename(before)):
                    self._vacated.add(before)
            elif mask & CREATED:
                self._created(path, changes, successor=path in self._vacated)
                self._linked(path, changes)
            elif mask & DELETED:
                self._deleted(path, changes)
        for path, left in (each for froms in late.values() for each in froms):
            if left is not None and self._certainly_unseen(left):
                changes.vanished.append(left.vanished(path))  # renamed to where nobody watches
        going = (left for froms in self._moving.values() for _, left in froms)
        changes.left = {left.log: None for left in going if left is not None and self._certainly_unseen(left)}
        for path in fresh - self._fresh:
            if path in self._names and path not in changes.looks:
                self._names[path].fresh = False
        self._examined.clear()
        return changes

    def _unseen(self, name: _Name) -> bool:
        file = name.file or name.shown
        return not name.judged and (file is None or not self._known(file))

    def _certainly_unseen(self, name: _Name) -> bool:
        return self._unseen(name) and (name.file is None or not name.fresh)

    def _came(self, name: _Name | None, path: str, changes: Changes) -> None:
        """A file was renamed to this path. `name`: what stood where it came from, if that is known."""
        if name is None:
            self._created(path, changes)
            self._arrived(path, changes)
        elif name is _LINK:
            self._created(path, changes)
            self._linked(path, changes)
        elif name is _ANOTHERS:
            self._created(path, changes)
            self.judge(path, judged=True)
        else:
            self._renamed(name, path, changes)

    def _created(self, path: str, changes: Changes, *, successor: bool = False) -> None:
        self._vacated.discard(path)
        log = self._log_at(path)
        if log is not None:
            self._replaced(path, changes)
            self._names[path] = _Name(log, successor=successor)
            changes.looks[path] = None
        elif path in self._names and not self._names[path].fresh:  # else the look may be the newer one
            del self._names[path]

    def _linked(self, path: str, changes: Changes) -> None:
        """A name like a rotated one may be a second one of a log's file, or a copy's."""
        directory, name = os.path.split(path)
        for original in possible_originals(name) if not codec_of(name) else ():
            beside = f"{directory}/{original}"
            there = beside in self._names or beside in self._listed
            if there and (log := self._log_at(beside)) is not None:
                self._links.setdefault(beside, []).append(path)
                self._link_names.add(path)
                rotated = name.startswith(original) and may_have_been(name, original)  # app-2.log may be another log
                # A path that is in `looks` already had a file that was just deleted: this may be a copy in its place.
                if rotated and (path not in self._names or path in changes.looks) and self._is_unread(beside):
                    self._names.setdefault(path, _Name(log, judged=True, copy=True))
                    changes.looks[path] = log

    def _arrived(self, path: str, changes: Changes) -> None:
        if self._log_at(path) is None:
            logs = map(self._log_at, rotated_from(path))
            changes.arrived |= {log: None for log in logs if log is not None}

    def _is_unread(self, path: str) -> bool:
        """Whether nothing of a log was read yet, perhaps: then nobody would miss what is truncated there."""
        file = self._names[path].file if path in self._names else None
        return file is None or file in self._examined or not self._known(file)

    def _unlinked(self, path: str, name: _Name, changes: Changes) -> bool:
        """Whether what was deleted here may have another name that was made for it: it was rotated then."""
        links = [*self._late_links.pop(path, ()), *self._links.pop(path, ())]
        for link in links:
            own = self._log_at(link)
            changes.looks[link] = None if own else name.log
            self._names[link] = _Name(own or name.log, judged=name.judged, shown=name.file or name.shown)
        return bool(links)

    def _replaced(self, path: str, changes: Changes) -> None:
        before = self._names.get(path)
        if before is not None and self._certainly_unseen(before):
            changes.vanished.append(before.vanished(path))

    def _renamed(self, name: _Name, new: str, changes: Changes) -> None:
        self._replaced(new, changes)
        self._names[new] = name
        if name.file is None or name.fresh or name.judged or self._unseen(name):
            # What is at the path now need not be what was looked at there.
            changes.looks[new] = name.log
            shown, rotated = name.file or name.shown, name.rotated or not (name.copy or name.judged)
            self._names[new] = replace(name, file=None, fresh=True, shown=shown, rotated=rotated)
        else:
            changes.moved.append((name.file, new))
            if self._log_at(new) is not None:
                changes.looks[new] = name.log

    def _take(self, path: str) -> _Name | None:
        self._leave(path)
        name = self._names.pop(path, None)
        if name is None and (log := self._log_at(path)) is not None:
            return _Name(log)
        if name is None and self._anothers(path):
            return _ANOTHERS
        if name is None and path in self._link_names:
            for links in (*self._late_links.values(), *self._links.values()):
                if path in links:
                    links.remove(path)
                    name = _LINK
        return name

    def _leave(self, path: str) -> None:
        if path in self._listed:
            self._left.add(path)

    def _deleted(self, path: str, changes: Changes) -> None:
        self._leave(path)
        self._vacated.discard(path)
        name = self._names.pop(path, None)
        copy_of = changes.looks.pop(path, None)
        rotated = self._unlinked(path, name or _Name(self._log_at(path) or path), changes)
        if name is None:
            return
        compressed = self.has_compressed(path)
        if name.judged:
            if name.file is not None and name.fresh:
                self._names[path] = name  # another one was deleted, perhaps, before this one was seen there
                changes.looks[path] = None
                if copy_of is not None:
                    changes.copied[copy_of] = None
            elif name.file is not None:
                changes.deleted.append((name.file, path))
            elif name.copy:
                changes.copied[name.log] = None
            return
        if not self._unseen(name):
            if name.file is not None and not name.fresh:
                changes.deleted.append((name.file, path))
        elif rotated:
            return
        elif name.file is not None and name.fresh:
            # Deleted since the look, or before the file that it showed came.
            self._doubtful[path] = replace(name, judged=compressed)
            changes.looks[path] = None
        elif not compressed:
            changes.vanished.append(name.vanished(path))


def _taken(
    moving: dict[int, list[tuple[str, _Name | None]]], cookie: int, path: str
) -> tuple[str, _Name | None] | None:
    """Where from a file was renamed, and what stood there.

    Of several names of one directory, the one that the new name is beside.
    """
    froms = moving.get(cookie)
    if not froms:
        return None
    directory = path.rpartition("/")[0]
    beside = next((each for each in froms if each[0].rpartition("/")[0] == directory), froms[0])
    froms.remove(beside)
    if not froms:
        del moving[cookie]
    return beside
