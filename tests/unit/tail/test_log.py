"""What a log does when facts come late, or tell of content that is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingestd.daemon.source import End, Loss
from ingestd.tail.facts import (
    CONCLUDED,
    DELETED,
    GONE,
    TAKEN,
    TRUNCATED,
    Answered,
    Bury,
    Conclude,
    Copy,
    Deleted,
    Empty,
    Ended,
    Examine,
    Examined,
    Forget,
    Gone,
    Keep,
    Listed,
    Lose,
    Missed,
    Place,
    Plain,
    Read,
    Repeated,
    Seek,
    Seen,
    Sought,
    Unreadable,
    Untold,
)
from ingestd.tail.file_id import FileId
from ingestd.tail.generation import NOTHING, Phase
from ingestd.tail.known import Known, Sample, Witness, birth_of, name_source
from ingestd.tail.log import Log

PATH = "/d/app.log"


def place(inode: int, size: int, path: str = PATH, modified: int = 100) -> Place:
    return Place(path, FileId(1, inode, inode, f"{inode:x}", "1"), size, modified)


def plain(size: int) -> Plain:
    return Plain(0, Witness.of(Sample.of(size, b"x" * size)))


def log_with(*stored: Known, position: int = 5) -> Log:
    log = Log(PATH)
    for number, known in enumerate(stored):
        log.restore(f"{number}", position, known)
    return log


def known(inode: int, size: int, path: str = PATH) -> Known:
    there = place(inode, size, path)
    return Known(PATH, path, there.file, Witness.of(Sample.of(size, b"x" * size)), size, there.modified)


def test_a_compressed_file_that_was_in_the_making_when_the_daemon_stopped_may_be_what_is_sought() -> None:
    """It was taken for a file of its own then, and what the daemon had read of it came twice."""
    log = Log(f"{PATH}.1.gz")
    making = known(7, 0, f"{PATH}.1.gz")._replace(witness=None, codec="gz")
    assert log.restore("1", 0, making).copy_of == NOTHING
    assert log.restore("2", 5, making._replace(done=True)).copy_of is None


def test_an_examination_that_was_asked_for_before_the_file_was_read_starts_nothing() -> None:
    log, seen = Log(PATH), place(7, 10)
    (read,) = [each for each in log.step(Examined(seen, plain(20))) if isinstance(each, Read)]
    done = read.generation
    log.step(Seen(place(8, 1), here=True))
    log.step(Ended(done.source, End(CONCLUDED, PATH, 20, 20), done.known._replace(size=20)))
    assert done.phase is Phase.DONE
    assert log.step(Examined(seen, plain(20))) == []


def test_a_reader_that_has_not_looked_since_a_rename_does_not_tell_the_path() -> None:
    """The path that it told was deleted next, by whoever rotates: what was read was forgotten, and came twice."""
    log, seen = Log(PATH), place(7, 10)
    (read,) = [each for each in log.step(Examined(seen, plain(10))) if isinstance(each, Read)]
    log.step(Seen(place(7, 10, f"{PATH}.1"), here=False))
    log.step(Seen(place(8, 1), here=True))
    log.step(Ended(read.generation.source, End(CONCLUDED, PATH, 10, 10), known(7, 10)))
    assert read.generation.known.path == f"{PATH}.1"


def test_a_file_that_was_written_anew_says_nothing_of_how_long_the_generation_before_was() -> None:
    """It was copied, truncated, and is longer than before. Its copy is read whole, and nothing of it is lost."""
    log, seen = Log(PATH), place(7, 10)
    (read,) = [each for each in log.step(Examined(seen, plain(10))) if isinstance(each, Read)]
    source = read.generation.source
    log.step(Sought(source, place(7, 20), intact=False, rest=place(8, 10, f"{PATH}.1")))
    assert read.generation.size == 10
    log.step(Ended(source, End(GONE, PATH, 0, 10), known(7, 10)))
    commands = log.step(Sought(source, rest=place(8, 10, f"{PATH}.1")))
    (goes_on,) = [each.generation for each in commands if isinstance(each, Read)]
    assert goes_on.known.size == 10


def test_content_that_was_truncated_before_it_was_examined_is_sought() -> None:
    """A file with 10 bytes is seen, copied and truncated; only then it is examined."""
    log = Log(PATH)
    commands = log.step(Examined(place(7, 10), Empty()))
    assert [each.generation.known.file.inode for each in commands if isinstance(each, Seek)] == [7]
    assert log.unseen_since == 99


def test_content_that_came_and_went_in_an_empty_file_is_sought() -> None:
    """A file is empty; before the next look it is written to, copied and truncated."""
    log = Log(PATH)
    log.step(Examined(place(7, 0), Empty()))
    commands = log.step(Seen(place(7, 0, modified=200), here=True))
    assert [each.generation.known.file.inode for each in commands if isinstance(each, Seek)] == [7]
    assert log.unseen_since == 100
    assert not [each for each in log.step(Seen(place(7, 0, modified=200), here=True)) if isinstance(each, Seek)]


@pytest.mark.parametrize("verdict", [Empty(), plain(4)])
@pytest.mark.parametrize(("modified", "sought"), [(200, [7]), (7, [])])
def test_an_empty_file_that_was_modified_since_it_came_had_content(
    modified: int, sought: list[int], verdict: Empty | Plain
) -> None:
    """It came after a rotation, was written to, copied and truncated, all before the first look at it.

    Perhaps it was written to again before it was examined.
    """
    log = log_with(known(6, 5))
    log.step(Seen(place(6, 5, f"{PATH}.2"), here=False))
    log.step(Listed())
    log.step(Sought("0", place(6, 5, f"{PATH}.2"), intact=True))
    commands = log.step(Examined(place(7, 0, modified=modified), verdict))
    assert [each.generation.known.file.inode for each in commands if isinstance(each, Seek)] == sought
    assert log.unseen_since == (7 if sought else 0)


def test_an_empty_file_whose_name_is_gone_is_sought() -> None:
    """It is rotated by link and unlink. Its link is renamed before it is looked at, and is taken for another file."""
    log = Log(PATH)
    log.step(Examined(place(7, 0), Empty()))
    (source,) = (each.source for each in log.generations)
    commands = log.step(Deleted(source))
    assert [each.generation.source for each in commands if isinstance(each, Seek)] == [source]
    assert [each.generation.source for each in log.step(Sought(source)) if isinstance(each, Forget)] == [source]


def test_a_rotated_file_is_followed_while_nothing_stands_at_the_path() -> None:
    """An empty file stood at the path and is gone. What is found rotated came after it, and is written to still."""
    log = Log(PATH)
    log.step(Seen(place(7, 0), here=True))
    log.step(Examined(place(7, 0), Empty()))
    log.step(Missed())
    (seek,) = (each for each in log.step(Listed()) if isinstance(each, Seek))
    log.step(Sought(seek.generation.source, between=(place(8, 3, f"{PATH}.1"),)))
    (read,) = (each for each in log.step(Examined(place(8, 3, f"{PATH}.1"), plain(3))) if isinstance(each, Read))
    assert not read.generation.last


def test_what_came_after_the_last_run_is_sought_with_a_file_that_was_truncated_since() -> None:
    """It is begun anew before the newest generation of the last run is sought."""
    log = log_with(known(7, 5, f"{PATH}.1"), known(9, 5, f"{PATH}.2"))
    log.step(Seen(place(7, 2, f"{PATH}.1"), here=False))
    log.step(Sought("0", place(7, 2, f"{PATH}.1")))
    (_, anew) = log.generations
    assert anew.source in {each.generation.source for each in log.step(Listed()) if isinstance(each, Seek)}


def test_what_was_missed_beside_an_empty_log_is_sought_though_the_log_is_where_it_was() -> None:
    """It may have been written to, copied and truncated meanwhile: no reader would have noticed."""
    log = Log(PATH)
    log.step(Examined(place(7, 0), Empty()))
    log.step(Missed())
    log.step(Seen(place(7, 0), here=True))
    assert [each for each in log.step(Listed()) if isinstance(each, Seek)]


def test_a_copy_waits_until_its_original_is_found() -> None:
    """The daemon stopped while a file was empty. It has lines now. It is copied, and truncated before it is read."""
    log, copied = Log(PATH), place(9, 8, f"{PATH}.1")
    log.restore("0", 0, known(7, 0)._replace(witness=None))
    log.step(Seen(place(7, 8, modified=200), here=True))
    assert log.step(Examined(copied, Copy("0", 8, plain(8).witness))) == []
    log.step(Listed())
    assert Examine(copied) in log.step(Sought("0", place(7, 0), intact=True))


def test_what_was_written_to_a_file_that_is_gone_since_it_was_truncated_is_sought() -> None:
    """In an outage nobody tells of a truncation. The worker died, and the next content was compressed meanwhile."""
    log = Log(PATH)
    for inode in (1, 2):
        log.step(Seen(place(inode, 5), here=True))
        log.step(Examined(place(inode, 5), plain(5)))
    first = log.generations[0]
    log.step(Ended(first.source, End(GONE, PATH, 0, 5), first.known))
    assert first.cut
    packed = place(3, 4, f"{PATH}.1.gz")._replace(codec="gz")
    assert Examine(packed) in log.step(Sought(first.source, rest=place(4, 5, f"{PATH}.2"), between=(packed,)))


def test_a_file_that_nobody_finds_after_its_reader_died_is_told() -> None:
    """What was written to it since its reader told how far it is, nobody knows."""
    log = Log(PATH)
    (read,) = [each for each in log.step(Examined(place(7, 5), plain(5))) if isinstance(each, Read)]
    generation = read.generation
    log.step(Ended(generation.source, End(GONE, PATH, 5, 5), generation.known))
    assert Untold(generation) in log.step(Sought(generation.source))


@pytest.mark.parametrize("codec", ["", "gz"])
def test_what_was_read_out_before_the_stop_is_told_from_what_may_have_had_more(codec: str) -> None:
    """`rm app.log`, and within `leave_after` of that the daemon is stopped. Nobody found the file at the next start."""
    deleted = known(7, 5)._replace(codec=codec, deleted=True, read_size=9 if codec else 0)
    unlike = [
        (deleted._replace(deleted=False), 5),
        (deleted._replace(read_size=0) if codec else deleted._replace(size=6), 5),
    ]
    for number, (stored, position) in enumerate([(deleted, 5), *unlike]):
        log = log_with(stored, position=position)
        log.step(Listed())
        (generation,) = log.generations
        log.step(Sought(generation.source))
        assert generation.was_read_out == (number == 0)


def test_only_what_was_not_read_of_a_deleted_file_is_sought_in_what_waits() -> None:
    """With many rotations a second each search kept the next files waiting, until they were deleted, too."""
    log = Log(PATH)
    for inode in (1, 2):
        log.step(Seen(place(inode, 5), here=True))
        log.step(Examined(place(inode, 5), plain(5)))
    first, second = log.generations
    log.step(Missed())
    log.step(Listed())
    log.step(Seen(place(3, 5), here=True))
    assert log.waiting == (PATH,)
    assert [type(each) for each in log.step(Ended(first.source, End(DELETED, PATH, 5, 5), first.known))] == [Bury]
    assert log.step(Ended(second.source, End(DELETED, PATH, 4, 5), second.known))[-1] == Seek(second)


def test_what_was_not_read_of_a_deleted_file_is_lost_where_nothing_waits_that_may_have_it() -> None:
    log = Log(PATH)
    (read,) = [each for each in log.step(Examined(place(7, 5), plain(5))) if isinstance(each, Read)]
    commands = log.step(Ended(read.generation.source, End(DELETED, PATH, 3, 5), read.generation.known))
    assert commands == [Lose(Loss(PATH, DELETED, 3, 2, exact=True)), Forget(read.generation, "")]
    assert log.is_over
    assert log.step(Ended(read.generation.source, End(DELETED, PATH, 3, 5), read.generation.known)) == []


def test_what_a_search_finds_is_examined_where_it_is_now() -> None:
    """A file waits for the search; its directory is moved away meanwhile."""
    log = log_with(known(7, 5))
    log.step(Seen(place(8, 3), here=True))
    assert log.waiting == (PATH,)
    log.step(Listed())
    moved = place(8, 3, "/moved/app.log")
    commands = log.step(Sought("0", place(7, 5, "/moved/app.log.1"), intact=True, between=(moved,)))
    assert Examine(moved) in commands


def test_a_search_is_repeated_for_what_is_the_newest_then_and_looks_as_far_back() -> None:
    """The content that was sought is nowhere; what came after it shifted while it was looked for."""
    log = log_with(known(7, 5), known(9, 5)._replace(witness=None))
    log.step(Seen(place(7, 5), here=True))
    log.step(Listed())
    commands = log.step(Sought("1", between=(place(8, 3, f"{PATH}.1", 200),)))
    assert [each.generation.source for each in commands if isinstance(each, Seek)] == ["0"]
    assert log.unseen_since == 100
    log.step(Sought("0", place(7, 5), intact=True))
    assert log.unseen_since == 0


def test_a_file_that_was_seen_and_is_gone_is_sought_whatever_is_newer() -> None:
    log = log_with(known(7, 5))
    log.step(Missed(since=49))
    assert log.unseen_since == 49


def test_a_search_that_finds_nothing_is_made_again_if_events_were_missed_meanwhile() -> None:
    """Its directory is moved away while it is looked for: with it, nothing would tell what came after it."""
    log = log_with(known(7, 5))
    log.step(Listed())
    log.step(Missed())
    assert log.step(Sought("0")) == []
    assert [each.generation.source for each in log.step(Listed()) if isinstance(each, Seek)] == ["0"]
    commands = log.step(Sought("0"))
    assert not [each for each in commands if isinstance(each, Seek)]
    assert [each.generation.source for each in commands if isinstance(each, Bury)] == ["0"]


def test_a_log_that_is_back_where_another_one_was_is_read_on_though_it_has_nothing_new() -> None:
    """It was out of sight at the start. Nobody read it then, and what was written to it and deleted next was lost."""
    log = log_with(known(7, 5))
    log.step(Seen(place(8, 3), here=True))
    log.step(Listed())
    log.step(Sought("0"))
    (other,) = (each.generation for each in log.step(Examined(place(8, 3), plain(3))) if isinstance(each, Read))
    assert log.step(Seen(place(7, 5), here=True)) == [Examine(place(7, 5))]
    commands = log.step(Examined(place(7, 5), Copy("0", 0, sure=False)))
    (back,) = (each.generation for each in commands if isinstance(each, Read))
    assert (back.known.file.inode, back.position, back.last) == (7, 5, False)
    assert [each.generation for each in commands if isinstance(each, Conclude)] == [other]


def test_events_that_were_missed_before_a_search_began_do_not_void_it() -> None:
    """A directory is moved away; the complete look that follows comes between the wish for a search and the search."""
    log = log_with(known(7, 5))
    log.step(Listed())
    log.step(Missed())
    log.step(Seen(place(8, 3), here=True))
    assert log.step(Listed()) == []
    assert Examine(place(8, 3)) in log.step(Sought("0"))


def test_nothing_waits_for_an_older_generation_once_the_newest_one_is_nowhere() -> None:
    """Both were read and deleted while no daemon ran; what is written now waits for one search, not for two."""
    log = log_with(known(7, 5, f"{PATH}.2")._replace(done=True), known(9, 5, f"{PATH}.1")._replace(done=True))
    log.step(Seen(place(8, 3), here=True))
    assert [each.generation.source for each in log.step(Listed()) if isinstance(each, Seek)] == ["1"]
    assert Examine(place(8, 3)) in log.step(Sought("1"))
    assert not log.restless


def test_where_a_link_led_in_the_last_run_is_remembered() -> None:
    log = log_with(known(7, 5, "/t/0.log"), known(8, 5, "/t/0.log.1"), known(9, 5))
    assert log.written_at == ["/t/0.log", PATH]


def test_links_that_led_elsewhere_before_are_remembered_the_last_eight_of_them() -> None:
    """A link leads to `1.log` now; a copy of `0.log` from a moment before is called `0.log.1`."""
    log = log_with(known(7, 5, "/t/0.log"))
    for number in (*range(10), 3):
        log.leads_elsewhere(f"/t/{number}.log")
    assert log.written_at == [f"/t/{number}.log" for number in (2, 4, 5, 6, 7, 8, 9, 3)]


def test_what_came_after_a_generation_that_was_over_at_the_stop_is_sought() -> None:
    """The daemon stops while it searches for what was rotated within moments; the last that it knew of was read."""
    log = log_with(known(7, 5, f"{PATH}.1")._replace(done=True))
    log.step(Seen(place(8, 3), here=True))
    log.step(Seen(place(7, 5, f"{PATH}.2"), here=False))
    (seek,) = (each for each in log.step(Listed()) if isinstance(each, Seek))
    came = place(9, 4, f"{PATH}.1", 200)
    commands = log.step(Sought(seek.generation.source, place(7, 5, f"{PATH}.2"), intact=True, between=(came,)))
    assert seek.generation.source == "0"
    assert Examine(came) in commands


def repeated(log: Log, seen: Place, of: str) -> None:
    copy = Copy(of, seen.size, Witness.of(Sample.of(seen.size, b"x" * seen.size)))
    log.step(Repeated(seen, copy))


def test_a_copy_that_was_truncated_is_an_empty_file() -> None:
    """It was read from its start 10 s later, and said to be lost, though its original had been read."""
    log = Log(f"{PATH}.1")
    repeated(log, place(7, 4), "other")
    commands = log.step(Examined(place(7, 0), Empty()))
    (kept,) = (each.generation for each in commands if isinstance(each, Keep))
    assert (kept.copy_of, kept.position, kept.known.size, kept.known.witness) == (NOTHING, 0, 0, None)


def test_a_copy_that_can_not_be_read_for_a_while_stays_a_copy() -> None:
    log, copy = log_with(known(7, 5)), place(8, 5, f"{PATH}.1")
    log.step(Seen(place(7, 5), here=True))
    log.step(Repeated(copy, Copy("0", 5, plain(5).witness), apart=False, log=PATH))
    log.step(Examined(copy, Unreadable("can not be read")))
    repeating = log.of(copy.file)
    assert repeating is not None
    assert (repeating.copy_of, repeating.position) == ("0", 5)


def test_a_copy_that_was_modified_since_it_was_compared_is_compared_again() -> None:
    """It was truncated, and then as long again, before anybody watched it."""
    log, seen = Log(PATH), place(7, 4)
    log.step(Repeated(seen, Copy("other", 4, modified=seen.modified + 1)))
    assert Examine(seen._replace(modified=seen.modified + 1)) not in log.step(
        Seen(seen._replace(modified=seen.modified + 1), here=True)
    )
    later = seen._replace(modified=seen.modified + 2)
    assert Examine(later) in log.step(Seen(later, here=True))
    assert Examine(later) not in log.step(Seen(later, here=True))


def test_a_copy_repeats_what_its_original_goes_on_in() -> None:
    """The original is truncated, and found compressed; the copy has nothing that is not read there."""
    log = Log(PATH)
    repeated(log, place(7, 4), "first")
    log.step(Gone("first", "second"))
    (copy,) = log.generations
    assert (copy.copy_of, copy.known.copy_of) == ("second", "second")
    log.step(Gone("second"))
    assert copy.copy_of is None

    log = log_with(known(7, 5))
    log.step(Seen(place(7, 2), here=True))
    log.step(Ended("0", End(TRUNCATED, PATH, 5, 5), known(7, 5)))
    commands = log.step(Sought("0", place(7, 2), rest=place(9, 20, f"{PATH}.1.gz")._replace(codec="gz")))
    (read,) = (each for each in commands if isinstance(each, Read))
    assert [each.after for each in commands if isinstance(each, Forget)] == [read.generation.source]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_file_that_repeated_its_copy_goes_on_behind_it_or_is_read_whole(goes_on: bool) -> None:
    """It is written on; or it is truncated, and what comes then is as long at least."""
    log = Log(PATH)
    log.step(Seen(place(7, 4), here=True))
    log.step(Examined(place(9, 4, f"{PATH}.1"), plain(4)))
    (copy,) = log.generations
    repeated(log, place(7, 4), copy.source)
    commands = log.step(Examined(place(7, 8), replace(plain(8), goes_on=goes_on)))
    (read,) = (each.generation for each in commands if isinstance(each, Read))
    assert (read.position, read.known.size) == (4 if goes_on else 0, 8)


def test_a_copy_that_grew_since_it_was_compared_is_as_long_as_it_was_found() -> None:
    """The next run says what of it was not read, if it is gone then."""
    log = log_with(known(7, 5))
    log.step(Seen(place(7, 5), here=True))
    copy = place(9, 3, f"{PATH}.1")
    repeated(log, copy, "0")
    log.step(Ended("0", End(TRUNCATED, PATH, 5, 9), known(7, 5)))
    commands = log.step(Sought("0", place(7, 0), rest=copy._replace(size=9)))
    (read,) = (each.generation for each in commands if isinstance(each, Read))
    assert (read.position, read.known.size) == (5, 9)


def test_a_file_that_was_truncated_before_it_was_examined_is_as_long_as_it_was_then() -> None:
    """What was seen before is sought by itself. It was said to be lost once the file was gone."""
    log = log_with(known(7, 5))
    log.step(Seen(place(7, 5), here=True))
    log.step(Ended("0", End(TRUNCATED, PATH, 5, 5), known(7, 5)))
    log.step(Sought("0", place(7, 8)))
    (seek,) = (each for each in log.step(Examined(place(7, 8), plain(4))) if isinstance(each, Seek))
    commands = log.step(Sought(seek.generation.source, place(7, 4), intact=True))
    (read,) = (each.generation for each in commands if isinstance(each, Read))
    log.step(Ended(read.source, End(GONE, PATH, 0, 4), read.known))
    assert read.known.size == 4


def test_nothing_of_a_file_is_read_while_what_may_have_been_in_it_before_is_sought() -> None:
    """It was empty, was written to, copied, truncated and written to again before it was examined.

    It was read at once. The daemon was stopped before the search was answered: then nobody looked for the copy.
    """
    log = Log(PATH)
    log.step(Examined(place(7, 0), Empty()))
    log.step(Seen(place(7, 3, modified=150), here=True))
    keep, seek = log.step(Examined(place(7, 3, modified=150), plain(8)))
    assert isinstance(keep, Keep)
    assert isinstance(seek, Seek)
    assert (keep.generation.known.read, keep.generation.position, keep.generation.known.modified) == (8, 0, 100)
    copied = place(8, 5, f"{PATH}.1", 160)
    commands = log.step(Sought(keep.generation.source, place(7, 9, modified=180), intact=True, between=(copied,)))
    assert commands == [Examine(copied), Seek(keep.generation)]
    (read,) = log.step(Examined(copied, plain(5)))
    assert isinstance(read, Read)
    assert log.step(Answered(copied.file)) == []
    assert log.step(Sought(keep.generation.source, place(7, 9, modified=180), intact=True)) == [Read(keep.generation)]
    assert log.generations == [read.generation, keep.generation]
    assert birth_of(read.generation.source) < birth_of(keep.generation.source)


def test_what_is_written_to_an_emptied_file_waits_for_the_search_for_what_was_in_it() -> None:
    """It was seen with 10 bytes, truncated before it was examined, and written to: that was read before the copy."""
    log = Log(PATH)
    empty, _, seek = log.step(Examined(place(7, 10), Empty()))
    assert isinstance(empty, Keep)
    assert isinstance(seek, Seek)
    assert log.step(Seen(place(7, 3, modified=150), here=True)) == [Examine(place(7, 3, modified=150))]
    (kept,) = log.step(Examined(place(7, 3, modified=150), plain(3)))
    assert isinstance(kept, Keep)
    copied = place(8, 10, f"{PATH}.1", 120)
    commands = log.step(Sought(empty.generation.source, place(7, 3, modified=150), intact=True, between=(copied,)))
    assert commands == [Examine(copied), Seek(empty.generation)]
    (read,) = log.step(Examined(copied, plain(10)))
    assert isinstance(read, Read)
    log.step(Answered(copied.file))
    assert log.step(Sought(empty.generation.source, place(7, 3, modified=150), intact=True)) == [Read(kept.generation)]


def test_what_was_seen_twice_waits_for_the_search_for_what_came_before_it() -> None:
    """A new log was rotated several times while the daemon was down: what was looked at again came first."""
    log = Log(PATH, new_since=100)
    last, first = place(8, 4, f"{PATH}.1", 160), place(7, 3, f"{PATH}.2", 150)
    empty, seek = log.step(Seen(last, here=False))
    assert isinstance(empty, Keep)
    assert isinstance(seek, Seek)
    assert log.step(Seen(first, here=False)) == []
    assert log.step(Seen(last, here=False)) == [Examine(last)]
    (kept,) = log.step(Examined(last, plain(4)))
    assert isinstance(kept, Keep)
    found = log.step(Sought(empty.generation.source, last, intact=True, between=(first,)))
    assert found[0] == Examine(first)
    assert not any(isinstance(command, Read) for command in found)


def test_what_was_examined_is_not_read_before_what_waits_for_a_search() -> None:
    """A rotated file had been empty in the last run. What stood at the path was read before it."""
    log = Log(PATH)
    log.step(Examined(place(7, 0), Empty()))
    rotated, new = place(7, 3, f"{PATH}.1", 150), place(8, 4, modified=160)
    log.step(Seen(rotated, here=False))
    log.step(Seen(new, here=True))
    older, _ = log.step(Examined(place(7, 3, f"{PATH}.1", 150), plain(8)))
    assert isinstance(older, Keep)
    (newer,) = (each for each in log.step(Examined(new, plain(4))) if not isinstance(each, Conclude))
    assert isinstance(newer, Keep)
    commands = log.step(Sought(older.generation.source, rotated, intact=True))
    assert commands == [Read(older.generation), Read(newer.generation)]


def test_what_was_examined_waits_for_the_search_for_what_was_gone_before_it_could_be() -> None:
    """Two files were found. The first one was compressed before it was examined; killed then, it was lost."""
    log = log_with(known(7, 5))
    log.step(Seen(place(9, 2, modified=300), here=True))
    found = place(8, 6, f"{PATH}.1", 150)
    commands = log.step(Sought("0", place(7, 5, f"{PATH}.2"), intact=True, between=(found,)))
    assert [each.place for each in commands if isinstance(each, Examine)] == [found, place(9, 2, modified=300)]
    log.step(Missed(found.modified - 1))  # it was not there any more
    (seek,) = log.step(Listed())
    log.step(Answered(found.file))
    keep, *_ = log.step(Examined(place(9, 2, modified=300), plain(2)))
    log.step(Answered(place(9, 2).file))
    assert isinstance(keep, Keep)
    assert keep.generation.known.modified < found.modified, "the next run looks for it, too"
    packed = place(10, 4, f"{PATH}.1.gz", 150)._replace(codec="gz")
    commands = log.step(Sought(seek.generation.source, place(7, 5, f"{PATH}.3"), intact=True, between=(packed,)))
    assert [each.place for each in commands if isinstance(each, Examine)] == [packed]
    assert not any(isinstance(each, Read) for each in commands)
    first, *_ = log.step(Examined(packed, Plain(0, None)))
    again = log.step(Answered(packed.file)) or log.step(Sought(keep.generation.source, place(9, 2), intact=True))
    assert isinstance(first, Read)
    assert again == [Read(keep.generation)]
    assert birth_of(first.generation.source) < birth_of(keep.generation.source)


def test_what_a_stored_file_may_have_held_before_is_read_first() -> None:
    """Nothing of it was read in the last run. It was read before the copy of what it had held."""
    log = Log(PATH)
    source = name_source(place(7, 5).file)
    log.restore(source, 0, known(7, 5))
    log.step(Seen(place(7, 5, modified=300), here=True))
    log.step(Listed())
    copied = place(8, 3, f"{PATH}.1.gz", 200)._replace(codec="gz")
    commands = log.step(Sought(source, place(7, 5, modified=300), intact=True, between=(copied,)))
    assert not any(isinstance(each, Read) for each in commands)
    first, *_ = log.step(Examined(copied, Plain(0, None)))
    log.step(Answered(copied.file))
    commands = log.step(Sought(log.asked, place(7, 5, modified=300), intact=True))
    assert [each.generation for each in commands if isinstance(each, Read)] == log.generations[1:]
    assert first == Read(log.generations[0])


def test_what_may_have_been_in_a_file_before_is_sought_in_the_next_run_too() -> None:
    """The daemon was stopped during the search. Nothing of the file was read yet."""
    log = log_with(known(7, 5), position=0)
    assert log.step(Seen(place(7, 5, modified=200), here=True)) == []
    assert [each.generation.source for each in log.step(Listed()) if isinstance(each, Seek)] == ["0"]


def test_the_next_run_looks_for_what_was_found_and_not_stored_yet() -> None:
    """A log was copied and truncated twice around a start. The daemon stopped before the second copy was examined."""
    log = log_with(known(7, 5))
    log.step(Seen(place(7, 2, modified=300), here=True))
    copies = place(8, 6, f"{PATH}.2", 150), place(9, 4, f"{PATH}.1", 200)
    commands = log.step(Sought("0", place(7, 2, modified=300), rest=copies[0], between=copies[1:]))
    (anew,) = (each.generation for each in commands if isinstance(each, Keep))
    assert anew.known.path == PATH
    assert anew.known.modified < copies[1].modified


def test_a_compressed_file_with_less_than_its_file_had_is_a_loss() -> None:
    """The last lines came after it was made. Then its file was truncated."""
    log = log_with(known(7, 5))
    log.step(Seen(place(7, 5), here=True))
    log.step(Ended("0", End(TRUNCATED, PATH, 5, 9), known(7, 5)))
    gz = f"{PATH}.1.gz"
    commands = log.step(Sought("0", place(7, 0), rest=place(9, 20, gz)._replace(codec="gz")))
    (read,) = (each.generation for each in commands if isinstance(each, Read))
    (lost,) = (
        each.loss
        for each in log.step(Ended(read.source, End(CONCLUDED, gz, 5, 5), read.known))
        if isinstance(each, Lose)
    )
    assert (lost.thing, lost.start, lost.length, lost.exact) == (gz, 5, 4, False)


def test_how_much_is_missing_is_stored_while_it_is_sought() -> None:
    """The daemon stops before it is found, or not: the next run says what was lost."""
    log = log_with(known(7, 5))
    log.step(Seen(place(7, 5), here=True))
    commands = log.step(Ended("0", End(TRUNCATED, PATH, 5, 9), known(7, 5)))
    assert [each.generation.known.size for each in commands if isinstance(each, Keep)] == [9]


def test_what_a_run_with_an_end_left_in_a_file_is_said_by_the_next_one_if_it_is_gone() -> None:
    log, seen = Log(PATH), place(7, 10)
    (read,) = [each for each in log.step(Examined(seen, plain(10))) if isinstance(each, Read)]
    grown = read.generation.known._replace(size=15)
    (keep,) = log.step(Ended(read.generation.source, End(TAKEN, PATH, 10, 15), grown))
    assert isinstance(keep, Keep)
    assert (keep.generation.position, keep.generation.known.size) == (10, 15)


def test_what_a_run_with_an_end_left_in_a_file_is_read_where_that_is_compressed_meanwhile() -> None:
    """It was read there, and the next run told that it is lost."""
    log, seen = Log(PATH), place(7, 10)
    (read,) = [each for each in log.step(Examined(seen, plain(10))) if isinstance(each, Read)]
    left = read.generation
    log.step(Ended(left.source, End(TAKEN, PATH, 10, 15), left.known._replace(size=15)))
    packed = place(8, 6, f"{PATH}.1.gz")._replace(codec="gz")
    commands = log.step(Examined(packed, Copy(left.source, 0, sure=False)))
    (read,) = [each for each in commands if isinstance(each, Read)]
    assert read.generation.position == 10
    assert Forget(left, read.generation.source) in commands


@pytest.mark.parametrize("first", ["backup", "log"])
def test_what_is_found_in_place_of_what_is_looked_for_itself_is_read_there(first: str) -> None:
    """With `--once` a backup that the next rotation overwrote is sought, too. Its answer may come first, or last."""
    backup, truncated = known(8, 9, f"{PATH}.1"), known(7, 5)
    log = log_with(backup, truncated)
    log.careful = True
    (seek, *_) = log.step(Seen(place(8, 20, f"{PATH}.1"), here=False))
    assert isinstance(seek, Seek)
    (seek, *_) = log.step(Seen(place(7, 2), here=True))
    assert isinstance(seek, Seek)
    new = place(8, 20, f"{PATH}.1")
    answers = {"backup": Sought("0", at=new), "log": Sought("1", at=place(7, 2), rest=new)}
    did = [*log.step(answers.pop(first)), *log.step(answers.popitem()[1])]
    (read,) = [each.generation for each in did if isinstance(each, Read)]
    assert (read.known.path, read.position, log.of(new.file)) == (new.path, 5, read)
    assert {"0", "1"} == {each.generation.source for each in did if isinstance(each, Forget)}
    assert not [each for each in log.step(Examined(new, plain(20))) if isinstance(each, Read)]


def test_a_backup_of_an_earlier_run_that_was_overwritten_is_read_though_nobody_looked_at_it_yet() -> None:
    """A run with an end does not say of a backup that it is over. Its content came twice."""
    log = log_with(known(7, 5), known(8, 9, f"{PATH}.1"))
    log.careful = True
    log.step(Seen(place(7, 2), here=True))
    log.step(Seen(place(8, 20, f"{PATH}.1"), here=False))
    new = place(8, 20, f"{PATH}.1")
    (read,) = [each.generation for each in log.step(Sought("0", at=place(7, 2), rest=new)) if isinstance(each, Read)]
    assert (read.position, read.size) == (5, 20), "a run with an end reads as far as it is long now"
    (seek, *_) = log.step(Listed())
    assert isinstance(seek, Seek)
    did = log.step(Sought("1", at=new))
    assert "1" in {each.generation.source for each in did if isinstance(each, Forget)}
    assert not [each for each in log.step(Examined(new, plain(20))) if isinstance(each, Read)]
    assert log.of(new.file) is read


def test_a_known_file_waits_for_older_ones_until_it_is_known_that_they_are_not_to_be_had_now() -> None:
    log = log_with(known(7, 5, f"{PATH}.1")._replace(size=9), known(8, 5))
    assert log.step(Seen(place(8, 9), here=True)) == []
    assert log.waiting == (PATH,)
    assert [each.generation.source for each in log.step(Listed()) if isinstance(each, Seek)] == ["0"]
    (read,) = log.step(Sought("0", unavailable=True))
    assert isinstance(read, Read)
    assert read.generation.source == "1"


def test_what_replaces_a_known_file_waits_too_and_is_stored_before_that_one_is_forgotten() -> None:
    log = log_with(known(7, 5, f"{PATH}.2"), known(8, 5, f"{PATH}.1"), known(9, 5))
    log.step(Listed())
    kept, forgotten = log.step(Sought("1", rest=place(11, 20, f"{PATH}.1")))
    assert isinstance(kept, Keep)
    assert isinstance(forgotten, Forget)
    assert (kept.generation.position, kept.generation.known.done, forgotten.generation.source) == (5, False, "1")
    reads = log.step(Sought("0", rest=place(12, 20, f"{PATH}.2")))
    assert [each.generation.known.file.inode for each in reads if isinstance(each, Read)] == [12]
    reads = log.step(Sought("2", place(9, 5), intact=True))
    assert [each.generation.known.file.inode for each in reads if isinstance(each, Read)] == [11, 9]


def test_what_is_in_a_file_that_was_truncated_and_then_renamed_comes_before_the_next_file() -> None:
    """Nobody heard of it until the next file was read: it came behind that one's lines."""
    log = Log(PATH)
    (first,) = (each for each in log.step(Examined(place(7, 10), plain(10))) if isinstance(each, Read))
    log.step(Seen(place(7, 4, f"{PATH}.1"), here=False))
    log.step(Seen(place(8, 3), here=True))
    (latest,) = (each for each in log.step(Examined(place(8, 3), plain(3))) if isinstance(each, Read))
    source, copy, renamed = first.generation.source, place(9, 10, f"{PATH}.2"), place(7, 4, f"{PATH}.1")
    log.step(Ended(source, End(TRUNCATED, PATH, 0, 10), known(7, 10)))
    for each in (source, latest.generation.source):
        log.step(Sought(each, renamed if each is source else place(8, 3), rest=copy if each is source else None))
    commands = log.step(Examined(renamed, plain(4)))
    (again,) = (each for each in commands if isinstance(each, Read))
    assert [each.known.file.inode for each in log.generations] == [9, 7, 8]
    assert log.generations == sorted(log.generations, key=lambda each: birth_of(each.source))
    assert again.generation is log.generations[1]


@pytest.mark.parametrize(("size", "cut"), [(9, False), (8, True)])
def test_a_file_that_is_shorter_than_it_was_in_the_last_run_is_compared_before_it_is_read(
    size: int, *, cut: bool
) -> None:
    """It had 9 bytes, 5 of which were delivered. What was in it next was renamed, compressed, and never looked for."""
    log = log_with(known(7, 9))
    commands = log.step(Seen(place(7, size), here=True))
    assert [type(each) for each in commands] == [Seek if cut else Read]
