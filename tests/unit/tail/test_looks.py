"""What looks at real files, directories and links show, and how a file is found again."""

from __future__ import annotations

import errno
import gzip
import os
import random
import shutil
import stat
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.tail import listings, searching
from ingestd.tail.facts import (
    Copy,
    Empty,
    Examined,
    Place,
    Plain,
    Refused,
    Sought,
    Unreadable,
)
from ingestd.tail.file_id import FileId, identify
from ingestd.tail.generation import Generation, Phase
from ingestd.tail.globs import Globs
from ingestd.tail.known import Known, Sample, Witness
from ingestd.tail.listings import Near
from ingestd.tail.looks import Changed, Examination, Looks, Original, links_of
from ingestd.tail.searching import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingestd.tail.looks import Sighting
    from ingestd.tail.text import Text

NOTHING = Globs([], [])


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\n")
    return path


def place_of(path: Path, codec: str = "") -> Place:
    place = Looks().look(str(path)).place
    assert place is not None
    return place._replace(codec=codec)


def generation_of(known: Original, phase: Phase) -> Generation:
    return Generation(known.source, Known("", known.path, known.file, known.witness), known.position, phase)


def modified(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() + seconds, time.time() + seconds))


# Looking at a path


def test_a_file_is_seen_with_what_it_is(looks: Looks, log: Path) -> None:
    os.link(log, log.with_name("b.log"))
    status = log.stat()
    descriptor = os.open(log, os.O_PATH)
    expected = Place(str(log), identify(descriptor), 8, status.st_mtime_ns, links=2)
    os.close(descriptor)
    sighting = looks.look(str(log))
    assert (sighting.place, sighting.through, sighting.trouble) == (expected, (), None)


def test_a_link_is_seen_with_all_that_leads_through(looks: Looks, log: Path) -> None:
    directory = log.parent
    (directory / "sub").symlink_to(".")
    (directory / "middle").symlink_to("sub/a.log")
    (directory / "link").symlink_to(directory / "middle")
    sighting = looks.look(f"{directory}/link")
    assert sighting.place == place_of(log)
    assert sighting.through == tuple(f"{directory}/{name}" for name in ("link", "middle", "sub", "a.log"))


def test_nothing_there_is_no_trouble(looks: Looks, tmp_path: Path) -> None:
    for path in (f"{tmp_path}/none", f"{tmp_path}/none/deeper"):
        sighting = looks.look(path)
        assert (sighting.place, sighting.through, sighting.trouble) == (None, (), None)


