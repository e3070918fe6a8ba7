"""Sightings: what looks show of paths, told to the logs that it concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.tail.facts import Occupied, Seen, Taken
from ingestd.tail.looks import A_DIRECTORY, LEADS_NOWHERE
from ingestd.tail.rotation import is_rotated_from

if TYPE_CHECKING:
    from ingestd.tail.awaited import Awaited
    from ingestd.tail.facts import Place
    from ingestd.tail.file_id import FileId
    from ingestd.tail.files import Files
    from ingestd.tail.finder import TailFinder
    from ingestd.tail.kin import Kin
    from ingestd.tail.log import Log
    from ingestd.tail.looks import Sighting
    from ingestd.tail.names import Names
    from ingestd.tail.news import News
    from ingestd.tail.thread import Due
    from ingestd.tail.troubles import Troubles
    from ingestd.tail.vanished import Unseen
    from ingestd.tail.watches import Watches
    from ingestd.tail.ways import Ways

__all__ = ["Sightings"]


class Sightings:
    """Made for one tail's finder.

    Invariants
        A file that is seen is told to its log, whichever tail's that is; one that is not, to `Unseen`.
    """

    def __init__(
        self,
        finder: TailFinder,
        names: Names,
        ways: Ways,
        kin: Kin,
        files: Files,
        watches: Watches,
        awaited: Awaited,
        troubles: Troubles,
        unseen: Unseen,
        news: News,
        due: Due,
    ) -> None:
        self._finder = finder
        self._route = finder.route
        self._names = names
        self._ways = ways
        self._kin = kin
        self._files = files
        self._watches = watches
        self._awaited = awaited
        self._troubles = troubles
        self._unseen = unseen
        self._news = news
        self._due = due

    def take_listed(self, sighting: Sighting) -> None:
        """What a listing showed, unless events told since then that it left."""
        if self._names.was_left(sighting.path):
            self._due.look(sighting.path, None)
        else:
            self.take((sighting, None))

    def take(self, looked: tuple[Sighting, str | None]) -> None:
        """A look, and the log of a file there where it is not the one of the path."""
        sighting, of = looked
        path, place = sighting.path, sighting.place
        own = self._finder.log_at(path)
        if own == path:
            self._note_way(sighting)
            if path in sighting.through:
                of = None  # a link that was renamed is a name of a log, and no rotation of another one
        if place is None:
            self._miss_awaited(path, None)
            self._unseen.vanish(self._names.looked(path, of or path, None))
            if sighting.trouble is not None:  # what stands there is no file
                self._names.judge(path, judged=True)
        else:
            self._take_file(path, place, own, of)

    def _take_file(self, path: str, place: Place, own: str | None, of: str | None) -> None:
        """A file, and the logs that one made at this path is of, and that this one is of as events tell."""
        self._miss_awaited(path, place.file)
        self._take_over(path, place.file)
        finder, owned = self._finder, self._files.find(place.file)
        taker = self._files.taker(place.path if own == path else path) or finder
        if own == path and finder not in {taker, None if owned is None else owned.finder}:
            self._names.judge(path, judged=True)
            own = None  # a link to what another tail takes
        log = of or own or (owned.log.path if owned is not None and owned.finder is finder else "")
        for name in {path, place.path} if log else ():
            if not self._watches.sees(name):
                continue  # of what happens there next, nobody tells
            self.stands_at(name, log, place.file)
        if owned is not None:
            self._seen_again(owned.finder, owned.log, path, place)
        elif of is not None and of != path:
            finder.apply(finder.log(of), Seen(place, here=False))
        elif place.links > 1 and (waiting := finder.withheld_by(place.file)) is not None:
            finder.apply(waiting, Seen(place, here=False))
        elif own is not None:
            finder.apply(finder.log(own), Seen(place, here=own == path))
        elif finder.matches(path):
            self._belongs(path, taker)

    def stands_at(self, path: str, log: str, file: FileId) -> None:
        """A file stands at a path. What stood there may have vanished; and if this one had, a link to it did."""
        self._unseen.vanish(self._names.looked(path, log, file))
        self._unseen.vanished.met(file)

    def lead(self, log: str, through: tuple[str, ...]) -> None:
        """A log is followed through links, or not any more: another tail may take what they led to before."""
        before = self._ways.through.get(log, ())
        self._ways.follow(log, through)
        for path in before:
            taker = self._files.taker(path)
            if taker is not None and taker is not self._finder:
                taker.look_for(path, path)
        for path in through:
            self._kin.name(path, log)
            self._news.watch_beside(path)
        if not through and self._finder.known_log(log) is None:
            self._kin.unname(log)
        self._due.look(log, None)  # again, for what happened there before it was known whose that is

    def _take_over(self, path: str, file: FileId) -> None:
        """Another tail may have read a file that only this one takes any more."""
        owned = self._files.find(file)
        if owned is None or owned.finder is self._finder:
            return
        if self._finder.matches(path) and owned.log.is_left_out(path):
            owned.finder.apply(owned.log, Taken(file))

    def _miss_awaited(self, path: str, found: FileId | None) -> None:
        """A file that is waited for may not be where it was: it is searched for."""
        log = self._awaited.missed(path, found)
        if log is not None and not log.restless:
            self._unseen.search(log)

    def _note_way(self, sighting: Sighting) -> None:
        finder, path = self._finder, sighting.path
        known = finder.known_log(path)
        if sighting.trouble is not None:
            # Where the link of a known log leads, a file is made anew in a moment, or what was there is gone.
            came_or_went = sighting.trouble == LEADS_NOWHERE and known is not None and known.generations
            # What is in a directory is taken, by `**` or another path; but a path that is one takes nothing.
            led_through = sighting.trouble == A_DIRECTORY and self._route.globs.leads_through(path)
            if not came_or_went and (path in self._route.paths or not led_through):
                self._troubles.tell(path, sighting.trouble)
        elif sighting.place is None and path in self._troubles.paths:
            self._troubles.over(path)
        before = self._ways.through.get(path, ())
        if sighting.through != before:
            self.lead(path, sighting.through)
            # What came and went where it leads now, before that was known, is found by a search.
            if before and known is not None:
                known.leads_elsewhere(before[-1])
                self._unseen.search(known)
            elif not finder.first_pass and self._files.taker((path, *sighting.through)[-1]) is finder:
                self._unseen.search(finder.log(path), self._unseen.all_known)

    def _belongs(self, path: str, finder: TailFinder) -> None:
        if not self._finder.once:  # in a run with an end, it would be one that failed
            self._troubles.tell(path, f"taken by the tail {finder.route.name!r}; a file belongs to one tail")

    def _seen_again(self, finder: TailFinder, log: Log, path: str, place: Place) -> None:
        finder.apply(log, Seen(place, here=log.path == path))
        if not is_rotated_from(path, log.path):
            self._kin.name_also({path, place.path}, log.path)
        other = self._finder.known_log(path)
        if other is not None and other is not log:
            self._finder.apply(other, Occupied(place.file))
        if finder is not self._finder and self._finder.matches(path):
            self._belongs(path, finder)
