"""Vanished files: which of them are lost, and when that is said."""

from __future__ import annotations

from ingestd.tail.facts import Empty, Examined, Listed, Missed, Place, Seek, Sought
from ingestd.tail.file_id import FileId
from ingestd.tail.log import Log
from ingestd.tail.vanished import Vanished, VanishedFiles

PATH = "/d/app.log"
SOON = 1.0
LATE = 11.0


def file(inode: int) -> FileId:
    return FileId(1, inode, inode, f"{inode:x}", "1")


def searching() -> tuple[Log, str]:
    """A log that looks for files that nobody saw, and the source that it searches for."""
    log = Log(PATH)
    log.step(Examined(Place(PATH, file(7), 0, 100), Empty()))
    log.step(Missed())
    (seek,) = (each for each in log.step(Listed()) if isinstance(each, Seek))
    return log, seek.generation.source


def test_nothing_is_said_to_be_lost_before_the_search_is_answered() -> None:
    files, (log, source) = VanishedFiles(), searching()
    files.note(Vanished(PATH, f"{PATH}.1"), [log], LATE)
    assert files.take_lost(SOON, busy=False) == []
    log.step(Sought(source, Place(PATH, file(7), 0, 100), intact=True))
    assert files.take_lost(SOON, busy=True) == []
    assert files.take_lost(SOON, busy=False) == [f"{PATH}.1"]
    assert not files


def test_a_search_that_is_not_answered_is_waited_for_only_so_long() -> None:
    files, (log, _) = VanishedFiles(), searching()
    files.note(Vanished(PATH, PATH), [log], LATE)
    assert files.take_lost(LATE, busy=True) == [PATH]


def test_as_many_fewer_are_lost_as_were_found_each_counted_once() -> None:
    files, log = VanishedFiles(), Log(PATH)
    for number in range(3):
        files.note(Vanished(PATH, f"{PATH}.{number}"), [log], LATE)
    files.found(log, [file(8)])
    files.found(log, [file(8), file(9)])
    assert files.take_lost(SOON, busy=False) == [f"{PATH}.2"]


def test_what_is_found_before_events_say_that_it_vanished_counts() -> None:
    files, log = VanishedFiles(), Log(PATH)
    files.found(log, [file(8)])
    files.note(Vanished(PATH, PATH), [log], LATE)
    assert not files


def test_what_was_found_says_nothing_of_a_file_that_vanishes_once_all_is_known() -> None:
    files, log = VanishedFiles(), Log(PATH)
    files.found(log, [file(8)])
    assert files.take_lost(SOON, busy=False) == []
    files.note(Vanished(PATH, PATH), [log], LATE)
    assert files.take_lost(SOON, busy=False) == [PATH]


def test_what_a_copy_of_known_content_was_compressed_from_is_no_loss() -> None:
    files, log = VanishedFiles(), Log(PATH)
    files.note(Vanished(PATH, f"{PATH}.1"), [log], LATE)
    files.note(Vanished(PATH, f"{PATH}.2"), [log], LATE)
    files.compressed([f"{PATH}.1.gz", f"{PATH}.3.zst"])
    assert files.take_lost(SOON, busy=False) == [f"{PATH}.2"]


def test_a_file_that_is_known_after_all_did_not_vanish() -> None:
    files = VanishedFiles()
    files.note(Vanished(PATH, PATH, file(8)), [], LATE)
    files.met(file(8))
    assert files.take_lost(SOON, busy=False) == []


def test_a_log_that_was_busy_when_a_file_vanished_searches_again() -> None:
    files, (log, source) = VanishedFiles(), searching()
    files.seek_later(log)
    log.step(Missed())
    assert files.take_unsought() == []
    assert log.step(Sought(source, unavailable=True)) == [], "else it searches by itself"
    assert files.take_unsought() == [log]
    assert files.take_unsought() == []