def test_a_link_that_leads_nowhere_is_seen_with_where_it_leads(looks: Looks, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("away/none")
    sighting = looks.look(f"{tmp_path}/link")
    assert sighting.trouble == "a symbolic link that leads nowhere"
    assert sighting.through == (f"{tmp_path}/link", f"{tmp_path}/away/none")


@pytest.mark.parametrize(
    ("make", "trouble"),
    [
        (Path.mkdir, "a directory, not a file"),
        (os.mkfifo, "a FIFO, not a file"),
        (lambda path: path.symlink_to("/dev/null"), "a character device, not a file"),
        (lambda path: path.symlink_to(path), "can not be read: Too many levels of symbolic links"),
    ],
)
def test_what_is_no_file_is_trouble(looks: Looks, tmp_path: Path, make: Callable[[Path], object], trouble: str) -> None:
    make(tmp_path / "a.log")
    sighting = looks.look(f"{tmp_path}/a.log")
    assert (sighting.place, sighting.trouble) == (None, trouble)


def test_links_on_the_way_are_named_and_a_loop_ends(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    (tmp_path / "up").symlink_to("../")
    assert set(links_of(f"{tmp_path}/one")) >= {f"{tmp_path}/one", f"{tmp_path}/two"}
    assert links_of(f"{tmp_path}/up/{tmp_path.name}/up/a.log") == (f"{tmp_path}/up", f"{tmp_path.parent}/a.log")
    assert links_of(f"{tmp_path}/none") == ()


# A walk


def test_a_walk_looks_at_what_is_not_known_and_at_every_link(looks: Looks, log: Path) -> None:
    (log.parent / "link.log").symlink_to(log)
    (log.parent / "new.log").touch()
    inode = log.stat().st_ino
    walk = looks.walk(
        Globs([f"{log.parent}/*.log"], []), lambda _: None, lambda path, at: (path, at) == (str(log), inode)
    )
    assert [Path(sighting.path).name for sighting in walk.sightings] == ["link.log", "new.log"]
    assert walk.present == {str(log), f"{log.parent}/link.log", f"{log.parent}/new.log"}
    assert walk.troubles == {}


@pytest.mark.parametrize("happens", ["made", "deleted", "renamed", "anew", "gone"])
def test_a_directory_is_known_to_be_as_it_was_listed_until_names_change(
    looks: Looks, tmp_path: Path, happens: str
) -> None:
    directory = tmp_path / "sub"
    directory.mkdir()
    (directory / "a.log").touch()
    os.utime(directory, (1000, 1000))
    directories = looks.walk(Globs([f"{directory}/*"], []), lambda _: None, lambda *_: False).directories
    with (directory / "a.log").open("ab") as stream:
        stream.write(b"written\n")
    assert set(directories) == {str(directory)}
    assert not looks.changed(directories)
    if happens == "made":
        (directory / "b.log").touch()
    elif happens == "deleted":
        (directory / "a.log").unlink()
    elif happens == "renamed":
        (directory / "a.log").rename(directory / "b.log")
    else:
        directory.rename(tmp_path / "away")
    if happens == "anew":
        directory.mkdir()
        os.utime(directory, (1000, 1000))
    assert looks.changed(directories)


# Examining a file


def examine(looks: Looks, path: Path, *originals: Original, **settings: Any) -> Any:
    (examined,) = looks.examine([Examination(place_of(path, settings.pop("codec", "")), originals, **settings)])
    assert examined is not None
    assert examined.place.path == str(path)
    verdict = examined.verdict
    if isinstance(verdict, Copy):
        assert verdict.modified == path.stat().st_mtime_ns
        return replace(verdict, modified=0)
    return verdict


def original(path: Path, position: int, *, witness: Witness | None = None, reading: bool = True) -> Original:
    content = path.read_bytes()
    witness = witness or Witness.of(Sample.of(position, content[:position]))
    return Original("o", str(path), place_of(path).file, position, witness, reading)


@pytest.mark.parametrize(("cut", "most", "whole"), [(0, 1 << 20, True), (1, 1 << 20, False), (0, 100, False)])
def test_a_small_compressed_file_is_seen_to_be_complete(
    looks: Looks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int, most: int, whole: bool
) -> None:
    monkeypatch.setattr("ingestd.tail.looks._WHOLE_BYTES", most)
    packed = tmp_path / "a.log.1.gz"
    content = gzip.compress(random.Random(1).randbytes(200_000).hex().encode())
    packed.write_bytes(content[: len(content) - cut])
    assert examine(looks, packed, codec="gz", in_the_making=True) == (Plain(0) if whole else Empty())


def test_what_has_the_end_of_a_file_that_is_gone_is_a_copy_perhaps(looks: Looks, tmp_path: Path, log: Path) -> None:
    """What stands where that file was is not looked at."""
    copy = tmp_path / "copy"
    copy.write_bytes(log.read_bytes())
    gone = replace(original(log, 8), path="")
    assert examine(looks, copy, gone) == Copy("o", 0, sure=False)
    copy.write_bytes(b"another\n")
    assert isinstance(examine(looks, copy, gone), Plain)


def test_text_begins_at_its_beginning_and_is_known_by_its_end(looks: Looks, log: Path) -> None:
    assert examine(looks, log) == Plain(0, Witness.of(Sample.of(8, b"one\ntwo\n")).with_head(b"one\ntwo\n"))


@pytest.mark.parametrize(("content", "goes_on"), [(b"one\ntwo\n", True), (b"three\nfour\n", False), (b"x\n", False)])
def test_a_file_that_repeated_another_one_goes_on_or_has_other_text(
    looks: Looks, log: Path, content: bytes, goes_on: bool
) -> None:
    log.write_bytes(content)
    verdict = examine(looks, log, repeated=Witness.of(Sample.of(4, b"one\n")))
    assert (verdict.start, verdict.goes_on) == (0, goes_on)


@pytest.mark.parametrize(("content", "start"), [(b"one\ntwo", 4), (b"one\n", 4), (b"one", 0)])
def test_at_its_end_it_begins_behind_its_last_whole_line(looks: Looks, log: Path, content: bytes, start: int) -> None:
    log.write_bytes(content)
    assert examine(looks, log, at_end=True).start == start


def test_nul_bytes_at_the_beginning_nobody_wrote(looks: Looks, log: Path) -> None:
    log.write_bytes(b"\0" * 5000 + b"one\n")
    assert examine(looks, log).start == 5000
    log.write_bytes(b"\0" * 5000)
    assert examine(looks, log) == Empty()


def test_an_empty_file_is_empty_and_one_that_is_another_now_is_not_examined(looks: Looks, log: Path) -> None:
    wanted = Examination(place_of(log))
    log.write_bytes(b"")
    assert looks.examine([wanted]) == [Examined(wanted.place, Empty())]
    log.rename(log.with_name("kept"))
    log.write_bytes(b"another\n")
    kept = wanted.place._replace(path=str(log.with_name("kept")))
    assert looks.examine([wanted]) == [Examined(kept, Empty())], "where it is now"
    log.with_name("kept").unlink()
    assert looks.examine([wanted]) == [None]


def test_files_that_were_renamed_or_are_gone_are_looked_for_in_one_listing_of_their_directory(
    looks: Looks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A finder that is late finds most files renamed: a listing for each makes it later still.
    files = [tmp_path / f"{number}.log" for number in range(20)]
    for file in files:
        file.write_bytes(b"%s\n" % file.name.encode())
    wanted = [Examination(place_of(file)) for file in files]
    for file in files[:10]:
        file.rename(file.with_suffix(".1"))
    for file in files[10:]:
        file.unlink()
    listed: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or real(path))  # type: ignore[func-returns-value]
    examined = looks.examine(wanted)
    assert [each and each.place.path for each in examined] == [
        *(str(file.with_suffix(".1")) for file in files[:10]),
        *[None] * 10,
    ]
    assert len(listed) == 2


@pytest.mark.parametrize("content", [b"a\0b\n", gzip.compress(b"text\n")])
def test_what_is_no_text_is_refused_unless_it_is_asked_for(looks: Looks, log: Path, content: bytes) -> None:
    log.write_bytes(content)
    assert isinstance(examine(looks, log), Refused)
    assert examine(looks, log, binary=True).start == 0


@pytest.mark.parametrize("codec", ["gz", "bz2", "xz", "zst", "lz4"])
def test_what_is_called_compressed_and_is_not_is_refused_at_once(looks: Looks, tmp_path: Path, codec: str) -> None:
    # It was said to be damaged, and its data lost, after a minute in which it could have been completed.
    packed = tmp_path / f"a.log.{codec}"
    packed.write_bytes(b"plain text\n" * 20)
    why = f"not compressed, though its name ends in .{codec}: give it another name, or exclude it"
    for making in (True, False):
        assert examine(looks, packed, codec=codec, in_the_making=making) == Refused(why)
    assert examine(looks, packed, codec=codec, binary=True) == Refused(why)


def test_what_is_compressed_in_another_way_than_its_name_says_is_refused_with_the_right_ending(
    looks: Looks, tmp_path: Path
) -> None:
    packed = tmp_path / "a.log.xz"
    packed.write_bytes(gzip.compress(b"text\n"))
    refused = examine(looks, packed, codec="xz")
    assert isinstance(refused, Refused)
    assert "give its name the ending .gz" in refused.reason


@pytest.mark.parametrize(
    ("codec", "head"),
    [
        ("gz", b""),
        ("gz", b"\x1f"),
        ("gz", gzip.compress(b"text\n")),
        ("gz", bytes(8) + gzip.compress(b"text\n")),  # made long before it is written
        ("xz", b"\xfd7zX"),
        ("zst", b"\x50\x2a\x4d\x18\x04\0\0\0"),  # a frame that is skipped
        ("lz4", b"\x5f\x2a\x4d\x18\x04\0\0\0"),
    ],
)
def test_what_may_be_compressed_is_not_refused_for_that(looks: Looks, tmp_path: Path, codec: str, head: bytes) -> None:
    packed = tmp_path / f"a.log.1.{codec}"
    packed.write_bytes(head)
    assert not isinstance(examine(looks, packed, codec=codec), Refused)


def test_what_may_not_be_opened_is_unreadable_now(looks: Looks, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ingestd.tail.looks.open_text", refuse)
    assert examine(looks, log) == Unreadable("can not be read: Permission denied")


def test_a_compressed_file_is_read_from_its_beginning_once_it_is_made(looks: Looks, log: Path) -> None:
    packed = log.with_name("a.log.gz")
    packed.write_bytes(gzip.compress(b"of another file\n"))
    assert examine(looks, packed, codec="gz") == Empty(), "what it is made of is there still"
    known = original(log, 8)
    log.unlink()
    assert examine(looks, packed, known, codec="gz").start == 0


def test_a_compressed_file_may_be_what_became_of_a_known_one(looks: Looks, log: Path) -> None:
    known = original(log, 4)
    packed = log.with_name("a.log.gz")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    assert examine(looks, packed, known, codec="gz") == Copy("o", 0, sure=False)


def test_of_two_logs_with_the_same_lines_a_compressed_file_is_of_the_one_it_is_called_after(
    looks: Looks, log: Path
) -> None:
    packed = log.with_name("a.log.1.gz")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    own = original(log, 8)
    another = replace(original(log, 4), source="another", akin=False)
    assert examine(looks, packed, another, own, codec="gz") == Copy("o", 0, sure=False)


# Copies


@pytest.mark.parametrize("length", [4, 8])
def test_the_beginning_of_a_known_file_is_a_copy_as_far_as_it_goes(looks: Looks, log: Path, length: int) -> None:
    copy = log.with_name("copy")
    copy.write_bytes(log.read_bytes()[:length])
    found = examine(looks, copy, original(log, 8))
    copied = b"one\ntwo\n"[:length]
    witness = Witness.of(Sample.of(length, copied)).with_head(copied)
    assert found == Copy(
        "o", length, witness, original_modified=log.stat().st_mtime_ns, later=found.later, unfinished=found.unfinished
    )


def test_what_was_made_after_the_last_write_to_a_longer_file_is_no_finished_copy_of_it(looks: Looks, log: Path) -> None:
    os.utime(log, (1, 1))
    copy = log.with_name("copy")
    copy.write_bytes(log.read_bytes()[:4])
    assert examine(looks, copy, original(log, 8)).unfinished
    copy.write_bytes(log.read_bytes())
    assert not examine(looks, copy, original(log, 8)).unfinished


def test_a_file_with_the_same_header_is_no_copy(looks: Looks, log: Path) -> None:
    header = b"#" * 5000 + b"\n"
    log.write_bytes(header + b"one\n" * 10)
    other = log.with_name("other")
    other.write_bytes(header + b"ONE\n")
    assert isinstance(examine(looks, other, original(log, len(header) + 4)), Plain)


def test_a_file_of_another_name_does_not_wait_for_what_a_reader_may_know(looks: Looks, log: Path) -> None:
    known = replace(original(log, 8), reading=True)
    other = log.with_name("other")
    other.write_bytes(b"other\n")
    log.write_bytes(b"new\n")
    assert examine(looks, other, known) == Copy("o", 0, sure=False)
    assert isinstance(examine(looks, other, replace(known, akin=False)), Plain)


def test_what_a_truncated_file_held_is_a_copy_though_it_is_not_sure(looks: Looks, log: Path) -> None:
    known = original(log, 8)
    copy = log.with_name("copy")
    shutil.copyfile(log, copy)
    log.write_bytes(b"new\n")
    assert examine(looks, copy, known) == Copy("o", 0, sure=False)
    copy.write_bytes(b"something else\n")
    # Its reader may have read on before the truncation: only when it says so is it known what this is.
    assert examine(looks, copy, known) == Copy("o", 0, sure=False)
    assert isinstance(examine(looks, copy, replace(known, reading=False)), Plain)


def test_what_a_file_held_that_is_gone_is_known_by_the_witness(looks: Looks, log: Path) -> None:
    known = original(log, 8, reading=False)
    copy = log.with_name("copy")
    copy.write_bytes(log.read_bytes() + b"three\n")
    log.unlink()
    assert examine(looks, copy, known) == Copy("o", 0, sure=False)
    copy.write_bytes(b"ONE\nTWO\n")
    assert isinstance(examine(looks, copy, known), Plain)


def test_what_a_round_compared_is_known_by_how_it_begins(looks: Looks, log: Path) -> None:
    other = log.with_name("other")
    other.write_bytes(b"other\n")
    known = original(log, 8)
    heads = looks.heads([place_of(other), place_of(log)._replace(path="/nowhere")])
    assert heads.seen == {place_of(other).file: b"other\n"}
    assert examine(looks, other, known).start == 0
    assert heads.examined == {place_of(other).file: b"other\n"}
    reading = generation_of(known, Phase.READING)
    begins = {head: not heads.apart_from(head)(reading) for head in (b"other\n", b"on", b"one\ntwo\nthree", b"")}
    assert [head for head, alike in begins.items() if alike] == [b"on", b"one\ntwo\nthree", b""]


@pytest.mark.parametrize("phase", [Phase.STORED, Phase.SOUGHT, Phase.DONE])
def test_what_nobody_reads_is_known_by_how_it_began(looks: Looks, log: Path, phase: Phase) -> None:
    over = generation_of(original(log, 8), phase)
    heads = looks.heads([])
    assert over.known.witness is not None
    over.known = over.known._replace(witness=over.known.witness.with_head(b"one\ntwo\n"))
    begins = {head: not heads.apart_from(head)(over) for head in (b"one\nTWO\n", b"on", b"one\ntwo\nthree", b"")}
    assert [head for head, alike in begins.items() if alike] == [b"on", b"one\ntwo\nthree", b""]
    over.known = over.known._replace(witness=None)
    assert not heads.apart_from(b"other\n")(over)


def test_what_was_truncated_is_not_known_by_how_it_begins(looks: Looks, log: Path) -> None:
    """What comes may be a copy of what it held: that is seen only where both are compared."""
    other = log.with_name("other")
    other.write_bytes(b"other\n")
    known = original(log, 8)
    log.write_bytes(b"new\n")
    heads = looks.heads([place_of(other)])
    assert examine(looks, other, known) == Copy("o", 0, sure=False)
    assert not heads.apart_from(b"other\n")(generation_of(known, Phase.READING))


@pytest.mark.parametrize("codec", ["", "gz"])
def test_what_begins_in_another_way_than_when_its_originals_were_chosen_has_changed(
    looks: Looks, tmp_path: Path, codec: str
) -> None:
    file = tmp_path / "a.log.1.gz"
    file.write_bytes(gzip.compress(b"one\n") if codec else b"one\n")
    verdicts = [examine(looks, file, codec=codec, head=head) for head in (b"", b"on", b"one\n", b"one\ntwo", b"two")]
    assert [isinstance(verdict, Changed) for verdict in verdicts] == [False, False, False, True, True]


# Searching a generation


def search(path: Path, known: Known, position: int, **changes: Any) -> Search:
    wanted = Search(
        "s",
        known,
        position,
        directories=(str(path.parent),),
        names=(path.name,),
        elsewhere=(),
        rotated=NOTHING,
        others=(),
        newest=True,
        here=None,
        taken=lambda _: False,
        matched=lambda _: False,
    )
    return replace(wanted, **changes)


def known_of(path: Path, position: int) -> Known:
    place = place_of(path)
    witness = Witness.of(Sample.of(position, path.read_bytes()[:position]))
    return Known(str(path), str(path), place.file, witness, place.size, place.modified)


def find(looks: Looks, *searches: Search) -> list[Any]:
    return list(looks.search(searches))


def test_a_renamed_file_is_found_by_its_identity(looks: Looks, log: Path) -> None:
    wanted = search(log, known_of(log, 8), 8)
    log.rename(log.with_name("whatever"))
    (found,) = find(looks, wanted)
    assert found.at == place_of(log.with_name("whatever"))
    assert found.intact


def test_a_truncated_file_is_found_without_its_content_and_the_copy_with_it(looks: Looks, log: Path) -> None:
    wanted = search(log, known_of(log, 8), 8)
    shutil.copyfile(log, log.with_name("a.log.1"))
    log.write_bytes(b"new content\n")
    (found,) = find(looks, wanted)
    assert found.at == place_of(log)
    assert not found.intact
    assert found.rest == place_of(log.with_name("a.log.1"))


def test_of_several_copies_the_newest_is_the_one(looks: Looks, log: Path) -> None:
    wanted = search(log, known_of(log, 8), 8)
    for number in (1, 2, 3):
        shutil.copyfile(log, log.with_name(f"a.log.{number}"))
        modified(log.with_name(f"a.log.{number}"), -10 * number)
    log.write_bytes(b"")
    (found,) = find(looks, wanted)
    assert found.rest == place_of(log.with_name("a.log.1"))
    taken = place_of(log.with_name("a.log.1"))
    (found,) = find(looks, replace(wanted, taken=lambda place: place == taken))
    assert found.rest == place_of(log.with_name("a.log.2"))


def test_a_compressed_successor_is_found_by_its_text(looks: Looks, log: Path) -> None:
    wanted = search(log, known_of(log, 4), 4)
    packed = log.with_name("a.log.1.gz")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    log.with_name("a.log.2.gz").write_bytes(gzip.compress(b"ONE\nTWO\n"))
    log.unlink()
    (found,) = find(looks, wanted)
    assert found.at is None
    assert found.rest == place_of(packed, "gz")


@pytest.mark.parametrize("codec", ["", "gz"])
@pytest.mark.parametrize("before", [b"an older text\n", b"one\ntwo\n", b""])
def test_content_is_found_in_what_was_known_and_is_overwritten(
    looks: Looks, log: Path, codec: str, before: bytes
) -> None:
    def compress(text: bytes) -> bytes:
        return gzip.compress(text) if codec else text

    wanted = search(log, known_of(log, 8), 8, taken=lambda _: True)
    backup = log.with_name(f"a.log.1.{codec}" if codec else "a.log.1")
    backup.write_bytes(compress(before))
    modified(backup, -100)
    at = len(before)
    witness = Witness.of(Sample.of(at, before)) if at else None
    old = Known(str(log), str(backup), place_of(backup).file, witness, at, place_of(backup).modified, codec, done=True)
    backup.write_bytes(compress(log.read_bytes()))
    log.write_bytes(b"")
    (found,) = find(looks, replace(wanted, over=lambda _: old))
    # With what was known still in it, it is no other file's copy. A plain one that was empty is not taken for known.
    assert (found.rest is not None) == (before[:1] == b"a" or bool(codec and not before))
    modified(backup, -100)
    (found,) = find(looks, replace(wanted, over=lambda _: old._replace(modified=place_of(backup).modified)))
    assert found.rest is None, "it was not modified since it was known"


def test_a_compressed_file_beside_an_old_one_of_another_content_is_complete(looks: Looks, log: Path) -> None:
    """Rotated files are compressed since a while, and those from before are never renamed again: lines were lost."""
    wanted = search(log, known_of(log, 4), 4)
    old, packed = log.with_name("a.log.1"), log.with_name("a.log.1.gz")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    for text in (b"one\ntwo\n", b"an old one\n", b""):
        old.write_bytes(text)
        modified(old, -1000)
        (found,) = find(looks, wanted)
        assert found.rest == (place_of(old) if text.startswith(b"one") else place_of(packed, "gz"))


def test_what_was_compressed_before_it_was_written_is_not_opened(looks: Looks, log: Path) -> None:
    packed, text = log.with_name("a.log.1.gz"), log.read_bytes()
    packed.write_bytes(gzip.compress(text))
    modified(packed, -100)
    time.sleep(0.02)  # longer than the grain of the kernel's times
    log.write_bytes(text)
    wanted = search(log, known_of(log, 8), 8)
    log.unlink()
    (found,) = find(looks, wanted)
    assert found.rest is None


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_was_compressed_is_found_though_it_was_given_an_older_time(
    looks: Looks, log: Path, elsewhere: bool
) -> None:
    """What logrotate compresses at once has the time of before its run: the last lines of a copy were not read."""
    wanted = search(log, known_of(log, 4), 4, rotated=Globs([f"{log.parent}/old/*"], []) if elsewhere else NOTHING)
    packed = log.parent / "old" / "a.log.1.gz" if elsewhere else log.with_name("a.log.1.gz")
    packed.parent.mkdir(exist_ok=True)
    packed.write_bytes(gzip.compress(log.read_bytes()))
    modified(packed, -100)
    log.write_bytes(b"")
    (found,) = find(looks, wanted)
    assert found.rest == place_of(packed, "gz")


def test_compressed_content_is_left_to_a_generation_that_is_gone_and_of_which_more_was_read(
    looks: Looks, log: Path
) -> None:
    """A header alone took what the generation before it had, with lines that were not read of that: they came twice."""
    before = log.with_name("a.log.1")
    before.write_bytes(b"one\ntwo\nthree\n")
    wanted = search(log, known_of(log, 4), 4, others=(known_of(before, 8),))
    log.with_name("a.log.2.gz").write_bytes(gzip.compress(before.read_bytes()))
    log.unlink()
    before.unlink()
    (found,) = find(looks, wanted)
    assert found.rest is None


def test_without_a_witness_content_says_nothing(looks: Looks, log: Path) -> None:
    known = known_of(log, 8)._replace(witness=None)
    shutil.copyfile(log, log.with_name("a.log.1"))
    log.unlink()
    (found,) = find(looks, search(log, known, 0))
    assert (found.at, found.rest) == (None, None)


def test_what_came_and_was_rotated_since_is_found_the_oldest_first(looks: Looks, log: Path) -> None:
    wanted = search(log, known_of(log, 8), 8)
    log.rename(log.with_name("a.log.3"))
    modified(log.with_name("a.log.3"), 0)
    for number in (2, 1):
        log.with_name(f"a.log.{number}").write_text(f"{number}\n")
        modified(log.with_name(f"a.log.{number}"), 30 - 10 * number)
    for name in ("a.log.9", "b.log.1", "a.log.txt"):
        log.with_name(name).write_text("older, or of another log\n")
    modified(log.with_name("a.log.9"), -1000)
    modified(log.with_name("b.log.1"), 10)
    modified(log.with_name("a.log.txt"), 10)
    (found,) = find(looks, wanted)
    assert found.intact
    assert [Path(place.path).name for place in found.between] == ["a.log.2", "a.log.1"]
    (found,) = find(looks, replace(wanted, matched=lambda path: path.endswith(".2")))
    assert [Path(place.path).name for place in found.between] == ["a.log.1"]
    (found,) = find(looks, replace(wanted, newest=False))
    assert found.between == ()


def test_what_came_since_may_have_been_moved_away_under_the_name_that_it_was_written_under(
    looks: Looks, log: Path
) -> None:
    wanted = search(log, known_of(log, 8), 8)
    moved = log.parent / "moved"
    log.rename(log.with_name("a.log.1"))
    log.write_bytes(b"new\n")
    modified(log, 10)
    moved.mkdir()
    for name in ("a.log", "a.log.1"):
        log.with_name(name).rename(moved / name)
    (found,) = find(looks, replace(wanted, rotated=Globs([f"{moved}/*"], [])))
    assert found.intact
    assert [place.path for place in found.between] == [f"{moved}/a.log"]


def test_where_rotated_files_are_moved_to_is_listed_anew_once_it_is_another(looks: Looks, log: Path) -> None:
    """What the last search found there is kept. The directory may be made, opened to us, or written to since."""
    moved = log.parent / "moved"
    wanted = replace(search(log, known_of(log, 8), 8), rotated=Globs([f"{moved}/*/*"], []))
    copy, other = moved / "1" / "copy", moved / "1" / "other"
    copied = log.read_bytes()
    log.unlink()
    assert find(looks, wanted)[0].rest is None
    moved.mkdir()
    assert find(looks, wanted)[0].rest is None
    copy.parent.mkdir()
    other.write_bytes(copied)
    modified(other, -100)
    for directory in (moved, copy.parent):
        modified(directory, -50)
    assert find(looks, wanted)[0].rest is None, "it is older than what is sought"
    modified(other, 10)
    assert find(looks, wanted)[0].rest == place_of(other), "it was written to, which its directory does not show"
    other.write_bytes(b"")
    copy.write_bytes(copied)
    assert find(looks, wanted)[0].rest == place_of(copy)


@pytest.mark.parametrize("kind", ["a directory", "a FIFO", "a socket", "a link to a FIFO"])
def test_where_rotated_files_are_moved_to_may_be_other_things_than_files(looks: Looks, log: Path, kind: str) -> None:
    """All searches waited for these to become files."""
    moved = log.parent / "moved"
    moved.mkdir()
    globs = [f"{moved}/*"]
    match kind:
        case "a directory":
            globs.append(str(moved))
        case "a FIFO":
            os.mkfifo(moved / "a.log.1")
        case "a socket":
            os.mknod(moved / "a.log.1", stat.S_IFSOCK | 0o600)
        case "a link to a FIFO":
            os.mkfifo(log.parent / "fifo")
            (moved / "a.log.1").symlink_to(log.parent / "fifo")
    wanted = replace(search(log, known_of(log, 8), 8), rotated=Globs(globs, []))
    copied = log.read_bytes()
    log.unlink()
    assert find(looks, wanted)[0] == Sought(wanted.source)
    (moved / "a.log.2").write_bytes(copied)
    assert find(looks, wanted)[0].rest == place_of(moved / "a.log.2")


def test_what_a_search_listed_is_let_go_when_there_was_none_for_a_while(looks: Looks, log: Path) -> None:
    wanted = replace(search(log, known_of(log, 8), 8), rotated=Globs([f"{log.parent}/moved/*"], []))
    find(looks, wanted)
    looks.rest()
    assert looks._rotated
    looks.rest()
    assert not looks._rotated
    assert find(looks, wanted)[0].intact


def test_other_directories_are_looked_through_where_it_is_said(looks: Looks, log: Path) -> None:
    old = log.with_name("old")
    old.mkdir()
    wanted = search(log, known_of(log, 8), 8)
    shutil.copyfile(log, old / "a.log.1")
    log.unlink()
    assert find(looks, wanted)[0].rest is None
    assert find(looks, replace(wanted, rotated=Globs([f"{old}/*"], [])))[0].rest == place_of(old / "a.log.1")
    assert find(looks, replace(wanted, elsewhere=(f"{old}/a.log.1",)))[0].rest == place_of(old / "a.log.1")


def test_archives_are_looked_at_once_for_all_that_is_sought_and_old_ones_never(looks: Looks, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    logs = [tmp_path / f"{number}.log" for number in range(30)]
    for log in logs:
        log.write_text(f"{log.name}\n")
    searches = [search(log, known_of(log, 2), 2, rotated=Globs([f"{archive}/*"], [])) for log in logs]
    for number in range(20):
        (archive / f"of-today-{number}").write_text("other")
        (archive / f"of-old-{number}").write_text("other")
        os.utime(archive / f"of-old-{number}", (0, 0))
    shutil.copyfile(logs[7], archive / "seven")
    for log in logs:
        log.unlink()
    found = find(looks, *searches)
    assert [one.rest for one in found] == [place_of(archive / "seven") if log is logs[7] else None for log in logs]
    assert looks.steps == len(logs) + 20 + 1  # where each was, and each file of today


def test_a_directory_is_listed_once_for_all_that_is_sought_in_it(
    looks: Looks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []
    for number in range(50):
        path = tmp_path / f"{number}.log"
        path.write_text(f"{number}\n")
        searches.append(search(path, known_of(path, 2), 2))
    for number in range(50):
        (tmp_path / f"{number}.log").rename(tmp_path / f"{number}.log.1")
    os.utime(tmp_path, (0, 0))  # nothing has happened there for a while
    listed: list[Any] = []
    scandir = os.scandir

    def counted(path: str) -> Any:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    assert all(found.intact for found in find(looks, *searches))
    assert listed == [str(tmp_path)]


@pytest.mark.parametrize("mounted", ["not at all", "empty"])
def test_what_is_on_a_file_system_that_is_not_there_can_not_be_sought(
    looks: Looks, tmp_path: Path, mounted: str
) -> None:
    path = tmp_path / "mount" / "a.log"
    if mounted == "empty":
        path.parent.mkdir()
    known = Known(str(path), str(path), FileId(1, 2), Witness.of(Sample.of(1, b"1")), 1)
    wanted = search(path, known, 1, matched=lambda _: True)
    (found,) = find(looks, wanted)
    assert found.unavailable
    (found,) = find(looks, replace(wanted, matched=lambda _: False))
    assert not found.unavailable, "no glob matches the log any more: it will not come back"
    path.parent.mkdir(exist_ok=True)
    (path.parent / "other").touch()
    (found,) = find(looks, wanted)
    assert (found.unavailable, found.at, found.rest) == (False, None, None)


def test_on_an_overlay_a_directory_has_another_device_number_than_its_files_and_what_is_gone_is_gone(
    looks: Looks, log: Path
) -> None:
    # Where its layers are on several file systems. The directory, empty by then, was taken for one that is not mounted.
    known = known_of(log, 8)
    log.unlink()
    for other in log.parent.iterdir():
        other.unlink()
    of_a_layer = known.file._replace(device=known.file.device + 1, volume=f"{known.file.volume}-29-9be183")
    followed = {"matched": lambda _: True}
    (found,) = find(looks, search(log, known._replace(file=of_a_layer), 8, **followed))
    assert (found.unavailable, found.at) == (False, None)
    (found,) = find(looks, search(log, known._replace(file=of_a_layer._replace(volume="aa")), 8, **followed))
    assert found.unavailable


class OfALayer:
    """An entry of a directory whose file has another inode number than the directory says."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry = entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def inode(self) -> int:
        return self._entry.inode() + 1_000_000


@contextmanager
def listed_by_layer(directory: str) -> Iterator[Iterator[OfALayer]]:
    with SCANDIR(directory) as entries:
        yield (OfALayer(entry) for entry in entries)


SCANDIR = os.scandir


@pytest.mark.parametrize("moved", [False, True])
def test_on_an_overlay_a_directory_lists_other_inode_numbers_than_its_files_have(
    looks: Looks, log: Path, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    # The image's log is renamed while the daemon is down, and a new one made. The search never ended: every look at the
    # rotated file said that it had just been renamed. So nothing of the new log was ever read, and nothing was said.
    monkeypatch.setattr(listings, "lists_other_inodes", lambda _: True)
    monkeypatch.setattr(os, "scandir", listed_by_layer)
    wanted = search(log, known_of(log, 8), 8)
    rotated = log.with_name(f"{log.name}.2")
    if moved:
        rotated = log.parent / "old" / "other"
        rotated.parent.mkdir()
        wanted = replace(wanted, rotated=Globs([f"{rotated.parent}/*"], []))
    log.rename(rotated)
    log.write_bytes(b"new\n")
    (found,) = find(looks, wanted)
    assert not found.unavailable
    assert found.at == place_of(rotated)
    assert found.intact


def test_a_file_on_another_disk_may_have_the_inode_number_of_one_that_has_other_content(
    log: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log was compressed, and moved to another disk. A rotation beside it had that inode number: it was not found."""

    class Disks(Looks):
        def look(self, path: str) -> Sighting:
            seen = super().look(path)
            place = seen.place
            return seen if place is None else seen._replace(place=place._replace(file=place.file._replace(inode=7)))

    monkeypatch.setattr(listings, "_listed", lambda _: 7)
    monkeypatch.setattr(searching, "identify", lambda descriptor: identify(descriptor)._replace(inode=7))
    wanted = search(log, known_of(log, 8), 8, rotated=Globs([f"{elsewhere}/*"], []))
    log.with_name("a.log.1").write_bytes(b"other\ntext\n")
    (elsewhere / "a.log.2.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    (found,) = find(Disks(), wanted)
    assert found.rest is not None
    assert found.rest.path == str(elsewhere / "a.log.2.gz")


def test_files_of_two_disks_may_have_one_inode_number_and_each_has_its_names(looks: Looks, log: Path) -> None:
    file = place_of(log).file
    other = file._replace(device=file.device + 1)
    assert looks.names_of([file, other], [str(log.parent)]) == {each: [str(log)] for each in (file, other)}


def test_an_error_of_one_search_is_not_the_others(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Looks):
        def look(self, path: str) -> Sighting:
            if path.endswith("b.log"):
                raise OSError(5, "Input/output error")
            return super().look(path)

    other = tmp_path / "b.log"
    shutil.copyfile(log, other)
    searches = [search(path, known_of(path, 8), 8) for path in (other, log)]
    first, second = find(Failing(), *searches)
    assert first.unavailable
    assert second.intact


def test_where_one_file_of_a_directory_went_the_others_are_sought(looks: Looks, tmp_path: Path) -> None:
    # Only of the first it is known where the directory went: of its rotations one was seen there.
    directory, moved = tmp_path / "logs", tmp_path / "logs.1"
    directory.mkdir()
    searches = []
    for name in ("a.log", "b.log", "c.log"):
        path = directory / name
        path.write_bytes(b"of " + name.encode())
        searches.append(search(path, known_of(path, 8), 8))
    directory.rename(moved)
    (moved / "c.log").unlink()
    searches[0] = replace(searches[0], directories=(str(directory), str(moved)))
    first, second, third = find(looks, *searches)
    assert [found.at for found in (first, second, third)] == [*map(place_of, (moved / "a.log", moved / "b.log")), None]
    assert second.intact
    assert not third.unavailable


def test_what_has_only_a_header_does_not_take_the_file_of_what_has_more(looks: Looks, tmp_path: Path) -> None:
    """Its position was the other one's then, and lines came twice."""
    header, lines = tmp_path / "a.log", tmp_path / "b.log"
    header.write_bytes(b"header\n")
    lines.write_bytes(b"header\nline\n")
    wanted = [search(path, known_of(path, path.stat().st_size), path.stat().st_size) for path in (header, lines)]
    wanted = [replace(each, source=each.known.path, names=("a.log", "b.log")) for each in wanted]
    for path in (header, lines):
        shutil.copy2(path, path.with_name(f"{path.name}.1"))
        path.unlink()
    modified(tmp_path / "a.log.1", -10)
    assert [found.rest for found in find(looks, *wanted)] == [place_of(tmp_path / f"{each}.log.1") for each in "ab"]
    copy = tmp_path / "copy.log"
    copy.write_bytes(b"header\nline\n")
    gone = [replace(original(copy, at), source=str(at), path="") for at in (7, 12)]
    assert examine(looks, copy, *gone) == Copy("12", 0, sure=False)


def test_of_copies_with_one_beginning_the_one_with_the_time_of_the_file_is_it(looks: Looks, tmp_path: Path) -> None:
    """Logs that were moved to another machine, while they had only a header."""
    log = tmp_path / "a.log"
    log.write_bytes(b"header\n")
    wanted = search(log, known_of(log, 7)._replace(modified=log.stat().st_mtime_ns), 7)
    copies = [log.with_name(name) for name in ("a.log.1", "a.log.2")]
    for copy in copies:
        shutil.copy2(log, copy)
    log.unlink()
    modified(copies[1], 10)
    (found,) = find(looks, wanted)
    assert found.rest == place_of(copies[0])


def test_what_came_after_a_log_is_sought_in_directories_that_are_near(looks: Looks, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    log = tmp_path / "a" / "app.log"
    for directory in (log.parent, moved / "a", moved / "b", moved / "b" / "c", moved / "bc"):
        directory.mkdir(parents=True)
    log.write_bytes(b"old line")
    globs = Globs([f"{moved}/*/*", f"{moved}/*/*/*"], [])
    wanted = search(log, known_of(log, 8), 8, rotated=globs, new_since=1)
    for name in ("a", "b", "b/c", "bc"):
        (moved / name / "app.log.1").write_bytes(b"new line")

    def between(wanted: Search) -> set[str]:
        (found,) = find(looks, wanted)
        return {os.path.relpath(place.path, moved) for place in found.between}

    assert between(wanted) == {"a/app.log.1", "b/app.log.1", "b/c/app.log.1", "bc/app.log.1"}
    assert between(replace(wanted, near=Near("a", (f"{moved}/b",)))) == {"a/app.log.1", "b/app.log.1", "b/c/app.log.1"}


def test_what_was_moved_belongs_to_the_nearest_of_the_logs_with_one_name(looks: Looks, tmp_path: Path) -> None:
    """Of /l/web/app.log and /l/mail/app.log; below /archive, directories are called like those of the logs."""
    directories = {name: tmp_path / "l" / name for name in ("web", "mail")}
    log = directories["web"] / "app.log"
    (tmp_path / "l").mkdir()
    moved = [each / "old" for each in directories.values()] + [tmp_path / "archive" / name for name in directories]
    moved.append(tmp_path / "archive" / "all")
    for directory in moved:
        directory.mkdir(parents=True)
        (directory / "app.log.1").write_bytes(b"new line")
    log.write_bytes(b"old line")
    globs = Globs([f"{tmp_path}/l/*/old/*", f"{tmp_path}/archive/*/*"], [])
    wanted = search(log, known_of(log, 8), 8, rotated=globs, new_since=1, others_in=(str(directories["mail"]),))
    (found,) = find(looks, wanted)
    assert {str(Path(place.path).parent.relative_to(tmp_path)) for place in found.between} == {
        "l/web/old",
        "archive/web",
        "archive/all",
    }


def test_a_file_that_may_not_be_read_now_is_found_by_its_handle(
    looks: Looks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was taken for truncated, and read again from its start once it might be.
    log = tmp_path / "a.log"
    log.write_bytes(b"line\n")
    wanted = search(log, known_of(log, 5), 5)
    log.rename(tmp_path / "a.log.1")

    def closed(path: str, codec: str = "") -> Text:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(searching, "open_text", closed)
    monkeypatch.setattr(searching.os, "access", lambda path, mode, *, effective_ids: path == str(tmp_path))
    (found,) = find(looks, wanted)
    assert found.at is not None
    assert found.at.path == f"{log}.1"
    assert found.intact


def test_a_file_that_waits_in_another_directory_is_no_content_of_what_one_beside_the_log_has(
    looks: Looks, tmp_path: Path
) -> None:
    """Both begin with the same header. The other one is newer, and was taken for the rest of this log's file."""
    log, other = tmp_path / "one" / "app.log", tmp_path / "two" / "app.log.1"
    log.parent.mkdir()
    other.parent.mkdir()
    log.write_bytes(b"header\n")
    wanted = search(log, known_of(log, 7), 7, elsewhere=(str(other),))
    packed = log.with_name("app.log.1.gz")
    packed.write_bytes(gzip.compress(b"header\n"))
    os.utime(packed, ns=(wanted.known.modified + 10**9,) * 2)
    other.write_bytes(b"header\nanother line\n")
    os.utime(other, ns=(wanted.known.modified + 2 * 10**9,) * 2)
    log.unlink()
    (found,) = find(looks, wanted)
    assert found.rest is not None
    assert found.rest.path == str(packed)


def test_of_what_was_moved_only_paths_with_a_part_are_compared_where_that_is_asked(
    looks: Looks, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    log = tmp_path / "web" / "app.log"
    for directory in (log.parent, moved):
        directory.mkdir(parents=True)
    log.write_bytes(b"line\n")
    wanted = replace(search(log, known_of(log, 5), 5, rotated=Globs([f"{moved}/*"], [])), part="web")
    log.rename(moved / "other-app.log")
    (moved / "other-app.log").write_bytes(b"")
    for name in ("api-app.log", "web-app.log"):
        (moved / name).write_bytes(b"line\n")
    (found,) = find(looks, wanted)
    assert found.rest is not None
    assert found.rest.path == f"{moved}/web-app.log"
    (moved / "web-app.log").unlink()
    (found,) = find(looks, wanted)
    assert found.rest is None


def test_where_other_names_of_a_file_are_sought_nothing_that_came_after_it_is(looks: Looks, tmp_path: Path) -> None:
    log = tmp_path / "a" / "app.log"
    other, moved = tmp_path / "b", tmp_path / "moved"
    for directory in (log.parent, other, moved):
        directory.mkdir()
    log.write_bytes(b"old line")
    wanted = search(log, known_of(log, 8), 8, new_since=1)
    for directory in (other, moved):
        (directory / "app.log.1").write_bytes(b"new line")
    both = (str(log.parent), str(other), str(moved))
    wanted = replace(wanted, directories=both, linked=frozenset(both[1:]))
    (found,) = find(looks, wanted)
    assert found.between == ()
    # Another log's file may be known where rotated files are moved to: what came after this one is there all the same.
    (found,) = find(looks, replace(wanted, rotated=Globs([f"{moved}/*"], [])))
    assert [place.path for place in found.between] == [f"{moved}/app.log.1"]


def test_a_glob_that_matches_nothing_does_not_have_everything_listed_again(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "app.log.1").touch()
    for path in (tmp_path, tmp_path / "old"):
        os.utime(path, (0, 0))
    assert listings.Moved(Globs([f"{tmp_path}/old/*", f"{tmp_path}/*"], [])).stands()
    assert not listings.Moved(Globs([f"{tmp_path}/old/*", f"{tmp_path}/none/*"], [])).stands()
