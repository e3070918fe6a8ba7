"""Files on mounts that may hang: whatever their server does, the loop goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.daemon.source import Assignment, End, Found
from ingestd.tail import reader as reader_module
from ingestd.tail import remote as remote_module
from ingestd.tail import text as text_module
from ingestd.tail.file_id import identify
from ingestd.tail.known import Known
from ingestd.tail.reader import TailReader
from ingestd.tail.remote import RemoteSource, remote_mount
from ingestd.tail.route import TailRoute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


class Reads:
    """A reader of a directory that it takes for a remote mount, and what it told."""

    def __init__(self, **settings: Any) -> None:
        settings = {"linger": 0.0, "leave_after": 0.01, "poll_interval": 3600.0} | settings
        self.news: dict[str, asyncio.Event] = {}
        self.changed: list[str] = []
        route = TailRoute("access", ("/*.log",), "c", "t", **settings)
        self.reader = TailReader(route, lambda source: self.news[source].set(), self.changed.append)

    def open(self, path: Path, position: int = 0, **found: Any) -> Any:
        self.news[path.name] = asyncio.Event()
        descriptor = os.open(path, os.O_PATH)
        detail = Known(str(path), str(path), identify(descriptor), None, os.fstat(descriptor).st_size).to_detail()
        os.close(descriptor)
        source = self.reader.open(Assignment("access", Found(path.name, position, detail, **found), 1))
        assert isinstance(source, RemoteSource)
        return source

    async def take(self, source: Any, size: int = 65536) -> bytes | None:
        """What is read next; None once the source is finished."""
        while source.finished is None:
            self.news[source.name].clear()
            buffer = memoryview(bytearray(size))
            piece = source.read(buffer)
            if piece is not None:
                return bytes(buffer[: piece.length])
            await asyncio.wait_for(self.news[source.name].wait(), 10)
        return None


@pytest.fixture
async def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reads]:
    monkeypatch.setattr(reader_module, "remote_mount", lambda path: str(tmp_path))
    made = Reads()
    yield made
    made.reader.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    append(tmp_path / "a.log", b"one\n")
    return tmp_path / "a.log"


async def test_a_remote_file_is_read_as_any_other(reads: Reads, log: Any) -> None:
    append(log, b"x" * 60_000 + b"\n")
    source = reads.open(log)
    assert await reads.take(source) == b"one\n" + b"x" * 60_000 + b"\n"
    append(log, b"two\nthree")
    assert await reads.take(source) == b"two\n", "inotify tells what this host writes"
    rotated = log.rename(log.with_name("a.log.1"))
    source.conclude()
    assert await reads.take(source) == b"three\n"
    assert await reads.take(source) is None
    assert source.finished == End("concluded", str(rotated), 60_014, 60_014)
    assert source.unread == 0
    assert Known.from_detail(source.detail()).path == str(rotated)
    assert "a.log" in reads.changed


async def test_what_was_fetched_waits_for_a_slab_that_has_room(reads: Reads, log: Any) -> None:
    append(log, b"x" * 60_000 + b"\n")
    source = reads.open(log)
    source.read(memoryview(bytearray(65536)))
    await asyncio.wait_for(reads.news["a.log"].wait(), 10)
    assert source.read(memoryview(bytearray(60_000))) is None
    assert await reads.take(source) == b"one\n" + b"x" * 60_000 + b"\n"


async def test_an_error_of_the_server_is_raised_by_read_and_the_next_read_tries_again(
    reads: Reads, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = reads.open(log)

    def failed(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(text_module.os, "preadv", failed)
        with pytest.raises(OSError, match="Input/output"):
            await reads.take(source)
    assert await reads.take(source) == b"one\n"


async def test_one_is_read_behind_the_other(reads: Reads, log: Any) -> None:
    append(log.with_name("b.log"), b"two\n")
    first = reads.open(log, group="g", rank=1)
    second = reads.open(log.with_name("b.log"), group="g", rank=2)
    second_taken = asyncio.ensure_future(reads.take(second))
    await asyncio.sleep(0.05)
    assert not second_taken.done()
    assert await reads.take(first) == b"one\n"
    assert await second_taken == b"two\n"


async def test_a_mount_that_hangs_is_said_and_holds_nothing_up(
    reads: Reads, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every call that reaches the server hangs, for a while at least.
    answers, real = threading.Event(), text_module.PlainText.read_into
    threads = set()

    def hang(*arguments: Any) -> int:
        threads.add(threading.current_thread().name)
        answers.wait()
        return real(*arguments)

    monkeypatch.setattr(text_module.PlainText, "read_into", hang)
    monkeypatch.setattr(remote_module, "PATIENCE", 0.02)
    append(log.with_name("b.log"), b"two\n")
    source, other = reads.open(log), reads.open(log.with_name("b.log"))
    try:
        assert source.read(memoryview(bytearray(65536))) is None
        await asyncio.sleep(0.05)
        assert source.unread == 0
        assert source.look(), "so that it is read, which says what is wrong"
        for _ in range(2):
            with pytest.raises(OSError, match="has not answered"):
                source.read(memoryview(bytearray(65536)))
        source.conclude()
        other.close()
    finally:
        reads.news["a.log"].clear()
        answers.set()
    await asyncio.wait_for(reads.news["a.log"].wait(), 10)
    assert await reads.take(source) == b"one\n"
    assert threads == {f"mount {log.parent}"}


async def test_the_reader_closes_while_a_mount_hangs(reads: Reads, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, entered = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        entered.set()
        answers.wait()

    monkeypatch.setattr(TailReader, "locate", hang)
    source = reads.open(log)
    source.read(memoryview(bytearray(65536)))
    await asyncio.to_thread(entered.wait)
    reads.reader.close()
    reads.reader.close()
    threads = [thread for thread in threading.enumerate() if thread.name == f"mount {log.parent}"]
    answers.set()
    for thread in threads:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/srv/nfs/a.log", "/srv/nfs"),
        ("/srv/nfs/disk/a.log", None),
        ("/srv/nfsother/a.log", None),
        ("/with space/deep/er/a.log", "/with space"),
        ("/covered/a.log", None),
        ("/var/log/a.log", None),
    ],
)
def test_the_mount_is_the_innermost_and_the_last_one(
    path: str, expected: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:40 / /srv/nfs rw shared:3 master:4 - nfs4 server:/ rw\n"
        "3 2 8:2 / /srv/nfs/disk rw - xfs /dev/sdb rw\n"
        "4 1 0:41 / /with\\040space rw - fuse.sshfs host: rw\n"
        "5 1 0:42 / /covered rw - fuse x rw\n"
        "6 5 8:3 / /covered rw - ext4 /dev/sdc rw\n"
    )
    real = open
    monkeypatch.setattr(remote_module, "open", lambda _, **how: real(table, **how), raising=False)
    remote_module._mounts.cache_clear()
    assert remote_mount(path) == expected
    remote_module._mounts.cache_clear()


def test_this_machines_mounts_can_be_read() -> None:
    assert "/" in remote_module._mounts(-1)
