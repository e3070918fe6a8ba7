"""Whatever becomes of a file, while the tail is up or down, each of its lines is read once, in order; or lost loudly.

Renames, links, copies, compression, moves to other file systems, deletion, truncation; restarts in between.
"""

from __future__ import annotations

import asyncio
import bz2
import gzip
import itertools
import lzma
import os
import shutil
import tarfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lz4.frame
import pytest
import structlog
import zstandard
from rotator import Rotator

from ingestd.daemon.source import StoredPosition
from ingestd.tail import awaited
from ingestd.tail import finder as finder_module
from ingestd.tail import finished as finished_module
from ingestd.tail import known as known_module
from ingestd.tail import news as news_module
from ingestd.tail import source as source_module
from ingestd.tail import watch as watch_module
from ingestd.tail.known import birth_of
from ingestd.tail.looks import Looks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingestd.tail.facts import Examined, Sought
    from ingestd.tail.looks import Examination, Sighting
    from ingestd.tail.searching import Search

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "lz4": lz4.frame.compress,
}


def append(path: Path, *lines: str) -> None:
    with path.open("ab") as stream:
        stream.write("".join(f"{line}\n" for line in lines).encode())


def later(path: Path, seconds: float) -> None:
    """As if it were modified so much later."""
    at = time.time() + seconds
    os.utime(path, (at, at))


def shift(path: Path, *, most: int = 20) -> None:
    """Rename a whole chain of rotations, as Python's handlers and logrotate do."""
    for number in range(most, 0, -1):
        rotated = path.with_name(f"{path.name}.{number}")
        if rotated.exists():
            rotated.rename(path.with_name(f"{path.name}.{number + 1}"))
    path.rename(path.with_name(f"{path.name}.1"))


def copytruncate(path: Path, copy: Path) -> None:
    shutil.copyfile(path, copy)
    os.truncate(path, 0)


def compress(path: Path, codec: str = "gz") -> None:
    """As the programs do: the compressed file has the times of the file, which is deleted."""
    status = path.stat()
    made = path.with_name(f"{path.name}.{codec}")
    made.write_bytes(COMPRESS[codec](path.read_bytes()))
    os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))
    path.unlink()


def copy_compressed(path: Path, copy: Path, *, times: bool) -> None:
    """logrotate's `copy` with `compress`. `times`: the copy gets those of the file."""
    status = path.stat()
    copy.write_bytes(gzip.compress(path.read_bytes()))
    if times:
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def logs_in(tmp_path: Path, *names: str) -> list[Path]:
    """A log in each of these new directories, with nothing but the same header."""
    logs = [tmp_path / name / "app.log" for name in names]
    for log in logs:
        log.parent.mkdir()
        append(log, "# header")
    return logs


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "a.log"


def change(follower: Any, **values: Any) -> None:
    """Change what is stored of each file."""
    follower.stored = {
        source: StoredPosition(source, stored.position, {**stored.detail, **values})
        for source, stored in follower.stored.items()
    }


# Restarts


async def test_nothing_is_sent_again_after_a_restart(follow: Any, log: Any) -> None:
    append(log, "one")
    follower = follow()
    await follower.settle()
    follower.restart()
    await follower.settle()
    append(log, "two")
    await follower.reads("one", "two")


async def test_what_is_stored_grows_by_no_row_a_restart(follow: Any, log: Any) -> None:
    follower = follow("a.log*")
    for number in range(3):
        append(log, str(number))
        await follower.settle()
        log.rename(log.with_name(f"a.log.{number}"))
        append(log, f"new {number}")
        await follower.settle()
        follower.restart()
    await follower.settle()
    assert len(follower.stored) == 4
    append(log.with_name("b"), "not ours, but an event: what was looked at before it is certain")
    await follower.settle()
    for name in ("a.log.0", "a.log.1", "a.log.2"):
        log.with_name(name).unlink()
    await follower.settle()
    assert len(follower.stored) == 4
    assert sum(stored.detail.get("done", False) for stored in follower.stored.values()) == 3


async def test_of_deleted_files_the_last_are_remembered(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_module, "_BURIED_MOST", 2)
    follower = follow()
    for number in range(5):
        append(tmp_path / f"{number}.log", str(number))
        await follower.settle()
        (tmp_path / f"{number}.log").unlink()
        await follower.settle()
    assert [stored.detail["path"][-5:] for stored in follower.stored.values()] == ["3.log", "4.log"]


# Renames


@pytest.mark.parametrize("glob", ["a.log", "*.log", "a.log*", "*"])
async def test_a_chain_of_renames_is_followed(follow: Any, log: Any, glob: str) -> None:
    follower = follow(glob)
    expected = ["first"]
    append(log, *expected)
    await follower.settle()
    for number in range(6):
        shift(log)
        append(log, f"{number} a", f"{number} b")
        expected += [f"{number} a", f"{number} b"]
        if number % 2:
            await follower.settle()
    await follower.reads(*expected)
    follower.restart()
    await follower.reads(*expected)
    assert not follower.losses


def replace_whole(path: Path, text: str) -> None:
    """As rsync and other collectors do: written under a name of its own, renamed into place when it is whole."""
    made = path.with_name(f".{path.name}.Xq3")
    made.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    made.rename(path)


@pytest.mark.parametrize("codec", ["", ".gz"])
@pytest.mark.parametrize("when", ["before", "with", "after"])
async def test_lines_that_came_to_a_log_elsewhere_before_it_was_rotated_there_are_read_where_they_are_brought(
    follow: Any, log: Any, when: str, codec: str
) -> None:
    """A collector replaces the log by its next content. Late lines of the one before come as `a.log.1` alone."""
    follower = follow("a.log")
    rotated = log.with_name(f"a.log.1{codec}")
    replace_whole(log, "1\n2\n")
    await follower.settle()
    for before, after in (("1\n2\n3\n", "4\n5\n"), ("4\n5\n6\n7\n", "8\n9\n")):
        if when == "before":
            replace_whole(rotated, before)
        replace_whole(log, after)
        if when == "after":
            await follower.settle()
        if when != "before":
            replace_whole(rotated, before)
        await follower.settle()
    assert not follower.losses
    await follower.reads(*"123456789", ordered=False)


async def test_generations_too_short_to_be_seen_are_found_where_they_went(follow: Any, log: Any) -> None:
    # An exact name: no glob matches what they are called when they are looked at. 4,200 of 6,000 lines were lost.
    follower = follow("a.log")
    append(log, "0")
    await follower.settle()
    for number in range(1, 40):
        log.rename(log.with_name(f"a.log.{number - 1:03}"))
        append(log, str(number))
        if number % 7 == 0:
            await follower.until(lambda: len(follower.found) > 1)
    await follower.reads(*map(str, range(40)))
    assert not follower.losses


@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
@pytest.mark.parametrize("how", ["renamed", "linked", "copied"])
async def test_generations_that_are_compressed_before_they_are_seen_are_read_and_none_is_said_to_be_lost(
    follow: Any, log: Any, how: str, glob: str
) -> None:
    """Whenever something is looked at or searched for, three more come and go; the names of the others shift."""
    numbers = iter(range(1, 16))
    written = ["0"]

    def rotate() -> None:
        for number in itertools.islice(numbers, 3):
            for older in range(number - 1, 0, -1):
                log.with_name(f"a.log.{older}.gz").rename(log.with_name(f"a.log.{older + 1}.gz"))
            rotated = log.with_name("a.log.1")
            if how == "renamed":
                log.rename(rotated)
            elif how == "linked":
                rotated.hardlink_to(log)
                log.unlink()
            else:
                copytruncate(log, rotated)
            append(log, str(number))
            written.append(str(number))
            compress(rotated)

    class Rotating(Looks):
        def look(self, path: str) -> Sighting:
            sighting = super().look(path)
            if path == str(log) and len(written) > 1:
                rotate()
            return sighting

        def search(self, searches: Sequence[Search]) -> list[Sought]:
            found = super().search(searches)
            if len(written) > 1:
                rotate()
            return found

    append(log, *written)
    follower = follow(glob, looks=Rotating())
    await follower.settle()
    rotate()
    await follower.until(lambda: len(follower.texts) > 15)
    await follower.settle()
    assert sorted(follower.texts) == sorted(line.encode() for line in written)
    assert not follower.losses


async def test_a_copy_that_is_compressed_before_anybody_looked_is_read(follow: Any, log: Any) -> None:
    """The file at the log's path was made and truncated in the same moment, so that nobody saw it longer."""
    append(log, "1")
    follower = follow("a.log")
    await follower.settle()
    log.rename(log.with_name("a.log.2"))
    append(log, "2")
    copytruncate(log, log.with_name("a.log.1"))
    for number in (1, 2):
        compress(log.with_name(f"a.log.{number}"))
    append(log, "and 3")
    await follower.reads("1", "2", "and 3", ordered=False)
    assert not follower.losses


@pytest.mark.parametrize("away", [0.0, 0.5])
async def test_a_log_is_read_that_was_rotated_unseen_in_a_directory_that_was_made_anew(
    follow: Any, tmp_path: Path, away: float
) -> None:
    """The directory may have the path and the inode number of the one before: 3 of 10 such logs were lost, unsaid."""
    directories = [tmp_path / f"d{number}" for number in range(10)]
    for directory in directories:
        directory.mkdir()
        append(directory / "a.log", f"old {directory.name}")
    follower = follow("*/a.log")
    await follower.settle()
    for directory in directories:
        shutil.rmtree(directory)
        await asyncio.sleep(away / 10)
        directory.mkdir()
        append(directory / "a.log", f"new {directory.name}")
        (directory / "a.log").rename(directory / "a.log.1")
        await asyncio.sleep(0.03)
    lines = [f"{age} {directory.name}" for directory in directories for age in ("old", "new")]
    await follower.reads(*lines, ordered=False)


async def test_what_came_and_went_just_before_a_stop_is_said(follow: Any, log: Any) -> None:
    """Events wait for 0.1 s before they are heard. Of what they told then, nobody ever knew: silent losses."""
    follower = follow("*.log")
    append(log, "one")
    await follower.settle()
    news = [log.with_name(f"b{number}.log") for number in range(10)]
    for each in news:
        append(each, "never seen")
        each.unlink()
    await asyncio.wait_for(follower.finder.rest(), 10)
    assert {(loss.thing, loss.reason) for loss in follower.losses} == {(str(each), "vanished") for each in news}


async def test_a_generation_that_came_and_went_for_good_is_said(follow: Any, log: Any) -> None:
    follower = follow("a.log")
    append(log, "one")
    await follower.settle()
    log.unlink()
    append(log, "never seen")
    log.unlink()
    append(log, "three")
    await follower.reads("one", "three")
    assert [(loss.thing, loss.reason, loss.exact) for loss in follower.losses] == [(str(log), "vanished", False)]


async def test_a_log_that_is_truncated_once_it_was_examined_is_read_in_its_copy(follow: Any, tmp_path: Any) -> None:
    """Where other logs are called alike, with names as long, and are known already."""
    others = [str(number) for number in range(9)]
    for other in others:
        append(tmp_path / f"a-{other}.log", other)
    log = tmp_path / "a-9.log"
    copy = log.with_name("a-9.log.1")

    class Truncating(Looks):
        def examine(self, wanted: Sequence[Examination]) -> list[Examined | None]:
            found = super().examine(wanted)
            if any(each.place.path == str(log) for each in wanted):
                os.truncate(log, 0)
            return found

    follower = follow("*.log*", exclude=("*.gz",), looks=Truncating())
    await follower.reads(*others, ordered=False)
    append(log, "one", "two")
    shutil.copy(log, copy)
    await follower.reads(*others, "one", "two", ordered=False)
    copy.with_name("a-9.log.1.gz").write_bytes(gzip.compress(copy.read_bytes()))
    copy.unlink()
    await follower.reads(*others, "one", "two", ordered=False)
    assert not follower.losses


async def test_a_copy_that_was_compressed_before_anybody_looked_is_no_loss(follow: Any, log: Any) -> None:
    follower = follow("a.log*", exclude=("*.gz",))
    append(log, "one")
    await follower.settle()
    copy = log.with_name("a.log.1")
    shutil.copy(log, copy)
    copy.with_name("a.log.1.gz").write_bytes(gzip.compress(copy.read_bytes()))
    copy.unlink()
    await follower.settle()
    os.truncate(log, 0)
    append(log, "two")
    await follower.reads("one", "two")
    assert not follower.losses


async def test_the_old_file_is_read_to_its_end_before_the_new_one(follow: Any, log: Any) -> None:
    follower = follow("a.log", leave_after=0.05)
    with log.open("ab", buffering=0) as writer:
        writer.write(b"one\n")
        await follower.settle()
        log.rename(log.with_name("a.log.1"))
        writer.write(b"two\n")
        append(log, "four")
        writer.write(b"three\n")
        await follower.reads("one", "two", "three", "four")
        assert [end.kind for end in follower.ended.values()] == ["concluded"]


async def test_late_lines_of_a_finished_predecessor_are_read(follow: Any, log: Any) -> None:
    follower = follow("a.log", rescan_interval=0.05)
    with log.open("ab", buffering=0) as writer:
        writer.write(b"one\n")
        await follower.settle()
        log.rename(log.with_name("a.log.1"))
        append(log, "two")
        await follower.until(lambda: follower.ended)
        writer.write(b"late\n")
        await follower.reads("one", "two", "late")
        follower.restart()
        writer.write(b"later\n")
        await follower.reads("one", "two", "late", "later")
    assert not follower.losses


async def test_without_a_new_file_the_renamed_one_is_followed_on(follow: Any, log: Any) -> None:
    # `nocreate`: the writer makes the next file when it wants to.
    follower = follow("a.log")
    with log.open("ab", buffering=0) as writer:
        writer.write(b"one\n")
        await follower.settle()
        log.rename(log.with_name("a.log.1"))
        await follower.settle()
        writer.write(b"two\n")
        await follower.reads("one", "two")
        assert not follower.ended
        follower.restart()
        writer.write(b"three\n")
        await follower.reads("one", "two", "three")
    append(log, "four")
    await follower.reads("one", "two", "three", "four")
    assert [end.kind for end in follower.ended.values()] == ["concluded"]


async def test_a_file_that_comes_back_to_its_path_goes_on(follow: Any, log: Any) -> None:
    follower = follow("a.log", leave_after=0.02)
    append(log, "one")
    await follower.settle()
    log.rename(log.with_name("away"))
    append(log, "two")
    await follower.settle()
    log.rename(log.with_name("other"))
    log.with_name("away").rename(log)
    append(log, "three")
    await follower.reads("one", "two", "three")
    append(log, "four")
    await follower.reads("one", "two", "three", "four")


@pytest.mark.parametrize("glob", ["*.log", "a.log", "*.log*"])
async def test_rotated_several_times_while_we_were_down_and_behind(follow: Any, log: Any, glob: str) -> None:
    # rsyslog loses what stands in the rotated files behind its position.
    append(log, "one")
    follower = follow(glob)
    await follower.settle()
    follower.stop()
    append(log, "two")
    log.rename(log.with_name("a.log.3"))
    append(log.with_name("a.log.2"), "three")
    append(log.with_name("a.log.1"), "four")
    append(log, "five")
    for number, name in enumerate(["a.log.3", "a.log.2", "a.log.1", "a.log"]):
        later(log.with_name(name), 10 * number)
    if glob != "*.log*":
        append(log.with_name("a.log.9"), "before our time")
        later(log.with_name("a.log.9"), -1000)
    follower.start()
    # Files that a glob matches are logs of their own, whatever they are called: there is no order between logs.
    await follower.reads("one", "two", "three", "four", "five", ordered=glob != "*.log*")
    assert not follower.losses


@pytest.mark.parametrize("glob", ["a.log", "*.log*"])
async def test_rotations_while_the_first_look_is_under_way_are_followed(follow: Any, log: Any, glob: str) -> None:
    # 5,060 of 13,200 lines came twice: what a listing says is stale while names shift.
    append(log, "0")
    for number in range(1, 4):
        append(log.with_name(f"a.log.{number}"), f"old {number}")
        later(log.with_name(f"a.log.{number}"), -100 * number)
    follower = follow(glob)
    await follower.settle()
    expected = follower.texts.copy()
    for start in range(3):
        follower.stop()
        follower.start()
        begun = follower.begin()
        follower.finder._looks.walk = walk_while(follower.finder._looks.walk, log, start)
        await begun
        expected += [f"{start} during".encode(), f"{start} after".encode()]
        await follower.settle()
    assert follower.texts == expected
    assert not follower.losses


@pytest.mark.parametrize("more", ["", "4"])
@pytest.mark.parametrize("events", ["few", "too many"])
async def test_what_is_copied_and_truncated_within_the_first_look_is_read(
    follow: Any, log: Any, monkeypatch: pytest.MonkeyPatch, events: str, more: str
) -> None:
    """The log was empty when the daemon stopped."""
    if events == "too many":
        monkeypatch.setattr(watch_module, "_STRANGE_MOST", 0)
    follower = follow("a.log")
    append(log)
    await follower.settle()
    follower.restart()
    walk = follower.finder._looks.walk

    def walked(*arguments: Any) -> Any:
        found = walk(*arguments)
        append(log, "1", "2", "3")
        copytruncate(log, log.with_name("a.log.1"))
        append(log, *more)
        follower.finder._looks.walk = walk
        return found

    follower.finder._looks.walk = walked
    await follower.reads("1", "2", "3", *more, ordered=events == "few")  # a search finds the copy later
    assert not follower.losses


def walk_while(walk: Callable[..., Any], log: Any, number: int) -> Callable[..., Any]:
    """Names shift between a listing and the looks at what it showed."""

    shifted = False

    def walking(globs: Any, enter: Any, known: Any) -> Any:
        def is_known(path: str, inode: int) -> bool:
            nonlocal shifted
            if not shifted:
                shifted = True
                shift(log)
                append(log, f"{number} during")
                shift(log)
                append(log, f"{number} after")
            return bool(known(path, inode))

        return walk(globs, enter, is_known)

    return walking


# Directories


