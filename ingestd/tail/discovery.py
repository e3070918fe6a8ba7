"""TailFinder: one per tail, in the supervisor. Finds the files of the globs, knows stored ones again, names trouble.

A complete pass lists directories and asks the kernel for each file's inode; only files not known yet are opened, for
their fingerprint. Between passes inotify tells of directories in which a name came or went.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.daemon.source import Found
from ingestd.errors import DeadlineExceeded
from ingestd.logs import get_logger
from ingestd.retry import Deadline
from ingestd.tail.candidate import Candidate, holds, kind_of, may_repeat, truncated, unavailable
from ingestd.tail.claims import CLAIMS
from ingestd.tail.compressed import compressed_copy
from ingestd.tail.content import last_line_start, not_text, text_start
from ingestd.tail.identity import (
    HEAD_BYTES,
    Fingerprint,
    Identity,
    Nearby,
    birth_of,
    find_again,
    name_source,
    opened,
    possible_originals,
    printable,
    regular_files,
    rotated_from,
)
from ingestd.tail.listing import list_files
from ingestd.tail.source import COPIED, RENAMED, TAKEN
from ingestd.tail.watch import DIRECTORY_EVENTS, WRITTEN, Inotify, WatchLimit

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ingestd.daemon.source import Sources, StoredPosition
    from ingestd.tail.claims import Claims
    from ingestd.tail.listing import Listing
    from ingestd.tail.route import TailRoute

    File = tuple[int, int]

__all__ = ["TailFinder"]

COPY_PATIENCE: Final = 30.0
"""Seconds that what looks like the copy of a truncated file waits for the file's reader to say what it read of it."""

SETTLE: Final = 0.05
"""Seconds between news from a directory and the pass it causes: a rotation is several changes."""

_REST_FOR_WORK: Final = 20
"""In directories where names come and go all the time, passes take no more than 1 in so many parts of a core."""

_DONE_KEPT: Final = 10_000
_STAYS: Final = re.compile(rf"({RENAMED}|{COPIED})(.*), read to (\d+)$", re.DOTALL)

_log = get_logger(__name__)


@dataclass(slots=True)
class _Known:
    """A file that a source stands for."""

    source: str
    identity: Identity
    path: str


@dataclass(frozen=True, slots=True)
class _Done:
    """A file whose source ended while it was still there: not to be read again up to `position`."""

    identity: Identity
    position: int


