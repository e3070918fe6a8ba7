"""Searches: where generations of logs are by now, after whatever renames, copies and compressions."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ingestd.tail.content import HEAD_BYTES
from ingestd.tail.facts import Place, Sought
from ingestd.tail.file_id import identify, may_hold
from ingestd.tail.known import Known, birth_of, witness_before
from ingestd.tail.listings import Listing, Moved, files_in, joined, settled_stamp
from ingestd.tail.rotation import is_rotation_of, names_of
from ingestd.tail.text import length_of_copy, open_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ingestd.tail.file_id import FileId
    from ingestd.tail.globs import Globs
    from ingestd.tail.known import Witness
    from ingestd.tail.listings import Near
    from ingestd.tail.text import Text

__all__ = ["Search", "Searches", "came_meanwhile"]

_CHUNK_BYTES: Final = 1 << 16

_TRIES: Final = 10
"""So often a search begins again where names shift under it."""


@dataclass(frozen=True, slots=True)
class Search:
    """A generation to find. `names`: base names that it was written under; `elsewhere`: files of other directories."""

    source: str
    known: Known
    position: int
    directories: tuple[str, ...]
    names: tuple[str, ...]
    elsewhere: tuple[str, ...]
    rotated: Globs
    """Where rotated files go that nobody sees going."""
    others: tuple[Known, ...]
    """Other generations, of logs with alike names: a compressed file may have the content of one."""
    newest: bool
    """Whether nothing is known to have come after it."""
    here: FileId | None
    """What stands where its log is written, if something newer is known: that came after it, whatever it begins as."""
    taken: Callable[[Place], bool]
    """Whether a file is known, and not looked for: as a generation, or as empty."""
    matched: Callable[[str], bool]
    """Whether a path is found by a glob anyway."""
    kin: tuple[str, ...] = ()
    """Base names of other logs that its own looks like a rotation of: it may be rotated further as theirs are."""
    since: int = 0
    """What came after it was modified later than this (ns)."""
    met: int = 0
    """What was made and modified before this (ns) did not come after it: it was rotated before the tail was there."""
    unseen_since: int = 0
    """What was modified later than this is sought, too; 0: nothing more."""
    new_since: int = 0
    """Only what was made, and modified, later than this is sought; 0: it does not matter."""
    near: Near | None = None
    """Which directories that `rotated` says may hold what came after it; None: all. Many logs may have its name."""
    others_in: tuple[str, ...] = ()
    """Directories of other logs with its name. What was moved, and is nearer to one of these, belongs to that log."""
    part: str = ""
    """What of all that was moved may be a copy of it has this in its path. Many logs may have its name."""
    linked: frozenset[str] = frozenset()
    """Those of `directories` where only other names of the file itself are sought, and not what came after it."""
    rewritten: bool = False
    """Whether its file may have been copied and truncated since the last run, and have the same header again."""
    over: Callable[[FileId], Known | None] = field(default=lambda _: None)
    """What is known of a file, if it is a generation of the same log that is not read: it may be overwritten by now."""
    copied: Callable[[FileId], Witness | None] = field(default=lambda _: None)
    """The witness of a file that was seen to be a copy of it; None: it was not."""
    stands: bool = False
    """Whether its file stands where its log is written."""


class Searches:
    """Searches that are made at once. Directories are listed once for all, and again only where names shifted."""

    def __init__(self, look: Callable[[str], Place | None], rotated: dict[Globs, Moved]) -> None:
        """`look`: says what file is at a path now, through links; None where there is none.

        `rotated`: of each tail, what earlier searches found where rotated files are moved to. It is kept up to date.
        """
        self._look = look
        self._listings: dict[str, Listing] = {}
        self._rotated = rotated
        for moved in rotated.values():
            moved.forget_ages()
        self._forget_changed_moves()
        self._claimed: dict[FileId, str] = {}
        """Files that have the content of a source that is sought. Another one that begins so is not in them."""
        self._seen: dict[int, tuple[str, Place]] = {}
        """What looks at rotated files showed, by inode number, for all searches of a round; and at which path."""
        self._devices: dict[str, int] = {}
        """Of directories."""

    def made(self, searches: Sequence[Search]) -> list[Sought]:
        """Where each generation was found."""
        # The longest content first: what has only a header is in all that have this.
        wanted = dict(sorted(enumerate(searches), key=lambda each: each[1].known.read, reverse=True))
        found = self._made(wanted)
        found |= self._made(self._where_others_went(wanted, found))
        return [found[index] for index in sorted(wanted)]

    def _made(self, searches: Mapping[int, Search]) -> dict[int, Sought]:
        found: dict[int, Sought] = {}
        with suppress(OSError):  # the search that needs what can not be listed says so
            self._list([path for search in searches.values() for path in search.directories])
        for tries in range(_TRIES):
            self._seen = {}
            for index in [index for index in searches if index not in found]:
                if tries:
                    self._forget_changed(self._listings)
                with suppress(_Shifted):
                    found[index] = self._seek(searches[index])
            if len(found) == len(searches):
                break
        nowhere = {index: Sought(search.source, unavailable=True) for index, search in searches.items()}
        return nowhere | found

    @staticmethod
    def _where_others_went(searches: Mapping[int, Search], found: Mapping[int, Sought]) -> dict[int, Search]:
        """What was not found is sought where others of its directory are: that may have been moved with all in it."""
        went: dict[str, set[str]] = {}
        for index, sought in found.items():
            search, place = searches[index], sought.at or sought.rest
            if place is None or search.rotated.matches(place.path):
                continue  # all are sought there anyway
            before, now = os.path.dirname(search.known.path), os.path.dirname(place.path)
            if now != before:
                went.setdefault(before, set()).add(now)
        further: dict[int, Search] = {}
        for index, sought in found.items() if went else ():
            search = searches[index]
            others = went.get(os.path.dirname(search.known.path), set()).difference(search.directories)
            if others and not (sought.at or sought.rest or sought.unavailable):
                further[index] = replace(search, directories=(*search.directories, *sorted(others)))
        return further

    def _seek(self, search: Search) -> Sought:
        with suppress(OSError):
            # A log that no glob matches any more is not to come back: it goes on elsewhere, or is gone.
            if not (search.matched(search.known.log) and _unavailable(search.known)):
                return self._sought(search)
        return Sought(search.source, unavailable=True)

    def _sought(self, search: Search) -> Sought:
        known = search.known
        self._list(search.directories)
        at = self._by_identity(search)
        intact = at is not None and (self._holds(at, known, search.position) or _is_closed(at.path))
        rest = None if intact else self._by_content(search, at)
        if at is not None and intact and self._may_be_rewritten(search, at):
            rest = self._by_content(search, at)
            intact = rest is None or _length_of_copy(at, rest) != 0
            rest = None if intact else rest
        copies = self._early_copies(search) if at is not None and not (intact or rest) else ()
        early = {place.file for place, _ in copies}
        between, packed = self._between(search, at if intact else rest)
        between = tuple(place for place in between if place.file not in early)
        return Sought(search.source, at, intact, rest, between, packed, copies)

    @staticmethod
    def _may_be_rewritten(search: Search, at: Place) -> bool:
        """Whether what was found had hardly more than a header, has more since, and stands where its log is written."""
        written = at.modified > search.known.modified and at.size > search.position
        rotated = is_rotation_of(os.path.basename(at.path), os.path.basename(search.known.log))
        return search.rewritten and written and not (at.codec or rotated) and 0 < search.position <= HEAD_BYTES

    def _list(self, directories: Sequence[str]) -> None:
        """List these directories, where they are not listed yet. Nothing is missed of what stays in any of them."""
        if len(directories) > 1:
            self._forget_changed(directories)
        new = [path for path in dict.fromkeys(directories) if path not in self._listings]
        first = [(path, settled_stamp(path), files_in(path)) for path in new]
        for path, stamp, files in first:
            listing = Listing(path, stamp, files.items())
            if not listing.stands():
                listing = Listing(path, None, joined(files.items(), files_in(path).items()))
            self._listings[path] = listing
        if new:  # what has left them since is where rotated files are moved to
            self._forget_changed_moves()

    def _forget_changed_moves(self) -> None:
        for globs in [globs for globs, moved in self._rotated.items() if not moved.stands()]:
            del self._rotated[globs]

    def _list_again(self, search: Search) -> None:
        """Something was not where it was listed: it may have another name by now."""
        self._forget_changed_moves()
        self._forget_changed(search.directories)
        self._list(search.directories)

    def _forget_changed(self, directories: Iterable[str]) -> None:
        """Directories where names may have come or gone are listed again when they are needed."""
        for path in list(directories):
            if path in self._listings and not self._listings[path].stands():
                del self._listings[path]

    def _by_identity(self, search: Search) -> Place | None:
        known = search.known
        listed = [path for each in search.directories for path in self._listings[each].under(known.file.inode)]
        listed += self._moved(search).under(known.file.inode)
        shifted = False
        for path in dict.fromkeys([known.path, *listed]):
            place = self._look(path)
            if place is not None and (place.file.same(known.file) or place.file.resembles(known.file)):
                return place._replace(codec=known.codec)
            shifted |= path in listed and (place is None or place.file.inode != known.file.inode)
        if shifted:
            raise _Shifted
        return None

    def _by_content(self, search: Search, at: Place | None) -> Place | None:
        """The copy, or the compressed successor, that has the bytes of the witness: the newest; see `_first_of`.

        What was modified when the file was comes before all: it is that file, moved to another file system. What stands
        where the log is written may be the next generation, with the same header: it comes last.
        """
        known = search.known
        if known.witness is None:
            return None
        without: set[FileId] = set()

        def likelihood(place: Place) -> tuple[bool, bool, int]:
            same_time = place.modified == known.modified
            return same_time, os.path.basename(place.path) not in search.names, place.modified

        for tries in range(_TRIES):
            found = [
                place
                for place in self._rotations(search)
                if place.file not in without
                and self._claimed.get(place.file, search.source) == search.source
                and (place.codec or place.size >= search.position)
                and not any(other is not None and place.file.same(other) for other in (at and at.file, search.here))
                and (not search.taken(place) or self._is_overwritten(place, search.over(place.file)))
                and (not place.codec or _may_be_made_of(place, known))
            ]
            found.sort(key=likelihood, reverse=True)
            shifted, holding = False, list[Place]()
            for place in found:
                try:
                    if self._holds(place, known, search.position) and not self._is_anothers(place, search):
                        holding.append(place)
                    else:
                        without.add(place.file)
                except _Shifted:
                    self._seen.pop(place.file.inode, None)
                    shifted = True
            if holding:
                place = _first_of([each for each in holding if not _is_stranger(each, search)] or holding, known)
                self._claimed[place.file] = search.source
                return place
            # Another file may have the inode number of one that was listed. A second listing has nothing new, or it.
            # Of a log that is still there, and was truncated, the copy may just have been made.
            stands = self._stands(search.directories) and (at is None or self._moved(search).stands())
            if not shifted and ((tries and not found) or stands):
                return None
            self._list_again(search)
        raise _Shifted

    def _stands(self, directories: Iterable[str]) -> bool:
        return all(self._listings[path].stands() for path in directories)

    def _early_copies(self, search: Search) -> tuple[tuple[Place, Witness], ...]:
        """What was copied of a file before its last lines came, which is truncated now; the longest one comes last.

        copytruncate takes a while. What was not seen to be a copy is one if it begins as the file does and came to a
        rotation's name since that was met, until it was modified last: all that time it stood where its log is written.
        """
        known = search.known
        if not search.stands or known.witness is None or known.copy_of:
            return ()
        found: list[tuple[Place, Witness]] = []
        for place in self._rotations(search, search.names):
            another = search.taken(place) or place.file.same(known.file) or place.file in self._claimed
            seen = search.copied(place.file)
            if (seen is not None or came_meanwhile(place, search.source, known.modified)) and not another:
                copied = _beginning_in(place, seen or known.witness)
                if copied is not None and copied.at < known.read:
                    found.append((place, copied))
        return tuple(sorted(found, key=lambda copy: copy[1].at))

    def _between(self, search: Search, now: Place | None) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
        """What came after it and was rotated away since, under names that no glob matches; the oldest first.

        `now`: where its content is. What holds the content of a generation, compressed, is given apart.
        """
        known = search.known
        if not search.newest:
            return (), ()
        # Since it was last heard of. It may have been written to itself since then, later than what came after it.
        since = max(known.modified or (sys.maxsize if now is None else now.modified), search.since)
        since = search.new_since or min(since, search.unseen_since or since)
        # A file that was made after it came after it, whenever it was written to; but a copy from before it was known.
        made = max(known.file.birth or since, birth_of(search.source))
        found = [
            place
            for place in self._rotations(search, search.names, min(since, made))
            if place.modified > since or (not place.codec and place.file.birth > known.file.birth > 0)
            if not names_of(place.path).isdisjoint(search.names)
            and not search.matched(place.path)
            and not search.taken(place)
            and not place.file.same(known.file)
            and not (search.new_since and place.file.birth <= search.new_since)
            and max(place.modified, place.file.birth) > search.met
            and (now is None or not place.file.same(now.file))
        ]
        compressed = [place for place in found if place.codec]
        packed = [each for each in compressed if _is_packed(each, search, now) or self._is_copy(each, known, now)]
        found = [place for place in found if place not in packed]
        return tuple(sorted(found, key=lambda place: place.modified)), tuple(packed)

    def _is_copy(self, place: Place, known: Known, now: Place | None) -> bool:
        """Whether a compressed file is a copy of the file that the generation sought is in now.

        It was made of that as it is, or before more was written there. Where a copy is sought, its log may have others.
        """
        of = self._look(known.log) if known.copy_of else now
        if of is None or not (of.codec or of.file.birth <= place.modified):
            return False
        length = _length_of_copy(of, place)
        return bool(length) and (place.modified <= of.modified or (length == of.size and not of.codec))

    def _rotations(self, search: Search, names: tuple[str, ...] = (), since: int = -1) -> Iterator[Place]:
        """What looks like rotations of what is sought, or of `names` only, and was modified after `since`."""
        seen: set[tuple[int, int]] = set()
        for _ in range(_TRIES):
            shifted = False
            for path, inode in self._rotated_names(search, names):
                number = self._device_of(os.path.dirname(path)), inode
                if number in seen:
                    continue
                try:
                    place = self._rotated_at(path, inode, since)
                except _Shifted:
                    shifted = True
                    continue
                seen.add(number)
                if place is not None:
                    yield place
            if not shifted:
                return
            self._list_again(search)
        raise _Shifted

    def _device_of(self, directory: str) -> int:
        """Of a directory that is gone, 0. On another device, another file may have an inode number."""
        if directory not in self._devices:
            try:
                self._devices[directory] = os.stat(directory).st_dev
            except OSError:
                return 0
        return self._devices[directory]

    def _rotated_at(self, path: str, inode: int, since: int) -> Place | None:
        """What is at a path, if it was modified after `since`: most are old, and cost no more than to see that."""
        seen = self._seen.get(inode)
        if seen is not None and seen[0] == path:
            return seen[1] if seen[1].modified > since else None
        try:
            status = os.stat(path)
        except OSError:
            raise _Shifted from None
        if status.st_ino == inode and status.st_mtime_ns <= since:
            return None
        place = self._look(path)
        if place is None or place.file.inode != inode:
            raise _Shifted
        self._seen[inode] = path, place
        return place

    def _rotated_names(self, search: Search, names: tuple[str, ...]) -> list[tuple[str, int]]:
        listings = [self._listings[each] for each in search.directories if not (names and each in search.linked)]
        found = [each for listing in listings for each in listing.rotations((*search.names, *search.kin))]
        # Where a link led, the file may still be under its name.
        found += [each for listing in listings for name in search.names for each in listing.named(name)]
        for path in search.elsewhere:
            with suppress(OSError):
                found.append((path, os.stat(path).st_ino))
        moved = self._moved(search)
        if names:
            found += (each for each in moved.rotations(names, search.near) if not _is_of_another(search, each[0]))
        else:
            found += moved.later_than(search.known.modified, search.part)
        return [*dict.fromkeys(found)]

    def _moved(self, search: Search) -> Moved:
        if search.rotated not in self._rotated:
            self._rotated[search.rotated] = Moved(search.rotated)
        return self._rotated[search.rotated]

    @classmethod
    def _is_overwritten(cls, place: Place, known: Known | None) -> bool:
        """Whether a file that was read has another content by now: that of the next rotation, copied into it."""
        if known is None or place.modified <= known.modified:
            return False
        if known.witness is None:  # a compressed one that was empty
            return known.done and bool(place.codec)
        return not cls._holds(place, known, known.witness.at)

    def _is_anothers(self, place: Place, search: Search) -> bool:
        """Whether a compressed file has the content of another generation, which begins like the one sought.

        It has all of it; or what was read of one that is not where it was, and more.
        """
        others = (each for each in _may_be_in(place, search) if each.copy_of != search.source)
        longer = [each for each in others if each.read > search.known.read]
        if not place.codec or not longer:
            return False
        return _has_one_of(place, longer) or any(self._holds(place, each, 0) for each in longer if self._is_gone(each))

    def _is_gone(self, known: Known) -> bool:
        """Whether a file is not where it was."""
        place = self._look(known.path)
        return place is None or not place.file.same(known.file)

    @staticmethod
    def _holds(place: Place, known: Known, position: int) -> bool:
        try:
            with _opened(place) as text:
                return (bool(place.codec) or text.size >= position) and known.holds(text)
        except OSError:
            return False  # the content can not be found there


class _Shifted(Exception):
    """A file is not where it was seen a moment ago."""


@contextmanager
def _opened(place: Place) -> Iterator[Text]:
    """A file that was found, as text. Raises `_Shifted` if it is not there any more, and `OSError`."""
    try:
        opened = open_text(place.path, place.codec)
    except FileNotFoundError:
        raise _Shifted from None
    with opened as text:
        if not identify(text.descriptor).same(place.file):
            raise _Shifted
        yield text


def came_meanwhile(place: Place, source: str, modified: int) -> bool:
    """Whether a file came to its name after a generation was named, and before that was modified last (ns)."""
    came = place.modified if place.codec else place.file.birth
    return birth_of(source) <= came <= modified


def _beginning_in(place: Place, of: Witness) -> Witness | None:
    """The witness of all that a file has, if it begins as another one did. Raises `_Shifted`."""
    if not of.head:
        return None
    with suppress(OSError), _opened(place) as text:  # damaged: its reader says so
        head = text.read(0, of.head_bytes)
        witness = witness_before(text, _end_of(text))
        if witness is not None and of.head_bytes <= witness.at and of.begins(head):
            return witness.with_head(head)
    return None


def _is_of_another(search: Search, path: str) -> bool:
    """Whether a file that was moved is nearer to another log with the same name than to the one that is sought."""
    if not search.others_in:
        return False
    moved_to = os.path.dirname(path)

    def nearness(directories: Iterable[str]) -> tuple[int, bool]:
        """The length of the longest one above the file, and whether the file's directory has the name of one."""
        above = (len(each) for each in directories if path.startswith(f"{each}/"))
        called = {os.path.basename(each) for each in directories}
        return max(above, default=0), os.path.basename(moved_to) in called

    return nearness(search.others_in) > nearness(search.directories)


