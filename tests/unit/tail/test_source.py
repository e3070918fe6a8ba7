"""One open file: whole lines only, in place, to its end, whatever becomes of its name."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.daemon.source import Assignment
from ingestd.tail import identity as identity_module
from ingestd.tail import opener as opener_module
from ingestd.tail import source as source_module
from ingestd.tail import watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.daemon.source import Found, Piece


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def assigned(found: Found) -> Assignment:
    return Assignment("access", found, 1)


def open_files() -> dict[str, int]:
    """Paths of what this process has open, each with its highest descriptor."""
    files = {}
    for entry in sorted(Path("/proc/self/fd").iterdir(), key=lambda path: int(path.name)):
        with suppress(FileNotFoundError):
            files[str(entry.readlink())] = int(entry.name)
    return files


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.001)


async def opened(follower: Any) -> Any:
    await follower.scan()
    (source,) = follower.sources.values()
    return source


def take(source: Any, size: int = 14 * 65536) -> tuple[Piece, bytes] | None:
    buffer = memoryview(bytearray(size))
    piece = source.read(buffer)
    return None if piece is None else (piece, bytes(buffer[: piece.length]))


async def test_a_file_whose_server_has_forgotten_it_is_an_error_of_read_alone(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `unread` is asked between reads, where an error would take the whole worker down.
    append(tmp_path / "a.log", b"one\ntwo\n")
    source = await opened(follow())
    assert source.unread == 8

    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as broken:
        broken.setattr(source_module.os, "fstat", stale)
        broken.setattr(source_module.os, "preadv", stale)
        assert source.unread == 8
        with pytest.raises(OSError, match="Stale"):
            take(source)
    assert str(tmp_path / "a.log") not in open_files()
    assert take(source)[1] == b"one\ntwo\n"


async def test_a_file_that_can_not_be_watched_is_not_held_open_between_two_attempts(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each attempt would leave a descriptor behind, and a source that nobody asked for is looked at for ever.
    append(tmp_path / "a.log", b"one\n")
    follower = follow()

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as broken:
        broken.setattr(watch.Inotify, "add", refused)
        with pytest.raises(PermissionError):
            await follower.scan()
    assert str(tmp_path / "a.log") not in open_files()
    assert not follower.opener._sources
    again = follower.opener.open(assigned(follower.found[0]))
    assert take(again)[1] == b"one\n"
    again.close()


# Lines


async def test_a_partial_line_is_held_until_its_newline_comes(follow: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"one\nhal")
    source = await opened(follow())
    assert take(source)[1] == b"one\n"
    assert take(source) is None
    assert source.unread == 3
    append(tmp_path / "a.log", b"f")
    assert take(source) is None
    append(tmp_path / "a.log", b"!\nthree\n")
    assert take(source)[1] == b"half!\nthree\n"
    assert source.unread == 0
    assert source.finished is None


async def test_unread_bytes_are_known(follow: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"one\n" * 50_000)
    source = await opened(follow())
    assert source.unread == 200_000
    take(source, 65536)
    assert source.unread == 200_000 - 65536


async def test_bytes_go_into_the_slab_and_nowhere_else(follow: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"x" * 199 + b"\n")
    append(tmp_path / "a.log", (b"x" * 199 + b"\n") * 4000)
    source = await opened(follow())
    buffer = memoryview(bytearray(14 * 65536))
    source.read(buffer)
    tracemalloc.start()
    append(tmp_path / "a.log", (b"x" * 199 + b"\n") * 4000)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    source.read(buffer)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - before < 20_000


async def test_a_line_that_does_not_fit_in_the_rest_of_a_slab_waits_for_a_fresh_one(
    follow: Any, tmp_path: Path
) -> None:
    append(tmp_path / "a.log", b"x" * 100_000 + b"\n")
    follower = follow()
    source = await opened(follower)
    assert take(source, 65536) is None
    await until(lambda: follower.readied)
    assert take(source)[0].length == 100_001
    assert follower.shortened == 0


@pytest.mark.parametrize("slab", [65536, 70_001, 14 * 65536])
async def test_a_long_line_is_truncated_and_positions_stay_exact(follow: Any, tmp_path: Path, slab: int) -> None:
    lines = [b"one", b"x" * 50_000, b"two", b"y" * 3_000_000, b"three"]
    append(tmp_path / "a.log", b"\n".join(lines) + b"\n")
    follower = follow(max_line_bytes=1000)
    await follower.scan()
    (name,) = follower.sources
    while follower.stored[name].position < 3_050_014:
        if not follower.read(name, slab):
            await asyncio.sleep(0)
        follower.acknowledge(name)
    assert [line[:5] for line in follower.texts] == [b"one", b"xxxxx", b"two", b"yyyyy", b"three"]
    assert [len(line) for line in follower.texts] == [3, 1000, 3, 1000, 5]
    assert all(line.endswith(b"...[truncated]") for line in follower.texts if len(line) > 5)
    assert follower.shortened == 2


@pytest.mark.parametrize("room", [65536, 99_999, 100_000])
async def test_a_long_line_whose_end_is_met_in_the_rest_of_a_slab_is_truncated_in_a_fresh_one(
    follow: Any, tmp_path: Path, room: int
) -> None:
    # The line grows past the limit in one read; another file leaves the next read less room than the limit.
    append(tmp_path / "a.log", b"x" * 300_000)
    follower = follow(max_line_bytes=100_000)
    source = await opened(follower)
    assert take(source) is None
    append(tmp_path / "a.log", b"y\nnext\n")
    assert take(source, room) is None
    assert source.finished is None
    piece, line = take(source)
    assert (piece.start, piece.end, piece.lines_shortened) == (0, 300_002, 1)
    assert len(line) == 100_001
    assert take(source)[1] == b"next\n"


@pytest.mark.parametrize("slab", [65536, 70_001, 14 * 65536])
async def test_a_long_line_is_split_and_nothing_of_it_lost(follow: Any, tmp_path: Path, slab: int) -> None:
    append(tmp_path / "a.log", b"one\n" + bytes(range(32, 127)) * 10_000 + b"\ntwo\n")
    follower = follow(max_line_bytes=1000, long_lines="split")
    await follower.scan()
    (name,) = follower.sources
    while follower.read(name, slab):
        follower.acknowledge(name)
    assert follower.texts[0] == b"one"
    assert follower.texts[-1] == b"two"
    assert b"".join(follower.texts[1:-1]) == bytes(range(32, 127)) * 10_000
    assert max(map(len, follower.texts)) == 1000
    assert follower.shortened == 1


async def test_a_gigabyte_without_newline_stalls_nothing_and_takes_no_memory(follow: Any, tmp_path: Path) -> None:
    # Peers stop following the file, or hold the whole line.
    size = 1 << 30
    with (tmp_path / "a.log").open("wb") as stream:
        stream.write(b"begin ")
        stream.truncate(size)
        stream.seek(size)
        stream.write(b"\nnext\n")
    follower = follow(binary="accept")
    source = await opened(follower)
    pieces, longest, began = [], 0.0, time.process_time()
    while len(pieces) < 2:
        start = time.process_time()
        taken = take(source)
        longest = max(longest, time.process_time() - start)
        if taken is not None:
            pieces.append(taken)
    assert time.process_time() - began < 10
    assert longest < 0.5
    (first, line), (second, rest) = pieces
    assert (first.start, first.end, first.lines_shortened) == (0, size + 1, 1)
    assert line.startswith(b"begin \0")
    assert len(line) <= follower.route.max_line_bytes + 1
    assert (second.start, second.end, rest) == (size + 1, size + 6, b"next\n")


async def test_a_long_line_in_the_making_is_looked_at_once(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A line that grows byte by byte: each look reads only what is new.
    append(tmp_path / "a.log", b"x" * 500_000)
    source = await opened(follow())
    assert take(source) is None
    read = 0
    real = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], position: int) -> int:
        nonlocal read
        length = real(descriptor, buffers, position)
        read += length
        return length

    monkeypatch.setattr(source_module.os, "preadv", counted)
    for _ in range(100):
        append(tmp_path / "a.log", b"y")
        assert take(source) is None
    assert read == 100


# The end of a file


async def test_a_renamed_file_is_read_to_its_end_and_ends_when_a_new_one_is_there(follow: Any, tmp_path: Path) -> None:
    follower = follow()
    path = tmp_path / "a.log"
    append(path, b"one\n")
    source = await opened(follower)
    path.rename(tmp_path / "a.log.1")
    append(tmp_path / "a.log.1", b"two\nlast")
    await until(lambda: follower.readied)
    assert take(source)[1] == b"one\ntwo\n"
    await asyncio.sleep(follower.route.leave_after * 2)
    assert take(source) is None
    assert source.finished is None, "its writer has opened no new file yet"
    append(tmp_path / "a.log.1", b" line\nthe very last")
    assert take(source)[1] == b"last line\n"
    append(path, b"new\n")
    await asyncio.sleep(follower.route.leave_after * 2)
    assert take(source)[1] == b"the very last\n", "without newline, and whole all the same"
    assert take(source) is None
    assert source.finished == f"renamed to {tmp_path}/a.log.1, read to 31"
    assert source.unread == 0


async def test_a_file_renamed_to_what_the_globs_match_goes_on(follow: Any, tmp_path: Path) -> None:
    follower = follow("*.log*")
    append(tmp_path / "a.log", b"one\n")
    source = await opened(follower)
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    await until(lambda: source.path.endswith(".1"))
    append(tmp_path / "a.log", b"new\n")
    await follower.settle()
    assert source.finished is None
    assert sorted(follower.texts) == [b"new", b"one"]


async def test_a_deleted_file_is_read_to_its_end_and_released(follow: Any, tmp_path: Path) -> None:
    follower = follow()
    append(tmp_path / "a.log", b"one\ntwo")
    source = await opened(follower)
    (tmp_path / "a.log").unlink()
    await until(lambda: follower.readied)
    await asyncio.sleep(follower.route.leave_after)
    assert take(source)[1] == b"one\n"
    await asyncio.sleep(follower.route.leave_after)
    assert take(source)[1] == b"two\n"
    assert take(source) is None
    assert source.finished == "deleted, read to 7"
    assert not any(str(tmp_path) in path for path in open_files()), "a deleted file that is held keeps its disk space"


async def test_a_file_gone_before_it_is_opened_is_finished(follow: Any, tmp_path: Path) -> None:
    follower = follow()
    append(tmp_path / "a.log", b"one\n")
    told: list[Any] = []
    follower.appeared = told.append
    await follower.finder.scan(follower)
    (tmp_path / "a.log").unlink()
    source = follower.opener.open(assigned(told[0]))
    assert source.finished == "vanished, read to 0"
    assert take(source) is None


async def test_a_file_renamed_before_it_is_opened_is_found(follow: Any, tmp_path: Path) -> None:
    follower = follow()
    append(tmp_path / "a.log", b"one\n")
    told: list[Any] = []
    follower.appeared = told.append
    await follower.finder.scan(follower)
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    source = follower.opener.open(assigned(told[0]))
    assert take(source)[1] == b"one\n"


# Truncation


async def test_truncated_and_grown_back_is_seen_by_what_was_read(follow: Any, tmp_path: Path) -> None:
    # The race that size alone never shows: between two looks the file is larger than before, with other content.
    follower = follow()
    append(tmp_path / "a.log", b"old line\n" * 10)
    await follower.settle()
    (tmp_path / "a.log").write_bytes(b"new line\n" * 20)
    await follower.settle()
    assert follower.texts == [b"old line"] * 10 + [b"new line"] * 20


async def test_truncated_and_grown_back_with_the_same_header_is_seen(follow: Any, tmp_path: Path) -> None:
    header = b"#" * 2000 + b"\n"
    follower = follow()
    append(tmp_path / "a.log", header + b"one\n")
    await follower.settle()
    (tmp_path / "a.log").write_bytes(header + b"two\nthree\n")
    await follower.settle()
    assert follower.texts[2:] == [header[:-1], b"two", b"three"]


async def test_truncated_while_it_is_read_gives_no_byte_under_a_wrong_position(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The file is truncated and written anew after the read was asked for and before it is done.
    follower = follow()
    append(tmp_path / "a.log", b"one\n" * 10)
    await follower.settle()
    append(tmp_path / "a.log", b"two\n")
    real = os.preadv

    def late(descriptor: int, buffers: list[memoryview], position: int) -> int:
        monkeypatch.setattr(source_module.os, "preadv", real)
        (tmp_path / "a.log").write_bytes(b"three\n" * 30)
        return real(descriptor, buffers, position)

    monkeypatch.setattr(source_module.os, "preadv", late)
    await follower.settle()
    assert follower.texts == [b"one"] * 10 + [b"three"] * 30


@pytest.mark.parametrize("new", [b"", b"new\n", b"new, and longer than before\n"])
async def test_what_was_seen_and_is_lost_with_a_truncated_file_is_said(follow: Any, tmp_path: Path, new: bytes) -> None:
    append(tmp_path / "a.log", b"one\nhalf")
    source = await opened(follow())
    assert take(source)[1] == b"one\n"
    assert take(source) is None
    (tmp_path / "a.log").write_bytes(new)
    assert take(source) is None
    assert source.finished == "truncated with at least 4 bytes unread, read to 4"


async def test_what_was_not_read_of_a_truncated_file_is_read_from_its_copy(follow: Any, tmp_path: Path) -> None:
    follower = follow()
    append(tmp_path / "a.log", b"one\n")
    await follower.settle()
    append(tmp_path / "a.log", b"two\nlast")
    (tmp_path / "a.log.1").write_bytes((tmp_path / "a.log").read_bytes())
    (tmp_path / "a.log").write_bytes(b"three\n" * 10)
    await follower.settle()
    assert follower.texts == [b"one", b"two", b"last"] + [b"three"] * 10
    (reason,) = follower.ended.values()
    assert reason == f"truncated, its copy {tmp_path}/a.log.1, read to 12"


@pytest.mark.parametrize("short", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("where", ["opened", "os.scandir"])
async def test_the_copy_of_a_truncated_file_is_read_when_there_are_descriptors_again(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int, where: str
) -> None:
    # Nothing could be opened in the moment in which the copy was looked for: its rest was given up as not there.
    follower = follow()
    append(tmp_path / "a.log", b"one\n")
    await follower.settle()
    (source,) = follower.sources
    append(tmp_path / "a.log", b"two\n")
    (tmp_path / "a.log.1").write_bytes((tmp_path / "a.log").read_bytes())
    (tmp_path / "a.log").write_bytes(b"three\n")

    def none_left(*_: object) -> Any:
        raise OSError(short, os.strerror(short))

    with monkeypatch.context() as used_up:
        used_up.setattr(identity_module if where == "opened" else os, where.rpartition(".")[2], none_left)
        with pytest.raises(OSError, match=os.strerror(short)):
            follower.read(source)
    await follower.settle()
    assert follower.texts == [b"one", b"two", b"three"]


# News


async def test_news_comes_by_inotify_and_not_once_a_write(follow: Any, tmp_path: Path) -> None:
    follower = follow(linger=0.05, poll_interval=3600.0)
    append(tmp_path / "a.log", b"one\n")
    source = await opened(follower)
    take(source)
    follower.readied.clear()
    with (tmp_path / "a.log").open("ab", buffering=0) as stream:
        for number in range(2000):
            stream.write(b"%d\n" % number)
            if number % 100 == 0:
                await asyncio.sleep(0)
    await until(lambda: follower.readied)
    await asyncio.sleep(0.03)
    assert len(follower.readied) <= 20
    assert take(source)[1].count(b"\n") == 2000


@pytest.mark.parametrize("where", ["init", "add"])
async def test_without_watches_files_are_followed_by_the_clock(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    # fs.inotify.max_user_instances or max_user_watches is used up.
    def no_more(*_: Any, **__: Any) -> None:
        raise watch.WatchLimit(28, "No space left on device")

    monkeypatch.setattr(opener_module.Inotify, "__init__" if where == "init" else "add", no_more)
    monkeypatch.setattr(opener_module, "UNWATCHED_INTERVAL", 0.01)
    for name in ("a.log", "b.log"):
        append(tmp_path / name, b"one\n")
    follower = follow()
    await follower.settle()
    follower.readied.clear()
    await asyncio.sleep(0.05)
    assert follower.readied == [], "a quiet file is left alone"
    append(tmp_path / "b.log", b"two\n")
    await until(lambda: follower.readied)
    follower.drain()
    assert follower.texts[-1] == b"two"
    assert capsys.readouterr().out.count("no more inotify watches: files") == 1


async def test_files_that_no_watch_tells_of_are_seen_by_the_slow_look(follow: Any, tmp_path: Path) -> None:
    # A network file system: another host writes, and inotify says nothing.
    follower = follow(poll_interval=0.01)
    append(tmp_path / "a.log", b"one\n")
    await follower.settle()
    (source,) = follower.sources.values()
    follower.opener._inotify.drop(source)
    follower.readied.clear()
    append(tmp_path / "a.log", b"two\n")
    await until(lambda: follower.readied)
    follower.drain()
    assert follower.texts == [b"one", b"two"]


# Descriptors


async def test_an_idle_file_gives_its_descriptor_back_and_goes_on(follow: Any, tmp_path: Path) -> None:
    follower = follow(poll_interval=0.01, release_after=0.02)
    append(tmp_path / "a.log", b"one\n")
    await follower.settle()
    (source,) = follower.sources.values()
    await until(lambda: source._descriptor is None)
    assert source.unread == 0
    append(tmp_path / "a.log", b"two\n")
    await until(lambda: follower.readied)
    follower.drain()
    assert follower.texts == [b"one", b"two"]


@pytest.mark.parametrize("globs", ["*.log", "*.log*"])
async def test_a_released_file_that_is_renamed_is_read_to_its_end(follow: Any, tmp_path: Path, globs: str) -> None:
    follower = follow(globs, poll_interval=0.01, release_after=0.02)
    append(tmp_path / "a.log", b"one\n")
    await follower.settle()
    (source,) = follower.sources.values()
    await until(lambda: source._descriptor is None)
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    append(tmp_path / "a.log.1", b"two\n")
    append(tmp_path / "a.log", b"three\n")
    await follower.settle()
    assert sorted(follower.texts) == [b"one", b"three", b"two"]


async def test_a_released_file_that_is_deleted_ends(follow: Any, tmp_path: Path) -> None:
    follower = follow(poll_interval=0.01, release_after=0.02)
    append(tmp_path / "a.log", b"one\n")
    await follower.settle()
    (source,) = follower.sources.values()
    await until(lambda: source._descriptor is None)
    (tmp_path / "a.log").unlink()
    append(tmp_path / "a.log", b"a new one\n")  # and it may well have got the old one's inode
    await until(lambda: follower.readied)
    await follower.settle()
    assert follower.texts == [b"one", b"a new one"]


async def test_more_files_than_descriptors_are_followed(follow: Any, tmp_path: Path) -> None:
    # Peers fail, or drop files, when descriptors run out.
    for number in range(120):
        append(tmp_path / f"{number}.log", b"one of %d\n" % number)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    follower = follow()
    held = max(open_files().values())
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 40, hard))
    follower.restart()
    try:
        told: list[Any] = []
        follower.appeared, appeared = told.append, follower.appeared
        await follower.finder.scan(follower)
        for found in told:
            appeared(found)
        assert max(open_files().values()) < held + 38, "some are left for connections"
        follower.drain()
        for number in range(120):
            append(tmp_path / f"{number}.log", b"two of %d\n" % number)
        await until(lambda: follower.readied)
        follower.drain()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(follower.lines) == 240


async def test_close_may_be_called_twice(follow: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"one\n")
    follower = follow()
    source = await opened(follower)
    source.close()
    source.close()
    follower.opener.close()
    follower.opener.close()