class TailFinder:
    """Tells `Sources` of the files of one tail.

    Invariants
        A file appears once for as long as its content stays, under whatever names.
        A stored position is given to the file with the stored content, or to none; nothing starts behind bytes that
        were not delivered, unless `start` says so.
        Trouble is told when it begins, or changes, not with every pass.
    """

    def __init__(
        self, route: TailRoute, stored: Sequence[StoredPosition] | None, *, once: bool, claims: Claims = CLAIMS
    ) -> None:
        """`stored`: None in the first run of the tail, for which `start` is meant."""
        self._route = route
        self._once = once
        self._claims = claims
        self._globs = route.globs
        claims.enter(route.name, self._globs)
        self._stored = {position.source: position for position in stored or ()}
        self._first_run = stored is None
        self._first_pass = True
        self._known: dict[File, _Known] = {}
        self._by_source: dict[str, File] = {}
        self._done: dict[File, _Done] = {}
        self._by_path: dict[str, _Known] = {}
        self._by_origin: dict[str, dict[File, _Known]] = {}
        self._copies: dict[File, tuple[int, float]] = {}
        self._directories: set[str] = set()
        self._empty: dict[File, str] = {}
        self._refused: dict[File, tuple[int, str]] = {}
        self._claimed: set[File] = set()
        """Files that no source stands for, or not yet; a claim on one that is gone would bar its inode's next file."""
        self._told: dict[str, str] = {}
        self._troubles: dict[str, str] = {}
        self._wanted: asyncio.Event | None = None

    # What the supervisor calls.

    async def scan(self, sources: Sources) -> None:
        """See `ingestd.daemon.source.Finder.scan`."""
        self._pass(await asyncio.to_thread(list_files, self._globs), sources)

    async def run(self, sources: Sources) -> None:
        """See `ingestd.daemon.source.Finder.run`. Gives its claims up at the end, so that a new finder may follow."""
        self._wanted = asyncio.Event()
        inotify = self._open_inotify()
        try:
            while True:
                self._wanted.clear()
                began = time.process_time()
                self._pass(await asyncio.to_thread(list_files, self._globs), sources)
                rest = max(SETTLE, (time.process_time() - began) * _REST_FOR_WORK)
                if inotify is not None:
                    self._watch(inotify)
                with suppress(DeadlineExceeded):  # Then it is time for a pass without news.
                    await Deadline.after(self._route.rescan_interval).wait_for(self._wanted.wait(), "news of files")
                    await asyncio.sleep(rest)
        finally:
            self._wanted = None
            self._claims.leave(self._route.name)
            if inotify is not None:
                inotify.close()

    def ended(self, source: str, reason: str) -> None:
        """See `ingestd.daemon.source.Finder.ended`."""
        if reason.startswith(TAKEN):
            return  # still there, and known
        file = self._by_source.pop(source, None)
        if file is None:
            return
        known = self._known.pop(file)
        self._leave_path(known)
        same_origin = self._by_origin[known.identity.origin]
        del same_origin[file]
        if not same_origin:
            del self._by_origin[known.identity.origin]
        self._keep_done(file, known, reason)
        self._claims.release(file, self._route.name)
        self._look_again()

    def _leave_path(self, known: _Known) -> None:
        if self._by_path.get(known.path) is known:
            del self._by_path[known.path]

    def _keep_done(self, file: File, known: _Known, reason: str) -> None:
        """Remember what was read of a file that stays there, so that it is not read again should a glob match it.

        By all that can be seen of it now: it may be gone, and its inode another file's with the same header, by then.
        """
        stays = _STAYS.match(reason)
        if stays is None:
            return
        path, position = stays[2], int(stays[3])
        try:
            with opened(path) as descriptor:
                status = os.fstat(descriptor)
                moved_on = stays[1] == RENAMED and (status.st_dev, status.st_ino) != file
                if moved_on or not known.identity.is_in(descriptor, position):
                    return
                identity = known.identity.at(path, status).read_to(descriptor, position)
        except OSError:
            return
        self._done[status.st_dev, status.st_ino] = _Done(identity, position)
        while len(self._done) > _DONE_KEPT:
            del self._done[next(iter(self._done))]

    # Directories.

    def _open_inotify(self) -> Inotify | None:
        try:
            return Inotify(self._directory_changed, pause=SETTLE)
        except WatchLimit as error:
            self._warn_watch(error)
            return None

    def _directory_changed(self, _key: Hashable, _events: int) -> None:
        self._look_again()

    def _watch(self, inotify: Inotify) -> None:
        wanted: dict[Hashable, tuple[str, int]] = {path: (path, DIRECTORY_EVENTS) for path in self._directories}
        wanted |= {file: (path, WRITTEN) for file, path in self._empty.items()}
        for gone in inotify.keys - wanted.keys():
            inotify.drop(gone)
        for key, (path, events) in wanted.items():
            if key in inotify:
                continue
            try:
                inotify.add(key, path, events)
            except WatchLimit as error:
                self._warn_watch(error)
                return
            except OSError:
                continue  # gone since the pass: the next one says so
            # What happened between the look and the watch gives no event.
            if events != WRITTEN or _has_bytes(path):
                self._look_again()

    def _look_again(self) -> None:
        if self._wanted is not None:
            self._wanted.set()

    def _warn_watch(self, error: OSError) -> None:
        _log.warning(
            "no more inotify watches: new files are looked for by the clock",
            tail=self._route.name,
            seconds=self._route.rescan_interval,
            reason=str(error),
        )

    # One pass.

    def _pass(self, listing: Listing, sources: Sources) -> None:
        self._troubles = {printable(thing): printable(reason) for thing, reason in listing.troubles.items()}
        self._directories = listing.directories
        self._empty = {}
        self._refused = {file: refused for file, refused in self._refused.items() if file in listing.files}
        candidates = self._candidates(listing)
        if self._stored and (self._first_pass or candidates):
            self._know_again(candidates, sources)
        for candidate in candidates.values():
            self._take(candidate, sources)
        self._copies = {file: held for file, held in self._copies.items() if file in candidates}
        for file in self._claimed - listing.files.keys():
            self._claimed.discard(file)
            self._claims.release(file, self._route.name)
        self._first_pass = False
        self._tell_troubles(sources)

    def _trouble(self, thing: str, reason: str) -> None:
        self._troubles.setdefault(printable(thing), printable(reason))

    def _tell_troubles(self, sources: Sources) -> None:
        for thing, reason in self._troubles.items():
            if self._told.get(thing) != reason:
                sources.trouble(thing, reason)
        self._told = self._troubles

    def _candidates(self, listing: Listing) -> dict[File, Candidate]:
        """Files not known yet, opened for their heads; known ones are only noted under their present name."""
        candidates: dict[File, Candidate] = {}
        for file, (path, status) in listing.files.items():
            known = self._known.get(file)
            if known is not None:
                if known.path != path:
                    self._leave_path(known)
                    known.path = path
                self._by_path[path] = known
                continue
            candidate = self._examine(path, status)
            if candidate is not None:
                candidates[candidate.file] = candidate
        return candidates

    def _examine(self, path: str, status: os.stat_result) -> Candidate | None:
        """Open a file that is not known, if it is one to take. What it is not is trouble; that it is empty is none."""
        reason = self._untakeable(path, status)
        if reason is not None:
            self._trouble(path, reason)
        if reason is None and status.st_size == 0:
            self._empty[status.st_dev, status.st_ino] = path
        if reason is not None or status.st_size == 0:
            return None
        try:
            with opened(path) as descriptor:
                found, status = status, os.fstat(descriptor)
                head = os.pread(descriptor, HEAD_BYTES, 0)
                begin = text_start(descriptor, head)
        except OSError as error:
            self._claims.release((status.st_dev, status.st_ino), self._route.name)
            if not isinstance(error, FileNotFoundError):
                self._trouble(path, f"can not be read: {error.strerror}")
            return None
        if (found.st_dev, found.st_ino) != (status.st_dev, status.st_ino):
            self._claims.release((found.st_dev, found.st_ino), self._route.name)
            return None  # another file by now: the next pass takes it
        wrong = not_text(head) if self._route.binary == "refuse" else None
        if wrong is not None:
            reason = f'{wrong}; exclude it, or set binary = "accept"'
            self._refused[status.st_dev, status.st_ino] = (status.st_mtime_ns, reason)
            self._trouble(path, reason)
        return Candidate(path, status, head, begin) if wrong is None and begin < status.st_size else None

    def _untakeable(self, path: str, status: os.stat_result) -> str | None:
        """Why a file is not to be opened. One that is not empty is claimed here."""
        file = (status.st_dev, status.st_ino)
        if not stat.S_ISREG(status.st_mode):
            return f"{kind_of(status.st_mode)}, not a file"
        modified, reason = self._refused.get(file, (-1, ""))
        if modified == status.st_mtime_ns:
            return reason
        owner = self._claims.claim(file, path, self._route.name) if status.st_size else self._route.name
        if status.st_size and owner == self._route.name:
            self._claimed.add(file)
        return None if owner == self._route.name else f"taken by the tail {owner!r}; a file belongs to one tail"

    # What is stored.

    def _know_again(self, candidates: dict[File, Candidate], sources: Sources) -> None:
        """Give each stored position to the file with its content, wherever that is now; the newest first.

        What is not found now is given up, unless it can not be looked for: a file system that is not mounted yet.
        """
        missing = []
        for position in sorted(self._stored.values(), key=lambda stored: birth_of(stored.source), reverse=True):
            try:
                identity = Identity.from_detail(position.detail)
            except (KeyError, ValueError, TypeError) as error:
                self._trouble(position.source, f"its stored position can not be understood: {error!r}")
                continue
            candidate = candidates.get((identity.device, identity.inode))
            if candidate is not None and holds(candidate.path, identity, position.position):
                self._resume(position, identity.at(candidate.path, candidate.status), sources)
                del candidates[candidate.file]
            else:
                missing.append((position, identity))
        self._stored = {}
        nearby = Nearby(identity for _, identity in missing)
        by_path = {candidate.path: candidate for candidate in candidates.values()}
        for position, identity in missing:
            try:
                found = self._look_for(position, identity, nearby, by_path, candidates, sources)
            except OSError as error:
                self._trouble(identity.path, f"can not be looked for: {error.strerror}")
                self._stored[position.source] = position
                continue
            if not found and unavailable(identity):
                self._stored[position.source] = position
            elif not found:
                self._tell_what_is_lost(position, identity, nearby)

    def _look_for(
        self,
        position: StoredPosition,
        identity: Identity,
        nearby: Nearby,
        by_path: dict[str, Candidate],
        candidates: dict[File, Candidate],
        sources: Sources,
    ) -> bool:
        found = find_again(identity, position.position, besides=self._known, nearby=nearby)
        if found is None:
            there = by_path.get(identity.path)
            found = None if there is None else self._moved_as_a_whole(position, identity, there, candidates)
        if found is None:
            return False
        path, status = found
        candidates.pop((status.st_dev, status.st_ino), None)
        self._resume(position, identity.at(path, status), sources)
        if not self._globs.matches(path):
            self._take_successors(identity, status, candidates, sources)
        return True

    def _tell_what_is_lost(self, position: StoredPosition, identity: Identity, nearby: Nearby) -> None:
        compressed = compressed_copy(identity, nearby)
        if compressed is None:
            if identity.size > position.position:
                self._trouble(
                    identity.path,
                    f"not found again; at least {identity.size - position.position} bytes, behind byte "
                    f"{position.position}, were not delivered",
                )
        elif compressed.size > position.position:
            self._trouble(
                compressed.path,
                f"holds {compressed.size - position.position} bytes of {identity.path} that were not delivered before "
                "it was compressed; compressed files are not read",
            )

    def _take_successors(
        self, identity: Identity, status: os.stat_result, candidates: dict[File, Candidate], sources: Sources
    ) -> None:
        """Files that were created and rotated away, under names that no glob matches, since this one was."""
        rotated = []
        with suppress(OSError):
            for entry in regular_files(os.path.dirname(identity.origin)):
                if identity.origin in rotated_from(entry.path) and not self._globs.excludes(entry.path):
                    with suppress(OSError):
                        rotated.append((entry.path, os.stat(entry.path)))
        for path, found in sorted(rotated, key=lambda each: each[1].st_mtime_ns):
            file = (found.st_dev, found.st_ino)
            if found.st_mtime_ns <= status.st_mtime_ns or file in self._known or file in candidates:
                continue
            candidate = self._examine(path, found)
            if candidate is not None:
                self._start(candidate, identity.origin, candidate.text_start, sources)

    @staticmethod
    def _moved_as_a_whole(
        position: StoredPosition, identity: Identity, there: Candidate, candidates: dict[File, Candidate]
    ) -> tuple[str, os.stat_result] | None:
        """The file with the same path and content but another inode or device: restored, or the disk renumbered."""
        enough = identity.fingerprint.length == HEAD_BYTES or there.status.st_ino == identity.inode
        if there.file in candidates and enough and holds(there.path, identity, position.position):
            return there.path, there.status
        return None

    def _resume(self, position: StoredPosition, identity: Identity, sources: Sources) -> None:
        self._appear(position.source, position.position, identity, sources)

    # What is new.

    def _take(self, candidate: Candidate, sources: Sources) -> None:
        if candidate.file in self._known or self._is_copy(candidate):
            return
        start = self._start_of(candidate)
        done = self._done.pop(candidate.file, None)
        if done is not None and holds(candidate.path, done.identity, done.position):
            start = done.position
        self._start(candidate, candidate.path, start, sources)

    def _start(self, candidate: Candidate, origin: str, position: int, sources: Sources) -> None:
        fingerprint = Fingerprint.of(candidate.head)
        device, inode = candidate.file
        size = candidate.status.st_size
        identity = Identity(candidate.path, origin, device, inode, fingerprint, size=size)
        if position:
            with suppress(OSError), opened(candidate.path) as descriptor:
                if identity.is_at(os.fstat(descriptor)) and identity.is_in(descriptor, position):
                    identity = identity.read_to(descriptor, position)
        self._appear(name_source(candidate.status, fingerprint), position, identity, sources)

    def _appear(self, source: str, position: int, identity: Identity, sources: Sources) -> None:
        file = (identity.device, identity.inode)
        self._known[file] = self._by_path[identity.path] = _Known(source, identity, identity.path)
        self._by_origin.setdefault(identity.origin, {})[file] = self._known[file]
        self._by_source[source] = file
        self._claims.keep(file, self._route.name)
        self._claimed.discard(file)
        until = None
        if self._once:
            try:
                until = max(position, os.stat(identity.path).st_size)
            except OSError:
                until = position
        sources.appeared(Found(source, position, identity.to_detail(), until))

    def _start_of(self, candidate: Candidate) -> int:
        """Where to begin in a file that is not known: `start` speaks of those that were there before this tail was."""
        route = self._route
        if not (self._first_run and self._first_pass) or route.start == "beginning":
            return candidate.text_start
        age = route.start_age
        if age is not None and candidate.status.st_mtime >= time.time() - age:
            return candidate.text_start
        try:
            return max(candidate.text_start, last_line_start(candidate.path, candidate.status.st_size))
        except OSError:
            return candidate.status.st_size  # it can not be opened any more: whoever reads it says so

    # Copies: `copytruncate` leaves a second file with the content of the first.

    def _known_from(self, path: str) -> list[_Known]:
        """Known files that are at a path, or were when they were found."""
        at_it = self._by_path.get(path)
        return [*self._by_origin.get(path, {}).values()] + ([] if at_it is None else [at_it])

    def _is_copy(self, candidate: Candidate) -> bool:
        """Whether a file repeats the known one whose rotation its name says it is; then it waits.

        If the known file is truncated, its reader goes on in the copy, and its end says so (`ended`), be it late: while
        the cluster is away, nothing is read. If it is not truncated, what looks like a copy is a file of its own after
        all.
        """
        if self._once or candidate.file in self._done:
            return False
        directory, name = os.path.split(candidate.path)
        for original in possible_originals(name):
            path = f"{directory}/{original}"
            repeated = [known for known in self._known_from(path) if may_repeat(candidate, known.identity, known.path)]
            if any(truncated(known.identity, known.path) for known in repeated):
                return True
            if repeated:
                size, since = self._copies.get(candidate.file, (-1, 0.0))
                if size != candidate.status.st_size:
                    since = time.monotonic()
                    self._copies[candidate.file] = (candidate.status.st_size, since)
                return time.monotonic() - since < COPY_PATIENCE
        return False


def _has_bytes(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False