@pytest.mark.parametrize("rotate", [Rotator.rename, Rotator.copy])
async def test_a_log_in_a_new_directory_is_rotated_before_we_look(
    follow: Any, tmp_path: Path, rotate: Callable[[Rotator], None]
) -> None:
    # The supervisor was frozen. What was rotated meanwhile was lost without a word (4 of 4).
    (tmp_path / "known").mkdir()
    append(tmp_path / "known" / "a.log", "known")
    follower = follow("*/a.log")
    await follower.settle()
    rotator = Rotator(tmp_path / "new" / "a.log")
    rotator.log.parent.mkdir()
    rotator.write()
    rotate(rotator)
    rotator.write()
    await follower.reads("known", *(line.decode() for line in rotator.lines))


async def test_a_log_in_a_new_directory_is_rotated_before_we_look_and_its_next_file_made_later(
    follow: Any, tmp_path: Path
) -> None:
    # What a new pod wrote first was lost, 20 lines in 2 of 6 tries.
    (tmp_path / "known").mkdir()
    append(tmp_path / "known" / "0.log", "known")
    follower = follow("*/*.log")
    await follower.settle()
    log = tmp_path / "new" / "0.log"
    log.parent.mkdir()
    append(log, "one")
    log.rename(log.with_name("0.log.1"))
    await follower.settle()
    append(log, "two")
    await follower.reads("known", "one", "two")


@pytest.mark.parametrize("glob", ["*/*.log", "*/0.log"])
@pytest.mark.parametrize("directory_known", [False, True])
@pytest.mark.parametrize("later", [False, True])
async def test_a_new_log_is_rotated_while_we_are_down_and_its_next_file_made_later(
    follow: Any, tmp_path: Path, glob: str, *, later: bool, directory_known: bool
) -> None:
    # A pod that came, and whose log was rotated, while the daemon was down: its first lines were lost, silently.
    log = tmp_path / "new" / "0.log"
    (tmp_path / "known").mkdir()
    append(tmp_path / "known" / "0.log", "known")
    if directory_known:
        log.parent.mkdir()
    follower = follow(glob)
    await follower.reads("known")
    await follower.settle()
    follower.stop()
    log.parent.mkdir(exist_ok=True)
    for number in (1, 2):
        append(log, f"{number} a", f"{number} b")
        log.rename(log.with_name(f"0.log.{number}"))
        await asyncio.sleep(2 * news_module.GRAIN / 1e9)
    if not later:
        append(log, "two")
    follower.start()
    await follower.settle()
    if later:
        append(log, "two")
    await follower.reads("known", "1 a", "1 b", "2 a", "2 b", "two")
    follower.restart()
    await follower.settle()
    assert len(follower.texts) == 6


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        *((f"api.log{end}", ("one",)) for end in (".3", "-20261201", ".old", ".bak", ".prev", "~", ".1.gz")),
        *((name, ()) for name in ("api.log.save", "api.1.txt", "notes.1", "api.log.1.tar.gz")),
    ],
)
async def test_a_new_log_is_known_by_a_rotations_name_alone(
    follow: Any, tmp_path: Path, name: str, texts: tuple[str, ...]
) -> None:
    follower = follow("*.log")
    append(tmp_path / "web.log", "known")
    await follower.reads("known")
    await follower.settle()
    follower.stop()
    data = gzip.compress(b"one\n") if name.endswith("gz") else b"one\n"
    (tmp_path / name).write_bytes(data)
    old = tmp_path / "old.log.1"  # unpacked with its time, say
    append(old, "old")
    os.utime(old, (0, 0))
    follower.start()
    await follower.settle()
    await follower.reads("known", *texts)
    assert not follower.losses


async def test_a_new_log_behind_a_link_is_rotated_while_we_are_down(follow: Any, pods: Path) -> None:
    """The link led nowhere at the start. Of three rotated files, one that was looked at twice came first."""
    follower = follow("containers/*.log")
    append(pods / "0.log", "known")
    await follower.reads("known")
    follower.stop()
    log = pods.parent / "new" / "0.log"
    log.parent.mkdir()
    (pods.parent / "containers" / "new.log").symlink_to(log)
    for number in range(3):
        append(log, str(number))
        log.rename(log.with_name(f"0.log.2026120{number + 1}"))
        await asyncio.sleep(2 * news_module.GRAIN / 1e9)
    follower.start()
    await follower.settle()
    append(log, "last")
    await follower.reads("known", "0", "1", "2", "last")


@pytest.mark.parametrize(("start", "first"), [("end", ()), ("1h", ("new",)), ("beginning", ("old", "new"))])
async def test_compressed_files_from_before_the_tail_are_read_as_start_says(
    follow: Any, tmp_path: Path, start: str, first: tuple[str, ...]
) -> None:
    """All history came, whatever `start` said."""
    old, new = tmp_path / "a.log.2.gz", tmp_path / "a.log.1.gz"
    for packed, line, ago in ((old, b"old\n", 7200), (new, b"new\n", 600)):
        packed.write_bytes(gzip.compress(line))
        os.utime(packed, (time.time() - ago, time.time() - ago))
    follower = follow("*", start=start, compressed="read", leave_after=0.05, rescan_interval=0.05)
    await follower.reads(*first, ordered=False)
    new.rename(tmp_path / "a.log.8.gz")
    old.rename(tmp_path / "a.log.9.gz")
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(b"late\n"))
    await follower.reads(*first, "late", ordered=False)
    follower.restart()
    await follower.settle()
    await follower.reads(*first, "late", ordered=False)
    with (tmp_path / "a.log.9.gz").open("ab") as stream:
        stream.write(gzip.compress(b"more\n"))
    grown = ("more",) if "old" in first else ("old", "more")
    await follower.reads(*first, "late", *grown, ordered=False)


@pytest.mark.parametrize("glob", ["a.log", "*.log"])
async def test_the_first_log_of_all_came_and_was_rotated_while_we_were_down(follow: Any, log: Any, glob: str) -> None:
    # Nothing was stored that says how far the run before had seen: 400 of 400 lines were lost.
    append(log.with_name("a.log.9"), "from before the first run")
    await asyncio.sleep(2 * news_module.GRAIN / 1e9)
    follower = follow(glob)
    await follower.settle()
    follower.stop()
    append(log, "one")
    log.rename(log.with_name("a.log.1"))
    append(log, "two")
    follower.start()
    await follower.reads("one", "two")


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("more", [(), ("new",)])
async def test_what_was_rotated_before_the_first_run_is_not_looked_for_by_the_next_either(
    follow: Any, log: Path, once: bool, more: tuple[str, ...]
) -> None:
    """A day of lines came: the program had gone on writing to the rotated file, after it was renamed, for a moment."""
    rotated = log.with_name("a.log.1")
    append(rotated, "day 1")
    append(log, "one")
    at = time.time()
    os.utime(log, (at - 30, at - 30))
    os.utime(rotated, (at - 20, at - 20))
    await asyncio.sleep(2 * news_module.GRAIN / 1e9)
    follower = follow("a.log", once=once, start="end", leave_after=0.05)
    await follower.begin()
    await follower.settle()
    for number in range(2):
        follower.restart()
        if number == 0:
            append(log, *more)
        await follower.begin()
        await follower.settle()
    assert follower.texts == [each.encode() for each in more]


@pytest.mark.parametrize("rotate", [Path.rename, copytruncate])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("stepped", "seconds"), [("while it ran", 3600), ("while it was down", 3600), ("while it was down", 2)]
)
async def test_the_clock_was_ahead_in_the_last_run(
    follow: Any, log: Path, monkeypatch: pytest.MonkeyPatch, rotate: Any, packed: bool, stepped: str, seconds: int
) -> None:
    """What came and was rotated since then seemed older than what was known: it was lost without a word."""
    ahead = time.time_ns() + seconds * 10**9
    monkeypatch.setattr(known_module, "_births", known_module._Births(ahead))
    follower = follow("a.log")
    append(log, "one")
    later(log, seconds)
    await follower.reads("one")
    follower.stop()
    change(follower, modified=ahead - 10**9, met=ahead - 10**9)
    if stepped == "while it was down":
        follower.since = ahead / 1e9 + 3600
    monkeypatch.setattr(known_module, "_births", known_module._Births(time.time_ns()))
    for number in range(3):
        append(log, f"{number} a", f"{number} b")
        rotated = log.with_name(f"a.log-2026010{number + 1}")
        rotate(log, rotated)
        if packed:
            compress(rotated)
        await asyncio.sleep(2 * news_module.GRAIN / 1e9)
    append(log, "two")
    await asyncio.sleep(1.0 if seconds == 2 else 0.0)  # so that the log's time, of when the clock was ahead, is over
    with structlog.testing.capture_logs() as logs:
        follower.start()
        await follower.reads("one", "0 a", "0 b", "1 a", "1 b", "2 a", "2 b", "two")
    assert [entry["event"][:22] for entry in logs if "clock" in entry["event"]] == (
        ["the clock was set back"] if stepped == "while it was down" else []
    )
    assert not follower.losses
    for _ in range(2):
        follower.restart()
        await follower.settle()
    assert len(follower.lines) == 8
    assert all(birth_of(each.source) >= ahead for each in follower.found), "the next run would take them for older ones"


async def test_the_clock_was_ahead_in_the_first_run_of_all(follow: Any, log: Any) -> None:
    """As before NTP at a first boot. What came and was rotated after the next run, before the log was met as rows had
    it, was taken for what was there before the tail: 8 of 8 were lost."""
    follower = follow("a.log")
    append(log, "one")
    await follower.reads("one")
    follower.stop()
    ahead = time.time() + 2
    change(follower, met=int(ahead * 1e9))
    follower.since = ahead
    follower.start()
    append(log, "two")
    await follower.reads("one", "two")
    follower.stop()
    for number in (1, 2):
        log.rename(log.with_name(f"a.log-2026010{number}"))
        append(log, f"{number} down")
        await asyncio.sleep(2 * news_module.GRAIN / 1e9)
    await asyncio.sleep(ahead - time.time())
    follower.start()
    await follower.reads("one", "two", "1 down", "2 down")


@pytest.mark.parametrize("compressed", ["skip", "read"])
@pytest.mark.parametrize("name", ["a.log.1.gz", "a-20261130.log.gz", "a.log-20261130.gz"])
@pytest.mark.parametrize("after", [(), ("three",)])
@pytest.mark.parametrize("times", ["kept", "its own"])
async def test_a_compressed_copy_of_a_log_that_is_made_while_we_are_down_is_none_of_its_rotations(
    follow: Any, log: Path, compressed: str, name: str, after: tuple[str, ...], times: str
) -> None:
    """logrotate's `copy` with `compress`: all that was in it came twice, at each stop."""
    follower = follow("a.log", compressed=compressed)
    append(log, "# header", "one")
    await follower.reads("# header", "one")
    expected = ["# header", "one"]
    for number in range(3):
        follower.stop()
        append(log, f"{number} two")
        copy = log.with_name(name)
        await asyncio.sleep(2 * news_module.GRAIN / 1e9)
        copy_compressed(log, copy, times=times == "kept")
        await asyncio.sleep(2 * news_module.GRAIN / 1e9)
        if after:
            append(log, *after)
        follower.start()
        expected += [f"{number} two", *after]
        await follower.reads(*expected)
        await follower.settle()
    assert len(follower.lines) == len(expected)
    assert not follower.losses


@pytest.mark.parametrize("rotate", [Path.rename, copytruncate])
async def test_a_compressed_copy_of_a_log_that_is_rotated_and_compressed_next_is_none_of_its_rotations(
    follow: Any, log: Path, rotate: Any
) -> None:
    """What was in the copy came twice: the log's own content was compressed, too."""
    follower = follow("a.log")
    append(log, "one")
    await follower.reads("one")
    follower.stop()
    append(log, "two")
    copy_compressed(log, log.with_name("a.log-20260101.gz"), times=True)
    await asyncio.sleep(2 * news_module.GRAIN / 1e9)
    append(log, "three")
    rotated = log.with_name("a.log-20260102")
    rotate(log, rotated)
    compress(rotated)
    append(log, "four")
    for _ in range(3):
        follower.restart()
        await follower.reads("one", "two", "three", "four")
        await follower.settle()
    assert len(follower.lines) == 4
    assert not follower.losses


@pytest.mark.parametrize("copied", ["while we run", "while we are down"])
@pytest.mark.parametrize("packed", ["while we run", "while we run, and renamed", "while we are down"])
async def test_a_copy_of_a_log_that_is_compressed_later_is_none_of_its_rotations(
    follow: Any, log: Path, copied: str, packed: str
) -> None:
    """logrotate's `copy` with `delaycompress`: each copy came in full once it was compressed."""
    follower = follow("a.log")
    expected = []
    for number in range(6):
        append(log, f"{number} one")
        expected.append(f"{number} one")
        await follower.reads(*expected)
        if copied == "while we are down":
            follower.stop()
            append(log, f"{number} two")
            expected.append(f"{number} two")
        shutil.copy2(log, log.with_name(f"a.log-2026010{number}"))
        if copied == "while we are down":
            follower.start()
        append(log, f"{number} three")
        expected.append(f"{number} three")
        await follower.reads(*expected)
        await follower.settle()
        if packed == "while we are down":
            follower.stop()
        compress(log.with_name(f"a.log-2026010{number}"))
        if packed == "while we are down":
            follower.start()
        await follower.settle()
        if packed == "while we run, and renamed":
            log.with_name(f"a.log-2026010{number}.gz").rename(log.with_name(f"a.log-2026020{number}.gz"))
            await follower.settle()
        follower.restart()
        await follower.reads(*expected)
        await follower.settle()
    assert len(follower.lines) == len(expected)
    assert not follower.losses


async def test_what_was_not_read_of_a_truncated_log_is_read_from_a_copy_that_was_compressed(
    follow: Any, log: Path
) -> None:
    """The copy was known, and not read, as all of it was in the log. It was compressed before the log was truncated."""
    follower = follow("a.log")
    append(log, "one")
    await follower.reads("one")
    follower.stop()
    append(log, "two")
    copy = log.with_name("a.log.1")
    shutil.copy2(log, copy)
    follower.start()
    follower.unopened = []  # the finder knows of the copy, and no worker reads the log on
    await follower.begin()
    await follower.settle()
    follower.stop()
    compress(copy)
    follower.unopened = []
    follower.start()
    await follower.begin()
    await follower.settle()
    follower.stop()
    follower.unopened = None
    os.truncate(log, 0)
    append(log, "three")
    follower.start()
    await follower.reads("one", "two", "three")
    assert not follower.losses


@pytest.mark.parametrize("down", [False, True])
async def test_rotated_to_another_directory(follow: Any, log: Any, down: bool) -> None:
    # `olddir`: where the first one goes, the others are looked for too.
    old = log.with_name("old")
    old.mkdir()
    follower = follow("a.log", rotated=[str(old / "*")] if down else [])
    expected = []
    for number in range(4):
        append(log, f"{number} a")
        await follower.settle()
        if down:
            follower.stop()
        append(log, f"{number} b")
        for made in range(number, 0, -1):
            (old / f"a.log.{made}").rename(old / f"a.log.{made + 1}")
        log.rename(old / "a.log.1")
        append(log, f"{number} c")
        if down:
            follower.start()
        await follower.settle()
        expected += [f"{number} a", f"{number} b", f"{number} c"]
    await follower.reads(*expected)
    assert not follower.losses


async def test_a_directory_that_a_file_went_to_is_watched_from_then_on(follow: Any, log: Any) -> None:
    old = log.with_name("old")
    old.mkdir()
    follower = follow("a.log", rescan_interval=0.05)
    append(log, "0")
    await follower.settle()
    log.rename(old / "a.log.0")
    append(log, "1")
    await follower.reads("0", "1")
    for number in range(2, 6):
        log.rename(old / f"a.log.{number - 1}")
        append(log, str(number))  # 2 to 4 are never seen at their path
    await follower.reads(*map(str, range(6)))
    assert not follower.losses


async def test_after_a_restart_files_are_looked_for_where_earlier_ones_went(follow: Any, log: Any) -> None:
    old = log.with_name("old")
    old.mkdir()
    follower = follow("a.log")
    append(log, "one")
    await follower.settle()
    log.rename(old / "a.log.1")
    append(log, "two")
    await follower.settle()
    follower.stop()
    append(log, "three")
    log.rename(old / "a.log.2")
    append(log, "four")
    follower.start()
    await follower.reads("one", "two", "three", "four")
    assert not follower.losses


@pytest.mark.parametrize("pattern", ["a.log.20260101-12000{}", "a-2026-01-0{}.log"])
async def test_what_is_compressed_a_rotation_later_is_read_in_the_order_of_dates(
    follow: Any, log: Any, pattern: str
) -> None:
    # As the kubelet does: the compressed file is modified after the one that was written since, if its writer rested.
    follower = follow("a.log")
    append(log, "0")
    await follower.settle()
    follower.stop()
    append(log, "1")
    for number in range(1, 5):
        log.rename(log.with_name(pattern.format(number)))
        append(log, str(number + 1))
    for number in range(1, 4):
        compress(log.with_name(pattern.format(number)))
        later(log.with_name(pattern.format(number) + ".gz"), number)
    follower.start()
    await follower.reads(*map(str, range(6)))


@pytest.mark.parametrize("rotations", [2, 3, 4])
async def test_what_goes_to_another_directory_before_anybody_looks_comes_before_what_is_written_since(
    follow: Any, log: Any, tmp_path: Path, rotations: int
) -> None:
    # The supervisor was frozen for a moment: what stood at the path was read first.
    old = tmp_path / "old"
    old.mkdir()
    append(log, "0")
    follower = follow("a.log", rotated=(f"{old}/*",))
    await follower.settle()
    for number in range(1, rotations + 1):
        log.rename(old / f"a.log-{number}")
        append(log, str(number))
        later(log, number)
    await follower.reads(*map(str, range(rotations + 1)))


