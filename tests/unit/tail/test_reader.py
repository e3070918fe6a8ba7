"""Files of one worker: found where they are now, read one behind the other, watched, and more than descriptors."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.daemon.source import Assignment, End, Found
from ingestd.tail import reader as reader_module
from ingestd.tail import text as text_module
from ingestd.tail import watch
from ingestd.tail.file_id import FileId, identify
from ingestd.tail.known import Known
from ingestd.tail.reader import TailReader
from ingestd.tail.route import TailRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def known_of(path: Path) -> Known:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        return Known(str(path), str(path), identify(descriptor), None, status.st_size, status.st_mtime_ns)
    finally:
        os.close(descriptor)


def take(source: Any) -> bytes | None:
    buffer = memoryview(bytearray(65536))
    piece = source.read(buffer)
    return None if piece is None else bytes(buffer[: piece.length])


def open_files() -> dict[str, int]:
    """Paths of what this process has open, each with its highest descriptor."""
    files = {}
    for entry in sorted(Path("/proc/self/fd").iterdir(), key=lambda path: int(path.name)):
        with suppress(FileNotFoundError):
            files[str(entry.readlink())] = int(entry.name)
    return files


class Reads:
    """A reader, and what it told."""

    def __init__(self, **settings: Any) -> None:
        settings = {"linger": 0.0, "poll_interval": 3600.0} | settings
        self.readied: list[str] = []
        self.changed: list[str] = []
        self.reader = TailReader(
            TailRoute("access", ("/*.log",), "c", "t", **settings), self.ready, self.changed.append
        )
        self.sources: dict[str, Any] = {}
        self._heard = asyncio.Event()

    def ready(self, source: str) -> None:
        self.readied.append(source)
        self._heard.set()

    async def heard(self, source: str) -> None:
        """Until the source was said to be ready since this was asked last."""
        while source not in self.readied:
            self._heard.clear()
            await asyncio.wait_for(self._heard.wait(), 10)
        self.readied.clear()

    def open(self, path: Path, position: int = 0, *, known: Known | None = None, **found: Any) -> Any:
        detail = (known or known_of(path)).to_detail()
        source = self.reader.open(Assignment("access", Found(path.name, position, detail, **found), 1))
        self.sources[path.name] = source
        return source


@pytest.fixture
def reading() -> Iterator[Callable[..., Reads]]:
    made: list[Reads] = []

    def make(**settings: Any) -> Reads:
        made.append(Reads(**settings))
        return made[-1]

    yield make
    for reads in made:
        reads.reader.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "a.log"
    append(path, b"one\n")
    return path


# Where the file is


async def test_a_file_gone_before_it_is_opened_is_finished(reading: Any, log: Any) -> None:
    known = known_of(log)
    log.unlink()
    reads = reading()
    source = reads.open(log, 0, known=known)
    assert source.finished == End("gone", str(log), 0, 4, seen=False, at_once=True)
    assert source.unread == 0
    assert take(source) is None
    assert reads.open(log, 4, known=known._replace(path="/no/such/directory/a.log")).finished.kind == "gone"
    assert reads.open(log, 4, known=known._replace(path=f"{__file__}/a.log")).finished.kind == "gone"


@pytest.mark.parametrize("instead", [None, "file", "fifo", "directory"])
async def test_a_file_renamed_before_it_is_opened_is_found_beside_its_path(
    reading: Any, log: Any, instead: str | None
) -> None:
    known = known_of(log)
    rotated = log.rename(log.with_name("a.log.1"))
    if instead == "file":
        append(log, b"new\n")
    elif instead == "fifo":
        os.mkfifo(log)
    elif instead == "directory":
        log.mkdir()
    reads = reading()
    source = reads.open(log, known=known)
    assert take(source) == b"one\n"
    await asyncio.sleep(0)
    assert reads.changed == ["a.log"]
    assert Known.from_detail(source.detail()).path == str(rotated)


async def test_another_file_at_the_path_is_not_opened_for_reading(
    reading: Any, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It may be one that we have no leave to read, or a device; the known one lies beside it, and is ours.
    known = known_of(log)
    log.rename(log.with_name("a.log.1"))
    append(log, b"new\n")
    real, opened = os.open, []

    def counted(path: str, flags: int) -> int:
        if not flags & os.O_PATH:
            opened.append(Path(path).readlink().name)
        return real(path, flags)

    monkeypatch.setattr(reader_module.os, "open", counted)
    reading().open(log, known=known)
    assert opened == ["a.log.1"]


async def test_a_file_that_may_not_be_read_is_an_error_that_leaves_nothing_behind(
    reading: Any, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, known, real = reading(), known_of(log), os.open

    def refused(path: str, flags: int) -> int:
        if not flags & os.O_PATH:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags)

    with monkeypatch.context() as broken:
        broken.setattr(reader_module.os, "open", refused)
        with pytest.raises(PermissionError):
            reads.open(log, known=known)
    assert str(log) not in open_files()
    assert not reads.reader._sources
    assert take(reads.open(log)) == b"one\n"


async def test_an_identity_that_lacked_something_is_completed(reading: Any, log: Any) -> None:
    # What version 0.1 stored: device and inode.
    known = known_of(log)
    reads = reading()
    source = reads.open(log, known=known._replace(file=FileId(known.file.device, known.file.inode)))
    await asyncio.sleep(0)
    assert reads.changed == ["a.log"]
    assert Known.from_detail(source.detail()).file == known.file


async def test_a_file_that_is_where_it_was_changes_nothing(reading: Any, log: Any) -> None:
    reads = reading()
    reads.open(log)
    await asyncio.sleep(0)
    assert reads.changed == []


# One behind the other


async def test_a_later_source_waits_until_what_the_earlier_one_held_is_read(reading: Any, log: Any) -> None:
    reads = reading()
    later = log.with_name("b.log")
    append(later, b"two\n")
    first = reads.open(log, group="g", rank=1)
    append(log, b"late ")
    second = reads.open(later, group="g", rank=2)
    append(log, b"lines\n")
    assert take(second) is None
    reads.readied.clear()
    assert take(first) == b"one\nlate lines\n"
    await reads.heard("b.log")
    assert take(second) == b"two\n"


async def test_a_line_without_end_holds_no_later_source_up(reading: Any, log: Any) -> None:
    reads = reading()
    append(log, b"half")
    append(log.with_name("b.log"), b"two\n")
    first = reads.open(log, group="g", rank=1)
    second = reads.open(log.with_name("b.log"), group="g", rank=2)
    assert take(first) == b"one\n"
    assert take(second) is None
    assert take(first) is None
    assert take(second) == b"two\n"


async def test_what_is_cut_off_is_not_waited_for(reading: Any, log: Any) -> None:
    reads = reading()
    append(log, b"two\n")
    append(log.with_name("b.log"), b"three\n")
    first = reads.open(log, group="g", rank=1)
    second = reads.open(log.with_name("b.log"), group="g", rank=2)
    os.truncate(log, 4)
    assert take(first) == b"one\n"
    assert take(first) is None
    assert take(second) == b"three\n"


@pytest.mark.parametrize("how", ["truncated", "closed", "read before", "another group", "bad sector"])
async def test_nothing_is_waited_for_that_will_not_come(
    reading: Any, log: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "REST_PATIENCE", 0.01)
    reads = reading()
    append(log.with_name("b.log"), b"two\n")
    append(log, b"more\n")
    first = reads.open(log, 4, group="g", rank=1)
    if how == "read before":
        take(first)
    second = reads.open(log.with_name("b.log"), group="another" if how == "another group" else "g", rank=2)
    if how == "truncated":
        assert take(second) is None
        os.truncate(log, 3)
        assert take(first) is None
        assert first.finished.kind == "truncated"
        assert take(second) is None, "the rest may be found"
        await reads.heard("b.log")
    elif how == "closed":
        assert take(second) is None
        first.close()
    elif how == "bad sector":

        def bad(*_: object) -> int:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as broken:
            broken.setattr(text_module.os, "preadv", bad)
            with pytest.raises(OSError, match="Input/output"):
                take(first)
    assert take(second) == b"two\n"


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("newer", [False, True])
async def test_what_has_the_rest_of_a_file_that_is_gone_comes_before_what_waited_for_that(
    reading: Any, log: Any, newer: bool, closed: bool
) -> None:
    """In an outage a rotated file was compressed, then the worker died: its lines came behind newer ones."""
    reads = reading()
    packed, later, latest = (log.with_name(name) for name in ("a.log.1", "b.log", "c.log"))
    for path, line in ((packed, b"one\nrest\n"), (later, b"two\n"), (latest, b"three\n")):
        append(path, line)
    known = known_of(log)._replace(size=9)
    log.unlink()
    first = reads.open(log, 4, known=known, group="g", rank=1)
    if closed:
        first.close()
    second = reads.open(later, group="g", rank=2)
    third = reads.open(latest, group="g", rank=3) if newer else None  # that is no rest of anything
    rest = reads.open(packed, 4, group="g", rank=1)
    assert take(second) is None
    assert third is None or take(third) is None
    assert take(rest) == b"rest\n"
    assert take(second) == b"two\n"
    assert third is None or take(third) == b"three\n"


@pytest.mark.parametrize("rest_first", [False, True])
async def test_what_is_in_a_truncated_file_that_was_renamed_comes_before_what_waited_for_its_rest(
    reading: Any, log: Any, rest_first: bool
) -> None:
    """It was copied, truncated and renamed in an outage; then the worker died."""
    reads = reading()
    copied, renamed, latest = (log.with_name(name) for name in ("a.log.2", "a.log.1", "b.log"))
    for path, line in ((copied, b"one\nrest\n"), (renamed, b"two\n"), (latest, b"three\n"), (log, b"rest\n")):
        append(path, line)
    first = reads.open(log, 4, group="g", rank=1)
    third = reads.open(latest, group="g", rank=5)
    os.truncate(log, 3)
    assert take(first) is None
    assert first.finished.kind == "truncated"
    rest = reads.open(copied, 4, group="g", rank=1)
    if rest_first:
        assert take(rest) == b"rest\n"
    assert take(third) is None
    second = reads.open(renamed, group="g", rank=3)
    assert rest_first or take(rest) == b"rest\n"
    assert take(third) is None
    assert take(second) == b"two\n"
    assert take(third) == b"three\n"


async def test_one_that_comes_between_two_is_read_between_them(reading: Any, log: Any) -> None:
    reads = reading()
    middle, last = log.with_name("b.log"), log.with_name("c.log")
    append(middle, b"two\n")
    append(last, b"three\n")
    first = reads.open(log, group="g", rank=1)
    third = reads.open(last, group="g", rank=3)
    second = reads.open(middle, group="g", rank=2)
    assert take(third) is None
    assert take(first) == b"one\n"
    assert take(third) is None
    assert take(second) == b"two\n"
    assert take(third) == b"three\n"


# News


async def test_news_comes_by_inotify_and_not_once_a_write(reading: Any, log: Any) -> None:
    reads = reading(linger=0.05)
    source = reads.open(log)
    take(source)
    with log.open("ab", buffering=0) as stream:
        for number in range(2000):
            stream.write(b"%d\n" % number)
            if number % 100 == 0:
                await asyncio.sleep(0)
    await reads.heard("a.log")
    await asyncio.sleep(0.03)
    assert len(reads.readied) <= 20
    assert (take(source) or b"").count(b"\n") == 2000


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("__init__", watch.WatchLimit(errno.EMFILE, "Too many open files")),
        ("add", watch.WatchLimit(errno.ENOSPC, "No space left on device")),
        ("add", PermissionError(errno.EACCES, "Permission denied")),
    ],
)
async def test_without_watches_files_are_followed_by_the_clock(
    reading: Any,
    log: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: str,
    error: OSError,
) -> None:
    # fs.inotify.max_user_instances or max_user_watches is used up.
    def no_more(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(watch.Inotify, where, no_more)
    monkeypatch.setattr(reader_module, "UNWATCHED_INTERVAL", 0.01)
    reads = reading()
    other = log.with_name("b.log")
    append(other, b"one\n")
    for path in (log, other):
        take(reads.open(path))
    await asyncio.sleep(0.05)
    assert reads.readied == [], "a quiet file is left alone"
    append(other, b"two\n")
    await reads.heard("b.log")
    assert take(reads.sources["b.log"]) == b"two\n"
    assert capsys.readouterr().out.count("no more inotify watches: files") == 1


async def test_all_tails_of_a_worker_share_one_inotify_descriptor(reading: Any, tmp_path: Path) -> None:
    # The kernel gives a user 128: eight tails on a machine of 16 cores had all of them.
    def descriptors() -> int:
        found = 0
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                found += str(entry.readlink()) == "anon_inode:inotify"
        return found

    others = descriptors()
    tails = [reading() for _ in range(5)]
    paths = [tmp_path / f"{number}.log" for number in range(5)]
    for tail, path in zip(tails, paths, strict=True):
        append(path, b"one\n")
        take(tail.open(path))
    assert descriptors() == others + 1
    for tail, path in zip(tails, paths, strict=True):
        append(path, b"two\n")
        await tail.heard(path.name)
    assert descriptors() == others + 1
    for tail in tails[:4]:
        tail.reader.close()
    append(paths[4], b"three\n")
    await tails[4].heard("4.log")
    tails[4].reader.close()
    assert descriptors() == others


@pytest.mark.parametrize("poll_interval", [0.01, 0.08])
async def test_files_that_no_watch_tells_of_are_seen_by_the_slow_look(
    reading: Any, log: Any, monkeypatch: pytest.MonkeyPatch, poll_interval: float
) -> None:
    # A network file system: another host writes, and inotify says nothing.
    monkeypatch.setattr(reader_module, "UNWATCHED_INTERVAL", 0.01)
    reads = reading(poll_interval=poll_interval)
    paths = [log, *(log.with_name(f"{number}.log") for number in range(20))]
    for path in paths[1:]:
        append(path, b"one\n")
    for path in paths:
        take(reads.open(path))
        reads.reader._inotify.drop(reads.sources[path.name])
    await asyncio.sleep(2 * poll_interval)
    assert reads.readied == []
    for path in paths:
        append(path, b"two\n")
    for path in paths:
        await reads.heard(path.name)
        assert take(reads.sources[path.name]) == b"two\n"


async def test_another_file_that_grows_back_to_the_same_size_is_seen_by_the_slow_look(reading: Any, log: Any) -> None:
    reads = reading(poll_interval=0.01)
    source = reads.open(log)
    take(source)
    reads.reader._inotify.drop(source)
    log.write_bytes(b"two\n")
    await reads.heard("a.log")
    assert take(source) is None
    assert source.finished == End("truncated", str(log), 4, 4, at_once=True)


# Descriptors


async def test_a_quiet_file_keeps_its_descriptor(reading: Any, log: Any) -> None:
    reads = reading(poll_interval=0.001)
    take(reads.open(log))
    await asyncio.sleep(0.02)
    assert str(log) in open_files()


async def test_more_files_than_descriptors_are_followed(reading: Any, tmp_path: Path) -> None:
    # Peers fail, or drop files, when descriptors run out.
    paths = [tmp_path / f"{number}.log" for number in range(120)]
    for path in paths:
        append(path, b"one\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = max(open_files().values())
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 40, hard))
    try:
        reads = reading()
        for path in paths:
            reads.open(path)
        assert max(open_files().values()) < held + 38, "some are left for connections"
        assert [take(source) for source in reads.sources.values()] == [b"one\n"] * 120
        assert max(open_files().values()) < held + 40
        reads.readied.clear()
        for path in paths:
            append(path, b"two\n")
        await reads.heard(paths[-1].name)
        assert [take(source) for source in reads.sources.values()] == [b"two\n"] * 120
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_only_files_that_are_read_and_found_again_give_their_descriptors_up(reading: Any, log: Any) -> None:
    reads = reading()
    unread, linked, deleted = (log.with_name(name) for name in ("unread.log", "linked.log", "deleted.log"))
    for path in (unread, linked, deleted):
        append(path, b"one\n")
    for path in (log, unread, linked, deleted):
        take(reads.open(path))
    append(unread, b"two\n")
    linked.with_name("elsewhere").hardlink_to(linked)
    linked.unlink()
    deleted.unlink()
    reads.reader._release()
    assert [source.name for source in reads.sources.values() if source._text is None] == ["a.log"]


async def test_files_that_wait_for_the_rest_of_a_line_give_their_descriptors_up_where_no_other_can(
    reading: Any, log: Any
) -> None:
    reads = reading()
    whole, half, deleted = (log.with_name(name) for name in ("whole.log", "half.log", "deleted.log"))
    for path in (whole, half, deleted):
        append(path, b"one\n" if path is whole else b"one\ntw")
        source = reads.open(path)
        assert take(source) == b"one\n"
        take(source)
    deleted.unlink()

    def released() -> list[str]:
        reads.reader._release()
        return [source.name for source in reads.sources.values() if source._text is None]

    assert released() == ["whole.log"]
    assert released() == ["whole.log", "half.log"]
    append(half, b"o\n")
    assert take(reads.sources["half.log"]) == b"two\n"
    assert reads.sources["deleted.log"]._text is not None


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
async def test_where_no_descriptor_is_left_the_quietest_files_give_theirs_up(
    reading: Any, log: Any, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    reads, real = reading(), os.open
    monkeypatch.setattr(reader_module, "_OPENED_BETWEEN_RELEASES", 1)
    names = [log.with_name(f"{number}.log") for number in range(3)]
    for path in names:
        append(path, b"one\n")
        take(reads.open(path))
    reads.sources["1.log"].news_at -= 60

    def short(path: str, flags: int) -> int:
        if all(source._text is not None for source in reads.sources.values()):
            raise OSError(error, os.strerror(error))
        return real(path, flags)

    known = known_of(log)
    monkeypatch.setattr(reader_module.os, "open", short)
    reads.open(log, known=known)
    assert [source.name for source in reads.sources.values() if source._text is None] == ["1.log"]


@pytest.mark.parametrize("poll", [False, True])
async def test_a_released_file_goes_on_whatever_it_is_called_then(reading: Any, log: Any, *, poll: bool) -> None:
    reads = reading(poll_interval=0.01 if poll else 3600.0)
    source = reads.open(log)
    take(source)
    assert source.release_if_read()
    assert source.unread == 0
    if poll:
        reads.reader._inotify.drop(source)
    rotated = log.rename(log.with_name("a.log.1"))
    append(rotated, b"two\n")
    append(log, b"new\n")
    await reads.heard("a.log")
    assert take(source) == b"two\n"
    assert Known.from_detail(source.detail()).path == str(rotated)


@pytest.mark.parametrize("where", ["deleted", "moved to another directory"])
async def test_a_released_file_that_is_not_beside_its_path_is_gone(reading: Any, log: Any, where: str) -> None:
    reads = reading()
    source = reads.open(log)
    take(source)
    source.release()
    (log.parent / "old").mkdir()
    if where == "deleted":
        log.unlink()
        append(log, b"a new one\n")  # and it may well have got the old one's inode
    else:
        append(log.rename(log.parent / "old" / "a.log"), b"two\n")
    await reads.heard("a.log")
    assert take(source) is None
    assert source.finished == End("gone", str(log), 4, 4, at_once=True)


async def test_close_may_be_called_twice(reading: Any, log: Any) -> None:
    reads = reading()
    source = reads.open(log)
    reads.reader.close()
    reads.reader.close()
    source.close()
    assert str(log) not in open_files()
