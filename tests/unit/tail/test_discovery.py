"""What is found, known again after a stop, left alone, or named as trouble."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.daemon.source import StoredPosition
from ingestd.tail import discovery, identity, watch
from ingestd.tail.claims import CLAIMS
from ingestd.tail.discovery import TailFinder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingestd.daemon.source import Found


@pytest.fixture(autouse=True)
def _no_claims_left() -> Iterator[None]:
    yield
    CLAIMS.leave("access")
    CLAIMS.leave("other")


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def names(found: list[Found]) -> list[str]:
    return sorted(Path(each.detail["path"]).name for each in found)


class Told:
    """What a finder tells, and the wait for it."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.troubles: list[tuple[str, str]] = []
        self.news = asyncio.Event()

    def appeared(self, found: Found) -> None:
        self.found.append(found)
        self.news.set()

    def trouble(self, thing: str, reason: str) -> None:
        self.troubles.append((thing, reason))
        self.news.set()

    async def wait(self, seconds: float = 10.0) -> None:
        await asyncio.wait_for(self.news.wait(), seconds)
        self.news.clear()


# Finding


async def test_a_file_appears_once_and_an_empty_one_when_it_has_bytes(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one\n")
    (tmp_path / "empty.log").touch()
    follower = follow()
    assert names(await follower.scan()) == ["a.log"]
    (tmp_path / "empty.log").write_text("two\n")
    (tmp_path / "a.log").write_text("one\nthree\n")
    assert names(await follower.scan()) == ["empty.log"]
    assert await follower.scan() == []


async def test_a_file_that_several_names_lead_to_appears_once(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one\n")
    (tmp_path / "link.log").symlink_to(tmp_path / "a.log")
    os.link(tmp_path / "a.log", tmp_path / "hard.log")
    follower = follow("*.log", "a*")
    assert len(await follower.scan()) == 1


async def test_files_with_the_same_content_are_files_of_their_own(follow: Any, tmp_path: Path) -> None:
    # Peers that know files by the first bytes alone take the second one for the first.
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(b"# header\n" * 200)
    follower = follow()
    await follower.settle()
    assert len(follower.found) == 2
    assert len(follower.lines) == 400


async def test_a_new_file_is_found_while_the_finder_runs_without_waiting_for_the_next_pass(
    make_route: Callable[..., Any], tmp_path: Path
) -> None:
    told = Told()
    finder = make_route("**/*.log", rescan_interval=3600.0).finder([], once=False)
    (tmp_path / "a.log").write_text("one\n")
    task = asyncio.ensure_future(finder.run(told))
    await told.wait()
    (tmp_path / "sub").mkdir()
    (tmp_path / "new").write_text("two\n")
    (tmp_path / "new").rename(tmp_path / "b.log")
    while len(told.found) < 2:
        await told.wait()
    (tmp_path / "sub" / "c.part").write_text("three\n")
    (tmp_path / "sub" / "c.part").rename(tmp_path / "sub" / "c.log")
    while len(told.found) < 3:
        await told.wait()
    task.cancel()
    assert names(told.found) == ["a.log", "b.log", "c.log"]


async def test_a_file_that_comes_between_the_look_at_its_directory_and_the_watch_is_found_at_once(
    make_route: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A watch tells of what comes after it, a look of what was there before: who is made between the two is in neither.
    watch_it = watch.Inotify.add

    def late(inotify: watch.Inotify, key: Any, path: str, events: int) -> None:
        if events == watch.DIRECTORY_EVENTS:
            (Path(path) / "between.log").write_text(f"{path}\n")
        watch_it(inotify, key, path, events)

    monkeypatch.setattr(watch.Inotify, "add", late)
    (tmp_path / "sub").mkdir()
    told = Told()
    task = asyncio.ensure_future(make_route("**/*.log", rescan_interval=3600.0).finder([], once=False).run(told))
    while len(told.found) < 2:
        await told.wait()
    task.cancel()
    assert names(told.found) == ["between.log", "between.log"]


async def test_without_a_watch_files_are_found_by_the_clock(
    make_route: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: Any, **__: Any) -> None:
        raise watch.WatchLimit(24, "Too many open files")

    monkeypatch.setattr(discovery, "Inotify", no_more)
    told = Told()
    task = asyncio.ensure_future(make_route(rescan_interval=0.05).finder([], once=False).run(told))
    await told.wait()  # nothing matches yet
    (tmp_path / "a.log").write_text("one\n")
    await told.wait()
    task.cancel()
    assert names(told.found) == ["a.log"]


async def test_a_pass_opens_no_file_it_knows(
    make_route: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Thousands of files: a pass that opens each of them is slow and hot.
    for number in range(50):
        (tmp_path / f"{number}.log").write_text("x\n")
    (tmp_path / "binary.log").write_bytes(b"a\0b")
    told = Told()
    finder = make_route().finder([], once=False)
    await finder.scan(told)
    monkeypatch.setattr(discovery, "opened", None)
    await finder.scan(told)
    assert len(told.found) == 50


async def test_once_ends_at_the_size_each_file_has_now(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"one\ntwo")
    follower = follow(once=True)
    (found,) = await follower.scan()
    assert found.until == 7
    with (tmp_path / "a.log").open("ab") as stream:
        stream.write(b" more\nthree\n")
    follower.drain()
    assert follower.texts == [b"one", b"two"]
    assert follower.ended[found.source] == "taken to its present end, read to 7"
    assert follower.stored[found.source].position == 7


# Where to start


@pytest.mark.parametrize(
    ("start", "expected"),
    [("beginning", [b"old", b"new", b"later"]), ("end", [b"later"]), ("1h", [b"new", b"later"])],
)
async def test_start_speaks_of_files_that_were_there_before(
    follow: Any, tmp_path: Path, start: str, expected: list[bytes]
) -> None:
    (tmp_path / "old.log").write_text("old\n")
    os.utime(tmp_path / "old.log", (0, 0))
    (tmp_path / "recent.log").write_text("new\n")
    follower = follow(start=start)
    await follower.scan()
    (tmp_path / "then.log").write_text("later\n")
    await follower.settle()
    assert sorted(follower.texts) == sorted(expected)


async def test_the_end_is_behind_the_last_whole_line(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"one\nhalf of a li")
    follower = follow(start="end")
    await follower.scan()
    with (tmp_path / "a.log").open("ab") as stream:
        stream.write(b"ne\n")
    follower.drain()
    assert follower.texts == [b"half of a line"]


async def test_what_came_while_we_were_down_is_read_from_its_beginning(follow: Any, tmp_path: Path) -> None:
    # Rotated while we were down, with start = "end": the lines of the new file must not be skipped.
    (tmp_path / "a.log").write_text("one\n")
    follower = follow(start="end")
    await follower.settle()
    follower.stop()
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    (tmp_path / "a.log").write_text("two\n")
    (tmp_path / "b.log").write_text("three\n")
    follower.start()
    await follower.settle()
    assert follower.texts == [b"two", b"three"]


async def test_what_came_while_we_were_down_is_read_although_the_first_run_found_nothing(
    follow: Any, tmp_path: Path
) -> None:
    # Installed before the application: nothing is stored, and yet the next start is not the first.
    follower = follow(start="end")
    await follower.settle()
    follower.stop()
    (tmp_path / "a.log").write_text("one\n")
    follower.start()
    await follower.settle()
    assert follower.texts == [b"one"]


# Known again


async def test_nothing_is_sent_again_after_a_restart(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one\n")
    follower = follow()
    await follower.settle()
    follower.restart()
    with (tmp_path / "a.log").open("a") as stream:
        stream.write("two\n")
    await follower.settle()
    assert follower.texts == [b"one", b"two"]


async def test_a_small_file_is_known_again_after_its_fingerprint_grew(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"1\n")
    follower = follow()
    await follower.settle()
    (stored,) = follower.stored.values()
    assert stored.detail["fingerprint_bytes"] == 2
    with (tmp_path / "a.log").open("ab") as stream:
        stream.write(b"x" * 3000 + b"\n")
    follower.drain()
    (stored,) = follower.stored.values()
    assert stored.detail["fingerprint_bytes"] == 1024
    follower.restart()
    await follower.settle()
    assert len(follower.lines) == 2


@pytest.mark.parametrize("globs", ["*.log", "*.log*"])
async def test_rotated_while_we_were_down_and_behind(follow: Any, tmp_path: Path, globs: str) -> None:
    # rsyslog loses what stands in the rotated file behind its position.
    (tmp_path / "a.log").write_text("one\n")
    follower = follow(globs)
    await follower.settle()
    follower.stop()
    with (tmp_path / "a.log").open("a") as stream:
        stream.write("two\n")
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    (tmp_path / "a.log").write_text("three\n")
    follower.start()
    await follower.settle()
    assert sorted(follower.texts) == [b"one", b"three", b"two"]


async def test_rotated_twice_while_we_were_down(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one\n")
    follower = follow()
    await follower.settle()
    follower.stop()
    with (tmp_path / "a.log").open("a") as stream:
        stream.write("two\n")
    (tmp_path / "a.log").rename(tmp_path / "a.log.2")
    os.utime(tmp_path / "a.log.2", (1000, 1000))
    (tmp_path / "a.log.1").write_text("three\n")
    (tmp_path / "a.log").write_text("four\n")
    (tmp_path / "a.log.3").write_text("before our time\n")
    os.utime(tmp_path / "a.log.3", (500, 500))
    follower.start()
    await follower.settle()
    assert sorted(follower.texts) == [b"four", b"one", b"three", b"two"]


@pytest.mark.parametrize("globs", ["*.log", "*.log*"])
async def test_copied_and_truncated_while_we_were_down_and_behind(follow: Any, tmp_path: Path, globs: str) -> None:
    (tmp_path / "a.log").write_text("one\n")
    follower = follow(globs)
    await follower.settle()
    follower.stop()
    with (tmp_path / "a.log").open("a") as stream:
        stream.write("two\n")
    shutil.copyfile(tmp_path / "a.log", tmp_path / "a.log.1")
    (tmp_path / "a.log").write_text("three, and it is longer than all before\n")
    follower.start()
    await follower.settle()
    assert sorted(follower.texts) == [b"one", b"three, and it is longer than all before", b"two"]


async def test_compressed_while_we_were_down_is_named_with_what_is_lost(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one\n")
    follower = follow()
    await follower.settle()
    follower.stop()
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    (tmp_path / "a.log").unlink()
    (tmp_path / "a.log").write_text("three\n")
    follower.start()
    await follower.settle()
    assert follower.texts == [b"one", b"three"]
    assert "holds 4 bytes" in follower.troubles[f"{tmp_path}/a.log.1.gz"]


async def test_compressed_or_deleted_after_it_was_delivered_is_no_trouble(follow: Any, tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(f"{name} one\n")
    follower = follow()
    await follower.settle()
    follower.stop()
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(b"a.log one\n"))
    (tmp_path / "a.log").write_text("three\n")
    (tmp_path / "b.log").unlink()
    follower.start()
    await follower.settle()
    assert follower.troubles == {}


async def test_a_start_looks_at_a_directory_once_however_many_files_are_gone_from_it(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Positions of deleted files are kept for a month: with thousands of them, and a look at every file of the directory
    # for each, a start held the loop up for longer than systemd's watchdog bears, and so did the next one.
    for number in range(40):
        (tmp_path / f"job-{number}.log").write_text(f"{number} one\n")
    follower = follow()
    await follower.settle()
    follower.stop()
    for number in range(3, 40):
        (tmp_path / f"job-{number}.log").unlink()
    (tmp_path / "job-0.log").rename(tmp_path / "job-0.log.1")
    with (tmp_path / "job-0.log.1").open("a") as stream:
        stream.write("0 two\n")
    shutil.copyfile(tmp_path / "job-1.log", tmp_path / "job-1.log.2")
    (tmp_path / "job-1.log").write_text("another one\n")
    (tmp_path / "job-2.log").unlink()
    (tmp_path / "job-2.log.gz").write_bytes(gzip.compress(b"2 one\n2 two\n"))
    looks = []
    regular_files = identity.regular_files
    monkeypatch.setattr(identity, "regular_files", lambda path: looks.append(path) or regular_files(path))
    follower.start()
    await follower.scan()
    assert looks == [str(tmp_path)]
    await follower.settle()
    assert sorted(follower.texts[40:]) == [b"0 two", b"another one"]
    assert list(follower.troubles) == [f"{tmp_path}/job-2.log.gz"]


async def test_deleted_behind_our_back_is_named(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one\nhalf")
    follower = follow()
    await follower.settle()
    follower.stop()
    (tmp_path / "a.log").unlink()
    follower.start()
    await follower.settle()
    assert "at least 4 bytes, behind byte 4, were not delivered" in follower.troubles[f"{tmp_path}/a.log"]


async def test_a_reused_inode_is_another_file(follow: Any, tmp_path: Path) -> None:
    # The file was deleted while we were down, and a new one got its inode: its lines must not be skipped.
    (tmp_path / "a.log").write_text("an old file, quite long\n")
    follower = follow()
    await follower.settle()
    follower.stop()
    (tmp_path / "a.log").unlink()
    (tmp_path / "b.log").write_text("a new one\nand it is longer than the old one was\n")
    ((name, stored),) = follower.stored.items()
    inode = (tmp_path / "b.log").stat().st_ino
    follower.stored[name] = replace(stored, detail={**stored.detail, "inode": inode})
    follower.start()
    await follower.settle()
    assert follower.texts[1:] == [b"a new one", b"and it is longer than the old one was"]


async def test_a_reused_inode_with_the_same_header_is_another_file(follow: Any, tmp_path: Path) -> None:
    # The first 1,024 bytes are equal; the bytes before the position tell.
    header = b"# " + b"h" * 2000 + b"\n"
    (tmp_path / "a.log").write_bytes(header + b"one\n")
    follower = follow()
    await follower.settle()
    follower.restart()
    (tmp_path / "a.log").write_bytes(header + b"ONE\nTWO\n")
    await follower.settle()
    assert follower.texts[2:] == [header[:-1], b"ONE", b"TWO"]


async def test_a_file_begun_at_its_end_is_not_taken_for_another_with_the_same_header(
    follow: Any, tmp_path: Path
) -> None:
    # Nothing was read of it yet, and still the bytes before the position tell.
    header = b"# " + b"h" * 2000 + b"\n"
    (tmp_path / "a.log").write_bytes(header + b"one\n")
    follower = follow(start="end")
    await follower.settle()
    follower.restart()
    (tmp_path / "a.log").write_bytes(header + b"ONE\nTWO\n")
    await follower.settle()
    assert follower.texts == [header[:-1], b"ONE", b"TWO"]


async def test_a_restored_file_with_another_inode_goes_on(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"x" * 2000 + b"\n")
    follower = follow()
    await follower.settle()
    follower.stop()
    shutil.copyfile(tmp_path / "a.log", tmp_path / "restored")
    with (tmp_path / "restored").open("ab") as stream:
        stream.write(b"two\n")
    (tmp_path / "restored").rename(tmp_path / "a.log")
    follower.start()
    await follower.settle()
    assert follower.texts[1:] == [b"two"]


async def test_a_directory_in_which_nothing_can_be_looked_at_brings_its_positions_back_later(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that may be listed and not entered (r--), or a server that gives errors, ended the daemon at its start.
    (tmp_path / "a.log").write_text("one\n")
    follower = follow()
    await follower.settle()
    follower.stop()
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")

    class Barred:
        name, path = "a.log.1", str(tmp_path / "a.log.1")

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            raise PermissionError(errno.EACCES, "Permission denied", self.path)

    with monkeypatch.context() as barred:
        barred.setattr(identity, "regular_files", lambda _: [Barred()])
        follower.start()
        await follower.scan()
    assert follower.troubles[str(tmp_path / "a.log")] == "can not be looked for: Permission denied"
    (tmp_path / "a.log.1").rename(tmp_path / "b.log")
    await follower.settle()
    assert follower.texts == [b"one"]


@pytest.fixture
def odd_path(tmp_path: Path) -> Path:
    return Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.log"))


async def test_a_path_that_is_not_utf8_is_stored_and_known_again(follow: Any, odd_path: Path) -> None:
    write(odd_path, b"one\n")
    follower = follow()
    await follower.settle()
    (stored,) = follower.stored.values()
    stored.detail["path"].encode()
    follower.restart()
    write(odd_path, b"one\ntwo\n")
    await follower.settle()
    assert follower.texts == [b"one", b"two"]


async def test_a_stored_detail_of_another_kind_is_named(make_route: Callable[..., Any], tmp_path: Path) -> None:
    told = Told()
    (tmp_path / "a.log").write_text("one\n")
    await make_route().finder([StoredPosition("odd", 3, {"offset": 1})], once=False).scan(told)
    assert [thing for thing, _ in told.troubles] == ["odd"]


# Copies


async def test_a_copy_of_a_known_file_waits_and_is_a_file_of_its_own_after_all(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.log").write_text("one\n")
    follower = follow("*.log*")
    await follower.settle()
    shutil.copyfile(tmp_path / "a.log", tmp_path / "a.log.1")
    await follower.settle()
    assert follower.texts == [b"one"]
    monkeypatch.setattr(discovery, "COPY_PATIENCE", 0.0)
    await follower.settle()
    assert follower.texts == [b"one", b"one"]


async def test_a_copy_waits_for_as_long_as_the_reader_of_the_truncated_file_needs(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is read while the cluster is away; what was read before that would all be sent again from the copy.
    follower = follow("*.log*")
    (tmp_path / "a.log").write_text("one\n")
    await follower.settle()
    shutil.copyfile(tmp_path / "a.log", tmp_path / "a.log.1")
    (tmp_path / "a.log").write_text("two\n")
    monkeypatch.setattr(discovery, "COPY_PATIENCE", 0.0)
    assert await follower.scan() == []
    await follower.settle()
    assert follower.texts == [b"one", b"two"]


async def test_copy_and_truncate_gives_each_line_once(follow: Any, tmp_path: Path) -> None:
    follower = follow("*.log*")
    with (tmp_path / "a.log").open("ab", buffering=0) as stream:
        stream.write(b"one\n")
        await follower.settle()
        stream.write(b"two\n")
        shutil.copyfile(tmp_path / "a.log", tmp_path / "a.log.1")
        await follower.scan()
        os.truncate(tmp_path / "a.log", 0)
        stream.write(b"three\n")
        await follower.settle()
        follower.restart()
        await follower.settle()
    assert follower.texts == [b"one", b"two", b"three"]


async def test_a_writer_that_does_not_append_leaves_a_hole_that_is_not_read(follow: Any, tmp_path: Path) -> None:
    # After copytruncate it goes on at its old place: NUL bytes that nobody wrote are before its next line.
    follower = follow("*.log")
    with (tmp_path / "a.log").open("wb", buffering=0) as stream:
        stream.write(b"one\n" * 50_000)
        await follower.settle()
        os.truncate(tmp_path / "a.log", 0)
        stream.write(b"two\n")
        await follower.settle()
    assert follower.texts[50_000:] == [b"two"]
    assert follower.troubles == {}


# Trouble


async def test_what_is_no_readable_text_file_is_named(make_route: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "directory.log").mkdir()
    os.mkfifo(tmp_path / "fifo.log")
    (tmp_path / "dangling.log").symlink_to(tmp_path / "nowhere")
    (tmp_path / "circle.log").symlink_to(tmp_path / "circle.log")
    (tmp_path / "binary.log").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "packed.log").write_bytes(gzip.compress(b"text\n"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(tmp_path / "socket.log"))
        told = Told()
        finder = make_route("*.log", "directory.log", "missing.log").finder([], once=False)
        await finder.scan(told)
        await finder.scan(told)
    reasons = {Path(thing).name: reason for thing, reason in told.troubles}
    assert len(reasons) == len(told.troubles), "trouble is told once a state"
    assert told.found == []
    assert reasons["directory.log"] == "a directory, not a file"
    assert reasons["fifo.log"] == "a FIFO, not a file"
    assert reasons["socket.log"] == "a socket, not a file"
    assert reasons["dangling.log"] == "a symbolic link that leads nowhere"
    assert "Too many levels of symbolic links" in reasons["circle.log"]
    assert reasons["binary.log"].startswith("holds NUL bytes")
    assert reasons["packed.log"].startswith("a compressed file")
    assert reasons["missing.log"] == "no such file"


async def test_an_unreadable_file_is_named_and_taken_when_it_can_be_read(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.log").write_text("one\n")
    real_open = os.open

    def refuse(path: Any, *arguments: Any, **named: Any) -> int:
        raise PermissionError(13, "Permission denied", path)

    follower = follow()
    monkeypatch.setattr(os, "open", refuse)
    await follower.scan()
    assert follower.troubles == {f"{tmp_path}/a.log": "can not be read: Permission denied"}
    monkeypatch.setattr(os, "open", real_open)
    await follower.settle()
    assert follower.texts == [b"one"]


async def test_binary_files_are_taken_when_that_is_asked_for(follow: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"a\0b\n\xff\n")
    follower = follow(binary="accept")
    await follower.settle()
    assert follower.texts == [b"a\0b", b"\xff"]


async def test_a_file_that_two_tails_claim_goes_to_the_first_and_is_named_by_the_second(
    make_route: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_text("one\n")
    first, second = Told(), Told()
    route = make_route()
    finder = TailFinder(replace(route, name="other"), [], once=False)
    task = asyncio.ensure_future(finder.run(first))
    await first.wait()
    await route.finder([], once=False).scan(second)
    assert second.found == []
    assert second.troubles == [(f"{tmp_path}/a.log", "taken by the tail 'other'; a file belongs to one tail")]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await route.finder([], once=False).scan(second)
    assert len(second.found) == 1, "a finder that is cancelled gives its claims up"


async def test_a_file_is_the_first_tails_though_another_sees_it_earlier(
    make_route: Callable[..., Any], tmp_path: Path
) -> None:
    told, others = Told(), Told()
    first = TailFinder(make_route("a.log"), [], once=False)
    other = TailFinder(replace(make_route("*.log"), name="other"), [], once=False)
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(f"{name}\n")
    await other.scan(others)
    assert names(others.found) == ["b.log"]
    assert others.troubles == [(f"{tmp_path}/a.log", "taken by the tail 'access'; a file belongs to one tail")]
    await first.scan(told)
    assert names(told.found) == ["a.log"]


async def test_what_a_tail_reads_stays_its_own_where_it_is_renamed_to(
    make_route: Callable[..., Any], tmp_path: Path
) -> None:
    told, others = Told(), Told()
    first = TailFinder(make_route("a.log"), [], once=False)
    other = TailFinder(replace(make_route("*.log"), name="other"), [], once=False)
    (tmp_path / "b.log").write_text("b\n")
    await other.scan(others)
    (tmp_path / "b.log").rename(tmp_path / "a.log")
    await first.scan(told)
    await other.scan(others)
    assert told.found == []
    assert told.troubles == [(f"{tmp_path}/a.log", "taken by the tail 'other'; a file belongs to one tail")]
    assert names(others.found) == ["b.log"]
    assert others.troubles == []


async def test_a_file_that_its_tail_did_not_take_may_go_to_another(
    make_route: Callable[..., Any], tmp_path: Path
) -> None:
    # As good as a new file that gets the inode of one that was refused and deleted.
    first, second = Told(), Told()
    refusing = TailFinder(make_route("*.log"), [], once=False)
    accepting = TailFinder(replace(make_route("*.bin", binary="accept"), name="other"), [], once=False)
    (tmp_path / "a.log").write_bytes(b"a\0b\n")
    await refusing.scan(first)
    (tmp_path / "a.log").rename(tmp_path / "a.bin")
    await refusing.scan(first)
    await accepting.scan(second)
    assert names(second.found) == ["a.bin"]


async def test_a_file_that_ended_is_not_taken_for_another_with_its_header(follow: Any, tmp_path: Path) -> None:
    # It left the globs and its source ended; then other lines were written to its inode, and it came back.
    header = b"# the same in every file\n"
    (tmp_path / "a.log").write_bytes(header)
    follower = follow()
    await follower.settle()
    with (tmp_path / "a.log").open("ab") as stream:
        stream.write(b"one\n")
    await follower.settle()
    (tmp_path / "a.log").rename(tmp_path / "away")
    (tmp_path / "a.log").write_bytes(header)
    await follower.settle()
    assert [reason.startswith("renamed to ") for reason in follower.ended.values()] == [True]
    (tmp_path / "away").write_bytes(header + b"ONE, and TWO\n")
    (tmp_path / "away").rename(tmp_path / "b.log")
    await follower.settle()
    assert follower.texts == [header[:-1], b"one", header[:-1], header[:-1], b"ONE, and TWO"]


async def test_a_file_system_that_is_mounted_late_brings_its_positions_back(follow: Any, tmp_path: Path) -> None:
    # Without them, every file on it would be sent again.
    logs = tmp_path / "mount"
    logs.mkdir()
    (logs / "a.log").write_text("one\n")
    follower = follow("mount/*.log")
    await follower.settle()
    follower.stop()
    logs.rename(tmp_path / "not mounted")
    follower.start()
    await follower.settle()
    (tmp_path / "not mounted").rename(logs)
    await follower.settle()
    assert follower.texts == [b"one"]
