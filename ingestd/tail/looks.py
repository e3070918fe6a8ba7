"""Looks: the file system as a tail's finder sees it. Every call may hang with its mount, so a thread makes them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from ingestd.tail.content import (
    HEAD_BYTES,
    is_compressed,
    is_in_the_making,
    last_line_start,
    not_compressed,
    not_text,
    text_start,
)
from ingestd.tail.facts import (
    Copy,
    Doubtful,
    Empty,
    Examined,
    Old,
    Place,
    Plain,
    Refused,
    Sought,
    Unreadable,
)
from ingestd.tail.file_id import DELETED_SUFFIX, identify
from ingestd.tail.heads import Heads
from ingestd.tail.known import Witness, witness_before
from ingestd.tail.listings import inodes_in, is_unchanged, settled_stamp, stamp_of
from ingestd.tail.rotation import codec_of
from ingestd.tail.searching import Searches, came_meanwhile
from ingestd.tail.text import length_of_copy, open_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ingestd.tail.facts import Verdict
    from ingestd.tail.file_id import FileId
    from ingestd.tail.globs import Globs
    from ingestd.tail.listings import Moved, Stamp
    from ingestd.tail.searching import Search
    from ingestd.tail.text import Text

__all__ = ["A_DIRECTORY", "LEADS_NOWHERE", "Changed", "Examination", "Looks", "Original", "Sighting", "Walk"]

LEADS_NOWHERE: Final = "a symbolic link that leads nowhere"
A_DIRECTORY: Final = "a directory, not a file"
"""Troubles with a path where that is all there is."""

COMPARED_BYTES: Final = 4096
"""So many of the last bytes of a copy are compared with its original, and its first ones."""

_WHOLE_BYTES: Final = 4 << 20
"""Compressed files of at most this size are decoded to see whether they are complete."""

_WHOLE_TEXT_BYTES: Final = 64 << 20
"""The same for their text. Zeros are a thousand times as long as their compressed form."""

_LINKS_MOST: Final = 40
_KINDS: Final = (
    (stat.S_ISDIR, A_DIRECTORY),
    (stat.S_ISFIFO, "a FIFO, not a file"),
    (stat.S_ISSOCK, "a socket, not a file"),
    (stat.S_ISCHR, "a character device, not a file"),
    (stat.S_ISBLK, "a block device, not a file"),
)


class Sighting(NamedTuple):
    """What a look at a path showed: a file, or what stands there instead.

    `through`: links on the way, and where they lead, as paths: a rename of any changes what the path stands for.
    """

    path: str
    place: Place | None = None
    through: tuple[str, ...] = ()
    trouble: str | None = None


@dataclass(slots=True)
class Walk:
    """One look into every directory that can hold a file of the globs."""

    sightings: list[Sighting] = field(default_factory=list)
    present: set[str] = field(default_factory=set)
    """Paths that the globs match, whether they were looked at or not."""
    directories: dict[str, Stamp] = field(default_factory=dict)
    """Those that were listed: device, inode and modification time before that."""
    troubles: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Original:
    """A generation that a new file may be a copy of. `reading`: its reader may know more than is known here.

    `path`: where its file is; empty once that is gone. `akin`: the file is called like a rotation of its log. Another
    one waits only for a content that it is seen to have. `modified`: ns; when its file was, as it was read last.
    """

    source: str
    path: str
    file: FileId
    position: int
    witness: Witness | None
    reading: bool
    akin: bool = True
    modified: int = 0


@dataclass(frozen=True, slots=True)
class Examination:
    """A file to examine. `at_end`: what is in it now is not read. `binary`: whatever is in it is taken.

    `patient`: it may be examined again in a moment. `in_the_making`: something may be compressed to it just now.
    `repeated`: what it had when it repeated another file. `called`: other paths that it has. `head`: how it began when
    `originals` were chosen, if some were left out that begin in another way.
    """

    place: Place
    originals: tuple[Original, ...] = ()
    at_end: bool = False
    binary: bool = False
    patient: bool = True
    in_the_making: bool = False
    repeated: Witness | None = None
    called: tuple[str, ...] = ()
    head: bytes = b""


class Changed(Doubtful):
    """It does not begin as it did when its originals were chosen."""


class Looks:
    """The real file system. One thread uses it at a time."""

    def __init__(self) -> None:
        self.steps = 0
        """Counts all looks. A caller that waits sees from it whether there is progress."""
        self._rotated: dict[Globs, Moved] = {}
        """Of each tail, what is where rotated files are moved to, as the last searches found it."""
        self._searched = False
        """Whether there was a search since the last `rest`."""
        self._heads = Heads()
        """Of the round of examinations under way."""

    def look(self, path: str) -> Sighting:
        """Look at what stands at a path now, through links, without opening it for reading."""
        self.steps += 1
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            through = links_of(path)
            gone = isinstance(error, FileNotFoundError | NotADirectoryError)
            trouble = f"can not be read: {error.strerror}" if not gone else None
            return Sighting(path, None, through, LEADS_NOWHERE if gone and through else trouble)
        try:
            status = os.fstat(descriptor)
            real = os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(DELETED_SUFFIX)
            through = () if real == path else links_of(path)
            if not stat.S_ISREG(status.st_mode):
                kind = next((said for test, said in _KINDS if test(status.st_mode)), "something special, not a file")
                return Sighting(path, None, through, kind)
            codec = codec_of(path if through else real)  # without links, it has another name only if it was renamed
            return Sighting(path, _place(real, identify(descriptor, status), status, codec), through)
        except OSError as error:
            return Sighting(path, None, (), f"can not be read: {error.strerror}")
        finally:
            os.close(descriptor)

    def walk(self, globs: Globs, enter: Callable[[str], None], known: Callable[[str, int], bool]) -> Walk:
        """Look at every file that the globs match, but those `known` to be under this path with this inode number."""
        return self._walk(globs.walk, enter, known)

    def walk_below(
        self, starts: Iterable[str], globs: Globs, enter: Callable[[str], None], known: Callable[[str, int], bool]
    ) -> Walk:
        """The same of these directories and what is below them."""
        return self._walk(lambda *told: chain(*(globs.walk_below(start, *told) for start in starts)), enter, known)

    def _walk(
        self,
        entries: Callable[[Callable[[str], None], Callable[[str, str], object]], Iterable[os.DirEntry[str]]],
        enter: Callable[[str], None],
        known: Callable[[str, int], bool],
    ) -> Walk:
        walk = Walk()

        def entered(directory: str) -> None:
            enter(directory)
            self.steps += 1
            walk.directories[directory] = stamp_of(directory)

        for entry in entries(entered, walk.troubles.setdefault):
            walk.present.add(entry.path)
            if entry.is_symlink() or not known(entry.path, entry.inode()):
                walk.sightings.append(self.look(entry.path))
        return walk

    def changed(self, directories: Mapping[str, Stamp]) -> bool:
        """Whether one of the directories was made anew, or names came or went in it, since it was listed."""
        return not all(is_unchanged(path, before) for path, before in directories.items())

    def made_since(self, directories: Iterable[str], since: int, *, written: bool = False) -> list[str]:
        """Paths in these directories that were made, renamed or written to after this time (ns).

        `written`: only those that were written to. A directory in which no name came since then costs no more than a
        look at it.
        """
        found: list[str] = []
        for directory in directories:
            self.steps += 1
            with suppress(OSError):
                if os.stat(directory).st_mtime_ns <= since:
                    continue
                with os.scandir(directory) as entries:
                    for each in entries:
                        with suppress(OSError):  # it is gone by now
                            status = each.stat(follow_symlinks=False)
                            if (status.st_mtime_ns if written else status.st_ctime_ns) > since:
                                found.append(each.path)
        return found

    # What a file is.

    def heads(self, places: Iterable[Place]) -> Heads:
        """Begin a round of examinations: how the files begin that can be read. The round adds what it sees."""
        self._heads = Heads()
        for place in places:
            self.steps += 1
            with suppress(OSError), open_text(place.path, place.codec) as text:
                if text.status().st_ino == place.file.inode:
                    self._heads.see(place.file, text.read(0, HEAD_BYTES))
        return self._heads

    def copies_of(self, place: Place, among: Iterable[Place]) -> list[Place]:
        """Those files that were copied from the one at a place: made after it, they have nothing that it does not."""
        later = [each for each in among if 0 < place.file.birth < each.file.birth and self._heads.alike(place, each)]
        return [each for each in later if _is_all_in(each, place)]

    def examine(self, wanted: Sequence[Examination]) -> list[Examined | None]:
        """Say what files are, and where. None: it is not in its directory any more; these are listed once for all."""
        found = [self._examine_at(each, [each.place.path]) for each in wanted]
        for _ in range(2):  # names may shift meanwhile
            missing = [index for index, each in enumerate(found) if each is None]
            paths = _paths_of(*_beside(wanted[index].place for index in missing))
            for index in missing:
                place = wanted[index].place
                beside = paths.get(place.file.inode, ())
                found[index] = self._examine_at(wanted[index], [place.path, *beside, *wanted[index].called])
        return found

    def _examine_at(self, wanted: Examination, paths: Iterable[str]) -> Examined | None:
        self.steps += 1
        place = wanted.place
        renames_tell = place.codec == codec_of(place.path)  # unlike of what is known, whatever it is called now
        for path in paths:
            codec = codec_of(path) if renames_tell else place.codec
            try:
                with open_text(path, codec) as text:
                    status = text.status()
                    if not identify(text.descriptor, status).same(place.file):
                        continue
                    wanted = replace(wanted, place=place._replace(path=path, codec=codec))
                    verdict = self._examine(wanted, text, status.st_size)
                    if isinstance(verdict, Copy):
                        verdict = replace(verdict, modified=status.st_mtime_ns)
                    return Examined(wanted.place, verdict)
            except FileNotFoundError:
                continue
            except OSError as error:
                return Examined(place, Unreadable(f"can not be read: {error.strerror}"))
        return None

    def _examine(self, wanted: Examination, text: Text, size: int) -> Verdict:
        if wanted.place.codec:
            return _examine_compressed(wanted, text, size)
        head = text.read(0, HEAD_BYTES) if size else b""
        wrong = None if wanted.binary else not_text(head)
        if wrong is not None:
            named_soon = is_compressed(head) and wanted.in_the_making and wanted.patient
            return Doubtful() if named_soon else Refused(wrong)
        begin = text_start(text.descriptor, head)
        if begin >= size:
            return Empty()
        if not head.startswith(wanted.head):
            return Changed()
        # What is begun at its end is not read so far, of whatever it is a copy.
        copy = None if wanted.at_end else _copied_from(wanted, text, size, head, self._heads)
        return copy or self._text_of(wanted, text, size, head, begin)

    def _text_of(self, wanted: Examination, text: Text, size: int, head: bytes, begin: int) -> Plain | Empty:
        start = max(begin, last_line_start(text.descriptor, size)) if wanted.at_end else begin
        goes_on = wanted.repeated is not None and wanted.repeated.fits(text)
        witness = witness_before(text, size)
        if witness is None:
            return Empty()  # it was truncated just now
        if _begins_so(text, head):
            self._heads.examined[wanted.place.file] = head
            witness = witness.with_head(head)
        return Plain(start, witness, goes_on)

    def names_of(self, files: Iterable[FileId], directories: Iterable[str]) -> dict[FileId, list[str]]:
        """The names that these files have in these directories. Hints: another file may have the inode number."""
        self.steps += 1
        sought = list(files)
        inodes = {file.inode for file in sought}
        stamps = {directory: settled_stamp(directory) for directory in directories}
        found = _paths_of(inodes, stamps)
        # What was renamed while it was listed may not be there. The second time it is, or the first time it was.
        shifted = [directory for directory, stamp in stamps.items() if not is_unchanged(directory, stamp)]
        for inode, paths in _paths_of(inodes, shifted).items():
            found[inode] = [*dict.fromkeys((*found.get(inode, ()), *paths))]
        return {file: found[file.inode] for file in sought if file.inode in found}

    # Where generations are.

    def search(self, searches: Sequence[Search]) -> list[Sought]:
        """Find generations. What was looked at for one of them is not looked at again for another."""
        self._searched = True
        return Searches(lambda path: self.look(path).place, self._rotated).made(searches)

    def rest(self) -> None:
        """Let go of what the last searches found, unless there was one since the last call."""
        if not self._searched:
            self._rotated.clear()
        self._searched = False


def _beside(places: Iterable[Place]) -> tuple[set[int], set[str]]:
    """The inode numbers of files, and the directories that they are in."""
    of = list(places)
    return {place.file.inode for place in of}, {os.path.dirname(place.path) for place in of}


def _paths_of(sought: AbstractSet[int], directories: Iterable[str]) -> dict[int, list[str]]:
    """The paths that files have in these directories, by inode number."""
    found: dict[int, list[str]] = {}
    for directory in directories:
        with suppress(OSError), os.scandir(directory) as entries:
            inode_of = inodes_in(directory)
            for entry in entries:
                if (inode := inode_of(entry)) in sought:
                    found.setdefault(inode, []).append(entry.path)
    return found


def links_of(path: str) -> tuple[str, ...]:
    """The symbolic links on the way to a path, as paths, directories that are links too; and where they lead."""
    found: list[str] = []
    ahead = path.split("/")[1:]
    at = ""
    while ahead and len(found) < _LINKS_MOST:
        name = ahead.pop(0)
        if name in {"", "."}:
            continue
        if name == "..":
            at = at.rpartition("/")[0]
            continue
        here = f"{at}/{name}"
        try:
            target = os.readlink(here)
        except OSError:
            at = here
            continue
        found.append(here)
        ahead = target.split("/") + ahead
        if target.startswith("/"):
            at = ""
    return tuple(dict.fromkeys((*found, at))) if found else ()


def _place(path: str, file: FileId, status: os.stat_result, codec: str = "") -> Place:
    return Place(path, file, status.st_size, status.st_mtime_ns, status.st_nlink, codec)


def _copied_from(wanted: Examination, text: Text, size: int, head: bytes, heads: Heads) -> Copy | Doubtful | None:
    doubtful = unfinished = None
    # What it is called after comes first; then the longest: what has only a header begins like all that have this.
    for original in sorted(wanted.originals, key=lambda each: (not each.akin, -each.witness.at if each.witness else 0)):
        verdict = _compare(wanted.place, text, size, head, original, heads)
        if not isinstance(verdict, Copy):
            doubtful = doubtful or verdict
        elif verdict.unfinished:
            unfinished = unfinished or verdict
        else:
            return verdict
    return (doubtful if wanted.patient else None) or unfinished


def _compare(
    place: Place, text: Text, size: int, head: bytes, original: Original, heads: Heads
) -> Copy | Doubtful | None:
    """Whether a file has the content of a known one, or had it before that was truncated."""
    witness = original.witness
    holds = witness is not None and witness.fits(text)
    if not (holds or original.akin or witness is None) and witness.at <= size:
        return None  # what has its own bytes there is no copy of it
    if not original.path:
        return Copy(original.source, 0, sure=False) if holds else None
    may_hold = holds or (original.reading and original.akin) or _may_be_early_copy(place, head, original)
    with suppress(OSError), open_text(original.path, "") as other:  # renamed, or gone: its content says what it is
        if identify(other.descriptor).same(original.file):
            beginning, least = other.read(0, HEAD_BYTES), original.position
            for _ in range(2):  # the second time to see that it was not truncated within the first
                now = other.size
                if now < least or not (witness is None or witness.fits(other)):
                    return Copy(original.source, 0, sure=False) if may_hold else None
                same = _same_beginning(text, size, head, other, original.source, place.file.birth)
                if same is not None:
                    return same
                least = now
            heads.note(original.source, beginning)
            # Both have all that is known, the same header perhaps: it was written to since, or truncated before that.
            later = other.status().st_mtime_ns >= text.status().st_mtime_ns
            return Doubtful() if holds and later and original.reading and original.akin else None
    return Copy(original.source, 0, sure=False) if holds else None


def _examine_compressed(wanted: Examination, text: Text, size: int) -> Verdict:
    wrong = not_compressed(text.descriptor, wanted.place.codec)
    if wrong is not None:
        return Refused(wrong)
    if is_in_the_making(wanted.place.path) or (wanted.in_the_making and not _is_whole(text, size)):
        return Empty()  # what it is made of goes when it is done
    wrong = None if wanted.binary else _not_text(text)
    if wrong is not None:
        return Refused(wrong)
    if not _begins_so(text, wanted.head):
        return Changed()
    if wanted.at_end:
        return Old()
    return _compressed_of(wanted.place, text, wanted.originals) or Plain(0)


def _not_text(text: Text) -> str | None:
    """Why what is compressed is not text: an archive of tar, say; None if it is. What is damaged, its reader says."""
    with suppress(OSError):
        return not_text(text.read(0, HEAD_BYTES))
    return None


def _begins_so(text: Text, head: bytes) -> bool:
    with suppress(OSError):
        return text.read(0, len(head)) == head
    return False


def _is_whole(text: Text, size: int) -> bool:
    """Whether a compressed file of `size` bytes is complete, if it is small enough to see."""
    position = 0
    with suppress(OSError):  # cut off: it is in the making
        while position <= _WHOLE_TEXT_BYTES and size <= _WHOLE_BYTES and (data := text.read(position, _WHOLE_BYTES)):
            position += len(data)
    return text.complete


def _compressed_of(place: Place, text: Text, originals: Sequence[Original]) -> Copy | None:
    """Whether a compressed file has the content of a known one. Its text is read forward, once.

    Another log may hold the same lines: what the file is called after comes first. A generation that has only a header
    is in all that begin with this: the longest comes first.
    """
    found: Original | None = None
    with suppress(OSError):  # damaged, or not complete yet: its reader says so
        head = text.read(0, HEAD_BYTES)
        for original in sorted(originals, key=lambda each: each.position):
            witness = original.witness
            worse = found is not None and (found.akin, found.position) >= (original.akin, original.position)
            held = witness is not None and not worse and witness.begins(head) and witness.ends(text)
            if held and not _is_none_of(place, text, original):
                found = original
        early = (each for each in originals if _may_be_early_copy(place, head, each) and _is_cut(each))
        found = found or next(early, None)
    return None if found is None else Copy(found.source, 0, sure=False)


def _is_all_in(copy: Place, place: Place) -> bool:
    """Whether the file at a place begins with all that another one has by now: it may be in the making."""
    with suppress(OSError), open_text(copy.path, copy.codec) as text, open_text(place.path, "") as other:
        if identify(text.descriptor).same(copy.file) and identify(other.descriptor).same(place.file):
            return length_of_copy(other, text) is not None
    return False


def _may_be_early_copy(place: Place, head: bytes, original: Original) -> bool:
    """Whether a file, which begins so, may be copied from another one before the last lines of that were read.

    It has less than was read. If that file is truncated, a search has to say what it is: see `Searches`.
    """
    witness = original.witness
    if witness is None or not (original.akin and witness.head and len(head) >= witness.head_bytes):
        return False
    return came_meanwhile(place, original.source, original.modified) and witness.begins(head)


def _is_cut(original: Original) -> bool:
    """Whether the file of a generation is there, without what was read of it."""
    witness = original.witness
    with suppress(OSError), open_text(original.path, "") as other:
        cut = other.size < original.position or not (witness is None or witness.fits(other))
        return cut and identify(other.descriptor).same(original.file)
    return False


def _is_none_of(place: Place, text: Text, original: Original) -> bool:
    """Whether a compressed file can not have been made of a known one, which is still there, uncut.

    It was written before that was made, or has more.
    """
    with suppress(OSError), open_text(original.path, "") as other:
        if identify(other.descriptor).same(original.file):
            status, witness = other.status(), original.witness
            uncut = status.st_size >= original.position and (witness is None or witness.fits(other))
            earlier = place.modified < original.file.birth <= status.st_mtime_ns
            return uncut and (earlier or bool(text.read(status.st_size, 1)))
    return False


def _same_beginning(text: Text, size: int, head: bytes, other: Text, source: str, made: int) -> Copy | None:
    if other.size < size or head != other.read(0, min(HEAD_BYTES, size)):
        return None
    at = max(0, size - COMPARED_BYTES)
    if text.read(at, size - at) != other.read(at, size - at):
        return None
    witness, status = witness_before(text, size), other.status()
    if witness is None:
        return None  # both were truncated just now
    later = 0 < status.st_mtime_ns < made
    unfinished = later and status.st_size > size
    witness = witness.with_head(head)
    return Copy(source, size, witness, original_modified=status.st_mtime_ns, later=later, unfinished=unfinished)
