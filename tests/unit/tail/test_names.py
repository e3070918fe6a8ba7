"""Names: what events of directories say of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ingestd.tail.file_id import FileId
from ingestd.tail.names import Names
from ingestd.tail.vanished import Vanished
from ingestd.tail.watch import CREATED, DELETED, MOVED_FROM, MOVED_TO

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "/d/a.log"
FILE = FileId(1, 7, 0, "a", "1")


def test_a_file_whose_end_is_told_before_its_deletion_did_not_vanish() -> None:
    known = {FILE}
    names = Names(lambda path: path, known.__contains__)
    names.heard([(PATH, CREATED, 0)])
    names.looked(PATH, PATH, FILE)
    names.heard([])
    known.remove(FILE)  # its reader saw that it has no name, and it was read
    names.over(FILE, PATH)
    assert names.heard([(PATH, DELETED, 0)]).vanished == []


def test_a_file_that_went_out_of_sight_and_whose_content_was_found_elsewhere_did_not_vanish() -> None:
    """It was compressed in another directory, and read there. The next event tells that it was renamed to nowhere."""
    known = {FILE}
    names = Names(lambda path: path, known.__contains__)
    names.looked(PATH, PATH, FILE)
    names.heard([])
    names.heard([(PATH, MOVED_FROM, 3)])
    known.remove(FILE)
    names.over(FILE)
    assert names.heard([("/d/b.log", CREATED, 0)]).vanished == []


def test_a_file_that_was_made_in_the_place_of_one_that_is_over_may_vanish() -> None:
    known = {FILE}
    names = Names(lambda path: path, known.__contains__)
    names.looked(PATH, PATH, FILE)
    names.over(FILE, PATH)
    assert names.heard([(PATH, DELETED, 0), (PATH, CREATED, 0), (PATH, DELETED, 0)]).vanished == [(PATH, PATH, None)]


def test_a_log_that_is_made_under_another_name_and_renamed_into_place_is_looked_at() -> None:
    """Though that name looks like one of a rotated file, or of a second link to the log."""
    names = Names(lambda path: path if path == PATH else None, lambda _: False)
    made = f"{PATH}.tmp"
    assert names.heard([(made, CREATED, 0), (made, MOVED_FROM, 5), (PATH, MOVED_TO, 5)]).looks == {PATH: None}


def test_a_deletion_from_before_a_look_says_nothing_of_a_copy_that_was_seen_then() -> None:
    """`a.log.2` is compressed and deleted, `a.log.1` is renamed to it; the look comes before these events."""
    names = Names(lambda _: None, lambda _: False)
    names.looked(PATH, PATH, FILE)
    names.judge(PATH, judged=True)
    changes = names.heard([(PATH, DELETED, 0)])
    assert (changes.deleted, changes.looks) == ([], {PATH: None})
    names.looked(PATH, PATH, FILE)
    names.judge(PATH, judged=True)
    names.heard([])
    assert names.heard([(PATH, DELETED, 0)]).deleted == [(FILE, PATH)]


def test_a_copy_beside_a_log_of_which_nothing_is_read_is_looked_at_wherever_it_is_renamed_to() -> None:
    known: set[FileId] = set()
    names = Names(lambda path: path if path == PATH else None, known.__contains__)
    first, second = f"{PATH}.1", f"{PATH}.2"
    copied = [(PATH, CREATED, 0), (first, CREATED, 0), (first, MOVED_FROM, 5), (second, MOVED_TO, 5)]
    assert names.heard(copied).looks == {PATH: None, second: PATH}
    names.looked(PATH, PATH, FILE)
    assert names.heard([(first, CREATED, 0)]).looks == {first: PATH}
    assert names.heard([(first, DELETED, 0)]).vanished == []  # whether it was all of the log, nobody knows
    assert names.heard([(first, CREATED, 0)]).looks == {first: PATH}
    names.looked(first, PATH, FileId(1, 8, 0, "b", "1"))
    names.heard([])
    assert names.heard([(first, DELETED, 0)]).vanished == []
    known.add(FILE)
    names.examined(FILE)
    assert names.heard([(first, CREATED, 0)]).looks == {first: PATH}  # perhaps before that
    assert names.heard([(first, CREATED, 0), (f"{PATH}.1.gz", CREATED, 0)]).looks == {}


def test_a_copy_in_the_place_of_a_file_that_was_just_deleted_is_looked_at() -> None:
    """Compressed, perhaps: the older one was seen only now, so that its deletion may be from before that."""
    copy = f"{PATH}.1"
    names = Names(lambda path: path if path == PATH else None, lambda _: False)
    names.heard([(PATH, CREATED, 0), (copy, CREATED, 0)])
    names.looked(copy, PATH, FILE)
    assert names.heard([(copy, DELETED, 0), (copy, CREATED, 0)]).looks == {copy: PATH}


def test_a_copy_that_came_and_went_in_the_place_of_a_deleted_file_is_told_with_its_log() -> None:
    copy = f"{PATH}.1"
    names = Names(lambda path: path if path == PATH else None, lambda _: False)
    names.heard([(PATH, CREATED, 0), (copy, CREATED, 0)])
    names.looked(copy, PATH, FILE)
    assert not names.heard([(copy, DELETED, 0)]).copied
    names.looked(copy, PATH, FILE)
    assert names.heard([(copy, DELETED, 0), (copy, CREATED, 0), (copy, DELETED, 0)]).copied == {PATH: None}


def test_a_copy_that_came_and_went_before_it_was_looked_at_is_told_with_its_log() -> None:
    names = Names(lambda path: path if path == PATH else None, lambda _: False)
    names.heard([(PATH, CREATED, 0)])
    changes = names.heard([(f"{PATH}.1", CREATED, 0), (f"{PATH}.1", DELETED, 0)])
    assert (changes.copied, changes.vanished) == ({PATH: None}, [])
    names.looked(f"{PATH}.2", PATH, FILE)
    assert not names.heard([(f"{PATH}.2", DELETED, 0)]).copied


@pytest.mark.parametrize("compressed", [False, True])
def test_what_was_compressed_before_anybody_looked_did_not_vanish(*, compressed: bool) -> None:
    """logrotate renames a.log.1.gz at once: as its loss was to be told, nothing was called after a.log.1 any more."""
    names = Names(lambda path: path, lambda _: False)
    names.heard([(f"{PATH}.1", CREATED, 0)])
    packed = f"{PATH}.1.gz" if compressed else f"{PATH}.9.gz"
    deleted = [(packed, CREATED, 0), (f"{PATH}.1", DELETED, 0)]
    changes = names.heard([*deleted, (packed, MOVED_FROM, 5), (f"{PATH}.2.gz", MOVED_TO, 5)])
    assert [each.path for each in changes.vanished] == ([] if compressed else [f"{PATH}.1"])


def test_a_copy_beside_a_log_that_was_listed_just_now_is_looked_at() -> None:
    names = Names(lambda path: path if path == PATH else None, lambda _: False)
    names.listed({PATH})
    assert names.heard([(f"{PATH}.1", CREATED, 0)]).looks == {f"{PATH}.1": PATH}
    names.listed(frozenset())
    assert names.heard([(f"{PATH}.2", CREATED, 0)]).looks == {}


@pytest.mark.parametrize("gone", [[(PATH, DELETED, 0)], [(PATH, MOVED_FROM, 5), ("/d/x", MOVED_TO, 5)]])
def test_what_a_listing_showed_is_looked_at_again_if_it_left_since(gone: list[tuple[str, int, int]]) -> None:
    """It was taken for what stands there, and said to have vanished as the next one came."""
    names = Names(lambda path: path if path == PATH else None, lambda _: False)
    names.listed({PATH})
    assert not names.was_left(PATH)
    names.heard(gone)
    assert names.was_left(PATH)
    names.listed(frozenset())
    assert not names.was_left(PATH)


def test_what_stood_in_a_directory_that_was_replaced_is_not_what_is_renamed_there() -> None:
    names = Names(lambda path: path if path == PATH else None, {FILE}.__contains__)
    names.looked(PATH, PATH, FILE)
    names.heard([])
    names.replaced("/d")
    changes = names.heard([(PATH, MOVED_FROM, 5), (f"{PATH}.1", MOVED_TO, 5)])
    assert (changes.moved, changes.looks) == ([], {f"{PATH}.1": PATH})


def test_a_file_that_was_seen_and_not_read_vanishes_with_its_directory() -> None:
    """At a slow start it waited for others. Its directory was moved meanwhile, and nothing was said."""
    names = Names(lambda path: path, set[FileId]().__contains__)
    empty = FileId(1, 8, 0, "b", "1")
    names.looked(PATH, PATH, FILE)
    names.looked("/d/b.log", "/d/b.log", empty)
    names.judge("/d/b.log", judged=True)
    assert names.replaced("/d") == [Vanished(PATH, PATH, FILE)]
    names.looked(PATH, PATH, FILE)
    assert names.forget((PATH,), names.standing()) == []
    assert names.forget((), names.standing()) == [Vanished(PATH, PATH, FILE)]
    assert not names.has(PATH)


def test_a_listing_that_was_made_before_a_file_came_does_not_hide_it() -> None:
    """It came as the directory had been listed. Then it was rotated by `link` and `unlink`."""
    names = Names(lambda path: path if path == PATH else None, lambda _: False)
    names.looked(PATH, PATH, FILE)
    standing = names.standing()
    names.heard([(PATH, DELETED, 0), (PATH, CREATED, 0)])
    names.forget((), standing)
    assert names.heard([(f"{PATH}.1", CREATED, 0), (PATH, DELETED, 0)]).looks == {f"{PATH}.1": PATH}
    names.heard([(PATH, CREATED, 0)])
    assert names.expects(PATH)
    names.forget((), names.standing())
    assert not names.expects(PATH)


def test_a_rename_from_before_a_look_says_nothing_of_what_was_seen_there() -> None:
    """A file was renamed to a name that no glob matches; a look found it there before this was told."""
    moved = f"{PATH}.2"
    names = Names(lambda path: path if path == PATH else None, {FILE}.__contains__)
    names.looked(moved, PATH, FILE)
    names.heard([(f"{PATH}.1", MOVED_FROM, 1), (moved, MOVED_TO, 1)])
    changes = names.heard([(moved, MOVED_FROM, 2), (f"{PATH}.3", MOVED_TO, 2)])
    assert changes.moved == [(FILE, f"{PATH}.3")]


def seen_at(events: list[tuple[str, int, int]], log_at: Callable[[str], str | None] = lambda path: path) -> Names:
    """After these events, a look showed the file at PATH."""
    names = Names(log_at, lambda _: False)
    names.looked(PATH, PATH, FileId(1, 6, 0, "b", "1"))
    names.heard(events)
    names.looked(PATH, PATH, FILE)
    return names


def test_what_is_made_where_a_rotated_file_was_is_its_successor_wherever_it_is_renamed_to() -> None:
    rotated = [(PATH, MOVED_FROM, 5), (f"{PATH}.1", MOVED_TO, 5)]
    names = seen_at([*rotated, (PATH, CREATED, 0)])
    assert names.is_successor(PATH, FILE)
    names.heard([(PATH, MOVED_FROM, 7), (f"{PATH}.1", MOVED_TO, 7)])
    assert names.is_successor(f"{PATH}.1", FILE)
    assert not seen_at(rotated).is_successor(PATH, FILE)


def test_what_may_be_a_copy_is_no_successor() -> None:
    """It was renamed into place, or the one before was deleted, or renamed to a name that is none of a rotation."""
    rotated = [(PATH, MOVED_FROM, 5), (f"{PATH}.1", MOVED_TO, 5)]
    assert not seen_at([*rotated, ("/d/tmp", MOVED_FROM, 6), (PATH, MOVED_TO, 6)]).is_successor(PATH, FILE)
    assert not seen_at([(PATH, DELETED, 0), (PATH, CREATED, 0)]).is_successor(PATH, FILE)
    assert not seen_at([(PATH, MOVED_FROM, 5), ("/d/other", MOVED_TO, 5), (PATH, CREATED, 0)]).is_successor(PATH, FILE)
    names = seen_at([*rotated, (PATH, CREATED, 0)])
    assert not names.is_successor(PATH, FileId(1, 6, 0, "b", "1"))
