"""What a start does that no later pass does: until when all was found before, what of it people are told."""

from __future__ import annotations

import os
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from ingestd.logs import get_logger
from ingestd.tail.globs import Globs
from ingestd.tail.known import printable
from ingestd.tail.rotation import family_of, names_of, possible_originals

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ingestd.tail.log import Log
    from ingestd.tail.looks import Looks
    from ingestd.tail.route import TailRoute
    from ingestd.tail.thread import LookThread

__all__ = ["NAMED_MOST", "found_before", "note_rotated", "tell_left_out", "unfit_rotated", "warn_of_rotated"]

NAMED_MOST: Final = 5
"""So many files are named in a line of the log that is about all of them."""

_WRONG_AT_MOST: Final = 24 * 3600 * 10**9
"""ns. A clock that is set back was ahead by less: by some hours, if it was set to the time of another time zone."""

_ROTATED_MOST: Final = 1000
"""So many files that an entry of `rotated` matches are looked at, to see whether its names fit."""

_log = get_logger(__name__)


def found_before(route: TailRoute, logs: Collection[Log], since: int) -> int:
    """Until when (ns) the last run had found all files of a tail; 0: not known. `since`: when it said so.

    Where the clock was set back since, what came last seems to be older than what is known: then only times that
    are a day old count. Nor does a time count that is yet to come.
    """
    now = time.time_ns()
    set_back = since > now
    certain = now - _WRONG_AT_MOST if set_back else now
    times = [each.known.modified for log in logs for each in log.generations]
    latest = max((each for each in times if each <= certain), default=0)
    said = since if since <= certain else 0
    found = min(said or latest, latest or said) or int(set_back or any(each > certain for each in times))
    for log in logs:
        log.mistrust(certain, found, since)
    if set_back:
        _log.warning(
            "the clock was set back since the last run: rotated files that it did not know are read, old or not",
            route=route.name,
            seconds=round((since - now) / 1e9, 3),
        )
    return found


async def note_rotated(route: TailRoute, logs: Collection[Log], looks: Looks, thread: LookThread, since: int) -> None:
    """Find out of which logs a rotation came since then (ns), where hardly more than a header was read.

    Beside the log, or where `rotated` leads.
    """
    called: dict[str, list[Log]] = {}
    for log in logs:
        if log.may_have_header_only:
            called.setdefault(os.path.basename(log.path), []).append(log)
    if not called:
        return
    beside = {os.path.dirname(log.path) for each in called.values() for log in each}
    elsewhere = await thread.ask(route.rotated_globs.directories)
    for path in await thread.ask(lambda: looks.made_since(beside | elsewhere, since)):
        directory, name = os.path.split(path)
        for original in possible_originals(name):
            for log in called.get(original, ()):
                if directory in {os.path.dirname(log.path), *elsewhere}:
                    log.rotated = True


def unfit_rotated(route: TailRoute, logs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Entries of `rotated` that lead to nothing, or to files none of which is called as one of these logs; and why."""
    yield from route.rotated_globs.unfit()
    names = {each for name in map(os.path.basename, logs) for each in (name, family_of(name))}
    for glob in route.rotated if names else ():
        matched = Globs([glob], ()).walk(lambda _: None, lambda *_: None)
        files = [*islice((each.path for each in matched if each.is_file()), _ROTATED_MOST)]
        if files and all(names.isdisjoint((*names_of(path), family_of(os.path.basename(path)))) for path in files):
            like = "with a number, a date, old, bak, prev or ~ added"
            missed = "a log that is made, and moved there, while the daemon is down is missed"
            first = f"the first of them stands there as {files[0]}"
            yield glob, f"no file that it matches is called as a log of this tail {like} ({first}): {missed}"


async def warn_of_rotated(route: TailRoute, logs: Collection[Log], thread: LookThread) -> None:
    """A mistake in `rotated` shows only once lines are lost."""
    known = {path for log in logs for path in (log.path, *(each.known.path for each in log.generations))}
    for glob, reason in await thread.ask(lambda: [*unfit_rotated(route, known)]):
        entry = {"rotated": printable(glob), "reason": printable(reason)}
        _log.warning("rotated files are not found as configured", route=route.name, **entry)


def tell_left_out(route: TailRoute, logs: Collection[Log]) -> None:
    """Name the logs that are known and no glob takes any more, wherever their files are by now."""
    known = [log for log in logs if log.generations]
    left = [log.path for log in known if all(log.is_left_out(each.known.path) for each in log.generations)]
    if left:
        _log.info(
            "known logs are not read on: no glob of the tail takes them any more",
            route=route.name,
            logs=len(left),
            some=[printable(path) for path in left[:NAMED_MOST]],
        )