def _is_stranger(place: Place, search: Search) -> bool:
    """Whether a file waits in another directory: it may only begin as the one sought, as all that have its header."""
    return place.path in search.elsewhere and os.path.dirname(place.path) not in search.directories


def _may_be_in(place: Place, search: Search) -> list[Known]:
    """The generations whose content a compressed file may have. Beside a log it is one of logs there.

    Logs elsewhere may have had the same lines.
    """
    directory = os.path.dirname(place.path)

    def is_beside(known: Known) -> bool:
        return directory in {os.path.dirname(known.log), os.path.dirname(known.path)}

    beside = is_beside(search.known)
    return [search.known, *(each for each in search.others if not beside or is_beside(each))]


def _may_be_made_of(place: Place, known: Known) -> bool:
    """Whether a compressed file may have been made of a generation.

    logrotate gives it the time at which the log was modified when its run began, before it came to this log. What was
    written since then is in it, too. When the file itself was made, nobody can set.
    """
    return place.modified // 10**9 >= known.modified // 10**9 or place.file.birth >= known.modified


def _is_packed(place: Place, search: Search, now: Place | None) -> bool:
    """Whether a compressed file has the content of a known generation.

    What was modified after `now`, which has that of the one sought, compressed, may be a later one with equal content.
    """
    known, *others = _may_be_in(place, search)
    later = now is not None and now.codec and place.modified > now.modified
    return _has_one_of(place, others if later else [known, *others])