@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize("packed", [(3, 2), (3, 1), (2,)])
async def test_known_files_are_read_in_order_whichever_were_compressed_while_we_were_down(
    follow: Any, log: Any, packed: tuple[int, ...], restarts: int
) -> None:
    # The brokers are away, so that nothing of them is sent. `delaycompress`: the newest rotated one is as it was.
    follower = follow("a.log")
    append(log, "1")
    await follower.settle()
    append(log, "2")
    follower.restart()
    follower.unopened = []
    await follower.begin()
    for number in range(3, 6):
        shift(log)
        append(log, str(number))
        await follower.until(lambda: len(follower.found) == 1 + len([*log.parent.iterdir()]))  # the first one twice
    paths = {path.stat().st_ino: str(path) for path in log.parent.iterdir()}
    for name, stored in list(follower.stored.items()):  # as their readers report it
        detail = {**stored.detail, "path": paths[stored.detail["inode"]]}
        follower.stored[name] = StoredPosition(name, stored.position, detail)
    follower.stop()
    for number in packed:
        compress(log.with_name(f"a.log.{number}"))
    append(log, "6")
    follower.start()
    for _ in range(restarts - 1):
        assert len(await follower.scan()) == 4
        follower.restart()
    follower.unopened = None
    await follower.reads(*"123456")
    assert not follower.losses


@pytest.mark.parametrize("rotated_again", [False, True])
async def test_files_met_compressed_are_read_in_order_also_when_we_restart_before_that(
    follow: Any, log: Any, rotated_again: bool
) -> None:
    # The brokers are away, so that nothing of them is sent before the second start.
    append(log, "1")
    follower = follow("a.log")
    await follower.settle()
    follower.stop()
    for number in range(2, 5):
        shift(log)
        append(log, str(number))
    for number in (3, 2, 1):
        compress(log.with_name(f"a.log.{number}"))
    follower.start()
    follower.unopened = []
    assert len(await follower.scan()) == 4
    follower.stop()
    if rotated_again:
        log.rename(log.with_name("a.log.0"))
        append(log, "5")
        compress(log.with_name("a.log.0"))
    follower.start()
    follower.unopened = None
    await follower.reads(*"12345"[: 4 + rotated_again])
    assert not follower.losses


@pytest.mark.parametrize("copied", [False, True])
async def test_what_is_truncated_again_before_what_was_there_first_is_acknowledged_is_said(
    follow: Any, log: Any, copied: bool
) -> None:
    # The brokers are away. Of three contents the second was lost without a word.
    follower = follow(rescan_interval=0.05)
    append(log, "one")
    await follower.begin()
    (source,) = follower.sources
    assert follower.read(source)

    async def goes_on(line: str) -> None:
        os.truncate(log, 0)
        append(log, line)
        await asyncio.sleep(0.05)  # so that its reader hears of it
        follower.read(source)

    await goes_on("second")
    if copied:
        shutil.copyfile(log, log.with_name("a.log.1"))
    await goes_on("3")
    follower.acknowledge(source)
    await follower.reads("one", *(["second"] if copied else []), "3")
    assert follower.files_gone == (not copied)


async def test_what_is_copied_and_truncated_twice_before_it_is_acknowledged_is_read_in_order(
    follow: Any, log: Any
) -> None:
    append(log, "0" * 20)
    follower = follow("a.log")
    await follower.settle()
    append(log, "1")
    (source,) = follower.sources
    follower.sources[source].look()
    assert follower.read(source)
    copytruncate(log, log.with_name("a.log.1"))
    follower.sources[source].look()
    append(log, "2")
    log.with_name("a.log.1").rename(log.with_name("a.log.2"))
    compress(log.with_name("a.log.2"))
    copytruncate(log, log.with_name("a.log.1"))
    append(log, "3")
    await follower.reads("0" * 20, "1", "2", "3")
    assert not follower.losses


@pytest.mark.parametrize("restarts", [1, 2])
async def test_copies_made_while_we_were_down_come_before_what_is_in_the_file(
    follow: Any, log: Any, restarts: int
) -> None:
    append(log, "1" * 20)
    follower = follow("a.log")
    await follower.settle()
    follower.stop()
    append(log, "1")
    for number in (3, 2, 1):
        copytruncate(log, log.with_name(f"a.log.{number}"))
        append(log, str(5 - number))
    follower.start()
    for _ in range(restarts - 1):
        follower.unopened = []
        await follower.scan()
        follower.restart()
    follower.unopened = []
    found = await follower.scan()
    assert sorted(found, key=lambda each: each.rank) == found
    follower.open_all()
    await follower.reads("1" * 20, *"1234")
    assert not follower.losses


async def test_a_file_that_went_where_nobody_looks_is_said_to_be_lost(follow: Any, log: Any) -> None:
    log.with_name("old").mkdir()
    follower = follow("a.log")
    append(log, "one")
    await follower.settle()
    append(log, "two")
    follower.stop()
    change(follower, size=8)
    log.rename(log.with_name("old") / "a.log.1")
    append(log, "three")
    follower.start()
    await follower.reads("one", "three")
    assert [(loss.reason, loss.start, loss.length, loss.exact) for loss in follower.losses] == [
        ("deleted", 4, 4, False)
    ]


@pytest.mark.parametrize("down", [False, True])
async def test_a_directory_that_is_moved_takes_its_files_along(follow: Any, tmp_path: Path, down: bool) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    follower = follow("*/a.log", rescan_interval=0.05)
    append(one / "a.log", "1")
    await follower.settle()
    if down:
        follower.stop()
    one.rename(two)
    append(two / "a.log", "2")
    one.mkdir()
    append(one / "a.log", "3")
    if down:
        follower.start()
    await follower.reads("1", "2", "3", ordered=False)
    append(two / "a.log", "4")
    append(one / "a.log", "5")
    await follower.reads("1", "2", "3", "4", "5", ordered=False)
    follower.restart()
    await follower.reads("1", "2", "3", "4", "5", ordered=False)
    assert not follower.losses


async def test_an_empty_log_goes_along_with_its_directory(follow: Any, tmp_path: Path) -> None:
    # Nothing holds it open: all that was written to it afterwards was lost in silence.
    log = tmp_path / "d" / "a.log"
    log.parent.mkdir()
    log.touch()
    follower = follow("d/a.log")
    await follower.settle()
    moved = log.parent.rename(tmp_path / "d-1")
    await follower.settle()
    append(moved / log.name, "1")
    await follower.reads("1")
    again = moved.rename(tmp_path / "d-2")
    append(again / log.name, "2")
    await follower.reads("1", "2")
    assert not follower.losses


# Links


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    """A kubelet's layout: containers/x.log → pods/0.log."""
    for name in ("pods", "containers"):
        (tmp_path / name).mkdir()
    (tmp_path / "containers" / "x.log").symlink_to(tmp_path / "pods" / "0.log")
    return tmp_path / "pods"


async def test_rotations_behind_a_link_are_followed(follow: Any, pods: Path) -> None:
    # 526,200 of 798,600 lines were lost.
    follower = follow("containers/*.log")
    append(pods / "0.log", "1")
    await follower.settle()
    expected = ["1"]
    for number in range(8):
        (pods / "0.log").rename(pods / f"0.log.2024010{number}")
        append(pods / "0.log", f"next {number}")
        expected.append(f"next {number}")
        if number % 3 == 0:
            await follower.settle()
    await follower.reads(*expected)
    assert {found.label for found in follower.found} == {str(pods.parent / "containers" / "x.log")}
    assert str(follower.found[-1].detail["path"]) == str(pods / "0.log")
    assert not follower.losses


@pytest.mark.parametrize("down", [False, True])
async def test_a_link_that_is_repointed_is_a_rotation(follow: Any, pods: Path, down: bool) -> None:
    link = pods.parent / "containers" / "x.log"
    follower = follow("containers/*.log")
    append(pods / "0.log", "0 a")
    await follower.settle()
    expected = ["0 a"]
    for number in range(1, 4):
        if down:
            follower.stop()
        append(pods / f"{number - 1}.log", f"{number - 1} b")
        append(pods / f"{number}.log", f"{number} a")
        link.unlink()
        link.symlink_to(pods / f"{number}.log")
        if down:
            follower.start()
        expected += [f"{number - 1} b", f"{number} a"]
        await follower.settle()
    await follower.reads(*expected)
    assert not follower.losses


@pytest.mark.parametrize("how", ["renamed", "copied", "compressed"])
async def test_the_target_of_a_link_is_rotated_while_we_are_down(follow: Any, pods: Path, how: str) -> None:
    # 150 of 150 lines were lost, without a word.
    target = pods / "0.log"
    follower = follow("containers/*.log")
    append(target, "1")
    await follower.settle()
    for number in range(2):
        follower.stop()
        append(target, f"{number} late")
        if how == "copied":
            copytruncate(target, pods / f"0.log.2024010{number}")
        else:
            target.rename(pods / f"0.log.2024010{number}")
        if how == "compressed":
            compress(pods / f"0.log.2024010{number}")
        append(target, f"{number} new")
        follower.start()
        await follower.settle()
    await follower.reads("1", "0 late", "0 new", "1 late", "1 new")
    assert not follower.losses


@pytest.mark.parametrize("down", [False, True])
async def test_a_link_of_a_directory_that_is_repointed_is_a_rotation(
    follow: Any,
    tmp_path: Path,
    down: bool,
) -> None:
    for number in range(3):
        (tmp_path / f"release {number}").mkdir()
    (tmp_path / "current").symlink_to("release 0")
    follower = follow("current/a.log")
    append(tmp_path / "release 0" / "a.log", "0 a")
    await follower.settle()
    expected = ["0 a"]
    for number in range(1, 3):
        if down:
            follower.stop()
        append(tmp_path / f"release {number - 1}" / "a.log", f"{number - 1} b")
        append(tmp_path / f"release {number}" / "a.log", f"{number} a")
        (tmp_path / "new").symlink_to(f"release {number}")
        (tmp_path / "new").rename(tmp_path / "current")
        if down:
            follower.start()
        expected += [f"{number - 1} b", f"{number} a"]
        await follower.settle()
    await follower.reads(*expected)
    assert not follower.losses


async def test_links_to_links_are_followed(follow: Any, pods: Path) -> None:
    # As with Docker: containers/x.log → pods/0.log → docker/ID.log.
    docker = pods.parent / "docker"
    docker.mkdir()
    (pods / "0.log").symlink_to(docker / "id.log")
    follower = follow("containers/*.log")
    append(docker / "id.log", "1")
    await follower.settle()
    (docker / "id.log").rename(docker / "id.log.1")
    append(docker / "id.log", "2")
    await follower.reads("1", "2")
    append(docker / "other.log", "3")
    (pods / "0.log").unlink()
    (pods / "0.log").symlink_to(docker / "other.log")
    await follower.reads("1", "2", "3")
    follower.restart()
    await follower.reads("1", "2", "3")
    assert not follower.losses


