"""What is found, where it is begun, whose it is, what is named as trouble; and what finding costs."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import socket
import tempfile
import threading
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from ingestd.daemon.source import StoredPosition, Surroundings, WrongDetail
from ingestd.tail import directories as directories_module
from ingestd.tail import finder as finder_module
from ingestd.tail import finished as finished_module
from ingestd.tail import looks as looks_module
from ingestd.tail import thread as thread_module
from ingestd.tail import verdicts as verdicts_module
from ingestd.tail import watches as watches_module
from ingestd.tail.examinations import DOUBT
from ingestd.tail.looks import Looks
from ingestd.tail.watch import DIRECTORY_EVENTS, OVERFLOW, Event, EventStream, WatchLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ingestd.tail.facts import Place
    from ingestd.tail.heads import Heads
    from ingestd.tail.looks import Examination, Sighting


def append(path: Path, *lines: str) -> None:
    with path.open("ab") as stream:
        stream.write("".join(f"{line}\n" for line in lines).encode())


class CountingLooks(Looks):
    """Counts what is looked at, and what is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.looked: Counter[str] = Counter()
        self.examined: Counter[str] = Counter()
        self.compared: Counter[str] = Counter()
        """With how many generations each file was compared."""

    def look(self, path: str) -> Sighting:
        self.looked[path] += 1
        return super().look(path)

    def examine(self, wanted: Sequence[Examination]) -> Any:
        self.examined.update(each.place.path for each in wanted)
        self.compared.update({each.place.path: len(each.originals) for each in wanted})
        return super().examine(wanted)


# Finding