def _length_of_copy(at: Place, copy: Place) -> int | None:
    """The length of the text in `copy`, if `at` begins with all of it, else 0. None: damaged. Raises `_Shifted`."""
    with suppress(OSError), _opened(copy) as text, _opened(at) as other:
        return length_of_copy(other, text) or 0
    return None


def _first_of(holding: Sequence[Place], known: Known) -> Place:
    """Of files that all have the bytes of a witness, the one with its content: many generations may have one header.

    holding: the most likely one first. It has what the others have, if they are copies of one file. One that is older,
    and has other lines, came before it. Raises `_Shifted`.
    """
    first, *others = holding
    for place in sorted(others, key=lambda each: each.modified, reverse=True):
        if _may_be_made_of(place, known) and place.modified < first.modified:
            with suppress(OSError), _opened(place) as text, _opened(first) as later:  # if damaged, its reader says so
                end = witness_before(text, _end_of(text))
                if end is not None and not end.ends(later):
                    first = place
    return first


def _end_of(text: Text) -> int:
    """The length of a text. A compressed one is read to its end, once. Raises `OSError`."""
    end = text.size
    while data := text.read(end, _CHUNK_BYTES):
        end += len(data)
    return end


def _has_one_of(place: Place, generations: Iterable[Known]) -> bool:
    """Whether a compressed file has the content of one of these. Its text is read forward, once."""
    witnesses = [known.witness for known in generations if known.witness is not None]
    try:
        with open_text(place.path, place.codec) as text:
            head = text.read(0, HEAD_BYTES)
            alike = [witness for witness in witnesses if witness.begins(head)]
            alike.sort(key=lambda witness: witness.at)
            # Where more follows, it may be another generation with the same header: who examines it says so.
            return any(witness.ends(text) and not text.read(witness.at, 1) for witness in alike)
    except OSError:
        return False  # damaged or in the making: who examines it says so


def _is_closed(path: str) -> bool:
    """Whether a file may not be read now. Its reader says so, and goes on once it may."""
    return os.path.lexists(path) and not os.access(path, os.R_OK, effective_ids=True)


def _unavailable(known: Known) -> bool:
    """Whether a file can not be looked for now: its log's directory is closed to us, or its file system not mounted.

    Then its directory is missing below another file system than the file's, or an empty mount point.
    """
    if _is_barred(os.path.dirname(known.log)):
        return True
    directory = os.path.dirname(known.path)
    nearest = _nearest(directory)
    if may_hold(nearest, known.file):
        return False
    return nearest != directory or not os.listdir(directory)


def _nearest(directory: str) -> str:
    """A directory, or the nearest one above it that is there, as far as one may look."""
    while not os.path.isdir(directory) and directory != "/":
        directory = os.path.dirname(directory)
    return directory


def _is_barred(directory: str) -> bool:
    """Whether one may not look into a directory, or not see whether it is there."""
    nearest = _nearest(directory)
    mode = os.R_OK | os.X_OK if nearest == directory else os.X_OK
    return not os.access(nearest, mode, effective_ids=True)