async def test_several_links_to_one_file_are_one_log_whichever_goes(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    target = tmp_path / "target" / "t"
    append(target, "1")
    for name in ("a.log", "b.log"):
        (tmp_path / name).symlink_to(target)
    follower = follow()
    await follower.reads("1")
    (tmp_path / "a.log").unlink()
    append(target, "2")
    await follower.reads("1", "2")
    target.rename(target.with_name("t.1"))
    append(target, "3")
    await follower.reads("1", "2", "3")
    follower.restart()
    append(target, "4")
    await follower.reads("1", "2", "3", "4")
    assert not follower.losses


@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
async def test_rotated_by_link_and_unlink(follow: Any, log: Any, glob: str) -> None:
    # 1,010 lines came twice: "(deleted)" was taken for a rename.
    follower = follow(glob)
    append(log, "1")
    await follower.settle()
    expected = ["1"]
    for number in range(4):
        if number == 2:
            follower.stop()
        append(log, f"{number} last")
        os.link(log, log.with_name(f"a.log.{number}"))
        log.unlink()
        append(log, f"{number} first")
        expected += [f"{number} last", f"{number} first"]
        if number == 2:
            follower.start()
        if number:
            await follower.settle()
    await follower.reads(*expected)
    follower.restart()
    await follower.reads(*expected)
    assert not follower.losses


async def test_a_file_with_two_names_ends_when_the_second_goes(follow: Any, log: Any) -> None:
    append(log, "1")
    os.link(log, log.with_name("b.log"))
    follower = follow()
    await follower.reads("1")
    log.unlink()
    append(log.with_name("b.log"), "2")
    await follower.reads("1", "2")
    assert not follower.ended
    log.with_name("b.log").unlink()
    await follower.until(lambda: follower.ended)
    assert [end.kind for end in follower.ended.values()] == ["deleted"]
    await follower.settle()
    assert not follower.losses
    assert all(stored.detail["done"] for stored in follower.stored.values())


async def test_a_file_is_found_by_its_other_name(follow: Any, tmp_path: Path) -> None:
    # It waited for what is older, and was to be read by a second name that it got meanwhile, in another directory. That
    # name was deleted while its reader had it closed: it was said to be lost, and what was read of it came again.
    first, second = tmp_path / "x" / "a.log", tmp_path / "y" / "b.log"
    for path in (first, second, tmp_path / "z" / "a.log"):
        path.parent.mkdir()

    class Linking(Looks):
        def search(self, searches: Sequence[Search]) -> list[Sought]:
            found = super().search(searches)
            if follower.has_run and not second.exists():
                os.link(first, second)
            return found

    follower = follow("x/*.log", "y/*.log", looks=Linking())
    append(first, "1")
    await follower.reads("1")
    follower.stop()
    first.rename(tmp_path / "z" / "a.log")
    append(first, "2")
    follower.unopened = []
    follower.start()
    await follower.until(lambda: follower.unopened)
    second.unlink()
    follower.open_all()
    await follower.reads("1", "2")
    append(first, "3")
    await follower.reads("1", "2", "3")
    assert not follower.losses


@pytest.mark.parametrize("what", ["copy", "log"])
@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
async def test_a_second_name_is_no_log_of_its_own(follow: Any, tmp_path: Path, what: str, up: bool) -> None:
    # Only the other name tells that it is a copy: 19 of 405,654 lines came twice.
    log, link = tmp_path / "x" / "a.log", tmp_path / "y" / "b.log"
    for path in (log, link):
        path.parent.mkdir()
    copy = log.with_name("a.log.1")
    follower = follow("x/*.log", "y/*.log")
    append(log, "1")
    if what == "log":
        os.link(log, link)
    await follower.reads("1")
    if not up:
        follower.stop()
    copytruncate(log, copy)
    if what == "copy":
        os.link(copy, link)
    if not up:
        follower.start()
    await follower.settle()
    append(log, "2")
    await follower.reads("1", "2")
    assert not follower.losses


async def test_where_passes_are_costly_new_directories_are_found_soon(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With 24,000 files a pass takes a second or two, and the next had to wait for twenty times that.
    passes = itertools.count()
    monkeypatch.setattr(finder_module.time, "process_time", lambda: 1.5 * next(passes))
    log = tmp_path / "d" / "a.log"
    follower = follow("d/*.log")
    expected = []
    for number in range(2):
        log.parent.mkdir()
        append(log, str(number))
        expected.append(str(number))
        await follower.reads(*expected)
        log.parent.rename(tmp_path / f"moved-{number}")


# An inode that is used again


@pytest.mark.parametrize("handles", [True, False])
async def test_an_inode_that_is_used_again_is_another_file(
    follow: Any,
    log: Any,
    handles: bool,
) -> None:
    # The file was deleted while we were down, and a new one got its inode: its lines must not be skipped.
    append(log, "an old file, quite long")
    follower = follow()
    await follower.settle()
    follower.stop()
    log.unlink()
    other = log.with_name("b.log")
    append(other, "a new one", "and it is longer than the old one was")
    change(follower, inode=other.stat().st_ino, **({} if handles else {"handle": "", "volume": "", "birth": 0}))
    follower.start()
    await follower.settle()
    assert follower.texts[1:] == [b"a new one", b"and it is longer than the old one was"]


async def test_an_inode_that_is_used_again_while_we_are_up_is_another_file(follow: Any, tmp_path: Path) -> None:
    follower = follow("*.log", leave_after=0.1)
    expected: list[str] = []
    for number in range(10):
        path = tmp_path / f"{number}.log"
        append(path, "the same in all", str(number))
        expected += ["the same in all", str(number)]
        await follower.until(lambda: len(follower.lines) == len(expected))  # noqa: B023 - it is awaited here
        path.unlink()
    await follower.reads(*expected)
    assert not follower.losses


# Copies


@pytest.mark.parametrize("glob", ["a.log", "a.log*", "*"])
@pytest.mark.parametrize("header", [0, 2000])
async def test_copy_and_truncate_gives_each_line_once(follow: Any, log: Any, glob: str, header: int) -> None:
    # With the same header of 1,024 bytes and more, 13,400 of 32,000 lines came twice.
    first = "#" * header
    follower = follow(glob)
    append(log, first, "1")
    expected = [first, "1"]
    await follower.settle()
    for number in range(6):
        append(log, f"{number} last")
        if number % 2:
            await follower.settle()
        shutil.copyfile(log, log.with_name(f"a.log.{number}"))
        if number % 3:
            await follower.settle()
        os.truncate(log, 0)
        append(log, first, f"{number} first")
        expected += [f"{number} last", first, f"{number} first"]
        if number % 2 == 0:
            await follower.settle()
    await follower.reads(*expected)
    follower.restart()
    await follower.reads(*expected)
    assert not follower.losses


@pytest.mark.parametrize("seen", ["not", "in the making", "whole"])
@pytest.mark.parametrize("made", ["a.log.1", "old/a.log.1", "a.log.1.gz", "old/a.log.1.gz"])
@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
@pytest.mark.parametrize("down", [False, True])
async def test_lines_that_came_between_copy_and_truncation_were_read_already(
    follow: Any, log: Path, glob: str, made: str, seen: str, down: bool
) -> None:
    """logrotate's copytruncate flushes the copy before it truncates. The copy is shorter than what was read: with
    `rotated`, it was taken for what came after that, and sent whole: 33,500 of 52,196 lines came twice."""
    made_of = (log.parent / made).with_suffix("") if made.endswith(".gz") else log.parent / made
    made_of.parent.mkdir(exist_ok=True)
    expected: list[str] = []
    standing: list[str] = []
    follower = follow(glob, rotated=[f"{log.parent}/old/*"], compressed="read")

    def write(*lines: str) -> None:
        append(log, *lines)
        expected.extend(lines)
        standing.extend(lines)

    for turn in range(3):
        write("# header", *(f"{turn} {number}" for number in range(9)))
        await follower.reads(*expected)
        await asyncio.sleep(0.02)  # longer than the grain of times of modification
        if seen == "in the making":
            append(made_of, *standing[:5])
            await follower.settle()
        append(made_of, *standing[5 if seen == "in the making" else 0 :])
        write(f"{turn} late")
        follower.drain()
        if seen == "whole":
            await follower.settle()
        if down:
            follower.stop()
        os.truncate(log, 0)
        standing.clear()
        if made.endswith(".gz"):
            compress(made_of)
        if down:
            await asyncio.sleep(0.02)
            write(f"{turn} down")
            follower.start()
        await follower.reads(*expected)
        (log.parent / made).rename(log.parent / made.replace("log.1", f"log.{5 - turn}"))
    await follower.reads(*expected)
    follower.restart()
    await follower.reads(*expected)
    assert not follower.losses


@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
async def test_lines_that_all_end_alike_are_told_apart_by_how_their_generation_begins(
    follow: Any, log: Path, glob: str
) -> None:
    """Of a copy it was not noted: the compressed next generation was taken for it, and the rest was lost."""

    def lines(first: int, count: int) -> list[str]:
        return [f"{'y' * 300}{number:06}{'y' * 393}" for number in range(first, first + count)]

    def rotate() -> None:
        for number in (2, 1):
            if (packed := log.with_name(f"a.log.{number}.gz")).exists():
                packed.rename(log.with_name(f"a.log.{number + 1}.gz"))
        copytruncate(log, log.with_name("a.log.1"))
        compress(log.with_name("a.log.1"))

    append(log, *lines(0, 20))
    follower = follow(glob, compressed="skip")
    await follower.settle()
    shutil.copyfile(log, log.with_name("a.log.1"))
    await follower.settle()  # the copy is met
    os.truncate(log, 0)
    compress(log.with_name("a.log.1"))
    append(log, *lines(20, 5))
    await follower.settle()
    follower.stop()
    append(log, *lines(25, 20))
    rotate()
    append(log, *lines(45, 10))
    rotate()
    append(log, *lines(55, 10))
    follower.start()
    await follower.reads(*lines(0, 65))
    assert not follower.losses


@pytest.mark.parametrize("made", ["a.log.1", "old/a.log.1", "a.log.1.gz", "old/a.log.1.gz"])
@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
@pytest.mark.parametrize("acknowledged", [0, 4])
@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("who", ["worker", "daemon"])
async def test_what_was_not_acknowledged_is_read_in_a_copy_that_lacks_the_last_lines(
    follow: Any, log: Path, glob: str, made: str, acknowledged: int, seen: bool, who: str
) -> None:
    """A worker died, and the log was copied and truncated. 804 lines were missing that the copy had."""
    made_of = (log.parent / made).with_suffix("") if made.endswith(".gz") else log.parent / made
    made_of.parent.mkdir(exist_ok=True)
    lines = [f"{number} of the log".ljust(600) for number in range(9)]  # longer than what is noted of a head
    append(log, *lines[:acknowledged])
    follower = follow(glob, rotated=[f"{log.parent}/old/*"], compressed="read")
    await follower.reads(*lines[:acknowledged])
    append(log, *lines[acknowledged:])
    if not acknowledged:
        follower.unopened = []
        await follower.until(lambda: follower.unopened)
        follower.open_all()
    await asyncio.sleep(0.02)  # longer than the grain of times of modification
    shutil.copyfile(log, made_of)
    append(log, "late")
    for name, source in follower.sources.items():  # as the worker reports
        source.look()
        assert follower.read(name)
        stored = follower.stored[name]
        follower.stored[name] = StoredPosition(name, stored.position, dict(source.detail()))
    if seen:
        await asyncio.sleep(0.1)
    if who == "daemon":
        follower.stop()
    os.truncate(log, 0)
    append(log, "next")
    if made.endswith(".gz"):
        compress(made_of)
    follower.lines.clear()
    (follower.restart_worker if who == "worker" else follower.start)()
    await follower.reads(*lines[acknowledged:], "next")
    assert [(loss.reason, loss.length) for loss in follower.losses] == [("truncated", len("late\n"))]


@pytest.mark.parametrize("truncated", ["never", "before", "after"])
@pytest.mark.parametrize("made", ["a.log.2", "old/a.log.2"])
@pytest.mark.parametrize("unread", [[], ["four"]])
async def test_a_copy_is_not_read_beside_a_log_that_is_as_new_as_it(
    follow: Any, log: Path, made: str, truncated: str, unread: list[str]
) -> None:
    """The log was renamed while nothing ran, and the next one copied: it was sent, and then the log, with all of it."""
    (log.parent / "old").mkdir()
    follower = follow("a.log", rotated=[f"{log.parent}/old/*"])
    append(log, "one")
    await follower.reads("one")
    follower.stop()
    append(log, *unread)
    await asyncio.sleep(0.02)  # longer than the grain of times of modification
    shift(log)
    append(log, "header", *map(str, range(9)))
    await asyncio.sleep(0.02)
    shutil.copyfile(log, log.parent / made)
    await asyncio.sleep(0.02)
    late = "down" if truncated == "before" else "late"
    if truncated == "before":
        os.truncate(log, 0)
    append(log, late)
    follower.start()
    await follower.begin()
    if truncated == "after":
        follower.drain()
        await asyncio.sleep(0.02)
        follower.drain()
        os.truncate(log, 0)
        append(log, "new")
    await follower.reads("one", *unread, "header", *map(str, range(9)), late, *["new"] * (truncated == "after"))
    assert not follower.losses


@pytest.mark.parametrize("made", ["a.log.2", "old/a.log.2"])
@pytest.mark.parametrize("late", [[], ["late"]])
async def test_what_nobody_began_to_read_is_read_in_a_copy(follow: Any, log: Path, made: str, late: list[str]) -> None:
    """The log was truncated while nothing ran, and again when the next run had just found it and its copy."""
    (log.parent / "old").mkdir()
    follower = follow("a.log", rotated=[f"{log.parent}/old/*"])
    append(log, *map(str, range(9)))
    await follower.reads(*map(str, range(9)))
    follower.stop()
    await asyncio.sleep(0.02)  # longer than the grain of times of modification
    copytruncate(log, log.with_name("a.log.1"))
    append(log, "a", "b")
    await asyncio.sleep(0.02)
    shutil.copyfile(log, log.parent / made)
    append(log, *late)
    follower.start()
    follower.unopened = []
    await follower.until(lambda: any(each.detail.get("copy_of") for each in follower.stored.values()))
    await asyncio.sleep(0.02)
    os.truncate(log, 0)
    append(log, "c")
    follower.open_all()
    await follower.reads(*map(str, range(9)), "a", "b", "c")
    assert [loss.length for loss in follower.losses] == [5 for _ in late]


@pytest.mark.parametrize("how", ["rename", "truncate"])
async def test_a_copy_beside_a_log_stays_one_when_that_is_compressed(follow: Any, log: Path, how: str) -> None:
    """`cp app.log app.log.bak`; then app.log was rotated and compressed while nothing ran: the copy came again."""
    follower = follow("a.log")
    append(log, *map(str, range(9)))
    await follower.reads(*map(str, range(9)))
    await asyncio.sleep(0.02)  # longer than the grain of times of modification
    shutil.copyfile(log, log.with_name("a.log.bak"))
    await follower.settle()
    append(log, "later")
    await follower.reads(*map(str, range(9)), "later")
    follower.stop()
    shift(log) if how == "rename" else copytruncate(log, log.with_name("a.log.1"))
    compress(log.with_name("a.log.1"))
    append(log, "new")
    follower.start()
    await follower.reads(*map(str, range(9)), "later", "new")
    assert not follower.losses


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("how", ["rename", "truncate"])
@pytest.mark.parametrize("kept", [False, True])
async def test_what_is_decompressed_is_not_read_again(follow: Any, log: Path, how: str, down: bool, kept: bool) -> None:
    """`gunzip app.log.2.gz`, to look into it: all of it came again."""
    follower = follow("a.log", rescan_interval=0.3)
    expected: list[str] = []
    for turn in range(2):
        append(log, *(f"{turn} {number}" for number in range(9)))
        expected += (f"{turn} {number}" for number in range(9))
        await follower.reads(*expected)
        await asyncio.sleep(0.02)
        if turn:
            log.with_name("a.log.1.gz").rename(log.with_name("a.log.2.gz"))
        shift(log) if how == "rename" else copytruncate(log, log.with_name("a.log.1"))
        append(log, f"{turn} next")
        expected.append(f"{turn} next")
        await asyncio.sleep(0.1)
        compress(log.with_name("a.log.1"))
        await follower.reads(*expected)
    if down:
        follower.stop()
    packed = log.with_name("a.log.2.gz")
    log.with_name("a.log.2").write_bytes(gzip.decompress(packed.read_bytes()))
    os.utime(log.with_name("a.log.2"), ns=(packed.stat().st_atime_ns, packed.stat().st_mtime_ns))
    if not kept:
        packed.unlink()
    if down:
        follower.start()
    await follower.settle()
    await asyncio.sleep(0.5)  # looks at all that is known
    await follower.reads(*expected)
    assert not follower.losses


async def test_the_new_content_may_be_longer_than_the_old_one(follow: Any, log: Any) -> None:
    follower = follow("a.log*")
    append(log, "1")
    await follower.settle()
    append(log, "2")
    copytruncate(log, log.with_name("a.log.1"))
    append(log, *(f"new {number}" for number in range(100)))
    await follower.reads("1", "2", *(f"new {number}" for number in range(100)))
    assert not follower.losses


@pytest.mark.parametrize("header", [0, 1])
async def test_a_copy_that_the_next_rotation_overwrites_in_place_is_its_copy(
    follow: Any, log: Any, header: int
) -> None:
    # `cp a.log a.log.1; : > a.log`: 8 of 14 lines came twice.
    def rotate() -> None:
        log.with_name("a.log.1").write_bytes(log.read_bytes())
        os.truncate(log, 0)
        append(log, *["#Fields: date time"] * header)

    follower = follow("a.log")
    append(log, *["#Fields: date time"] * header)
    lines = iter(map(str, range(100)))
    for down in (False, False, False, True, False):
        append(log, next(lines), next(lines))
        await follower.settle()
        if down:
            follower.stop()
        rotate()
        append(log, next(lines))
        if down:
            follower.start()
        await follower.settle()
    headers = ["#Fields: date time"] * 6 * header
    await follower.reads(*headers, *map(str, range(15)), ordered=False)


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
async def test_between_runs_a_backup_is_overwritten_in_place(
    follow: Any, log: Any, ending: str, glob: str, once: bool
) -> None:
    # `gzip -c a.log > a.log.1.gz; : > a.log`: what was not read by then was lost. With `--once` and `cp` it came twice.
    backup, compress = log.with_name(f"a.log.1{ending}"), COMPRESS.get(ending[1:], bytes)
    follower = follow(glob, once=once)
    append(log, *map(str, range(20)))
    lines = iter(range(20, 100))
    for _ in range(4):
        await follower.settle()
        follower.stop()
        append(log, *(str(next(lines)) for _ in range(3)))
        backup.write_bytes(compress(log.read_bytes()))
        os.truncate(log, 0)
        append(log, *(str(next(lines)) for _ in range(2)))
        follower.start()
    await follower.reads(*map(str, range(40)), ordered=False)
    assert not follower.losses


async def test_a_file_that_begins_as_one_that_was_over_in_the_last_run_is_read(follow: Any, log: Any) -> None:
    # Its log was never followed again, in silence: the file waited for the end of what had ended long before.
    follower = follow("a.log")
    append(log, "#Fields: date time")
    await follower.settle()
    copytruncate(log, log.with_name("a.log.1"))
    append(log, "1", "2")
    await follower.settle()
    follower.stop()
    log.with_name("a.log.1").rename(log.with_name("a.log.2"))
    copytruncate(log, log.with_name("a.log.1"))
    append(log, "#Fields: date time", "3")
    follower.start()
    await follower.settle()
    append(log, "4")
    await follower.reads("#Fields: date time", "1", "2", "#Fields: date time", "3", "4")


async def test_a_copy_in_the_making_is_not_sent(follow: Any, log: Any) -> None:
    follower = follow("a.log*")
    lines = [f"line {number}" for number in range(50)]
    append(log, *lines)
    await follower.settle()
    content = log.read_bytes()
    with log.with_name("a.log.1").open("wb", buffering=0) as copy:
        for begin in range(0, len(content), 100):
            copy.write(content[begin : begin + 100])
            if begin < 300:
                await follower.settle()
        append(log, "last")
        copy.write(b"last\n")
    await follower.settle()
    os.truncate(log, 0)
    append(log, "new")
    await follower.reads(*lines, "last", "new")
    assert not follower.losses


async def test_a_stop_between_copy_and_truncate_sends_nothing_twice(follow: Any, log: Any) -> None:
    # 28,600 of 790,400 lines came twice.
    follower = follow("a.log*")
    append(log, "1", "2")
    await follower.settle()
    shutil.copyfile(log, log.with_name("a.log.1"))
    await follower.settle()
    follower.stop()
    os.truncate(log, 0)
    append(log, "3")
    follower.start()
    await follower.settle()
    follower.stop()
    append(log, "4")
    copytruncate(log, log.with_name("a.log.2"))
    append(log, "5")
    follower.start()
    await follower.settle()
    follower.restart()
    await follower.reads("1", "2", "3", "4", "5")
    assert not follower.losses


@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
@pytest.mark.parametrize("header", [0, 2000])
async def test_copied_and_truncated_twice_while_we_were_down(follow: Any, log: Any, glob: str, header: int) -> None:
    first = "#" * header
    append(log, first, "1")
    later(log, -1000)
    follower = follow(glob)
    await follower.settle()
    follower.stop()
    append(log, "2")
    copytruncate(log, log.with_name("a.log.2"))
    later(log.with_name("a.log.2"), -20)
    append(log, first, "3", "and it is longer than all before" * 3)
    copytruncate(log, log.with_name("a.log.1"))
    later(log.with_name("a.log.1"), -10)
    append(log, first, "4")
    follower.start()
    # A copy that was made whole meanwhile, where a glob matches it, is a log of its own: it has its own order.
    expected = [first, "1", "2", first, "3", "and it is longer than all before" * 3, first, "4"]
    await follower.reads(*expected, ordered=glob == "a.log")
    follower.restart()
    await follower.settle()
    assert len(follower.lines) == 8
    assert not follower.losses


@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
@pytest.mark.parametrize("before", ["rotated", "empty", "read", "new"])
@pytest.mark.parametrize("copies", [1, 3])
async def test_a_copy_of_what_was_truncated_before_anybody_looked_is_read(
    follow: Any, log: Any, glob: str, before: str, copies: int
) -> None:
    # Of 3,000 files with 330 rotations each second, one history lost 20 lines so, in silence.
    follower = follow(glob)
    expected = []
    if before in {"rotated", "read"}:
        append(log, "old")
        expected.append("old")
    elif before == "empty":
        append(log)
    await follower.settle()
    if before == "rotated":
        shift(log)
        append(log)
        await follower.settle()
    elif before == "read":
        shift(log)
    for number in range(copies):
        append(log, f"{number}", f"{number} too")
        for old in sorted(log.parent.glob("a.log.?"), reverse=True):
            old.rename(log.with_name(f"a.log.{int(old.suffix[1:]) + 1}"))
        copytruncate(log, log.with_name("a.log.1"))
        expected += [f"{number}", f"{number} too"]
    append(log, "4", "5")
    expected += ["4", "5"]
    await follower.reads(*expected, ordered=glob == "a.log")
    follower.restart()
    await follower.reads(*expected, ordered=glob == "a.log")
    assert not follower.losses


@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
@pytest.mark.parametrize("seen", ["empty", "never"])
async def test_a_copy_of_what_nobody_looked_at_yet_is_not_sent_beside_it(
    follow: Any, log: Any, glob: str, seen: str
) -> None:
    follower = follow(glob)
    if seen == "empty":
        append(log)
    await follower.settle()
    append(log, "1", "2", "3")
    shutil.copyfile(log, log.with_name("a.log.1"))
    await follower.settle()
    append(log, "4", "5")
    await follower.settle()
    await follower.reads("1", "2", "3", "4", "5")
    follower.restart()
    append(log, "6")
    await follower.reads("1", "2", "3", "4", "5", "6")
    assert not follower.losses


async def test_a_copy_of_what_was_truncated_before_it_was_opened_is_read(follow: Any, log: Any) -> None:
    # Seen in the demo: the third rotation came so soon that the worker met the copy alone.
    follower = follow("a.log")
    follower.unopened = []
    append(log, *["one"] * 300)
    await follower.begin()
    copytruncate(log, log.with_name("a.log.1"))
    append(log, *["two"] * 100)
    follower.open_all()
    await follower.reads(*["one"] * 300, *["two"] * 100)
    assert not follower.losses


@pytest.mark.parametrize("what", ["worker", "daemon"])
@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
async def test_who_dies_within_a_copy_is_followed_by_one_that_reads_it_to_its_end(
    follow: Any, log: Any, what: str, glob: str
) -> None:
    lines = [f"{number:05}" for number in range(30_000)]
    append(log, *lines)
    follower = follow(glob)
    follower.unopened = []
    await follower.begin()
    copytruncate(log, log.with_name("a.log.1"))
    append(log, "two")
    follower.open_all()
    follower.unopened = []
    await follower.until(lambda: follower.unopened)  # the copy
    follower.open_all()
    source = next(iter(follower.sources))
    assert follower.read(source, 65536)
    follower.acknowledge(source)
    assert follower.read(source, 65536)
    (follower.restart_worker if what == "worker" else follower.restart)()
    await follower.settle()
    assert set(follower.texts) == {line.encode() for line in [*lines, "two"]}
    assert len(follower.texts) == len(lines) + 1 + len(follower.repeatable)
    assert not follower.losses


@pytest.mark.parametrize("rotations", [1, 2])
async def test_what_was_compressed_before_it_was_acknowledged_comes_first_when_the_worker_dies(
    follow: Any, log: Any, rotations: int
) -> None:
    append(log, "0")
    follower = follow("a.log")
    await follower.settle()
    append(log, "1")
    for number in range(rotations):
        shift(log)
        append(log, str(number + 2))
        found = len(follower.found)
        async with asyncio.timeout(20):
            while len(follower.found) == found:
                for name, source in follower.sources.items():
                    source.look()
                    follower.read(name)
                await asyncio.sleep(0.01)
        for name, source in follower.sources.items():  # as the worker reports
            stored = follower.stored[name]
            follower.stored[name] = StoredPosition(name, stored.position, dict(source.detail()))
    for number in range(1, rotations + 1):
        compress(log.with_name(f"a.log.{number}"))
    follower.lines.clear()
    follower.restart_worker()
    await follower.reads(*map(str, range(1, rotations + 2)))
    assert not follower.losses


async def test_a_copy_is_not_sent_though_its_original_is_not_said_to_be_truncated_for_long(
    follow: Any, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker hangs for longer than a copy in the making is waited for."""
    examinations = []

    class Counting(Looks):
        def examine(self, wanted: Sequence[Examination]) -> list[Examined | None]:
            examinations.append(wanted)
            return super().examine(wanted)

    follower = follow("a.log*", looks=Counting(), rescan_interval=0.05)
    append(log, "1")
    await follower.settle()
    shutil.copyfile(log, log.with_name("a.log.1"))
    await follower.until(lambda: any(each.detail.get("copy_of") for each in follower.stored.values()))
    assert follower.finder.waiting == 1
    os.truncate(log, 0)
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.0)
    examinations.clear()
    async with asyncio.timeout(20):
        while len(examinations) < 2 and len(follower.found) == 1:
            await asyncio.sleep(0.01)
    await follower.reads("1")


@pytest.mark.parametrize("rotated", ["down", "up", "twice"])
async def test_a_file_that_begins_as_another_one_is_read_although_it_is_rotated_while_it_waits(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rotated: str
) -> None:
    # Seen with a header that all logs begin with: files that held nothing else were missing after a stop.
    logs = [tmp_path / name / "app.log" for name in ("one", "two")]
    follower = follow("*/*.log", rescan_interval=0.05)
    for log in logs:
        log.parent.mkdir()
        append(log, "header")
        await follower.settle()
    assert follower.texts == [b"header"]
    if rotated != "down":
        logs[1].rename(tmp_path / "two" / "app.log.1")
        append(logs[1], "header", "next")
        await follower.settle()
    follower.stop()
    if rotated == "down":
        logs[1].rename(tmp_path / "two" / "app.log.1")
    elif rotated == "twice":
        (tmp_path / "two" / "app.log.1").rename(tmp_path / "two" / "app.log.2")
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.0)
    follower.start()
    await follower.until(lambda: follower.texts.count(b"header") == (2 if rotated == "down" else 3))
    await follower.settle()
    assert follower.texts.count(b"header") == (2 if rotated == "down" else 3)
    assert not follower.losses


@pytest.mark.parametrize("down", [False, True])
async def test_a_copy_that_no_glob_matches_is_not_read(
    follow: Any, log: Any, monkeypatch: pytest.MonkeyPatch, *, down: bool
) -> None:
    # `cp app.log app.log.bak`: 503 of 503 lines came twice, 10 s later.
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.1)
    follower = follow("*.log", rescan_interval=0.05)
    append(log, "1")
    await follower.reads("1")
    if down:
        follower.stop()
        append(log, "2")
    shutil.copy2(log, log.with_name("a.log.bak"))
    shutil.copy2(log, log.with_name("a.log.1"))
    if down:
        follower.start()
        await follower.settle()
    for _ in range(5):
        await follower.settle()
    append(log, "3")
    for _ in range(5):
        await follower.settle()
    assert follower.texts == [b"1", *([b"2"] if down else []), b"3"]
    if not down:  # else nobody knows by then what it was a copy of
        os.truncate(log, 0)
        append(log, "4")
        await follower.settle()
        assert follower.texts[-2:] == [b"3", b"4"]
    assert not follower.losses


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("name", ["a.log.save", "a.log.A", "a__2026-11-28_03-51-57.log"])
async def test_a_copy_is_known_by_its_content_whatever_is_added_to_the_name_of_its_log(
    follow: Any, log: Any, monkeypatch: pytest.MonkeyPatch, name: str, *, truncated: bool
) -> None:
    # pm2-logrotate; `cp app.log app.log.save` of a log that had been quiet since it was met: all lines came twice.
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.1)
    follower = follow("a.log", rescan_interval=0.05)
    append(log, "1", "2")
    await follower.reads("1", "2")
    shutil.copyfile(log, log.with_name(name))
    if truncated:
        os.truncate(log, 0)
    for _ in range(5):
        await follower.settle()
    append(log, "3")
    for _ in range(5):
        await follower.settle()
    assert follower.texts == [b"1", b"2", b"3"]
    assert not follower.losses


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", ["a-2.log", "a2.log", "a-error.log", "a.log.save"])
async def test_a_file_that_no_glob_matches_is_not_read_though_it_is_called_like_a_log_and_more(
    follow: Any, log: Any, name: str, *, together: bool
) -> None:
    # Made together with the log, or where nothing else had happened since that was met: it was sent as if rotated.
    follower = follow("a.log", rescan_interval=0.05)
    await follower.settle()
    append(log, "1")
    if not together:
        await follower.reads("1")
    append(log.with_name(name), "of another program")
    for _ in range(5):
        await follower.settle()
    append(log, "2")
    for _ in range(5):
        await follower.settle()
    assert follower.texts == [b"1", b"2"]


@pytest.mark.parametrize(
    ("packed", "renamed"),
    [
        ("a__2026-11-28_03-51-57.log.gz", ""),  # pm2-logrotate
        ("a.log.gz", "a1.log.gz"),  # winston, tailable
        ("a.log.rotate.7.gz", "a.log.1.gz"),  # concurrent-log-handler
    ],
)
async def test_what_a_library_compresses_beside_its_log_comes_once(
    follow: Any, log: Any, packed: str, renamed: str
) -> None:
    # 16,000 of 16,000 lines came twice.
    follower = follow("a*", compressed="read", rescan_interval=0.05)
    for round_ in range(3):
        append(log, f"{round_} 1", f"{round_} 2")
        await follower.settle()
        content = log.read_bytes()
        if "rotate" in packed:
            log.rename(log.with_name(packed.removesuffix(".gz")))
        log.with_name(packed).write_bytes(gzip.compress(content))
        if "rotate" in packed:
            log.with_name(packed.removesuffix(".gz")).unlink()
        else:
            os.truncate(log, 0)
        if round_ % 2:
            await follower.settle()
        for number in range(3, 0, -1):
            if renamed and (older := log.with_name(renamed.replace("1", str(number)))).exists():
                older.rename(log.with_name(renamed.replace("1", str(number + 1))))
        if renamed:
            log.with_name(packed).rename(log.with_name(renamed))
        for _ in range(3):
            await follower.settle()
        packed = packed.replace("2026", "2025", 1) if not renamed and not round_ else packed.replace("2025", "2024")
    assert follower.texts == [f"{round_} {number}".encode() for round_ in range(3) for number in (1, 2)]
    assert not follower.losses


async def test_the_rest_is_read_from_a_file_that_was_met_empty_and_compressed_to_while_down(
    follow: Any, log: Any
) -> None:
    # As the kubelet compresses: its file was read as plain text, which it was not, and 1 of 2 lines was lost.
    follower = follow("*.log")
    written = log.with_name("pod") / "0.log"
    written.parent.mkdir()
    log.symlink_to(written)
    append(written, "1")
    await follower.reads("1")
    old = written.rename(written.with_name("0.log.1"))
    append(written, "3")
    await follower.reads("1", "3")
    packing = written.with_name("0.log.1.tmp")
    packing.touch()
    await follower.settle()
    follower.stop()
    append(old, "2")
    packing.write_bytes(gzip.compress(old.read_bytes()))
    packing.rename(written.with_name("0.log.1.gz"))
    old.unlink()
    follower.start()
    await follower.reads("1", "3", "2")
    assert not follower.losses


async def test_what_was_met_empty_and_is_compressed_by_the_next_run_is_no_trouble(follow: Any, log: Any) -> None:
    # As the kubelet compresses: it was said to be compressed and not called so, with its name, which has the ending.
    follower = follow("*.log")
    append(log, "1")
    await follower.reads("1")
    old = log.rename(log.with_name("a.log.1"))
    append(log, "2")
    await follower.reads("1", "2")
    packing = log.with_name("a.log.1.tmp")
    packing.touch()
    await follower.settle()
    follower.stop()
    packing.write_bytes(gzip.compress(old.read_bytes()))
    later(packing, -60)
    packing.rename(log.with_name("a.log.1.gz"))
    old.unlink()
    follower.start()
    append(log, "3")
    await follower.reads("1", "2", "3")
    assert not follower.told
    assert not follower.losses


def member(*lines: str, codec: str = "gz") -> bytes:
    """One member, frame or stream of a compressed file."""
    return COMPRESS[codec]("".join(f"{line}\n" for line in lines).encode())


def pack(path: Path, *lines: str) -> None:
    """Append a member, as nginx does with `gzip flush`."""
    with path.open("ab") as stream:
        stream.write(member(*lines))


def follow_packed(follow: Any, globs: str = "*.gz", **settings: Any) -> Any:
    return follow(globs, compressed="read", rescan_interval=0.05, **settings)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed file that may be in the making is not waited for."""
    monkeypatch.setattr(source_module, "IN_THE_MAKING", 0.2)


async def test_what_came_while_nothing_ran_is_not_sent_again_once_it_is_renamed_and_compressed(
    follow: Any, tmp_path: Path
) -> None:
    """Of more than eight logs that are called alike. app.log.1 is a log of its own then, called unlike app.log.2.gz."""
    logs = [tmp_path / str(number) / "app.log" for number in range(9)]
    for number, log in enumerate(logs):
        log.parent.mkdir()
        append(log, f"{number} one")
    follower = follow("*/app.log*", compressed="read")
    texts = [f"{number} one" for number in range(9)]
    await follower.reads(*texts, ordered=False)
    follower.stop()
    for number, log in enumerate(logs):
        log.rename(f"{log}.2")
        append(log, f"{number} two")
        log.rename(f"{log}.1")
        append(log, f"{number} three")
        texts += [f"{number} two", f"{number} three"]
    follower.start()
    await follower.reads(*texts, ordered=False)
    for log in logs:
        log.with_name("app.log.2").rename(log.with_name("app.log.3"))
        rotated, packed = log.with_name("app.log.1"), log.with_name("app.log.2.gz")
        packed.write_bytes(gzip.compress(rotated.read_bytes()))
        os.utime(packed, ns=(rotated.stat().st_atime_ns, rotated.stat().st_mtime_ns))
        rotated.unlink()
    await follower.settle()
    await follower.reads(*texts, ordered=False)
    assert not follower.losses


@pytest.mark.parametrize("codec", COMPRESS)
async def test_members_that_are_appended_after_a_compressed_file_was_read_are_read_too(
    follow: Any, tmp_path: Path, codec: str, impatient: None
) -> None:
    path = tmp_path / f"a.{codec}"
    path.write_bytes(member("0", codec=codec))
    follower = follow_packed(follow, "*")
    await follower.reads("0")
    for number in range(1, 4):
        with path.open("ab") as stream:
            stream.write(member(str(number), codec=codec))
        await follower.reads(*map(str, range(number + 1)))
    follower.restart()
    await follower.reads("0", "1", "2", "3")
    with path.open("ab") as stream:
        stream.write(member("4", codec=codec))
    await follower.reads("0", "1", "2", "3", "4")
    assert not follower.losses


async def test_a_run_with_an_end_reads_what_grew_or_was_rewritten_since_the_last_one(
    follow: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.gz"
    pack(path, "1")
    follower = follow_packed(follow, once=True)
    await follower.reads("1")
    pack(path, "2")
    follower.restart()
    await follower.reads("1", "2")
    assert not follower.sources
    path.write_bytes(member("3"))
    follower.restart()
    await follower.reads("1", "2", "3")
    assert not follower.told
    assert not follower.losses


async def test_a_compressed_log_is_renamed_and_begun_anew_while_it_grows(follow: Any, tmp_path: Path) -> None:
    """Its reader waits for more, and the next one of the log was held back as long."""
    path = tmp_path / "a.gz"
    pack(path, "1")
    follower = follow_packed(follow)
    await follower.reads("1")
    pack(path, "2")
    await follower.reads("1", "2")
    assert len(follower.sources) == 1, "it may go on growing"
    path.rename(tmp_path / "a.gz.0")
    pack(path, "3")
    await follower.reads("1", "2", "3")
    pack(tmp_path / "a.gz.0", "late")
    await follower.reads("1", "2", "3", "late")
    assert not follower.losses


async def test_a_compressed_file_that_is_rewritten_in_place_is_read_anew(
    follow: Any, tmp_path: Path, impatient: None
) -> None:
    path = tmp_path / "a.gz"
    pack(path, "old 1", "old 2", "old 3")
    follower = follow_packed(follow)
    await follower.reads("old 1", "old 2", "old 3")
    path.write_bytes(member("new 1"))
    await follower.reads("old 1", "old 2", "old 3", "new 1")
    path.write_bytes(member("later 1", "later 2", "later 3", "later 4"))
    read = ["old 1", "old 2", "old 3", "new 1", "later 1", "later 2", "later 3", "later 4"]
    await follower.reads(*read)
    path.write_bytes(b"")
    await follower.reads(*read)
    pack(path, "last")
    await follower.reads(*read, "last")
    assert not follower.losses


async def test_a_compressed_file_whose_time_alone_changes_is_read_once_more_and_no_line_is_sent_again(
    follow: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.gz"
    pack(path, "1")
    follower = follow_packed(follow)
    await follower.reads("1")
    before = len(follower.found)
    later(path, -1000)
    await follower.until(lambda: len(follower.found) > before and not follower.sources)
    await follower.settle()
    await asyncio.sleep(0.3)
    await follower.settle()
    assert len(follower.found) == before + 1
    assert follower.texts == [b"1"]


async def test_an_upload_of_a_compressed_file_that_pauses_is_no_damage(follow: Any, tmp_path: Path) -> None:
    lines = [f"{number} {os.urandom(20).hex()}" for number in range(5000)]
    data = member(*lines)
    path = tmp_path / "a.gz"
    follower = follow_packed(follow)
    path.write_bytes(data[: len(data) // 2])
    os.utime(path, (time.time() - 10, time.time() - 10))  # it pauses
    await follower.until(lambda: len(follower.lines) > 1000)
    await follower.settle()
    assert not follower.ended
    with path.open("ab") as stream:
        stream.write(data[len(data) // 2 :])
    await follower.reads(*lines)
    assert not follower.losses


async def test_an_upload_that_goes_on_after_it_was_said_to_be_damaged_is_read_to_its_end(
    follow: Any, tmp_path: Path
) -> None:
    lines = [f"{number} {os.urandom(20).hex()}" for number in range(5000)]
    data = member(*lines)
    path = tmp_path / "a.gz"
    path.write_bytes(data[: len(data) // 2])
    os.utime(path, (1000, 1000))
    follower = follow_packed(follow)
    await follower.until(lambda: follower.losses)
    assert [loss.reason for loss in follower.losses] == ["damaged"]
    with path.open("ab") as stream:
        stream.write(data[len(data) // 2 :])
    await follower.reads(*lines)
    assert len(follower.losses) == 1


@pytest.mark.parametrize("once", [False, True])
async def test_what_a_compressed_file_lacks_is_lost_in_the_same_words_in_runs_with_and_without_an_end(
    follow: Any, tmp_path: Path, once: bool
) -> None:
    """gzip was killed. A run with an end said that the file was not taken, and that in each run anew."""
    lines = [f"{number} {os.urandom(20).hex()}" for number in range(5000)]
    data = member(*lines)
    path = tmp_path / "a.gz"
    path.write_bytes(data[: len(data) // 2])
    os.utime(path, (1000, 1000))
    follower = follow_packed(follow, once=once)
    await follower.until(lambda: follower.losses)
    (loss,) = follower.losses
    whole = sum(len(line) + 1 for _, line in follower.lines)
    assert (loss.thing, loss.reason, loss.start) == (str(path), "damaged", whole)
    assert loss.length > 0, "the beginning of a line"
    assert "cut off" in loss.why
    assert not follower.troubles
    read = len(follower.lines)
    follower.restart()
    await follower.scan()
    assert not follower.sources, "what was said is not said again"
    with path.open("ab") as stream:
        stream.write(data[len(data) // 2 :])
    follower.restart()
    await follower.until(lambda: len(follower.lines) == len(lines))
    assert read < len(lines)
    assert len(follower.losses) == 1


async def test_a_compressed_file_without_a_byte_is_no_loss_and_is_read_once_something_is_in_it(
    follow: Any, tmp_path: Path, impatient: None
) -> None:
    # After a minute it was an error, "data lost", with 0 bytes from 0 on.
    path = tmp_path / "a.gz"
    path.touch()
    os.utime(path, (1000, 1000))
    follower = follow_packed(follow)
    await follower.settle()
    assert not follower.losses
    assert not follower.troubles
    pack(path, "1")
    await follower.reads("1")
    path.write_bytes(b"")  # it is to be written anew
    await follower.settle()
    pack(path, "2", "3")
    await follower.reads("1", "2", "3")
    assert not follower.losses


async def test_members_that_were_seen_and_deleted_unread_are_lost_loudly(follow: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    pack(path, "1")
    follower = follow_packed(follow)
    await follower.reads("1")
    follower.unopened = []  # its workers are busy
    pack(path, "2")
    await follower.until(lambda: follower.unopened)
    path.unlink()
    await asyncio.sleep(0.2)
    follower.open_all()
    await follower.until(lambda: follower.losses)
    await follower.settle()
    assert [(loss.reason, loss.start, loss.length) for loss in follower.losses] == [("deleted", 2, len(member("2")))]
    assert not follower.stored


async def test_of_a_compressed_file_that_grew_and_is_deleted_nothing_is_kept_for_long(
    follow: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.gz"
    pack(path, "1")
    follower = follow_packed(follow)
    await follower.reads("1")
    pack(path, "2")
    await follower.reads("1", "2")
    path.unlink()
    await follower.until(lambda: not follower.sources)
    await follower.settle()
    assert [end.kind for end in follower.ended.values()] == ["deleted"]
    assert not follower.losses


async def test_thousands_of_compressed_files_are_looked_at_in_turns(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_module, "_RECENT_MOST", 2)
    monkeypatch.setattr(finished_module, "_PACKED_AT_ONCE", 2)
    for number in range(9):
        pack(tmp_path / f"{number}.gz", str(number))
    follower = follow_packed(follow)
    await follower.reads(*map(str, range(9)), ordered=False)
    for number in range(9):
        pack(tmp_path / f"{number}.gz", f"{number} late")
    await follower.reads(*map(str, range(9)), *(f"{number} late" for number in range(9)), ordered=False)


async def test_a_copy_that_goes_on_by_itself_is_a_file_of_its_own(follow: Any, log: Any) -> None:
    follower = follow("*.log", rescan_interval=0.05)
    append(log, "1")
    await follower.settle()
    copy = log.with_name("a-2.log")
    shutil.copyfile(log, copy)
    await follower.settle()
    append(copy, "b 2")
    append(log, "a 2")
    # It is no copy of the other: it only began like it.
    await follower.reads("1", "1", "b 2", "a 2", ordered=False)
    append(copy, "b 3")
    append(log, "a 3")
    await follower.reads("1", "1", "b 2", "a 2", "b 3", "a 3", ordered=False)
    assert {found.label for found in follower.found} == {str(log), str(copy)}


@pytest.mark.parametrize("stops", [False, True])
async def test_logs_that_begin_with_the_same_header_are_logs_of_their_own(
    follow: Any, tmp_path: Path, *, stops: bool
) -> None:
    # Seen after copy and truncate: a log that held nothing but its header yet was also read as a copy of another one.
    header = "#" * 2000
    logs = [tmp_path / f"app-{number}.log" for number in range(3)]
    follower = follow("*.log")
    append(logs[0], "0 first")
    await follower.settle()
    os.truncate(logs[0], 0)
    for log in logs:
        append(log, header)
        await follower.settle()
    if stops:
        follower.restart()
    for number, log in enumerate(logs):
        append(log, f"{number} first")
    await follower.settle()
    follower.restart()
    await follower.settle()
    for number, log in enumerate(logs):
        append(log, f"{number} second")
    expected = [
        "0 first",
        *[header] * 3,
        *(f"{number} {which}" for number in range(3) for which in ("first", "second")),
    ]
    await follower.reads(*expected, ordered=False)
    assert {(found.label, found.detail["path"]) for found in follower.found} == {(str(log), str(log)) for log in logs}
    assert not follower.losses


async def test_truncated_without_a_copy_is_said_where_lines_were_not_read(follow: Any, log: Any) -> None:
    follower = follow("a.log")
    append(log, "1")
    await follower.settle()
    os.truncate(log, 0)
    append(log, "2")
    await follower.reads("1", "2")
    assert not follower.losses
    append(log, "33333333")
    follower.sources[follower.found[-1].source].look()
    assert follower.sources[follower.found[-1].source].unread == 9
    source = follower.sources[follower.found[-1].source]
    source.held_back = True  # a cluster that takes nothing
    os.truncate(log, 0)
    append(log, "4")
    source.held_back = False
    await follower.reads("1", "2", "4")


async def test_what_was_seen_and_not_read_of_a_truncated_file_is_said_once(follow: Any, log: Any) -> None:
    follower = follow("a.log")
    append(log, "1")
    await follower.settle()
    follower.stop()
    change(follower, size=12)  # the worker had seen 12 bytes
    os.truncate(log, 0)
    append(log, "2")
    follower.start()
    await follower.reads("1", "2")
    follower.restart()
    await follower.reads("1", "2")
    assert [(loss.thing, loss.reason, loss.start, loss.length, loss.exact) for loss in follower.losses] == [
        (str(log), "truncated", 2, 10, False)
    ]


async def test_a_writer_that_does_not_append_leaves_a_hole_that_is_not_read(follow: Any, log: Any) -> None:
    # After copytruncate it goes on at its old place: NUL bytes that nobody wrote are before its next line.
    follower = follow()
    with log.open("wb", buffering=0) as stream:
        stream.write(b"one\n" * 50_000)
        await follower.settle()
        os.truncate(log, 0)
        stream.write(b"two\n")
        await follower.settle()
    assert follower.texts[50_000:] == [b"two"]
    assert follower.troubles == {}


# Compressed


@pytest.mark.parametrize("codec", COMPRESS)
@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
async def test_compressed_while_we_were_down_is_read_on(follow: Any, log: Any, codec: str, glob: str) -> None:
    append(log, "1")
    follower = follow(glob)
    await follower.settle()
    follower.stop()
    append(log, "2")
    log.rename(log.with_name("a.log.1"))
    compress(log.with_name("a.log.1"), codec)
    append(log, "3")
    follower.start()
    await follower.reads("1", "2", "3")
    follower.restart()
    await follower.reads("1", "2", "3")
    assert not follower.losses
    assert not follower.troubles


@pytest.mark.parametrize("rotations", [1, 2, 3])
@pytest.mark.parametrize("packed", [(0,), (1,), (2,), (2, 3)])
async def test_what_begins_with_one_header_is_rotated_while_only_that_was_read(
    follow: Any, log: Any, packed: tuple[int, ...], rotations: int
) -> None:
    # Each file has the bytes before the position. A later one was taken for the copy: the lines of the first were lost.
    append(log, "header")
    rotator = Rotator(log)
    follower = follow("a.log")
    await follower.settle()
    follower.stop()
    expected = ["header"]
    for number in range(rotations):
        append(log, f"content {number}")
        expected += [f"content {number}", "header"]
        rotator.rename()
        append(log, "header")
        rotator.compress(*packed)
    append(log, "last")
    follower.start()
    await follower.reads(*expected, "last")
    assert not follower.losses


async def test_a_compressed_file_beside_its_log_is_no_copy_of_another_log(follow: Any, tmp_path: Path) -> None:
    # Another log of that name has had the same lines: all 400 of this one were lost.
    one, two = (tmp_path / name / "a.log" for name in ("one", "two"))
    for log in (one, two):
        log.parent.mkdir()
        append(log.with_name("b.log"), f"{log.parent.name} is known")
    follower = follow("*/*.log")
    await follower.settle()
    append(one, "the same")
    await follower.settle()
    follower.stop()
    append(two, "the same")
    compress(two.rename(two.with_name("a.log.1")))
    append(two, "later")
    follower.start()
    await follower.until(lambda: len(follower.lines) >= 5)
    assert follower.texts[2:] == [b"the same", b"the same", b"later"]


@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
async def test_several_generations_compressed_while_we_were_down_are_read_in_their_order(
    follow: Any, log: Any, glob: str
) -> None:
    append(log, "1")
    later(log, -1000)
    follower = follow(glob)
    await follower.settle()
    follower.stop()
    append(log, "2")
    for number in range(3, 7):
        later(log, 10 * number - 1000)
        shift(log)
        append(log, str(number))
    for number in (4, 3, 2):
        compress(log.with_name(f"a.log.{number}"))
    follower.start()
    ordered = glob == "a.log"
    await follower.reads("1", "2", "3", "4", "5", "6", ordered=ordered)
    follower.restart()
    await follower.reads("1", "2", "3", "4", "5", "6", ordered=ordered)
    assert not follower.losses


@pytest.mark.parametrize("glob", ["a.log", "a.log*"])
@pytest.mark.parametrize("down", [False, True])
async def test_compressed_rotations_beside_old_ones_from_before_they_were_compressed(
    follow: Any, log: Any, glob: str, down: bool
) -> None:
    """logrotate leaves those where they are: of what it compresses since then, two generations were lost."""
    for number in (2, 3):
        append(log.with_name(f"a.log.{number}"), f"old {number}")
        later(log.with_name(f"a.log.{number}"), -1000)
    append(log, "1")
    await asyncio.sleep(2 * news_module.GRAIN / 1e9)
    follower = follow(glob, compressed="read", exclude=("a.log.2", "a.log.3"), leave_after=0.05)
    await follower.reads("1")
    if down:
        follower.stop()
    for line in ("2", "3", "4"):
        append(log, line)
        for number in (3, 2, 1):
            if (packed := log.with_name(f"a.log.{number}.gz")).exists():
                packed.rename(log.with_name(f"a.log.{number + 1}.gz"))
        compress(log.rename(log.with_name("a.log.1")))
        log.touch()
        if not down:
            await follower.settle()
    append(log, "5")
    if down:
        follower.start()
    await follower.reads("1", "2", "3", "4", "5", ordered=False)
    assert not follower.losses
    assert not follower.files_gone


@pytest.mark.parametrize("once", [False, True])
async def test_archives_and_checksums_of_rotated_files_are_none(follow: Any, log: Any, once: bool) -> None:
    """An archive that was made while nothing ran was sent, with all lines again, and tar's own headers."""
    append(log, "1")
    follower = follow("a.log", once=once)
    await follower.reads("1")
    follower.stop()
    log.rename(log.with_name("a.log.1"))
    append(log, "2")
    for ending, mode in (("tar.gz", "w:gz"), ("tar", "w")):
        with tarfile.open(log.with_name(f"a.log.1.{ending}"), mode) as archive:
            archive.add(log.with_name("a.log.1"), "a.log.1")
    log.with_name("a.log.1.md5").write_text("0123  a.log.1\n")
    follower.start()
    await follower.reads("1", "2")
    assert not follower.present_troubles


async def test_an_archive_that_a_glob_matches_is_refused_as_no_text(follow: Any, log: Any) -> None:
    append(log, "1")
    with tarfile.open(log.with_name("a.log.tar.gz"), "w:gz") as archive:
        archive.add(log, "a.log")
    follower = follow("*", compressed="read")
    await follower.reads("1")
    assert "NUL" in follower.present_troubles[f"{log}.tar.gz"]


async def test_copied_truncated_and_compressed_while_we_were_down(follow: Any, log: Any) -> None:
    append(log, "1")
    follower = follow("a.log")
    await follower.settle()
    follower.stop()
    append(log, "2")
    shutil.copy2(log, log.with_name("a.log.1"))
    os.truncate(log, 0)
    compress(log.with_name("a.log.1"))
    append(log, "3")
    follower.start()
    await follower.reads("1", "2", "3")
    assert not follower.losses


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("compressed", ["skip", "read"])
async def test_what_was_delivered_and_compressed_is_not_sent_again(
    follow: Any,
    log: Any,
    down: bool,
    compressed: str,
) -> None:
    follower = follow("*.log*", compressed=compressed)
    for name in ("a.log", "b.log"):
        append(log.with_name(name), f"{name} 1")
    await follower.settle()
    if down:
        follower.stop()
    shift(log)
    append(log, "a.log 2")
    if not down:
        await follower.until(lambda: follower.ended)
    compress(log.with_name("a.log.1"))
    log.with_name("b.log").unlink()
    if down:
        follower.start()
    await follower.reads("a.log 1", "b.log 1", "a.log 2", ordered=False)
    follower.restart()
    await follower.reads("a.log 1", "b.log 1", "a.log 2", ordered=False)
    assert not follower.losses
    assert follower.troubles == {}


async def test_compressed_while_it_is_read_is_read_to_its_end(follow: Any, log: Any) -> None:
    follower = follow("a.log*", leave_after=0.1)
    append(log, "1")
    await follower.settle()
    append(log.with_name("b"), "not ours, but an event: what was looked at before it is certain")
    await follower.settle()
    append(log, "2")
    shift(log)
    append(log, "3")
    compress(log.with_name("a.log.1"))
    await follower.reads("1", "2", "3")
    assert not follower.losses


@pytest.mark.parametrize(("compressed", "expected"), [("skip", ["plain"]), ("read", ["packed", "plain"])])
async def test_files_first_met_compressed(follow: Any, log: Any, compressed: str, expected: list[str]) -> None:
    append(log, "packed")
    compress(log, "zst")
    append(log.with_name("b.log"), "plain")
    follower = follow("*.log*", compressed=compressed)
    await follower.reads(*expected, ordered=False)
    follower.restart()
    await follower.reads(*expected, ordered=False)
    assert follower.troubles == {}


# Other file systems


@pytest.mark.parametrize("down", [False, True])
async def test_moved_to_another_file_system_and_back(
    follow: Any,
    tmp_path: Path,
    elsewhere: Path,
    down: bool,
) -> None:
    (tmp_path / "there").symlink_to(elsewhere)
    (tmp_path / "here").mkdir()
    here, there = tmp_path / "here" / "a.log", tmp_path / "there" / "a.log"
    follower = follow("*/a.log")
    append(here, "1")
    await follower.settle()
    expected = ["1"]
    # What comes to stand where a log is written, while its files are known, is its next generation, whatever is in it.
    moves = [(here, there), (there, here)] if down else [(here, there)]
    for number, (old, new) in enumerate(moves):
        if down:
            follower.stop()
        append(old, f"{number} before")
        if not down:
            await follower.settle()
        shutil.copyfile(old, new)
        old.unlink()
        append(new, f"{number} after")
        if down:
            follower.start()
        await follower.settle()
        expected += [f"{number} before", f"{number} after"]
    await follower.reads(*expected)
    assert not follower.losses


async def test_a_restored_file_goes_on(follow: Any, log: Any) -> None:
    append(log, "x" * 2000)
    follower = follow()
    await follower.settle()
    follower.stop()
    shutil.copyfile(log, log.with_name("restored"))
    append(log.with_name("restored"), "two")
    log.with_name("restored").rename(log)
    follower.start()
    await follower.reads("x" * 2000, "two")
    assert not follower.losses


async def test_another_file_system_id_after_a_reboot_sends_nothing_again(follow: Any, log: Any) -> None:
    append(log, "1")
    append(log.with_name("b.log"), "b")
    follower = follow("*.log*")
    await follower.settle()
    shift(log)
    append(log, "2")
    await follower.until(lambda: follower.ended)
    follower.stop()
    change(follower, device=1, volume="aa")
    append(log, "3")
    follower.start()
    await follower.reads("1", "b", "2", "3", ordered=False)
    assert {stored.detail["device"] for stored in follower.stored.values()} == {log.stat().st_dev}
    assert not follower.losses


@pytest.mark.parametrize("how", ["empty mount point", "no mount point"])
async def test_a_file_system_that_is_mounted_late_brings_its_positions_back(
    follow: Any, tmp_path: Path, how: str
) -> None:
    # Without them, every file on it would be sent again.
    logs, away = tmp_path / "mount", tmp_path / "not mounted"
    logs.mkdir()
    append(logs / "a.log", "one")
    follower = follow("mount/*.log", rescan_interval=0.05)
    await follower.settle()
    follower.stop()
    change(follower, device=1, volume="aa", size=10)  # as if it were of a file system that is not there
    logs.rename(away)
    if how == "empty mount point":
        logs.mkdir()
    follower.start()
    await follower.settle()
    assert not follower.losses
    assert follower.stored
    if how == "empty mount point":
        logs.rmdir()
    away.rename(logs)
    append(logs / "a.log", "two")
    await follower.reads("one", "two")
    assert not follower.losses


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("how", ["directory", "file"])
async def test_a_log_that_another_one_covers_at_the_start_goes_on_once_it_is_back(
    follow: Any, tmp_path: Path, how: str, unread: bool, restarted: bool
) -> None:
    """Something wrote to app.log at boot, before its disk was mounted. The log that was there before came twice."""
    logs, away = tmp_path / "logs", tmp_path / "away"
    log = logs / "app.log"
    logs.mkdir()
    append(log, "one")
    follower = follow("logs/app.log", rescan_interval=0.05)
    await follower.settle()
    follower.stop()
    if unread:
        append(log, "two")
    covered, back = (logs, away) if how == "directory" else (log, tmp_path / "kept")
    covered.rename(back)
    logs.mkdir(exist_ok=True)
    append(log, "other")
    follower.start()
    await follower.settle()
    if restarted:
        follower.restart()
        await follower.settle()
    log.unlink()
    if how == "directory":
        logs.rmdir()
    back.rename(covered)
    append(log, "three")
    await follower.reads("one", "other", *(["two"] if unread else []), "three")
    assert not follower.losses
    append(log, "four")
    await follower.until(lambda: follower.texts[-1] == b"four")
    assert len(follower.sources) == 1


async def test_logs_that_were_copied_to_another_file_system_and_path_are_read_on(follow: Any, tmp_path: Path) -> None:
    """The disk was replaced. New lines waited for ever for the old one, and nobody said so."""
    old, new = tmp_path / "old" / "a", tmp_path / "new" / "a"
    old.mkdir(parents=True)
    append(old / "a.log", "one")
    follower = follow("old/a/*.log")
    await follower.settle()
    follower.stop()
    change(follower, device=1, volume="aa")  # of a file system that is not there any more
    shutil.copytree(old, new)
    shutil.rmtree(old)
    append(new / "a.log", "two")
    follower.route = replace(follower.route, paths=(f"{new}/*.log",))
    follower.start()
    await follower.reads("one", "two")
    assert not follower.losses


async def test_what_waits_for_a_file_system_that_is_not_there_is_said(follow: Any, tmp_path: Path) -> None:
    logs, away, other = (tmp_path / name for name in ("mount", "not mounted", "other"))
    for directory in (logs, other):
        directory.mkdir()
    append(logs / "a.log", "one")
    follower = follow("mount/*.log", "other/*.log", rescan_interval=0.05)
    await follower.settle()
    follower.stop()
    change(follower, device=1, volume="aa", size=10)
    logs.rename(away)
    shutil.copy(away / "a.log", other / "a.log")
    follower.start()
    await follower.settle()
    assert follower.troubles[str(other / "a.log")] == (
        f"may be a copy of what is read in {logs}/a.log, whose directory can not be read or is not mounted: "
        "it waits until that is there"
    )
    away.rename(logs)
    await follower.settle()
    assert str(other / "a.log") not in follower.present_troubles


@pytest.mark.parametrize("rotate", [shift, lambda log: copytruncate(log, log.with_name("a.log.1"))])
async def test_a_log_goes_on_while_the_disk_with_an_older_file_of_it_is_away(
    follow: Any, tmp_path: Path, rotate: Callable[[Path], None]
) -> None:
    """Each new file of the log waited until that disk was there."""
    log, old, away = tmp_path / "logs" / "a.log", tmp_path / "old", tmp_path / "not mounted"
    log.parent.mkdir()
    old.mkdir()
    append(log, "1")
    follower = follow("logs/a.log", rotated=(f"{old}/*",), rescan_interval=0.05)
    await follower.settle()
    follower.stop()
    append(log, "2")
    log.rename(old / "a.log.1")
    append(log, "3")
    follower.start()
    follower.unopened = []
    assert len(await follower.scan()) == 2
    follower.stop()
    for name, stored in follower.stored.items():
        if stored.detail["path"].startswith(str(old)):  # as if its file system were not there
            follower.stored[name] = replace(stored, detail={**stored.detail, "device": 1, "volume": "aa"})
    old.rename(away)
    follower.start()
    follower.unopened = None
    await follower.reads("1", "3")
    rotate(log)
    append(log, "4")
    await follower.reads("1", "3", "4")
    away.rename(old)
    await follower.reads("1", "3", "4", "2")
    assert not follower.losses


async def test_a_file_that_was_compressed_before_it_was_seen_did_not_vanish(follow: Any, tmp_path: Path) -> None:
    """logrotate with `compress` and without `delaycompress`: each rotation told of a loss."""
    follower = follow("*.log", "*.log-*", compressed="read")
    append(tmp_path / "a.log", "1")
    await follower.settle()
    append(tmp_path / "b.log", "2")
    for name in ("a.log", "b.log"):
        rotated = tmp_path / f"{name}-1"
        (tmp_path / name).rename(rotated)
        (tmp_path / f"{rotated.name}.gz").write_bytes(gzip.compress(rotated.read_bytes()))
        rotated.unlink()
        append(tmp_path / name, name)
    await follower.reads("1", "2", "a.log", "b.log", ordered=False)
    await follower.settle()
    assert not follower.losses


@pytest.mark.parametrize("seen", [True, False])
async def test_what_goes_and_was_no_file_did_not_vanish(follow: Any, tmp_path: Path, seen: bool) -> None:
    follower = follow()
    await follower.settle()
    (tmp_path / "a.log").mkdir()
    if seen:  # else nobody can know what it was
        os.mkfifo(tmp_path / "b.log")
        (tmp_path / "c.log").symlink_to("nothing")
        await follower.settle()
        (tmp_path / "b.log").unlink()
        (tmp_path / "c.log").unlink()
    (tmp_path / "a.log").rmdir()
    await follower.settle()
    assert not follower.losses


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("once", [True, False])
async def test_a_copy_in_the_place_of_a_file_is_read_when_it_is_overwritten(
    follow: Any, log: Any, running: bool, once: bool
) -> None:
    """A report of one length, that was restored from a copy, and made anew: nobody read it, however often."""
    follower = follow(once=once, rescan_interval=0.05)
    append(log, "first")
    await follower.settle()
    follower.stop()
    copy = log.with_name("copy")
    shutil.copyfile(log, copy)
    copy.rename(log)
    follower.start()
    await follower.settle()
    assert follower.texts == [b"first"]
    if not running:
        follower.stop()
    log.write_bytes(b"other\n")
    if not running:
        follower.start()
    elif once:
        return
    await follower.reads("first", "other")


async def test_a_log_that_begins_as_one_that_was_just_rotated_elsewhere_does_not_wait_for_it(
    follow: Any, tmp_path: Path
) -> None:
    """It was taken for a copy of a file that is gone, until that one was let go. A stop before that forgot it."""
    first, second = (tmp_path / name / "a.log" for name in ("x", "y"))
    for log in (first, second):
        log.parent.mkdir()
    append(first, "header")
    follower = follow("*/a.log", leave_after=60.0)
    await follower.until(lambda: len(follower.lines) == 1)
    first.rename(first.with_name("a.log.1"))
    append(first, "other")
    append(second, "header")
    await follower.until(lambda: len(follower.stored) == 3)
    append(second, "line")
    await follower.until(lambda: b"line" in follower.texts)


# Another configuration


@pytest.mark.parametrize("change", [{"exclude": ("**/a.log",)}, {"paths": ("{}/b.log",)}])
async def test_a_known_log_that_the_tail_does_not_take_any_more_is_not_read_on(
    follow: Any, tmp_path: Path, change: dict[str, tuple[str, ...]]
) -> None:
    """It went on for ever: also of a log that was left out since it has secrets."""
    for name in ("a.log", "b.log"):
        append(tmp_path / name, f"{name} 1")
    follower = follow()
    await follower.settle()
    before = follower.route
    follower.stop()
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    append(tmp_path / "a.log.1", "a.log 2")
    for name in ("a.log", "b.log"):
        append(tmp_path / name, f"{name} 3")
    follower.route = replace(before, **{key: tuple(each.format(tmp_path) for each in change[key]) for key in change})
    follower.start()
    await follower.settle()
    append(tmp_path / "a.log.1", "a.log 4")
    append(tmp_path / "b.log", "b.log 4")
    read = ["a.log 1", "b.log 1", "b.log 3", "b.log 4"]
    await follower.reads(*read, ordered=False)
    follower.stop()
    follower.route = before
    follower.start()
    await follower.reads(*read, "a.log 2", "a.log 3", "a.log 4", ordered=False)
    assert not follower.losses


@pytest.mark.parametrize("taken", [False, True])
async def test_only_logs_that_are_not_read_on_are_said_not_to_be(follow: Any, tmp_path: Path, taken: bool) -> None:
    """Of logs that were moved, and are read on where they are now, it was said too."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    append(one / "a.log", "1")
    follower = follow("one/*.log")
    await follower.settle()
    follower.stop()
    if taken:
        one.rename(two)
    follower.route = replace(follower.route, paths=(f"{two}/*.log",))
    with structlog.testing.capture_logs() as logs:
        follower.start()
        await follower.settle()
    append((two if taken else one) / "a.log", "2")
    await follower.reads("1", *["2"] * taken)
    said = [entry["some"] for entry in logs if entry["event"].startswith("known logs are not read on")]
    assert said == ([] if taken else [[str(one / "a.log")]])


async def test_a_left_out_log_that_is_gone_is_no_loss(follow: Any, log: Any) -> None:
    append(log, "1")
    follower = follow()
    await follower.settle()
    follower.stop()
    change(follower, size=10)
    log.unlink()
    follower.route = replace(follower.route, exclude=("**/a.log",))
    follower.start()
    await follower.settle()
    assert not follower.losses
    assert not follower.stored


async def test_a_known_log_that_another_tail_takes_now_goes_to_that_one(follow: Any, tmp_path: Path) -> None:
    """A tail was made two: the second one was told that the file belongs to the first."""
    for name in ("a.log", "b.log"):
        append(tmp_path / name, f"{name} 1")
    first = follow()
    await first.settle()
    first.stop()
    first.route = replace(first.route, paths=(f"{tmp_path}/a.log",))
    first.start()
    second = follow("b.log", name="second", beside=[first])
    await first.begin()
    await second.begin()
    append(tmp_path / "b.log", "b.log 2")
    await second.reads("b.log 1", "b.log 2")
    await first.settle()
    assert first.texts == [b"a.log 1", b"b.log 1"]
    assert [stored.detail["log"] for stored in first.stored.values()] == [f"{tmp_path}/a.log"]
    assert not second.troubles


# Deletion


async def test_a_deleted_file_is_read_to_its_end(follow: Any, log: Any) -> None:
    follower = follow(leave_after=0.02)
    append(log, "1")
    await follower.settle()
    with log.open("ab", buffering=0) as writer:
        log.unlink()
        writer.write(b"2\n")
        await follower.until(lambda: len(follower.lines) == 2)
        writer.write(b"no newline")
    await follower.reads("1", "2", "no newline")
    assert not follower.losses
    assert all(stored.detail["done"] for stored in follower.stored.values())


async def test_deleted_behind_our_back_is_said_once(follow: Any, log: Any) -> None:
    append(log, "1")
    append(log.with_name("b.log"), "delivered")
    follower = follow()
    await follower.settle()
    follower.stop()
    (source,) = (found.source for found in follower.found if found.label == str(log))
    stored = follower.stored[source]
    follower.stored[source] = replace(stored, detail={**stored.detail, "size": 10})
    log.unlink()
    log.with_name("b.log").unlink()
    follower.start()
    await follower.settle()
    follower.restart()
    await follower.settle()
    assert [(loss.thing, loss.reason, loss.start, loss.length, loss.exact) for loss in follower.losses] == [
        (str(log), "deleted", 2, 8, False)
    ]
    assert not follower.stored


# State of before


async def test_rows_of_version_0_1_are_taken_over_once(follow: Any, log: Any) -> None:
    append(log, "1")
    append(log.with_name("b.log"), "b 1")
    follower = follow("*.log*")
    await follower.settle()
    follower.stop()
    old = {}
    for stored in follower.stored.values():
        detail = stored.detail
        name = f"{detail['device']:x}-{detail['inode']:x}-0123456789abcdef"
        kept = {key: detail[key] for key in ("path", "device", "inode", "size", *WITNESS)}
        old[name] = StoredPosition(
            name, stored.position, {**kept, "origin": detail["path"], "fingerprint": "00", "fingerprint_bytes": 1}
        )
    follower.stored = old
    append(log, "2")
    shift(log)
    append(log, "3")
    append(log.with_name("b.log"), "b 2")
    follower.start()
    await follower.reads("1", "b 1", "2", "3", "b 2", ordered=False)
    for stored in follower.stored.values():
        assert "fingerprint" not in stored.detail
        assert "origin" not in stored.detail
        assert stored.detail["log"]
    follower.restart()
    append(log, "4")
    await follower.reads("1", "b 1", "2", "3", "b 2", "4", ordered=False)
    assert not follower.losses


@pytest.mark.parametrize("once", [False, True])
async def test_a_log_that_was_born_and_rotated_while_nobody_looked_is_read_whole(
    follow: Any, tmp_path: Path, once: bool
) -> None:
    append(tmp_path / "old.log.1", "x old 1")  # before anything was known: nobody asked for it
    await asyncio.sleep(0.02)  # longer than the grain of times of modification
    append(tmp_path / "a.log", "a 1")
    follower = follow("*.log", once=once)
    await follower.reads("a 1")
    follower.stop()
    append(tmp_path / "new.log", "1")
    (tmp_path / "new.log").rename(tmp_path / "new.log.2")
    append(tmp_path / "new.log", "2")
    (tmp_path / "new.log").rename(tmp_path / "new.log.1")
    append(tmp_path / "new.log", "3")
    append(tmp_path / "old.log", "old 2")
    follower.start()
    await follower.reads("a 1", "1", "2", "3", "old 2", ordered=False)
    append(tmp_path / "new.log", "4")
    follower.restart()
    await follower.reads("a 1", "1", "2", "3", "old 2", "4", ordered=False)
    assert not follower.losses


async def test_a_log_behind_a_new_link_is_read_whole_though_it_was_rotated_before_anybody_looked(
    follow: Any, tmp_path: Path
) -> None:
    links, log = tmp_path / "containers", tmp_path / "pods" / "x" / "0.log"
    links.mkdir()
    append(links / "old.log", "old")
    follower = follow("containers/*.log")
    await follower.reads("old")
    await asyncio.sleep(0.02)  # longer than the grain of times of modification
    log.parent.mkdir(parents=True)
    append(log, "1")
    (links / "x.log").symlink_to(log)
    log.rename(log.with_name("0.log.20261129-100000"))
    append(log, "2")
    await follower.reads("old", "1", "2")


async def test_a_log_that_came_and_was_rotated_during_a_run_with_an_end_is_read_whole_by_the_next_one(
    follow: Any, log: Any, tmp_path: Path
) -> None:
    follower = follow("*.log", once=True)
    append(log, "1")
    await follower.reads("1")
    await asyncio.sleep(0.02)  # longer than the grain of times of modification
    append(tmp_path / "new.log", "2")
    (tmp_path / "new.log").rename(tmp_path / "new.log.1")
    append(tmp_path / "new.log", "3")
    ((source, stored),) = follower.stored.items()
    detail = {**stored.detail, "modified": time.time_ns()}  # as its reader reports it, at the end
    follower.stored[source] = StoredPosition(source, stored.position, detail)
    follower.stop()
    follower.since = follower.found_until
    follower.start()
    await follower.reads("1", "2", "3")
    assert not follower.losses


async def test_a_mistake_in_rotated_is_said_at_the_start_and_once_a_file_is_missing(
    follow: Any, tmp_path: Path
) -> None:
    """A directory in place of its files, and one that is not there. The live log was not read, or lines were lost."""
    old, missing = tmp_path / "old", tmp_path / "odl" / "*"
    old.mkdir()
    append(tmp_path / "a.log", "1")
    follower = follow("*.log", rotated=(str(old), str(missing)))
    with structlog.testing.capture_logs() as logs:
        await follower.reads("1")
        said = {entry["rotated"]: entry["reason"] for entry in logs if "rotated" in entry}
        assert said == {
            str(old): f'a directory; expected files, as in "{old}/*"',
            str(missing): f"no file matches it yet: the directory {missing.parent} is missing",
        }
        follower.stop()
        append(tmp_path / "a.log", "2")
        (tmp_path / "a.log").rename(old / "a.log.1")
        append(tmp_path / "a.log", "3")
        follower.start()
        await follower.reads("1", "3")
    (gone,) = [entry for entry in logs if "gone or were cut off" in entry["event"]]
    assert "another directory than `rotated` says" in gone["remedy"]


@pytest.mark.parametrize("once", [False, True])
async def test_what_may_have_been_written_to_a_file_that_is_gone_at_the_next_start_is_said(
    follow: Any, tmp_path: Path, once: bool
) -> None:
    names = ["deleted.log", "cut.log", "renamed.log", "compressed.log"]
    for name in names:
        append(tmp_path / name, f"{name} 1")
    follower = follow("*.log", once=once)
    await follower.reads(*(f"{name} 1" for name in names), ordered=False)
    follower.stop()
    (tmp_path / "deleted.log").unlink()
    (tmp_path / "cut.log").write_bytes(b"2\n")
    (tmp_path / "renamed.log").rename(tmp_path / "renamed.log.1")
    (tmp_path / "compressed.log.1.gz").write_bytes(gzip.compress((tmp_path / "compressed.log").read_bytes()))
    (tmp_path / "compressed.log").unlink()
    with structlog.testing.capture_logs() as logs:
        follower.start()
        await follower.reads(*(f"{name} 1" for name in names), "2", ordered=False)
        await follower.settle()
    told = [str(entry) for entry in logs if "gone or were cut off" in entry["event"]]
    assert [any(name in line for line in told) for name in names] == [True, True, False, False]
    assert follower.files_gone == 2
    read_to = {"deleted.log": len("deleted.log 1\n"), "cut.log": len("cut.log 1\n")}
    assert follower.gone_to == {f"{tmp_path}/{name}": position for name, position in read_to.items()}
    assert not follower.losses
    with structlog.testing.capture_logs() as logs:
        follower.restart()
        await follower.settle()
    assert not [entry for entry in logs if "gone or were cut off" in entry["event"]]
    assert follower.files_gone == 2


async def test_a_file_that_was_read_out_and_deleted_before_the_stop_is_no_file_that_may_have_had_more(
    follow: Any, log: Any, tmp_path: Path
) -> None:
    """Each of them was deleted while the daemon ran, which was stopped within `leave_after` of that."""
    written = tmp_path / "written.log"
    follower = follow("*.log", leave_after=60.0)
    for number in range(2):  # two files at one path
        append(log, f"{number}")
        await follower.until(lambda number=number: len(follower.lines) == number + 1)
        await asyncio.sleep(0.02)
        log.unlink()
    append(written, "2")
    with written.open("ab") as writer:
        await follower.until(lambda: len(follower.lines) == 3)
        written.unlink()
        await asyncio.sleep(0.02)
        writer.write(b"3\n")
        writer.flush()
        await follower.until(lambda: len(follower.lines) == 4)
    follower.reader.drain()
    for source in follower.changed:
        follower.store(replace(follower.stored[source], detail=dict(follower.sources[source].detail())))
    follower.stop()
    with structlog.testing.capture_logs() as logs:
        follower.start()
        await follower.scan()
    (said,) = [entry for entry in logs if "read to their end" in entry["event"]]
    assert (said["log_level"], said["files"], said["some"]) == ("info", 2, [{"file": str(log), "read_to": 2}])
    assert follower.gone_to == {str(written): 4}
    assert not follower.losses
    with structlog.testing.capture_logs() as logs:
        follower.restart()
        await follower.scan()
    assert not [entry for entry in logs if "read to their end" in entry["event"]]


async def test_of_a_compressed_file_the_text_counts_and_not_its_size_on_disk(follow: Any, tmp_path: Path) -> None:
    # The few bytes of text that a quiet log has in a day take more when they are compressed.
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(b"1\n"))
    follower = follow("*.log*", once=True, compressed="read")
    await follower.reads("1")
    await follower.settle()
    (end,) = follower.ended.values()
    assert (end.kind, end.position, end.size) == ("concluded", 2, 2)
    assert not follower.troubles


@pytest.mark.parametrize("name", ["app.5.gz", "2026-app.log.gz"])
async def test_under_a_name_that_no_rotation_has_a_file_is_found_where_rotated_says(
    follow: Any, tmp_path: Path, name: str
) -> None:
    append(tmp_path / "app.log", "1")
    follower = follow("app.log", rotated=(f"{tmp_path}/*.gz",))
    await follower.reads("1")
    append(tmp_path / "app.log", "2")
    follower.stop()
    (tmp_path / name).write_bytes(gzip.compress((tmp_path / "app.log").read_bytes()))
    (tmp_path / "app.log").unlink()
    append(tmp_path / "app.log", "3")
    follower.start()
    await follower.reads("1", "2", "3", ordered=False)


WITNESS = ("witness", "witness_at", "witness_bytes")


async def test_a_new_directory_where_a_glob_takes_all_below_it(follow: Any, tmp_path: Path) -> None:
    # It was found by the next rescan: what was deleted or compressed until then was lost in silence.
    follower = follow("**", rescan_interval=3600.0)
    await follower.settle()
    log = tmp_path / "new" / "below" / "a.log"
    log.parent.mkdir(parents=True)
    append(log, "1")
    await follower.reads("1")
    assert not follower.present_troubles


async def test_a_file_that_is_made_and_moved_out_of_sight_between_two_looks_is_found(follow: Any, log: Any) -> None:
    # It was found when something else happened, and not at all if it had been written before the last look.
    old = log.with_name("old")
    old.mkdir()
    follower = follow("a.log", rotated=[str(old / "*")], rescan_interval=3600.0)
    append(log, "1")
    await follower.reads("1")
    log.rename(old / "a.log.1")
    append(log, "2")
    log.rename(old / "a.log.2")
    await follower.reads("1", "2")
    assert not follower.losses


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("codec", ["", "gz"])
@pytest.mark.parametrize("begins", ["2026-11-29T", "2026-11-29T10 first\n", "2026-11-29T10 first\n2026-11-29T10 sec"])
async def test_what_begins_as_the_copy_of_what_was_truncated_is_read_from_its_first_byte(
    follow: Any, tmp_path: Path, begins: str, codec: str, restart: bool
) -> None:
    """A header, or a part of a line with the same date: it was not read, and what came after it was."""
    log = tmp_path / "a.log"
    append(log, "2026-11-29T10 first", "2026-11-29T10 second")
    follower = follow("a.log")
    await follower.reads("2026-11-29T10 first", "2026-11-29T10 second")
    copytruncate(log, tmp_path / "a.log.1")
    if codec:
        await follower.settle()
        compress(tmp_path / "a.log.1")
    await follower.settle()
    with log.open("a") as stream:
        stream.write(begins)
    await follower.settle()
    if restart:
        follower.stop()
    append(log, "11 new")
    if restart:
        follower.start()
    lines = f"{begins}11 new".splitlines()
    await follower.until(lambda: len(follower.lines) >= 2 + len(lines))
    assert follower.texts[2:] == [line.encode() for line in lines]


async def test_links_that_are_repointed_from_empty_files_are_no_loss(follow: Any, tmp_path: Path) -> None:
    """Each was said to have vanished: where events of several links came together, 36 of 100."""

    def repoint(number: int, to: str) -> Path:
        target, link, made = tmp_path / f"{number}" / to, tmp_path / f"{number}.log", tmp_path / f"{number}.new"
        target.parent.mkdir(exist_ok=True)
        target.touch()
        made.symlink_to(target)
        made.rename(link)
        return target

    for number in range(20):
        append(repoint(number, "first"), f"{number} first")
    follower = follow("*.log")
    await follower.settle()
    for number in range(20):
        repoint(number, "empty")
    await follower.settle()
    for number in range(20):
        append(repoint(number, "last"), f"{number} last")
        await asyncio.sleep(0.001)
    await follower.until(lambda: len(follower.lines) == 40)
    await follower.settle()
    assert not follower.losses


async def test_files_with_the_same_content_behind_links_do_not_wait_for_each_other(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each counted as empty until it was searched for what came before it, and as a copy of the others: for ever."""
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.0)
    for number in range(3):
        target = tmp_path / f"{number}" / "0.log"
        target.parent.mkdir()
        append(target, "the same")
        (tmp_path / f"{number}.log").symlink_to(target)
    follower = follow("*.log", rescan_interval=0.05)
    await follower.reads(*["the same"] * 3)


@pytest.mark.parametrize("compressed", [None, "empty", "header"])
@pytest.mark.parametrize("restart", [False, True])
async def test_the_same_header_after_copytruncate_is_read_again(
    follow: Any, log: Path, compressed: str | None, restart: bool
) -> None:
    """Only the header was read before. The file was seen empty, and yet the second header counted as the first one.

    `compressed`: when the copy was.
    """
    append(log, "# header")
    follower = follow("a.log")
    await follower.reads("# header")
    copytruncate(log, log.with_name("a.log.1"))
    await follower.settle()
    if compressed == "empty":
        compress(log.with_name("a.log.1"))
        await follower.settle()
    await asyncio.sleep(0.02)  # longer than the grain of times of modification
    append(log, "# header")
    await follower.settle()
    if compressed == "header":
        compress(log.with_name("a.log.1"))
        await follower.settle()
    if restart:
        follower.restart()
    append(log, "line")
    await follower.reads("# header", "# header", "line")


@pytest.mark.parametrize("dated", [False, True])
async def test_a_rotated_file_that_only_begins_as_the_one_before_is_read(
    follow: Any, log: Path, monkeypatch: pytest.MonkeyPatch, dated: bool
) -> None:
    """It came and was rotated while nothing ran, with a header only: that counted as an unfinished copy, for ever."""
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.3)

    def rotate(number: int) -> None:
        if dated:
            log.rename(log.with_name(f"a.log-2026112{number}"))
        else:
            shift(log)

    append(log, "# header", "first")
    follower = follow("a.log", rescan_interval=0.05)
    await follower.reads("# header", "first")
    follower.stop()
    await asyncio.sleep(0.02)
    rotate(1)
    append(log, "# header")
    rotate(2)
    append(log, "last")
    follower.start()
    await follower.reads("# header", "first", "# header", "last", ordered=False)


async def test_what_only_begins_as_another_log_is_read_though_it_was_empty_for_long(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had been empty for longer than a copy in the making is waited for: its header was not read until more came."""
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.1)
    logs = [tmp_path / name / "app.log" for name in ("d1", "d2")]
    for log in logs:
        log.parent.mkdir()
        log.touch()
    append(logs[0], "# header", "line")
    follower = follow("*/app.log", rescan_interval=0.05)
    await follower.reads("# header", "line")
    await asyncio.sleep(0.2)
    append(logs[1], "# header")
    await follower.reads("# header", "line", "# header")


async def test_what_waits_because_it_begins_as_another_log_is_compressed(follow: Any, tmp_path: Path) -> None:
    logs = logs_in(tmp_path, "d1", "d2", "d3")
    append(logs[2], "line")
    follower = follow("*/app.log", rescan_interval=0.05)
    await follower.begin()
    compress_rotated(logs[1])
    await follower.reads(*["# header"] * 3, "line", ordered=False)


async def test_what_waits_because_it_begins_as_another_log_is_truncated(follow: Any, tmp_path: Path) -> None:
    logs = logs_in(tmp_path, "d1", "d2")
    follower = follow("*/app.log")
    await follower.settle()
    os.truncate(logs[1], 0)
    await follower.until(lambda: follower.losses)
    assert [(loss.thing, loss.reason, loss.length) for loss in follower.losses] == [(str(logs[1]), "truncated", 9)]


async def test_a_copy_of_its_log_is_known_though_another_log_begins_alike_and_is_longer(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `paths` match copies: it counted as the beginning of that other one, and was read again."""
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.1)
    logs = logs_in(tmp_path, "d1", "d2")
    append(logs[0], "line")
    follower = follow("*/app.log*", rescan_interval=0.05)
    await follower.reads("# header", "line", "# header")
    copytruncate(logs[1], Path(f"{logs[1]}.1"))
    await follower.settle()
    await asyncio.sleep(0.3)
    await follower.reads("# header", "line", "# header")


async def test_what_was_read_to_its_end_since_the_start_is_not_gone_when_it_is_truncated(
    follow: Any, log: Path
) -> None:
    append(log, "one")
    follower = follow("a.log")
    await follower.reads("one")
    follower.restart()
    await follower.settle()
    os.truncate(log, 0)
    await follower.settle()
    assert not follower.files_gone


def compress_rotated(log: Path) -> None:
    log.rename(f"{log}.1")
    compress(log.with_name(f"{log.name}.1"))
    log.touch()


@pytest.mark.parametrize("begins", ["# header\n", "# header\n2026-11-29 12:00:00 d"])
@pytest.mark.parametrize("rotate", [partial(os.truncate, length=0), compress_rotated], ids=["truncate", "compress"])
async def test_what_begins_as_another_directorys_log_is_no_copy_of_it(
    follow: Any, tmp_path: Path, rotate: Callable[[Path], None], begins: str
) -> None:
    """While it waits, because it may be one, that log is rotated: a banner was lost, and a line was cut."""
    logs = [tmp_path / "d1" / "app.log", tmp_path / "d2" / "app.log"]
    for log in logs:
        log.parent.mkdir()
    append(logs[0], "# header", "2026-11-29 12:00:00 d1 first")
    follower = follow("*/app.log")
    await follower.settle()
    with logs[1].open("a") as stream:
        stream.write(begins)
    await follower.settle()
    rotate(logs[0])
    await follower.settle()
    append(logs[1], "2 line")
    lines = ["# header", "2026-11-29 12:00:00 d1 first", *f"{begins}2 line".splitlines()]
    await follower.reads(*lines, ordered=False)


async def test_what_was_there_before_the_end_is_not_read_for_being_like_another_file(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.0)
    for name in ("d1", "d2"):
        (tmp_path / name).mkdir()
        append(tmp_path / name / "app.log", "# header")
    follower = follow("*/app.log", start="end", rescan_interval=0.05)
    await follower.settle()
    append(tmp_path / "d2" / "app.log", "new")
    await follower.reads("new")


@pytest.mark.parametrize("last", [True, False])
async def test_what_was_renamed_before_anybody_looked_is_no_copy_of_what_it_begins_as(
    follow: Any, log: Path, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    """Two rotations within a moment: the file between them, with only a header, counted as a copy."""
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.2)
    append(log, "# header")
    follower = follow("a.log", rescan_interval=0.05)
    await follower.reads("# header")
    for _ in range(2):
        shift(log)
        append(log, "# header")
    if last:
        append(log, "line")
    await follower.reads(*["# header"] * 3, *["line"] * last, ordered=False)


@pytest.mark.parametrize("which", [0, 1])
async def test_of_two_logs_with_the_same_header_one_is_rotated_and_compressed_at_once(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """While one of them waited, as it may have been the other one, moved: then neither was read, or one."""
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.3)
    logs = logs_in(tmp_path, "d1", "d2")
    follower = follow("*/app.log", rescan_interval=0.05)
    await follower.settle()
    compress_rotated(logs[which])
    append(logs[which], "# header")
    await follower.reads(*["# header"] * 3)


async def test_content_that_was_compressed_is_not_sought_in_a_new_log_that_begins_so(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one, in another directory, was taken for the old one, moved: its header was not read."""
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.2)
    logs = logs_in(tmp_path, "d1", "d2")
    append(logs[1], "line")
    follower = follow("*/app.log", rescan_interval=0.05)
    await follower.reads("# header", "# header", "line", ordered=False)
    shift(logs[1])
    append(logs[1], "# header")
    compress_rotated(logs[0])
    await follower.reads(*["# header"] * 3, "line", ordered=False)


async def test_what_waits_because_it_begins_as_another_log_is_copied_and_truncated(follow: Any, tmp_path: Path) -> None:
    logs = logs_in(tmp_path, "d1", "d2")
    follower = follow("*/app.log")
    await follower.settle()
    copytruncate(logs[1], logs[1].with_name("app.log.1"))
    append(logs[1], "line")
    await follower.reads("# header", "# header", "line")
    assert not follower.losses


async def test_what_had_a_header_only_is_not_sought_in_what_has_the_same_one_and_more(follow: Any, log: Path) -> None:
    """The older copy, compressed meanwhile, was read on from behind its header: its lines came twice."""
    append(log, "# header", "first")
    follower = follow("a.log")
    await follower.reads("# header", "first")
    copytruncate(log, log.with_name("a.log.1"))
    await follower.settle()
    append(log, "# header")
    await follower.reads("# header", "first", "# header")
    log.with_name("a.log.1").rename(log.with_name("a.log.2"))
    copytruncate(log, log.with_name("a.log.1"))
    compress(log.with_name("a.log.2"))
    append(log, "last")
    await follower.reads("# header", "first", "# header", "last")


async def test_what_another_tail_reads_is_not_lost_when_it_is_renamed_and_compressed_at_once(
    follow: Any, log: Path
) -> None:
    """The second tail took the rotated name for a new log, that came and went."""
    append(log, "one")
    first = follow("a.log")
    second = follow("*.log*", name="second", beside=[first])
    await first.reads("one")
    await second.settle()
    compress_rotated(log)
    await first.settle()
    await second.settle()
    assert not [*first.losses, *second.losses, *second.lines]


@pytest.mark.parametrize(("directory", "rotated"), [(".", ""), ("old", "old/*"), ("old/a", "old/*/a.log.*")])
@pytest.mark.parametrize("copy", ["a.log.1", "a.log.1.gz", "backup"])
async def test_a_log_of_which_only_a_header_was_read_is_rotated_by_copytruncate_while_nothing_runs(
    follow: Any, log: Path, copy: str, directory: str, rotated: str
) -> None:
    """It has the same header again, and more than before: the lines in its copy were lost. A backup is no such copy."""
    copied = log.parent / directory / "a.log.1"
    copied.parent.mkdir(parents=True, exist_ok=True)
    append(log, "# header")
    follower = follow("a.log", rotated=[f"{log.parent}/{rotated}"] if rotated else [])
    await follower.reads("# header")
    follower.stop()
    await asyncio.sleep(0.02)  # longer than the grain of times of modification
    append(log, "first")
    shutil.copyfile(log, copied)
    lines = ["# header", "first"]
    if copy != "backup":
        os.truncate(log, 0)
        await asyncio.sleep(0.02)
        append(log, "# header")
        lines += ["# header"]
    append(log, *map(str, range(9)))
    if copy == "a.log.1.gz":
        compress(copied)
    follower.start()
    await follower.reads(*lines, *map(str, range(9)))
    assert not follower.losses


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
async def test_generations_with_equal_content_that_were_rotated_while_nothing_ran_are_all_read(
    follow: Any, log: Path, monkeypatch: pytest.MonkeyPatch, once: bool, compressed: bool
) -> None:
    """Lines without a time, as cron jobs write them: all but the first and the last counted as copies."""
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.2)
    append(log, "backup finished")
    follower = follow("a.log", once=once, rescan_interval=0.05)
    await follower.reads("backup finished")
    follower.stop()
    for _ in range(3):
        await asyncio.sleep(0.02)  # longer than the grain of times of modification
        shift(log)
        append(log, "backup finished")
    for number in range(1, 4 * compressed):
        compress(log.with_name(f"a.log.{number}"))
    follower.start()
    await follower.scan()
    await follower.reads(*["backup finished"] * 4)


async def test_a_copy_of_a_rotated_file_that_is_called_after_it_is_not_read(
    follow: Any, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaited, "COPY_PATIENCE", 0.1)
    append(log, "one")
    follower = follow("a.log", rescan_interval=0.05)
    await follower.reads("one")
    for down in (False, True):
        if down:
            follower.stop()
        await asyncio.sleep(0.02)
        shift(log)
        append(log, f"{down}")
        for name in ("a.log.1.bak", "a.log.1.2"):
            shutil.copyfile(log.with_name("a.log.1"), log.with_name(f"{name}{down:d}"))
        if down:
            follower.start()
        await follower.settle()
        await asyncio.sleep(0.3)
    await follower.reads("one", "False", "True")


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("names", ["ab", "ba"])  # directories are listed in any order
async def test_what_was_over_and_grew_while_nothing_ran_is_read_though_a_newer_one_is_sought(
    follow: Any, tmp_path: Path, once: bool, names: str
) -> None:
    """A run with an end said that all was delivered: what differs was looked at again at the next pass only."""
    first, rotated = (tmp_path / f"app-{name}.log" for name in names)
    append(first, "one")
    follower = follow("app*.log", leave_after=0.01, rescan_interval=60.0)
    await follower.reads("one")
    first.rename(rotated)
    append(rotated, "two")
    append(first, "three")
    await follower.reads("one", "two", "three", ordered=False)
    await follower.until(lambda: any(each.detail.get("done") for each in follower.stored.values()))
    follower.stop()
    await asyncio.sleep(0.02)
    append(rotated, "late")
    follower.once = once
    follower.start()
    await follower.scan()
    follower.drain()
    assert sorted(follower.texts) == [b"late", b"one", b"three", b"two"]


async def test_a_run_with_an_end_reads_what_came_late_to_a_rotated_file_that_no_glob_matches(
    follow: Any, log: Path
) -> None:
    """A daemon had finished with it, and stopped. A program that has it open still writes to it."""
    append(log, "one")
    follower = follow("a.log", leave_after=0.01)
    await follower.reads("one")
    shift(log)
    append(log, "two")
    await follower.reads("one", "two")
    await follower.until(lambda: any(each.detail.get("done") for each in follower.stored.values()))
    follower.stop()
    append(log.with_name("a.log.1"), "late")
    follower.once = True
    follower.start()
    await follower.scan()
    follower.drain()
    assert follower.texts == [b"one", b"two", b"late"]


async def test_a_run_with_an_end_says_what_it_did_not_come_to(
    follow: Any, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files may come all the time, and each may show that there is more to be looked at."""
    monkeypatch.setattr(finder_module, "_ROUNDS", 0)
    append(log, "one")
    follower = follow("a.log", once=True)
    await follower.scan()
    assert follower.present_troubles == {str(log): finder_module._LEFT}