async def test_a_file_appears_once_and_an_empty_one_when_it_has_bytes(follow: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", "one")
    (tmp_path / "empty.log").touch()
    follower = follow()
    assert follower.paths(await follower.scan()) == ["a.log"]
    await follower.begin()
    append(tmp_path / "empty.log", "two")
    append(tmp_path / "a.log", "three")
    await follower.reads("one", "two", "three", ordered=False)
    assert follower.paths() == ["a.log", "empty.log"]


async def test_a_file_that_several_names_lead_to_appears_once(follow: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", "one")
    (tmp_path / "link.log").symlink_to(tmp_path / "a.log")
    os.link(tmp_path / "a.log", tmp_path / "hard.log")
    follower = follow("*.log", "a*")
    await follower.reads("one")
    (tmp_path / "another.log").symlink_to(tmp_path / "link.log")
    os.link(tmp_path / "a.log", tmp_path / "harder.log")
    await follower.reads("one")
    assert len(follower.found) == 1


async def test_files_with_the_same_content_are_files_of_their_own(follow: Any, tmp_path: Path) -> None:
    # Peers that know files by the first bytes alone take the second one for the first.
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(b"# header\n" * 200)
    follower = follow()
    await follower.settle()
    assert len(follower.found) == 2
    assert len(follower.lines) == 400


@pytest.mark.parametrize("names", [("worker.log", "worker-1.log"), ("app.log", "app.log.1"), ("a.log", "a.log~")])
async def test_a_name_decides_nothing(follow: Any, tmp_path: Path, names: tuple[str, str]) -> None:
    # Whatever it looks like, a file that the glob matches is a log, and one that is written to goes on.
    follower = follow("*")
    for number in range(3):
        for name in names:
            append(tmp_path / name, f"{name} {number}")
        await follower.settle()
    follower.restart()
    await follower.reads(*(f"{name} {number}" for name in names for number in range(3)), ordered=False)
    assert len(follower.sources) == 2


async def test_a_new_file_is_found_by_events(follow: Any, tmp_path: Path) -> None:
    follower = follow("**/*.log")
    append(tmp_path / "a.log", "one")
    await follower.reads("one")
    (tmp_path / "sub").mkdir()
    append(tmp_path / "new", "two")
    (tmp_path / "new").rename(tmp_path / "b.log")
    await follower.reads("one", "two")
    append(tmp_path / "sub" / "c.part", "three")
    (tmp_path / "sub" / "c.part").rename(tmp_path / "sub" / "c.log")
    await follower.reads("one", "two", "three")
    (tmp_path / "sub" / "deep" / "er").mkdir(parents=True)
    append(tmp_path / "sub" / "deep" / "er" / "d.log", "four")
    await follower.reads("one", "two", "three", "four")


async def test_a_directory_that_comes_is_found_by_events(follow: Any, tmp_path: Path) -> None:
    follower = follow("no/such/yet/*.log")
    await follower.settle()
    (tmp_path / "no").mkdir()
    await follower.settle()
    (tmp_path / "no" / "such" / "yet").mkdir(parents=True)
    append(tmp_path / "no" / "such" / "yet" / "a.log", "one")
    await follower.reads("one")


class ListingLooks(Looks):
    """Notes which directories are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    def _walk(self, entries: Any, enter: Callable[[str], None], known: Callable[[str, int], bool]) -> Any:
        return super()._walk(entries, lambda directory: (self.listed.append(directory), enter(directory)), known)


async def test_a_directory_that_comes_or_goes_is_listed_alone(follow: Any, tmp_path: Path) -> None:
    # Of 32,240 files in directories that came and went all the time, 4,679 were lost, each before a pass over all.
    (tmp_path / "old").mkdir()
    append(tmp_path / "old" / "a.log", "old")
    looks = ListingLooks()
    follower = follow("**/*.log", looks=looks, rescan_interval=3600)
    await follower.settle()
    new = tmp_path / "new"
    expected = ["old"]
    for name in ("one", "two"):
        looks.listed.clear()
        (new / "deep").mkdir(parents=True)
        append(new / "deep" / "a.log", name)
        expected.append(name)
        await follower.reads(*expected)
        (new / "deep" / "a.log").unlink()
        (new / "deep").rmdir()
        new.rmdir()
        await follower.settle()
        assert {*looks.listed} == {str(new), str(new / "deep")}
        assert not follower.finder._watches.lacks(str(tmp_path / "old"))
        assert follower.finder._watches.lacks(str(new / "deep"))
    assert follower.finder._directories.stamps.keys() == {str(tmp_path), str(tmp_path / "old")}
    assert not follower.losses


async def test_a_directory_that_comes_while_many_files_are_examined_does_not_wait_for_the_last_one(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On half a core, 14,292 files were lost without a word: they were gone before their directories were watched.
    monkeypatch.setattr(verdicts_module, "_EXAMINED_AT_ONCE", 2)
    new = tmp_path / "new"

    class Busy(ListingLooks):
        def examine(self, wanted: Sequence[Examination]) -> Any:
            new.mkdir(exist_ok=True)
            self.listed += [each.place.path for each in wanted]
            return super().examine(wanted)

    looks = Busy()
    follower = follow("**/*.log", looks=looks)
    await follower.settle()
    source = tmp_path.parent / f"{tmp_path.name}-source"
    source.mkdir()
    for number in range(6):
        append(source / f"{number}.log", str(number))
    source.rename(tmp_path / "files")  # all are listed at once
    await follower.reads(*map(str, range(6)), ordered=False)
    assert looks.listed.index(str(new)) < looks.listed.index(str(tmp_path / "files" / "5.log"))
    assert not follower.losses


async def test_a_directory_that_comes_and_is_given_to_others_is_watched_all_the_while(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    follower = follow("*/*.log", rescan_interval=3600)
    await follower.settle()

    monkeypatch.setattr(follower.finder, "_look_again", partial(asyncio.sleep, 0.05))
    (tmp_path / "new").chmod(0o750)
    await follower.settle()
    append(tmp_path / "new" / "a.log", "one")
    await follower.reads("one")


async def test_what_goes_in_a_directory_that_was_moved_is_not_lost_under_its_old_path(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "below").mkdir(parents=True)
    follower = follow("**/*.log", rescan_interval=3600)
    append(old / "below" / "a.log", "one")
    await follower.reads("one")
    monkeypatch.setattr(follower.finder, "_look_again", partial(asyncio.sleep, 0.05))
    old.rename(new)
    await follower.settle()
    append(new / "below" / "b.log", "two")
    await follower.reads("one", "two")
    (new / "below" / "b.log").unlink()
    await follower.settle()
    assert not follower.losses


async def test_a_directory_moved_away_and_made_anew_is_found_by_events(follow: Any, tmp_path: Path) -> None:
    # A watch is the inode's: the directory that is moved takes its watch along, under the old path's name.
    logs, away = tmp_path / "logs", tmp_path / "away"
    logs.mkdir()
    follower = follow("logs/*.log")
    append(logs / "a.log", "one")
    await follower.settle()
    logs.rename(away)
    logs.mkdir()
    append(logs / "a.log", "two")
    append(away / "a.log", "three")
    await follower.settle()
    append(logs / "b.log", "four")
    await follower.reads("one", "two", "three", "four", ordered=False)
    append(away / "c.log", "not ours")
    await follower.settle()
    assert b"not ours" not in follower.texts
    assert not follower.losses


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_file_that_comes_as_its_directory_is_first_watched_is_found(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    # A watch tells of what comes after it, a look of what was there before: who is made between the two is in neither.
    watch = EventStream.watch
    made = set()

    def late(stream: EventStream, path: str, events: int) -> int:
        if when == "after":
            watched = watch(stream, path, events)
        if events == DIRECTORY_EVENTS and path.startswith(str(tmp_path)) and path not in made:
            made.add(path)
            append(Path(path) / "between.log", path)
        return watched if when == "after" else watch(stream, path, events)

    (tmp_path / "sub").mkdir()
    monkeypatch.setattr(EventStream, "watch", late)
    follower = follow("**/*.log")
    await follower.reads(str(tmp_path), f"{tmp_path}/sub", ordered=False)


async def test_without_inotify_files_and_their_rotations_are_found_by_the_clock(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_more(*_: Any, **__: Any) -> None:
        raise WatchLimit(24, "Too many open files")

    monkeypatch.setattr(watches_module, "EventStream", no_more)
    follower = follow(rescan_interval=0.05)
    await follower.settle()
    append(tmp_path / "a.log", "one")
    (tmp_path / "empty.log").touch()
    await follower.reads("one")
    append(tmp_path / "empty.log", "two")
    await follower.reads("one", "two")
    for number in range(3):
        (tmp_path / "a.log").rename(tmp_path / f"a.log.{number}")
        append(tmp_path / "a.log", f"next {number}")
        await follower.settle()
    await follower.reads("one", "two", "next 0", "next 1", "next 2")
    assert not follower.losses


async def test_a_kernel_that_gives_too_few_watches_is_made_up_for_by_the_clock(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = EventStream.watch

    def some(stream: EventStream, path: str, events: int) -> int:
        if path.endswith("/sub"):
            raise WatchLimit(28, "No space left on device")
        return watch(stream, path, events)

    monkeypatch.setattr(EventStream, "watch", some)
    (tmp_path / "sub").mkdir()
    follower = follow("**/*.log", rescan_interval=0.05)
    await follower.settle()
    append(tmp_path / "a.log", "one")
    await follower.reads("one")
    append(tmp_path / "sub" / "b.log", "two")
    await follower.reads("one", "two")


async def test_after_an_overflow_everything_is_looked_at_anew(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = follow("*.log*")
    for name in ("a.log", "b.log", "c.log"):
        append(tmp_path / name, f"{name} one")
    await follower.settle()
    with monkeypatch.context() as deaf:
        # The kernel drops these events.
        deaf.setattr(follower.finder._watches._stream, "_heard", lambda _: None)
        (tmp_path / "a.log").rename(tmp_path / "a.log.1")
        append(tmp_path / "a.log", "a.log two")
        append(tmp_path / "new.log", "new.log one")
        (tmp_path / "b.log").unlink()
        (tmp_path / "c.log").rename(tmp_path / "d.log")
        append(tmp_path / "c.log", "c.log two")
        await follower.settle()
    assert len(follower.lines) == 3
    follower.finder._watches.tell([Event(None, OVERFLOW, 0, "")])
    expected = [f"{name} one" for name in ("a.log", "b.log", "c.log", "new.log")]
    await follower.reads(*expected, "a.log two", "c.log two", ordered=False)
    assert not follower.losses


async def test_that_the_kernel_dropped_events_is_counted_each_time_and_said_once_a_minute(
    follow: Any, tmp_path: Path
) -> None:
    # A file that came and went meanwhile is lost, and nothing else says so.
    append(tmp_path / "a.log", "one")
    follower = follow()
    await follower.reads("one")

    async def overflow() -> None:
        follower.finder._watches.tell([Event(None, OVERFLOW, 0, "")])
        await follower.settle()

    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            await overflow()
        assert [(event["log_level"], event["route"], event["times"]) for event in logs] == [("warning", "access", 1)]
        assert "fs.inotify.max_queued_events" in logs[0]["remedy"]
        follower.finder._news._say_again = 0.0  # a minute later
        await overflow()
    assert [event["times"] for event in logs] == [1, 3]
    assert follower.overflows == 4


async def test_rotated_files_that_have_no_names_of_logs_are_said_at_a_start(follow: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", "one")
    follower = follow(str(tmp_path / "a.log"), rotated=(f"{tmp_path}/old/*",))
    with structlog.testing.capture_logs() as logs:
        await follower.reads("one")
    assert [event["reason"].rpartition(": ")[0] for event in logs if "rotated" in event] == ["no file matches it yet"]
    (tmp_path / "old").mkdir()
    append(tmp_path / "old/2026.1", "two")
    with structlog.testing.capture_logs() as logs:
        follower.restart()
        await follower.settle()
    (said,) = [event for event in logs if "rotated" in event]
    assert said["reason"].startswith("no file that it matches is called as a log")
    assert f"as {tmp_path}/old/2026.1" in said["reason"]


# Where to start


@pytest.mark.parametrize(
    ("start", "expected"),
    [("beginning", ["old", "new", "later"]), ("end", ["later"]), ("1h", ["new", "later"])],
)
async def test_start_speaks_of_files_that_were_there_before(
    follow: Any, tmp_path: Path, start: str, expected: list[str]
) -> None:
    append(tmp_path / "old.log", "old")
    os.utime(tmp_path / "old.log", (0, 0))
    append(tmp_path / "recent.log", "new")
    follower = follow(start=start)
    await follower.begin()
    append(tmp_path / "then.log", "later")
    await follower.reads(*expected, ordered=False)


async def test_the_end_is_behind_the_last_whole_line(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"one\nhalf of a li")
    follower = follow(start="end")
    await follower.begin()
    append(tmp_path / "a.log", "ne")
    await follower.reads("half of a line")


async def test_an_empty_file_of_before_is_read_from_its_beginning(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    follower = follow(start="end")
    await follower.begin()
    append(tmp_path / "a.log", "one")
    await follower.reads("one")


async def test_what_came_while_we_were_down_is_read_from_its_beginning(follow: Any, tmp_path: Path) -> None:
    # Rotated while we were down, with start = "end": the lines of the new file must not be skipped.
    append(tmp_path / "a.log", "one")
    follower = follow(start="end")
    await follower.settle()
    follower.stop()
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    append(tmp_path / "a.log", "two")
    append(tmp_path / "b.log", "three")
    follower.start()
    await follower.reads("two", "three", ordered=False)


async def test_the_second_run_reads_from_the_beginning_although_the_first_found_nothing(
    follow: Any, tmp_path: Path
) -> None:
    # Installed before the application: nothing is stored, and yet the next start is not the first.
    follower = follow(start="end")
    await follower.settle()
    follower.stop()
    append(tmp_path / "a.log", "one")
    follower.start()
    await follower.reads("one")


async def test_until_the_first_run_has_found_all_files_what_is_there_counts_as_there_before(
    follow: Any, tmp_path: Path
) -> None:
    """A first run that was stopped within its first moments: the next one sent all old lines of what was not stored."""
    for number in range(500):
        append(tmp_path / f"{number}.log", f"{number} old")
    follower = follow(start="end")
    begin = asyncio.ensure_future(follower.begin())
    while not follower.stored:
        await asyncio.sleep(0)
    await follower.cut_short(begin)
    assert len(follower.stored) < 500
    (stored, *_) = follower.paths()
    (tmp_path / stored).rename(tmp_path / f"{stored}.1")
    append(tmp_path / stored, "of what is known, all that came is read")
    follower.start()
    await follower.scan()
    for number in range(500):
        append(tmp_path / f"{number}.log", f"{number} new")
    new = [f"{number} new" for number in range(500)]
    await follower.reads("of what is known, all that came is read", *new, ordered=False)


async def test_what_was_begun_at_its_end_is_known_by_its_last_bytes(follow: Any, tmp_path: Path) -> None:
    # Nothing was read of it yet, and still the bytes before the position tell that it is truncated and grown again.
    header = "# " + "h" * 2000
    append(tmp_path / "a.log", header, "one")
    follower = follow(start="end")
    await follower.settle()
    follower.stop()
    (tmp_path / "a.log").write_text("")
    append(tmp_path / "a.log", header, "ONE", "TWO")
    follower.start()
    await follower.reads(header, "ONE", "TWO")


@pytest.mark.parametrize("how", ["renamed", "written over"])
async def test_a_report_that_is_made_anew_with_the_same_length_and_end_is_another_one(
    follow: Any, tmp_path: Path, how: str
) -> None:
    # Nothing of it was sent, with 0 as the exit code.
    report = tmp_path / "a.log"
    follower = follow(once=True)
    for day in (11, 12):
        new = report if how == "written over" else tmp_path / "new"
        new.write_text(f"Report of 2026-11-{day}\n" + "the same at the end of each\n" * 100)
        new.rename(report)
        await follower.scan()
        follower.drain()
        follower.restart()
    assert [text for text in follower.texts if text.startswith(b"Report")] == [
        b"Report of 2026-11-11",
        b"Report of 2026-11-12",
    ]


async def test_once_ends_at_the_size_each_file_has_now(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"one\ntwo")
    follower = follow(once=True)
    (found,) = await follower.scan()
    assert found.until == 7
    with (tmp_path / "a.log").open("ab") as stream:
        stream.write(b" more\nthree\n")
    follower.drain()
    assert follower.texts == [b"one"], "the rest of the second line is not read, so none of it is"
    assert (follower.ended[found.source].kind, follower.ended[found.source].position) == ("taken", 4)
    assert follower.stored[found.source].position == 4
    follower.stop()
    follower.start()
    await follower.scan()
    follower.drain()
    assert follower.texts == [b"one", b"two more", b"three"]


async def test_once_knows_copies_and_goes_on_where_the_last_run_stopped(follow: Any, tmp_path: Path) -> None:
    follower = follow("a.log*", once=True)
    append(tmp_path / "a.log", "one", "two")
    append(tmp_path / "b.log", "not ours")
    await follower.scan()
    follower.drain()
    assert follower.texts == [b"one", b"two"]
    follower.stop()
    append(tmp_path / "a.log", "three")
    (tmp_path / "a.log").rename(tmp_path / "a.log.2")
    append(tmp_path / "a.log", "four")
    follower.start()
    await follower.scan()
    follower.drain()
    assert follower.texts == [b"one", b"two", b"three", b"four"]
    follower.stop()
    append(tmp_path / "a.log", "five")
    shutil.copyfile(tmp_path / "a.log", tmp_path / "a.log.1")
    os.truncate(tmp_path / "a.log", 0)
    follower.start()
    await follower.scan()
    follower.drain()
    assert follower.texts == [b"one", b"two", b"three", b"four", b"five"]
    follower.restart()
    await follower.scan()
    follower.drain()
    assert len(follower.texts) == 5
    assert not follower.losses


async def test_once_reads_files_that_are_alike_but_no_copy_of_one_that_is_truncated_meanwhile(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One of five equal files was read, with 0 as the exit code.
    monkeypatch.setattr("ingestd.tail.awaited.COPY_PATIENCE", 0.3)
    follower = follow("*/*.log*", once=True)
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        append(tmp_path / str(number) / "a.log", "alike")
    log = tmp_path / "0" / "a.log"
    append(log, "one")
    shutil.copyfile(log, tmp_path / "0" / "a.log.1")
    scan = asyncio.ensure_future(follower.scan())
    await asyncio.sleep(0.1)
    follower.drain()
    os.truncate(log, 0)
    await scan
    follower.drain()
    assert sorted(follower.texts) == [b"alike", b"alike", b"alike", b"one"]
    follower.restart()
    await follower.scan()
    follower.drain()
    assert len(follower.texts) == 4


async def test_once_a_copy_in_the_making_that_is_complete_before_its_log_is_truncated_comes_once(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The half that was not there at the first look came twice.
    monkeypatch.setattr("ingestd.tail.awaited.COPY_PATIENCE", 0.2)
    follower = follow("a.log*", once=True)
    append(tmp_path / "a.log", "one", "two")
    append(tmp_path / "a.log.1", "one")
    scan = asyncio.ensure_future(follower.scan())
    while not follower.texts:
        await asyncio.sleep(0.01)
        follower.drain()
    append(tmp_path / "a.log.1", "two")
    os.truncate(tmp_path / "a.log", 0)
    await scan
    follower.drain()
    assert follower.texts == [b"one", b"two"]
    follower.restart()
    await follower.scan()
    follower.drain()
    assert len(follower.texts) == 2


async def test_a_log_that_has_its_answer_may_ask_for_another_examination_at_once(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two logs had met one file. The pass ended with `dictionary changed size during iteration`."""
    for name in ("a.log", "b.log", "other", "waits"):
        append(tmp_path / name, name)
    follower = follow()
    await follower.scan()
    finder = follower.finder
    first, second = (finder.log(f"{tmp_path}/{name}") for name in ("a.log", "b.log"))
    met, waits = (Looks().look(f"{tmp_path}/{name}").place for name in ("other", "waits"))
    second._released[met.file], second._waiting[waits.file] = met, waits

    async def look_at(_: object) -> None:
        finder._due.examinations[met.file] = second, met

    monkeypatch.setattr(finder, "_look_at", look_at)
    finder._due.look(met.path, first.path)
    finder._due.examinations[met.file] = first, met
    await finder._settle(1)
    assert waits.file in finder._due.examinations


# Trouble


@pytest.mark.parametrize("glob", ["*.log", "**/*.log"])
async def test_what_is_no_readable_text_file_is_named_once(follow: Any, tmp_path: Path, glob: str) -> None:
    (tmp_path / "directory.log").mkdir()
    append(tmp_path / "directory.log" / "in.log", "in")
    os.mkfifo(tmp_path / "fifo.log")
    (tmp_path / "dangling.log").symlink_to(tmp_path / "nowhere")
    (tmp_path / "circle.log").symlink_to(tmp_path / "circle.log")
    (tmp_path / "binary.log").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "packed.log").write_bytes(gzip.compress(b"text\n"))
    os.utime(tmp_path / "packed.log", (0, 0))
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(tmp_path)  # the path of a socket has at most 107 bytes
        listener.bind("socket.log")
        follower = follow(glob, "directory.log", "directory.log/in.log", "missing.log", rescan_interval=0.05)
        await follower.settle()
        append(tmp_path / "a.log", "one")  # so that there is another pass
        await follower.reads("in", "one")
    reasons = {Path(thing).name: reason for thing, reason in follower.told}
    assert len(reasons) == len(follower.told), "trouble is told once a state"
    assert reasons["directory.log"] == "a directory, not a file"
    assert reasons["fifo.log"] == "a FIFO, not a file"
    assert reasons["socket.log"] == "a socket, not a file"
    assert reasons["dangling.log"] == "a symbolic link that leads nowhere"
    assert "Too many levels of symbolic links" in reasons["circle.log"]
    assert reasons["binary.log"].startswith("holds NUL bytes")
    assert reasons["packed.log"].startswith("compressed, but not called so")
    assert reasons["missing.log"] == "no such file"
    assert len(follower.found) == 2


@pytest.mark.parametrize(("content", "word"), [(b"a\0b\n", "NUL"), (gzip.compress(b"text\n"), "compressed")])
async def test_a_refused_file_is_taken_once_it_is_text(follow: Any, tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "a.log").write_bytes(content)
    os.utime(tmp_path / "a.log", (0, 0))  # it is not compressed just now
    follower = follow(rescan_interval=0.05)
    await follower.settle()
    assert [word in reason for _, reason in follower.told] == [True]
    (tmp_path / "a.log").write_bytes(b"one\n")
    await follower.reads("one")
    assert not follower.losses


async def test_a_refused_file_is_said_once_whatever_changes_of_the_directories_above_it(
    follow: Any, tmp_path: Path
) -> None:
    # Each chmod of one of them brought a warning for each such file, and counted it again.
    logs = tmp_path / "logs"
    logs.mkdir()
    file = logs / "a.log"
    file.write_bytes(b"a\0b\n")
    follower = follow("logs/*.log", rescan_interval=0.05)
    await follower.settle()
    for directory, mode in ((logs, 0o750), (tmp_path, 0o750), (logs, 0o755)):
        directory.chmod(mode)
        await follower.settle()
    assert [thing for thing, _ in follower.told] == [str(file)]
    assert follower.present_troubles
    file.write_bytes(b"")
    await follower.settle()
    assert not follower.present_troubles
    append(file, "one")
    await follower.reads("one")


@pytest.mark.parametrize("empty", [False, True])
async def test_what_the_kubelet_compresses_to_is_no_trouble(follow: Any, tmp_path: Path, *, empty: bool) -> None:
    # It writes 0.log.1.tmp and calls that 0.log.1.gz then: `file not taken`, it was said, and to call it so.
    pod = tmp_path / "pods"
    pod.mkdir()
    append(pod / "0.log", "one")
    (tmp_path / "a.log").symlink_to(pod / "0.log")
    follower = follow()
    await follower.reads("one")
    packing = pod / "0.log.1.tmp"
    if empty:
        packing.touch()
        await follower.settle()
    packing.write_bytes(gzip.compress(b"one\n"))
    await follower.settle()
    packing.rename(pod / "0.log.1.gz")
    await follower.settle()
    await asyncio.sleep(DOUBT)
    await follower.settle()
    assert follower.told == []


@pytest.mark.parametrize("rescan_interval", [0.05, 3600.0])
async def test_the_trouble_with_a_file_is_over_when_it_is_gone_or_taken(
    follow: Any, tmp_path: Path, rescan_interval: float
) -> None:
    (tmp_path / "a.log").write_bytes(b"a\0b")
    (tmp_path / "b.log").write_bytes(b"a\0b")
    (tmp_path / "c.log").symlink_to(tmp_path / "nowhere")
    follower = follow(rescan_interval=rescan_interval)
    await follower.begin()
    assert len(follower.present_troubles) == 3
    (tmp_path / "a.log").unlink()
    (tmp_path / "b.log").unlink()
    append(tmp_path / "b.log", "text")
    (tmp_path / "c.log").unlink()
    await follower.reads("text")
    await follower.until(lambda: not follower.present_troubles)


async def test_the_trouble_with_a_file_that_is_taken_is_over_after_it_was_taken(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it is taken now is said of what was in trouble."""
    (tmp_path / "a.log").write_bytes(b"a\0b")
    follower = follow(rescan_interval=0.05)
    await follower.begin()
    troubles: list[str] = []
    appeared = follower.appeared
    monkeypatch.setattr(
        follower, "appeared", lambda found: (troubles.extend(follower.present_troubles), appeared(found))
    )
    (tmp_path / "a.log").write_bytes(b"text\n")
    await follower.reads("text")
    assert troubles == [f"{tmp_path}/a.log"]
    await follower.until(lambda: not follower.present_troubles)


async def test_a_known_log_that_is_not_there_at_a_start_stays_a_trouble(follow: Any, tmp_path: Path) -> None:
    """A look at its path, where nothing stands, took that for the end of the trouble."""
    (tmp_path / "web").mkdir()
    append(tmp_path / "web" / "app.log", "one")
    follower = follow("web/app.log", rescan_interval=0.05)
    await follower.reads("one")
    follower.stop()
    (tmp_path / "web").rename(tmp_path / "web.old")
    follower.start()
    await follower.settle()
    reason = f"no such file: the directory {tmp_path}/web is missing"
    assert follower.present_troubles == {f"{tmp_path}/web/app.log": reason}


async def test_a_refused_file_that_was_not_modified_is_not_opened_again(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"a\0b")
    looks = CountingLooks()
    follower = follow(rescan_interval=0.05, looks=looks)
    await follower.settle()
    append(tmp_path / "b.log", "one")
    await follower.reads("one")
    assert looks.examined[f"{tmp_path}/a.log"] == 1


@contextmanager
def as_somebody_else() -> Iterator[Callable[[], None]]:
    """As somebody without privileges, until the function that is given is called."""
    privileged = os.geteuid() == 0
    if privileged:
        os.seteuid(65534)

    def back() -> None:
        if privileged:
            os.seteuid(0)

    try:
        yield back
    finally:
        back()


@contextmanager
def barred(path: Path) -> Iterator[Callable[[], None]]:
    """As somebody else, who may not read the file until the function that is given is called."""
    path.chmod(0)
    with as_somebody_else() as back:

        def open_up() -> None:
            back()
            path.chmod(0o644)

        try:
            yield open_up
        finally:
            open_up()


@pytest.fixture
def public_path() -> Iterator[Path]:
    """A directory that everybody may enter, and rename files in."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


async def test_an_unreadable_file_is_named_and_taken_when_it_can_be_read(follow: Any, public_path: Path) -> None:
    append(public_path / "a.log", "one")
    with barred(public_path / "a.log") as open_up:
        follower = follow(directory=public_path)
        await follower.settle()
        assert follower.told == [(f"{public_path}/a.log", "can not be read: Permission denied")]
        open_up()
        await follower.reads("one")
    assert len(follower.told) == 1


@pytest.mark.parametrize("closed", ["web", "."])
async def test_what_is_in_a_directory_that_is_closed_to_us_is_not_deleted(
    follow: Any, public_path: Path, closed: str
) -> None:
    # Half a line was said to be lost, `deleted`, where the directory above the log's was closed at a start.
    log, directory = public_path / "web" / "app.log", public_path / closed
    log.parent.mkdir()
    append(log, "one")
    follower = follow("*/app.log", directory=public_path, rescan_interval=0.05)
    await follower.reads("one")
    with log.open("a") as stream:
        stream.write("two")
    await follower.settle()
    follower.stop()
    directory.chmod(0o644)
    with as_somebody_else() as back:
        follower.start()
        await follower.settle()
        assert not follower.losses
        assert not follower.files_gone
        back()
        directory.chmod(0o777)
        append(log, "")
        await follower.reads("one", "two")
    assert not follower.losses


@pytest.mark.parametrize("end", ["repaired", "repaired later", "repaired while down", "compressed", "deleted"])
async def test_an_unreadable_file_that_is_rotated_is_read_once_it_can_be(
    follow: Any, public_path: Path, end: str
) -> None:
    log, rotated = public_path / "a.log", public_path / "a.log.1"
    append(log, "one")
    follower = follow(directory=public_path, rescan_interval=0.05 if end in {"repaired later", "compressed"} else 10.0)
    await follower.reads("one")
    log.rename(rotated)
    append(log, "two")
    with barred(log) as open_up:
        await follower.until(lambda: follower.present_troubles)
        rotated.unlink()
        log.rename(rotated)
        append(log, "three")
        await follower.reads("one", "three")
        assert follower.present_troubles == {str(rotated): "can not be read: Permission denied"}
        if end == "repaired later":
            await asyncio.sleep(0.3)  # passes go by
            assert [thing for thing, _ in follower.told] == [str(log), str(rotated)]
        if end == "repaired while down":
            follower.stop()
            follower.present_troubles.clear()
        open_up()
        log.chmod(0o644)
        if end == "compressed":
            rotated.with_name("a.log.1.gz").write_bytes(gzip.compress(rotated.read_bytes()))
        if end in {"compressed", "deleted"}:
            rotated.unlink()
        else:
            rotated.chmod(0o644)
        if end == "repaired while down":
            follower.start()
        if end == "deleted":
            await follower.settle()
        else:
            await follower.reads("one", "three", "two")
    await follower.until(lambda: end == "deleted" or not follower.present_troubles)
    assert not follower.losses


@pytest.mark.parametrize("once", [False, True])
async def test_an_unreadable_file_that_was_rotated_while_nothing_ran_is_read_once_it_can_be(
    follow: Any, public_path: Path, *, once: bool
) -> None:
    log, rotated = public_path / "a.log", public_path / "a.log.1"
    append(log, "one")
    follower = follow(directory=public_path, once=once)
    await follower.reads("one")
    follower.stop()
    append(rotated, "two")
    log.rename(public_path / "a.log.2")
    append(log, "three")
    with barred(rotated) as open_up:
        follower.start()
        await follower.reads("one", "three")
        assert follower.told == [(str(rotated), "can not be read: Permission denied")]
        if once:
            follower.stop()
        open_up()
        if once:
            follower.start()
        await follower.reads("one", "three", "two")
    assert not follower.losses


async def test_an_unreadable_directory_is_named_and_its_files_taken_when_it_can_be_read(
    follow: Any, public_path: Path
) -> None:
    (public_path / "sub").mkdir()
    append(public_path / "sub" / "a.log", "one")
    follower = follow("sub/*.log", directory=public_path, rescan_interval=0.05)
    await follower.reads("one")
    follower.stop()
    with barred(public_path / "sub") as open_up:
        follower.start()
        await follower.settle()
        assert follower.troubles[f"{public_path}/sub"] == "directory can not be read: Permission denied"
        open_up()
        (public_path / "sub").chmod(0o755)
        append(public_path / "sub" / "a.log", "two")
        await follower.reads("one", "two")
    assert not follower.losses


async def test_binary_files_are_taken_when_that_is_asked_for(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"a\0b\n\xff\n")
    follower = follow(binary="accept")
    await follower.settle()
    assert follower.texts == [b"a\0b", b"\xff"]


async def test_a_link_whose_file_is_made_anew_a_moment_after_its_rotation_is_no_trouble(
    follow: Any, tmp_path: Path
) -> None:
    # As the kubelet rotates what /var/log/containers leads to. Each rotation was said as a file that is not taken.
    (tmp_path / "pods").mkdir()
    written = tmp_path / "pods" / "0.log"
    written.write_text("one\n")
    (tmp_path / "a.log").symlink_to(written)
    follower = follow("a.log")
    await follower.reads("one")
    written.rename(tmp_path / "pods" / "0.log.20260101-120000")
    await follower.settle()
    written.write_text("two\n")
    await follower.reads("one", "two")
    assert not follower.told


async def test_a_link_that_leads_nowhere_is_followed_once_it_leads_somewhere(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "a.log").symlink_to("b.log")
    (tmp_path / "b.log").symlink_to(tmp_path / "away" / "target")
    follower = follow("a.log")
    await follower.settle()
    assert follower.told == [(f"{tmp_path}/a.log", "a symbolic link that leads nowhere")]
    append(tmp_path / "away" / "target", "one")
    await follower.reads("one")


async def test_what_is_made_where_a_link_leads_before_that_is_known_is_read(follow: Any, tmp_path: Path) -> None:
    """A link leads to 1.log. It is looked at; then 1.log is rotated and made anew, in a directory that is watched."""
    link, target = tmp_path / "a.log", tmp_path / "1.txt"

    class Rotating(Looks):
        def look(self, path: str) -> Sighting:
            sighting = super().look(path)
            if path == str(link) and target.exists() and target.read_text() == "one\n":
                target.rename(f"{target}.1")
                append(target, "two")
            return sighting

    link.symlink_to(tmp_path / "0.txt")
    follower = follow(looks=Rotating())
    await follower.settle()
    append(target, "one")
    (tmp_path / "new").symlink_to(target)
    (tmp_path / "new").rename(link)
    await follower.reads("one", "two")


async def test_a_link_into_a_directory_that_is_missing_is_followed_at_a_later_look(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").symlink_to(tmp_path / "away" / "target")
    follower = follow(rescan_interval=0.05)
    await follower.settle()
    (tmp_path / "away").mkdir()
    append(tmp_path / "away" / "target", "one")
    await follower.reads("one")


async def test_a_link_that_is_renamed_into_place_is_a_log_of_that_name_alone(follow: Any, tmp_path: Path) -> None:
    """`ln -s TARGET .a.log.new; mv .a.log.new a.log`, where a glob matches both names."""
    (tmp_path / "away").mkdir()
    append(tmp_path / "away" / "1", "one")
    (tmp_path / "a.log").symlink_to(tmp_path / "away" / "1")
    follower = follow("*.log*")
    await follower.settle()
    append(tmp_path / "away" / "2", "two")
    (tmp_path / ".a.log.new").symlink_to(tmp_path / "away" / "2")
    (tmp_path / ".a.log.new").rename(tmp_path / "a.log")
    await follower.reads("one", "two")
    assert {found.group for found in follower.found} == {f"{tmp_path}/a.log"}


async def test_a_file_that_a_log_holds_back_is_not_taken_by_another_name_of_it(follow: Any, tmp_path: Path) -> None:
    """A log's file is gone when the daemon starts; the one in its place has a second name, which is no log's yet."""
    append(tmp_path / "a.log", "one")
    follower = follow()
    await follower.settle()
    follower.stop()
    (tmp_path / "a.log").unlink()
    append(tmp_path / "a.log", "two")
    (tmp_path / "0.log").hardlink_to(tmp_path / "a.log")
    follower.start()
    await follower.reads("one", "two")
    assert {found.group for found in follower.found} == {f"{tmp_path}/a.log"}


async def test_a_path_that_is_not_utf8_is_stored_and_known_again(follow: Any, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.log"))
    append(odd, "one")
    follower = follow()
    await follower.settle()
    (stored,) = follower.stored.values()
    stored.detail["path"].encode()
    assert follower.found[0].label == f"{tmp_path}/\\xff.log"
    follower.restart()
    append(odd, "two")
    await follower.reads("one", "two")


def test_a_stored_detail_that_can_not_be_understood_is_named(make_route: Callable[..., Any]) -> None:
    stored = [StoredPosition("odd", 3, {"offset": 1})]
    with pytest.raises(WrongDetail, match="odd: path: expected a path, it is missing"):
        make_route().finder(stored, Surroundings(once=False, others=(), client=None, host="h"))


# Two tails


@pytest.fixture
def two(follow: Any) -> Callable[..., tuple[Any, Any]]:
    """Two tails of a daemon, the first in the configuration first."""

    def make(first: str, second: str, **settings: Any) -> tuple[Any, Any]:
        one = follow(first, name="first")
        return one, follow(second, name="second", beside=[one], **settings)

    return make


async def settle(*followers: Any) -> None:
    await asyncio.gather(*(follower.begin() for follower in followers if follower.running is None))
    for follower in (*followers, *followers):
        await follower.settle()


async def test_a_file_that_two_tails_match_goes_to_the_first_whoever_sees_it_earlier(two: Any, tmp_path: Path) -> None:
    first, second = two("a.log", "*.log")
    append(tmp_path / "a.log", "a")
    append(tmp_path / "b.log", "b")
    await settle(second)
    assert second.texts == [b"b"]
    assert second.told == [(f"{tmp_path}/a.log", "taken by the tail 'first'; a file belongs to one tail")]
    await settle(first, second)
    assert first.texts == [b"a"]
    assert first.told == []


async def test_what_a_link_leads_to_through_another_link_is_of_the_first_tail(two: Any, tmp_path: Path) -> None:
    """As a kubelet's links do. Which tail got the file was chance: the second took the inner link for its own."""
    for directory in ("containers", "pods", "docker"):
        (tmp_path / directory).mkdir()
    log, inner = tmp_path / "docker" / "0.log", tmp_path / "pods" / "0.log"
    append(log, "one")
    inner.symlink_to(log)
    (tmp_path / "containers" / "web.log").symlink_to(inner)
    first, second = two("containers/*.log", "pods/*.log")
    await settle(first, second)
    assert (first.texts, second.texts) == ([b"one"], [])
    assert first.finder.leads_to(str(inner))
    assert first.finder.leads_to(str(log))


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("globs", [("real/*.log", "links/*.log"), ("links/*.log", "real/*.log")])
async def test_a_log_that_another_tail_has_a_link_to_does_not_change_its_tail(
    two: Any, tmp_path: Path, globs: tuple[str, str], *, down: bool
) -> None:
    # 500 and 400 of 900 lines: whoever looked first at what a rotation made had it.
    log, link = tmp_path / "real" / "a.log", tmp_path / "links" / "a.log"
    log.parent.mkdir()
    link.parent.mkdir()
    append(log, "0")
    link.symlink_to(log)
    first, second = two(*globs)
    await settle(first, second)
    for number in range(1, 7):
        if down and number % 2:
            first.stop()
            second.stop()
        log.rename(f"{log}.{number}")
        append(log, str(number))
        if down and number % 2:
            first.start()
            second.start()
        await settle(*((second, first) if number % 3 else (first, second)))
    assert first.texts == [str(number).encode() for number in range(7)]
    assert second.texts == []
    assert not first.losses + second.losses
    taken = {path: reason for path, reason in second.troubles.items() if "taken by the tail 'first'" in reason}
    assert taken.keys() == second.troubles.keys()


async def test_a_log_stays_with_the_tail_that_met_it_before_there_was_a_link_to_it(two: Any, tmp_path: Path) -> None:
    # As kubelet makes them, a moment later; the rest of a pod's lines went to the other tail's topic.
    log, link = tmp_path / "pods" / "a.log", tmp_path / "containers" / "a.log"
    log.parent.mkdir()
    link.parent.mkdir()
    first, second = two("containers/*.log", "pods/*.log")
    await settle(first, second)
    append(log, "0")
    await settle(second)
    link.symlink_to(log)
    for number in range(1, 4):
        await settle(first, second)
        log.rename(f"{log}.{number}")
        append(log, str(number))
    await settle(first, second)
    assert second.texts == [b"0", b"1", b"2", b"3"]
    assert first.texts == []
    assert first.troubles[str(link)] == "taken by the tail 'second'; a file belongs to one tail"
    append(log.with_name("b.log"), "b")  # another one is the first tail's, if it is linked in time
    link.with_name("b.log").symlink_to(log.with_name("b.log"))
    await first.settle()
    await settle(first, second)
    assert first.texts == [b"b"]


async def test_a_file_stays_with_its_tail_where_it_is_renamed_to(two: Any, tmp_path: Path) -> None:
    first, second = two("a.log", "*.log")
    append(tmp_path / "b.log", "one")
    await settle(first, second)
    (tmp_path / "b.log").rename(tmp_path / "a.log")
    await settle(first, second)
    append(tmp_path / "a.log", "two")
    await settle(first, second)
    assert second.texts == [b"one", b"two"]
    assert first.texts == []
    assert first.troubles == {f"{tmp_path}/a.log": "taken by the tail 'second'; a file belongs to one tail"}
    append(tmp_path / "b.log", "three")
    await settle(first, second)
    assert second.texts == [b"one", b"two", b"three"]


async def test_once_what_two_tails_match_is_no_trouble(follow: Any, tmp_path: Path) -> None:
    # `run --once` ended with 1 each time, though everything was delivered.
    first = follow("a.log", name="first", once=True)
    second = follow("*.log", name="second", beside=[first], once=True)
    append(tmp_path / "a.log", "a")
    append(tmp_path / "b.log", "b")
    await asyncio.gather(first.scan(), second.scan())
    for follower in (first, second):
        follower.drain()
    assert (first.texts, second.texts) == ([b"a"], [b"b"])
    assert first.told + second.told == []


@pytest.mark.parametrize("down", [False, True])
async def test_a_file_moved_between_two_tails_is_read_once(two: Any, tmp_path: Path, down: bool) -> None:
    # 100 of 100 lines came twice.
    first, second = two("a/*.log", "b/*.log")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    append(tmp_path / "a" / "x.log", "1")
    append(tmp_path / "b" / "y.log", "2")
    await settle(first, second)
    for round_trip in range(2):
        if down:
            second.stop()
            first.stop()
        there, back = ("a", "b") if not round_trip else ("b", "a")
        (tmp_path / there / "x.log").rename(tmp_path / back / "x.log")
        (tmp_path / back / "y.log").rename(tmp_path / there / "y.log")
        append(tmp_path / back / "x.log", f"{round_trip} x")
        append(tmp_path / there / "y.log", f"{round_trip} y")
        if down:
            first.start()
            second.start()
        await settle(first, second)
    assert first.texts == [b"1", b"0 x", b"1 x"]
    assert second.texts == [b"2", b"0 y", b"1 y"]
    assert not first.losses + second.losses


async def test_a_file_that_a_tail_refused_may_go_to_another(two: Any, tmp_path: Path) -> None:
    # As good as a new file that gets the inode of one that was refused and deleted.
    first, second = two("*.log", "*.bin", binary="accept")
    (tmp_path / "a.log").write_bytes(b"a\0b\n")
    await settle(first, second)
    assert list(first.troubles) == [f"{tmp_path}/a.log"]
    (tmp_path / "a.log").rename(tmp_path / "a.bin")
    await settle(first, second)
    assert second.texts == [b"a\0b"]
    assert not first.losses


async def test_a_rotated_file_that_another_tail_matches_is_read_once(two: Any, tmp_path: Path) -> None:
    first, second = two("a.log", "a.log.*")
    append(tmp_path / "a.log", "0")
    await settle(first, second)
    for number in range(1, 4):
        (tmp_path / "a.log").rename(tmp_path / f"a.log.{number}")
        append(tmp_path / "a.log", str(number))
    await settle(first, second)
    assert sorted(first.texts + second.texts) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("down", [False, True])
async def test_a_copy_that_another_tail_matches_is_not_sent_to_both(two: Any, tmp_path: Path, *, down: bool) -> None:
    # A tail of one log, and one of all that is there: with copy and truncate, every line was sent to both.
    first, second = two("a.log", "*")
    log = tmp_path / "a.log"
    append(log, "1", "2")
    await settle(first, second)
    if down:
        second.stop()
        first.stop()
        append(log, "3")
    shutil.copyfile(log, tmp_path / "a.log.1")
    if not down:
        await settle(first, second)
    os.truncate(log, 0)
    append(log, "4")
    if down:
        first.start()
        second.start()
    await settle(first, second)
    assert first.texts == [b"1", b"2", *([b"3"] if down else []), b"4"]
    assert second.texts == []
    assert not first.losses + second.losses


async def test_a_copy_that_another_tail_matches_is_read_by_it_where_its_log_is_not_truncated(
    two: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two("a.log", "*", rescan_interval=0.05)
    append(tmp_path / "a.log", "1")
    await settle(first, second)
    shutil.copyfile(tmp_path / "a.log", tmp_path / "a.log.1")
    await settle(first, second)
    assert second.texts == []
    monkeypatch.setattr("ingestd.tail.awaited.COPY_PATIENCE", 0.0)
    await second.until(lambda: second.texts == [b"1"])
    assert first.texts == [b"1"]


@pytest.mark.parametrize("down", [False, True])
async def test_what_another_tail_matches_when_it_is_compressed_is_read_on_by_its_own(
    two: Any, tmp_path: Path, *, down: bool
) -> None:
    # 20 of 20 lines were missing in the one's topic, and all 70 of the file were in the other's.
    first, second = two("a.log", "*", compressed="read")
    log, packed = tmp_path / "a.log", tmp_path / "a.log.1.gz"
    append(log, "1")
    await settle(first, second)
    if down:
        second.stop()
        first.stop()
        append(log, "2")
    old = log.rename(tmp_path / "a.log.1")
    append(log, "3")
    if not down:
        await settle(first, second)
    packed.write_bytes(gzip.compress(old.read_bytes()))
    os.utime(packed, ns=(0, old.stat().st_mtime_ns))
    old.unlink()
    if down:
        first.start()
        second.start()
    await settle(first, second)
    assert first.texts == [b"1", *([b"2"] if down else []), b"3"]
    assert second.texts == []
    assert not first.losses + second.losses


# What it costs


async def test_a_pass_looks_at_no_file_that_it_knows(follow: Any, tmp_path: Path) -> None:
    # Thousands of files: a pass that looks at each of them is slow and hot.
    for number in range(2000):
        (tmp_path / f"{number}.log").write_text("x\n")
    looks = CountingLooks()
    follower = follow(looks=looks, rescan_interval=0.05)
    follower.unopened = []
    await follower.begin()
    assert len(follower.found) == 2000
    assert max(looks.looked.values()) == 1
    assert max(looks.examined.values()) == 1
    append(tmp_path / "another.log", "y")
    await follower.until(lambda: len(follower.found) == 2001)
    before = looks.looked.copy()
    append(tmp_path / "last.log", "z")
    await follower.until(lambda: len(follower.found) == 2002)
    await asyncio.sleep(0.1)  # for a pass
    assert set(looks.looked - before) <= {f"{tmp_path}/another.log", f"{tmp_path}/last.log"}


async def test_a_file_with_the_path_and_the_inode_number_of_one_whose_end_was_missed_is_found(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an overflow it was taken for the one before, until the next event: nobody read it."""
    log = tmp_path / "a.log"
    append(log, "one")
    follower = follow()
    follower.unopened = []
    await follower.settle()
    append(tmp_path / "b.log", "what was seen before an event is certain")
    await follower.settle()
    before = log.stat().st_ino
    walk = Looks.walk
    # As if the next file had its number.
    monkeypatch.setattr(Looks, "walk", lambda *args: walk(*args[:-1], lambda path, _: args[-1](path, before)))
    with monkeypatch.context() as deaf:
        deaf.setattr(follower.finder._watches._stream, "_heard", lambda _: None)
        log.unlink()
        append(log, "two")
        await follower.settle()
    assert len(follower.found) == 2
    follower.finder._watches.tell([Event(None, OVERFLOW, 0, "")])
    await follower.until(lambda: len(follower.found) == 3)


@pytest.mark.parametrize("files", [30, 60])
async def test_a_new_file_is_compared_with_few_others_whose_names_differ_by_a_number(
    follow: Any, tmp_path: Path, files: int
) -> None:
    names = [f"worker-{number}.log" for number in range(files)]
    looks = CountingLooks()
    follower = follow(looks=looks)
    for name in names:
        append(tmp_path / name, f"{name} 1")
    await follower.reads(*(f"{name} 1" for name in names), ordered=False)
    looks.compared.clear()
    for name in names:
        (tmp_path / name).rename(tmp_path / f"{name}.1")
        append(tmp_path / name, f"{name} 2")
    await follower.reads(*(f"{name} {count}" for name in names for count in (1, 2)), ordered=False)
    assert looks.compared.total() <= files


async def test_in_a_directory_that_was_mounted_anew_nothing_is_certain(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a fresh file system, another file has the inode number of the one before at the same path.
    append(tmp_path / "a.log", "one")
    looks = CountingLooks()
    follower = follow(looks=looks)
    await follower.begin()
    before = looks.looked.copy()
    monkeypatch.setattr(directories_module, "_directory_id", lambda _: (0, 0))
    follower.finder._watches.tell([Event(None, OVERFLOW, 0, "")])
    await follower.until(lambda: looks.looked[f"{tmp_path}/a.log"] > before[f"{tmp_path}/a.log"])


async def test_a_rotation_costs_the_same_however_many_files_are_beside_it(follow: Any, tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"job-{number}.log").write_text("x\n")
    looks = CountingLooks()
    follower = follow("*.log*", looks=looks)
    follower.unopened = []
    await follower.begin()
    append(tmp_path / "a.log", "one")
    await follower.until(lambda: len(follower.found) == 1001)
    before = looks.looked.copy()
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    append(tmp_path / "a.log", "two")
    await follower.until(lambda: len(follower.found) == 1002)
    assert set(looks.looked - before) <= {f"{tmp_path}/a.log", f"{tmp_path}/a.log.1"}


async def test_a_start_lists_a_directory_once_however_many_files_are_gone_from_it(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Positions of deleted files are kept for a month: with thousands of them, and a look at every file of the directory
    # for each, a start held the loop up for longer than systemd's watchdog bears, and so did the next one.
    for number in range(200):
        append(tmp_path / f"job-{number}.log", f"{number} one")
        append(tmp_path / f"job-{number}.log.9", "rotated before")
        os.utime(tmp_path / f"job-{number}.log.9", (1000, 1000))
    looks = CountingLooks()
    follower = follow(looks=looks)
    await follower.settle()
    follower.stop()
    for number in range(3, 200):
        (tmp_path / f"job-{number}.log").unlink()
    (tmp_path / "job-0.log").rename(tmp_path / "job-0.log.1")
    append(tmp_path / "job-0.log.1", "0 two")
    (tmp_path / "job-1.log.2").write_bytes((tmp_path / "job-1.log").read_bytes())
    (tmp_path / "job-1.log").write_text("another one\n")
    (tmp_path / "job-2.log").unlink()
    (tmp_path / "job-2.log.1.gz").write_bytes(gzip.compress(b"2 one\n2 two\n"))
    os.utime(tmp_path, (1000, 1000))  # one that has just changed is listed again: a name may not be seen yet
    looks.looked.clear()
    listed = []
    scandir = os.scandir

    def counted(path: str) -> Any:
        listed.append(path)
        return scandir(path)

    with monkeypatch.context() as counting:
        counting.setattr(os, "scandir", counted)
        follower.start()
        await follower.scan()
    assert len(listed) <= 2, "once to find files, once to find those that are missing"
    await follower.settle()
    assert sorted(follower.texts[200:]) == [b"0 two", b"2 two", b"another one"]
    assert not follower.losses
    assert looks.looked.total() < 2000
    for most in (500, 50):
        follower.restart()
        looks.looked.clear()
        await follower.settle()
        assert looks.looked.total() < most, "what is gone is looked for at one more start, and not again"


async def test_a_start_looks_once_at_what_was_rotated_while_its_successor_was_known(
    follow: Any, tmp_path: Path
) -> None:
    # What came between two stored generations was known when the newer one was stored. A search for each of ten
    # thousand rotated files, to find that, was half of a start.
    follower = follow()
    follower.unopened = []
    for number in range(50):
        append(tmp_path / f"{number}.log", f"{number} one")
    await follower.begin()
    for number in range(50):
        (tmp_path / f"{number}.log").rename(tmp_path / f"{number}.log.1")
        append(tmp_path / f"{number}.log", f"{number} two")
    await follower.until(lambda: len(follower.found) == 100)
    paths = {entry.inode(): entry.path for entry in os.scandir(tmp_path)}
    for name, stored in list(follower.stored.items()):  # as their readers report it
        detail = {**stored.detail, "path": paths[stored.detail["inode"]]}
        follower.stored[name] = StoredPosition(name, stored.position, detail)
    await asyncio.sleep(0.02)  # longer than the grain of times of modification
    follower.stop()
    follower.since = follower.found_until  # as a stop stores it; after a kill, there may be more than is stored
    looks = follower.looks = CountingLooks()
    looks.search = None  # type: ignore[method-assign,assignment]
    follower.start()
    follower.unopened = []
    assert len(await follower.scan()) == 100
    assert set(looks.looked.values()) == {1}


async def test_nothing_is_kept_of_files_that_came_were_read_and_went(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pods come and go, and each has a name of its own: memory grew with all names that were ever seen.
    monkeypatch.setattr(finished_module, "_BURIED_MOST", 200)
    monkeypatch.setattr(finder_module, "_UNSEEN_MOST", 10)
    logs, pods = tmp_path / "logs", tmp_path / "pods"
    logs.mkdir()
    follower = follow("logs/*.log", rescan_interval=0.1)
    finder = follower.finder
    await follower.begin()
    for begin in range(0, 1000, 100):
        for number in range(begin, begin + 100):
            (pods / f"{number}").mkdir(parents=True)
            append(pods / f"{number}" / "0.log", f"linked {number}")
            (logs / f"linked-{number}.log").symlink_to(pods / f"{number}" / "0.log")
            (logs / f"nowhere-{number}.log").symlink_to(tmp_path / "nothing" / f"{number}" / "0.log")
            append(logs / f"pod-{number}.log", f"pod {number}")
            (logs / f"binary-{number}.log").write_bytes(b"\x7fELF\0\0%d\n" % number)
            (logs / f"empty-{number}.log").touch()
        await follower.until(lambda most=2 * begin + 200: len(follower.texts) == most)
        await follower.until(lambda most=begin + 100: len(follower.told) >= 2 * most)
        for path in logs.iterdir():
            path.unlink()
        shutil.rmtree(pods)
        await follower.until(lambda: not follower.sources)

    def sizes() -> dict[str, int]:
        parts = {"finder": finder, "due": finder._due, "files": finder.files}
        parts |= {
            name.lstrip("_"): part for name, part in vars(finder).items() if "ingestd.tail" in type(part).__module__
        }
        kept = {}
        for owner, part in parts.items():
            names = vars(part) if hasattr(part, "__dict__") else part.__slots__
            tables = {f"{owner}.{name}": getattr(part, name) for name in names}
            kept |= {name: len(table) for name, table in tables.items() if isinstance(table, dict | set | list)}
        return kept

    # 200 that were buried last may come back compressed; files of ten more may have been rotated unseen.
    await follower.until(lambda: len(finder._logs) <= 210)
    assert max(sizes().values()) <= 8 * 210, "a log has so many names and families of names"
    assert {"finder._logs", "kin._named", "kin._names", "names._names", "examinations._refused"} <= sizes().keys()


class CountingTexts(CountingLooks):
    """Counts how often each file is opened as well, to be read or compared."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.opened: Counter[str] = Counter()
        real = looks_module.open_text

        def counted(path: str, codec: str = "") -> Any:
            self.opened[path] += 1
            return real(path, codec)

        monkeypatch.setattr(looks_module, "open_text", counted)


@pytest.mark.parametrize("header", ["", "#" * 3000])
async def test_a_start_compares_what_was_rotated_with_what_begins_as_it_does(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    # Each was compared with each. With a thousand rotations while the daemon was down, a start took half a minute.
    log = tmp_path / "app.log"
    append(log, f"{header}0 first")
    looks = CountingTexts(monkeypatch)
    follower = follow(looks=looks)
    await follower.settle()
    for first, last in ((1, 200), (201, 220)):
        follower.stop()
        for number in range(first, last + 1):
            log.rename(tmp_path / f"app.log-{number + 20_260_000}")
            append(log, f"{header}{number} first", f"{number} second")
        shutil.copyfile(log, tmp_path / f"app.log-{last + 20_260_001}")
        os.truncate(log, 0)
        append(log, f"{header}0 last")
        looks.opened.clear()
        looks.compared.clear()
        follower.start()
        await follower.settle()
        assert looks.compared.total() < 3 * last, "generations that were known before, once; and nearly nothing else"
        assert looks.opened.total() < 9 * last
    lines = [b"%d %s" % (number, word) for number in range(1, 221) for word in (b"first", b"second")]
    read = sorted(line.removeprefix(header.encode()) for line in follower.texts)
    assert read == sorted([b"0 first", *lines, b"0 last", b"0 last"])


async def test_a_start_does_not_compare_each_short_file_with_each_long_one(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nor each with each that waits. With 400 rotations while the daemon ran, and 400 while it was down: 9.7 s.
    log = tmp_path / "app.log"
    looks = CountingTexts(monkeypatch)
    follower = follow(looks=looks)

    def rotate(number: int) -> None:
        log.rename(tmp_path / f"app.log-{number + 20_260_000}")

    for number in range(40):
        append(log, f"{number} {'x' * 5000}")
        await follower.until(lambda wanted=number: len(follower.lines) > wanted)
        rotate(number)
    follower.stop()
    for number in range(40, 80):
        append(log, f"{number} {'x' * 50}")
        rotate(number)
    append(log, "last")
    looks.compared.clear()
    follower.start()
    await follower.until(lambda: len(follower.lines) == 81)
    assert looks.compared.total() < 400


class LateWriter(Looks):
    """Between the look at how files begin and their examination, one gets another content."""

    def __init__(self, path: Path, content: bytes) -> None:
        super().__init__()
        self.path, self.content = path, content

    def heads(self, places: Iterable[Place]) -> Heads:
        heads = super().heads(places)
        if heads.seen:
            self.path.write_bytes(self.content)
        return heads


async def test_a_file_that_begins_in_another_way_by_now_is_compared_with_all(follow: Any, tmp_path: Path) -> None:
    log, other, copy = (tmp_path / name for name in ("app.log", "app.log.2", "app.log.1"))
    append(log, "one", "two")
    follower = follow("app.log*")
    await follower.settle()
    follower.stop()
    append(other, "another")
    append(copy, "not yet")
    follower.looks = LateWriter(copy, log.read_bytes())
    follower.start()
    await follower.settle()
    assert follower.texts == [b"one", b"two", b"another"]


# A file system that does not answer


class StuckLooks(Looks):
    """Does not come back from a look until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck = threading.Event()
        self.go_on = threading.Event()

    def walk(self, *arguments: Any) -> Any:
        self.stuck.set()
        assert self.go_on.wait(60)
        return super().walk(*arguments)


async def test_a_look_that_hangs_is_the_trouble_of_its_tail_alone(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_module, "PATIENCE", 0.05)
    append(tmp_path / "a.log", "a")
    append(tmp_path / "b.log", "b")
    looks = StuckLooks()
    first = follow("a.log", name="first", looks=looks)
    second = follow("b.log", name="second", beside=[first])
    scan = asyncio.ensure_future(first.begin())
    try:
        await second.reads("b")
        while not first.told:
            await asyncio.sleep(0.01)
        ((thing, reason),) = first.told
        assert thing == str(tmp_path)
        assert reason.startswith("no answer for 0.05 s")
        assert not scan.done()
    finally:
        looks.go_on.set()
    await scan
    await first.reads("a")


async def test_a_finder_whose_look_hangs_can_be_closed(follow: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", "a")
    looks = StuckLooks()
    follower = follow(looks=looks)
    scan = asyncio.ensure_future(follower.scan())
    try:
        while not looks.stuck.is_set():
            await asyncio.sleep(0.001)
        scan.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scan
        follower.finder.close()
        follower.finder.close()
    finally:
        looks.go_on.set()


async def test_what_is_stored_is_hardly_newer_than_what_is_found(follow: Any, tmp_path: Path) -> None:
    """After a kill, a start searched for the rotations of all logs that were written since the last pass."""
    append(tmp_path / "a.log", "a")
    follower = follow(rescan_interval=3600)
    await follower.reads("a")
    append(tmp_path / "a.log", "b")
    written = (tmp_path / "a.log").stat().st_mtime

    def both() -> bool:
        append(tmp_path / "a.log", "c")
        return bool(follower.since >= written)

    await follower.until(both)


async def test_the_loop_goes_on_while_thousands_of_files_are_found(follow: Any, tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"{number}.log").write_text("x\n")
    follower = follow()
    follower.unopened = []
    scan = asyncio.ensure_future(follower.scan())
    turns = 0
    while not scan.done():
        turns += 1
        await asyncio.sleep(0)
    await scan
    assert len(follower.found) == 3000
    assert turns > 10
