"""One open file: whole lines only, in place, while its content is the known one, to its end, whatever its name."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import random
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from ingestd.daemon.source import Assignment, End, Found
from ingestd.tail import source as source_module
from ingestd.tail import text as text_module
from ingestd.tail.file_id import identify
from ingestd.tail.known import Known, witness_before
from ingestd.tail.reader import TailReader
from ingestd.tail.route import TailRoute
from ingestd.tail.text import open_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingestd.tail.source import TailSource

CUT_OFF = "it is cut off, or not written to its end yet"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def known_of(path: Path, position: int | None = None, codec: str = "") -> Known:
    """What a finder knows of a file: its size, and the bytes before a position (its end)."""
    text = open_text(str(path), codec)
    try:
        size = text.status().st_size
        witness = witness_before(text, size if position is None else position)
        return Known(str(path), str(path), identify(text.descriptor), witness, size, codec=codec)
    finally:
        text.close()


class Reads:
    """A reader, and what it told. `open` gives sources; `take` and `drain` read them."""

    def __init__(self, **settings: Any) -> None:
        settings = {"linger": 0.0, "leave_after": 10.0, "poll_interval": 3600.0} | settings
        self.route = TailRoute("access", ("/*.log",), "local", "access", **settings)
        self.ready = asyncio.Queue[str]()
        self.changed: list[str] = []
        self.reader = TailReader(self.route, self.ready.put_nowait, self.changed.append)
        self.asked = False
        self._wake, self.reader.wake = self.reader.wake, self.wake  # type: ignore[method-assign]

    def wake(self, source: Any, delay: float) -> None:
        self.asked = True
        self._wake(source, delay)

    def open(self, path: Path, position: int = 0, *, known: Known | None = None, name: str = "", **found: Any) -> Any:
        detail = (known or known_of(path)).to_detail()
        return self.reader.open(Assignment("access", Found(name or path.name, position, detail, **found), 1))

    async def heard(self) -> str:
        return await asyncio.wait_for(self.ready.get(), 10)

    async def drain(self, source: TailSource, size: int = 14 * 65536) -> list[bytes]:
        """All lines, woken whenever the source asks for it, until it asks no more."""
        lines: list[bytes] = []
        while source.finished is None:
            self.asked = False
            taken = take(source, size)
            if taken is not None:
                assert taken[1].endswith(b"\n"), "pieces are whole lines"
                lines += taken[1][:-1].split(b"\n")
            elif self.asked:
                await self.heard()
            else:
                break
        return lines


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
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What sources take for the time, in seconds."""
    clock, began = SimpleNamespace(now=1000.0), time.time() - 1000.0
    timing = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: began + clock.now)
    monkeypatch.setattr(source_module, "time", timing)
    return clock


def take(source: TailSource, size: int = 14 * 65536) -> Any:
    buffer = memoryview(bytearray(size))
    piece = source.read(buffer)
    return None if piece is None else (piece, bytes(buffer[: piece.length]))


def open_files() -> Iterator[str]:
    """Paths of what this process has open."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            yield str(entry.readlink())


def count_no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    real = text_module.PlainText.status

    def status(text: Any) -> Any:
        known = real(text)
        fields = {name: getattr(known, name) for name in dir(known) if name.startswith("st_")}
        return SimpleNamespace(**fields | {"st_nlink": 0})

    monkeypatch.setattr(text_module.PlainText, "status", status)


def ended(kind: str, path: Path, position: int, size: int | None = None, *, why: str = "") -> End:
    looked_for = kind in {"truncated", "gone", "damaged"}
    return End(kind, str(path), position, position if size is None else size, at_once=looked_for, why=why)


# Lines


async def test_a_partial_line_is_held_until_its_newline_comes(reading: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"one\nhal")
    source = reading().open(tmp_path / "a.log")
    assert take(source)[1] == b"one\n"
    assert take(source) is None
    assert source.unread == 3
    append(tmp_path / "a.log", b"f")
    assert take(source) is None
    append(tmp_path / "a.log", b"!\nthree\n")
    assert take(source)[1] == b"half!\nthree\n"
    assert source.unread == 0
    assert source.finished is None


async def test_what_came_while_nothing_was_read_is_known_when_it_goes(reading: Any, tmp_path: Path) -> None:
    """The brokers were away, and memory was full: 5.5 MB that copytruncate took were lost, and nobody said so."""
    log = tmp_path / "a.log"
    append(log, b"one\n")
    source = reading().open(log)
    assert take(source)[1] == b"one\n"
    append(log, b"two\n" * 100)
    source.news_at -= 10
    assert source.unread == 400
    os.truncate(log, 0)
    append(log, b"new\n")
    assert source.unread == 400, "a copy may have it"
    assert take(source) is None
    assert source.finished == ended("truncated", log, 4, 404)


async def test_unread_bytes_are_known(reading: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"one\n" * 50_000)
    source = reading().open(tmp_path / "a.log")
    assert source.unread == 200_000
    take(source, 65536)
    assert source.unread == 200_000 - 65536


async def test_bytes_go_into_the_slab_and_nowhere_else(reading: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"x" * 199 + b"\n")
    append(tmp_path / "a.log", (b"x" * 199 + b"\n") * 4000)
    source = reading().open(tmp_path / "a.log")
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
    reading: Any, tmp_path: Path
) -> None:
    append(tmp_path / "a.log", b"x" * 100_000 + b"\n")
    reads = reading()
    source = reads.open(tmp_path / "a.log")
    assert take(source, 65536) is None
    await reads.heard()
    assert take(source)[0].length == 100_001


@pytest.mark.parametrize("slab", [65536, 70_001, 14 * 65536])
async def test_a_long_line_is_truncated_and_positions_stay_exact(reading: Any, tmp_path: Path, slab: int) -> None:
    lines = [b"one", b"x" * 50_000, b"two", b"y" * 3_000_000, b"three"]
    append(tmp_path / "a.log", b"\n".join(lines) + b"\n")
    reads = reading(max_line_bytes=1000)
    texts = await reads.drain(reads.open(tmp_path / "a.log"), slab)
    assert [line[:5] for line in texts] == [b"one", b"xxxxx", b"two", b"yyyyy", b"three"]
    assert [len(line) for line in texts] == [3, 1000, 3, 1000, 5]
    assert all(line.endswith(b"...[truncated]") for line in texts if len(line) > 5)


@pytest.mark.parametrize("room", [65536, 99_999, 100_000])
async def test_a_long_line_whose_end_is_met_in_the_rest_of_a_slab_is_truncated_in_a_fresh_one(
    reading: Any, tmp_path: Path, room: int
) -> None:
    # The line grows past the limit in one read; another file leaves the next read less room than the limit.
    append(tmp_path / "a.log", b"x" * 300_000)
    reads = reading(max_line_bytes=100_000)
    source = reads.open(tmp_path / "a.log")
    assert take(source) is None
    append(tmp_path / "a.log", b"y\nnext\n")
    assert take(source, room) is None
    assert source.finished is None
    piece, line = take(source)
    assert (piece.start, piece.end, piece.lines_shortened) == (0, 300_002, 1)
    assert len(line) == 100_001
    assert take(source)[1] == b"next\n"


@pytest.mark.parametrize("slab", [65536, 70_001, 14 * 65536])
async def test_a_long_line_is_split_and_nothing_of_it_lost(reading: Any, tmp_path: Path, slab: int) -> None:
    append(tmp_path / "a.log", b"one\n" + bytes(range(32, 127)) * 10_000 + b"\ntwo\n")
    reads = reading(max_line_bytes=1000, long_lines="split")
    texts = await reads.drain(reads.open(tmp_path / "a.log"), slab)
    assert texts[0] == b"one"
    assert texts[-1] == b"two"
    assert b"".join(texts[1:-1]) == bytes(range(32, 127)) * 10_000
    assert max(map(len, texts)) == 1000


@pytest.mark.parametrize("halves", [(800, 1800), (1800, 1800), (1000, 1), (999, 1)])
async def test_a_line_that_passes_the_limit_as_its_end_comes_is_split(
    reading: Any, tmp_path: Path, halves: tuple[int, int]
) -> None:
    line = random.Random(1).randbytes(sum(halves)).hex().encode()[: sum(halves)]
    append(tmp_path / "a.log", line[: halves[0]])
    reads = reading(max_line_bytes=1000, long_lines="split")
    source = reads.open(tmp_path / "a.log")
    texts = await reads.drain(source)
    append(tmp_path / "a.log", line[halves[0] :] + b"\nnext\n")
    texts += await reads.drain(source)
    assert texts == [*(line[at : at + 1000] for at in range(0, len(line), 1000)), b"next"]


async def test_a_gigabyte_without_newline_stalls_nothing_and_takes_no_memory(
    reading: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Peers stop following the file, or hold the whole line. Each byte is looked at once, some at a time.
    real, looked = text_module.PlainText.read_into, [0]

    def counted(text: text_module.PlainText, view: memoryview, position: int) -> int:
        length = real(text, view, position)
        looked[-1] += length
        return length

    monkeypatch.setattr(text_module.PlainText, "read_into", counted)
    size = 1 << 30
    with (tmp_path / "a.log").open("wb") as stream:
        stream.write(b"begin ")
        stream.truncate(size)
        stream.seek(size)
        stream.write(b"\nnext\n")
    reads = reading(binary="accept")
    source = reads.open(tmp_path / "a.log")
    pieces = []
    while len(pieces) < 2:
        taken = take(source)
        looked.append(0)
        if taken is not None:
            pieces.append(taken)
    assert sum(looked) < 1.01 * size
    assert max(looked) <= 10 * 14 * 65536
    (first, line), (second, rest) = pieces
    assert (first.start, first.end, first.lines_shortened) == (0, size + 1, 1)
    assert line.startswith(b"begin \0")
    assert len(line) <= reads.route.max_line_bytes + 1
    assert (second.start, second.end, rest) == (size + 1, size + 6, b"next\n")


async def test_a_long_line_in_the_making_is_looked_at_once(
    reading: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A line that grows byte by byte: each look reads only what is new.
    append(tmp_path / "a.log", b"x" * 500_000)
    source = reading().open(tmp_path / "a.log")
    assert take(source) is None
    read = 0
    real = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], position: int) -> int:
        nonlocal read
        length = real(descriptor, buffers, position)
        read += length
        return length

    monkeypatch.setattr(text_module.os, "preadv", counted)
    for _ in range(100):
        append(tmp_path / "a.log", b"y")
        assert take(source) is None
    assert read == 100


# The end of a file


async def test_a_file_is_followed_for_ever_until_nothing_more_is_expected_and_it_is_quiet(
    reading: Any, tmp_path: Path, clock: Any
) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\nlast")
    source = reading().open(log)
    assert take(source)[1] == b"one\n"
    clock.now += 1e6
    assert take(source) is None
    source.conclude()
    clock.now += 9.9
    assert take(source) is None
    append(log, b" line\nthe very last")
    assert take(source)[1] == b"last line\n"
    clock.now += 9.9
    assert take(source) is None
    assert source.finished is None, "its writer goes on, and the quiet time begins anew"
    clock.now += 10
    assert take(source)[1] == b"the very last\n", "without newline, and whole all the same"
    assert take(source) is None
    assert source.finished == ended("concluded", log, 27)
    assert source.unread == 0
    assert take(source) is None


async def test_a_line_that_still_grows_is_no_end(reading: Any, tmp_path: Path, clock: Any) -> None:
    log = tmp_path / "a.log"
    append(log, b"half")
    source = reading().open(log, last=True)
    for _ in range(5):
        assert take(source) is None
        append(log, b" and more")
        clock.now += 9
    assert source.finished is None


async def test_the_quiet_time_begins_when_nothing_more_is_expected_and_the_end_names_the_present_path(
    reading: Any, tmp_path: Path, clock: Any
) -> None:
    # A writer goes on with a renamed file for a moment, however long it was quiet before.
    log, rotated = tmp_path / "a.log", tmp_path / "a.log.1"
    append(log, b"one\n")
    source = reading().open(log)
    take(source)
    clock.now += 1e6
    log.rename(rotated)
    source.conclude()
    assert take(source) is None
    assert source.finished is None
    clock.now += 10
    assert take(source) is None
    assert source.finished == ended("concluded", rotated, 4)


async def test_a_piece_says_whether_more_is_there(reading: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    buffer = memoryview(bytearray(8))
    append(log, b"one\ntwo\nthr")
    source = reading().open(log)
    assert not source.read(buffer).exhausted, "it filled the buffer"
    assert source.read(buffer) is None
    append(log, b"ee\n")
    assert source.read(buffer).exhausted
    append(log, b"half\nof")
    assert not source.read(buffer).exhausted, "what is left of a line is to be kept in mind"
    append(log, b" it\n")
    source.conclude()
    assert not source.read(buffer).exhausted, "the next read sees whether that was the end"


async def test_the_end_of_quiet_time_is_waited_for_without_a_read(reading: Any, tmp_path: Path) -> None:
    # Once a second for each of hundreds of files that rotate, a read more for each would be seen.
    append(tmp_path / "a.log", b"one\n")
    reads = reading(leave_after=0.2)
    source = reads.open(tmp_path / "a.log")
    assert await reads.drain(source) == [b"one"]
    source.conclude()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reads.ready.get(), 0.1)
    await reads.heard()


async def test_a_concluded_source_asks_to_be_read_again_by_itself(reading: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"one\ntwo")
    reads = reading(leave_after=0.01)
    source = reads.open(tmp_path / "a.log")
    assert await reads.drain(source) == [b"one"]
    source.conclude()
    source.conclude()
    await reads.heard()
    assert await reads.drain(source) == [b"two"]
    assert source.finished == ended("concluded", tmp_path / "a.log", 7)


async def test_a_file_that_is_the_last_of_its_content_from_the_start_ends_once_quiet(
    reading: Any, tmp_path: Path
) -> None:
    append(tmp_path / "a.log", b"one\ntwo")
    reads = reading(leave_after=0.01)
    source = reads.open(tmp_path / "a.log", last=True)
    assert await reads.drain(source) == [b"one", b"two"]
    assert source.finished == ended("concluded", tmp_path / "a.log", 7)


async def test_an_empty_file_of_which_nothing_is_expected_ends(reading: Any, tmp_path: Path, clock: Any) -> None:
    append(tmp_path / "a.log", b"")
    source = reading().open(tmp_path / "a.log", last=True)
    clock.now += 10
    assert take(source) is None
    assert source.finished == ended("concluded", tmp_path / "a.log", 0)


async def test_a_deleted_file_is_read_to_its_end_and_released(reading: Any, tmp_path: Path, clock: Any) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\ntwo")
    reads = reading()
    source = reads.open(log)
    clock.now += 1e6
    with log.open("ab") as writer:
        log.unlink()
        await reads.heard()
        assert take(source)[1] == b"one\n"
        writer.write(b"\nthree\nend")
    assert take(source)[1] == b"two\nthree\n"
    assert take(source) is None
    clock.now += 10
    assert take(source)[1] == b"end\n"
    assert take(source) is None
    assert source.finished == ended("deleted", log, 17)
    assert not any(str(tmp_path) in path for path in open_files()), "a deleted file that is held keeps its disk space"


async def test_that_a_file_was_deleted_and_nothing_written_to_it_since_is_told_before_a_stop(
    reading: Any, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\n")
    reads = reading()
    source = reads.open(log)
    take(source)
    assert "deleted" not in source.detail()
    with log.open("ab") as writer:
        await asyncio.sleep(0.02)  # the kernel's clock may be that coarse
        log.unlink()
        reads.reader.drain()
        assert await asyncio.wait_for(changed(reads), 10) == "a.log"
        assert source.detail()["deleted"]
        assert not source.has_news(), "it is told once"
        await asyncio.sleep(0.02)
        writer.write(b"two\n")
    reads.reader.drain()
    assert "deleted" not in source.detail(), "a program has it open: it may write more"
    take(source)
    assert "deleted" not in source.detail()


async def changed(reads: Reads) -> str:
    """The source whose detail is to be stored."""
    while not reads.changed:
        await asyncio.sleep(0)
    return reads.changed.pop()


async def test_a_file_whose_links_come_back_is_not_leaving(
    reading: Any, tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An NFS server, or a descriptor that gets a name by linkat().
    log = tmp_path / "a.log"
    append(log, b"one\n")
    source = reading().open(log)
    take(source)
    log.rename(tmp_path / "elsewhere")
    with monkeypatch.context() as gone:
        count_no_links(gone)
        assert take(source) is None
        clock.now += 9
        assert take(source) is None
    clock.now += 9
    assert take(source) is None
    assert source.finished is None


async def test_a_file_system_that_counts_no_links_deletes_nothing(
    reading: Any, tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some FUSE file systems say 0 of every file.
    append(tmp_path / "a.log", b"one\n")
    source = reading().open(tmp_path / "a.log")
    count_no_links(monkeypatch)
    take(source)
    clock.now += 100
    assert take(source) is None
    assert source.finished is None


async def test_a_run_with_an_end_reads_up_to_it_and_no_further(reading: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\ntwo")
    source = reading().open(log, until=7)
    append(log, b"-half\nthree\n")
    assert source.unread == 7
    assert take(source)[1] == b"one\n"
    assert take(source) is None
    assert source.finished == ended("taken", log, 4, 19), "the rest of the line is for the next run"


async def test_a_run_with_an_end_takes_a_last_line_without_newline_that_nobody_writes_to(
    reading: Any, tmp_path: Path, clock: Any
) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\ntwo")
    source = reading().open(log, until=7)
    assert take(source)[1] == b"one\n"
    assert take(source) is None
    assert source.finished is None, "it may be half-written"
    clock.now += 11
    assert take(source)[1] == b"two\n"
    assert take(source) is None
    assert source.finished == ended("taken", log, 7)


async def test_a_long_line_that_grows_is_left_to_the_next_run(reading: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\n" + b"two" * 200)
    source = reading(max_line_bytes=100, long_lines="truncate").open(log, until=604)
    assert take(source)[1] == b"one\n"
    assert take(source) is None
    append(log, b"-half\n")
    assert take(source) is None
    assert source.finished == ended("taken", log, 4, 610)


async def test_a_run_with_an_end_waits_for_no_line_that_was_written_long_ago(reading: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\ntwo")
    os.utime(log, (1000, 1000))
    reads = reading()
    assert await reads.drain(reads.open(log, until=7)) == [b"one", b"two"]


async def test_the_rest_of_a_file_that_was_deleted_meanwhile_is_taken_by_this_run(reading: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\ntwo")
    reads = reading()
    source = reads.open(log, until=7)
    assert take(source)[1] == b"one\n"
    append(log, b"-half\nthree")
    log.unlink()
    assert await reads.drain(source) == [b"two-half", b"three"]


async def test_a_deleted_file_is_called_by_its_last_path(reading: Any, tmp_path: Path) -> None:
    """Another one may stand where its log is written. A stop names what it did not deliver."""
    log, rotated = tmp_path / "a.log", tmp_path / "a.log.1"
    append(log, b"one\n")
    source = reading().open(log)
    assert take(source)[1] == b"one\n"
    assert not source.deleted
    log.rename(rotated)
    append(log, b"two\n")
    rotated.unlink()
    source.look()
    assert take(source) is None
    assert source.deleted == str(rotated)


# Where the file is


async def test_a_renamed_file_goes_on_and_its_path_is_told(reading: Any, tmp_path: Path) -> None:
    log, rotated = tmp_path / "a.log", tmp_path / "old" / "a.log.1"
    rotated.parent.mkdir()
    append(log, b"one\n")
    reads = reading()
    source = reads.open(log)
    take(source)
    log.rename(rotated)
    async with asyncio.timeout(10):
        while not reads.changed:
            await asyncio.sleep(0.01)
    assert reads.changed == ["a.log"]
    assert reads.ready.empty(), "there is nothing to read"
    assert Known.from_detail(source.detail()).path == str(rotated)
    append(log, b"new\n")
    append(rotated, b"two\n")
    assert take(source)[1] == b"two\n"
    assert source.finished is None


async def test_rotated_by_link_and_unlink_it_keeps_its_old_path_and_goes_on(
    reading: Any, tmp_path: Path, clock: Any
) -> None:
    # /proc/self/fd then says "a.log (deleted)", although the file has a name.
    log, rotated = tmp_path / "a.log", tmp_path / "a.log.1"
    append(log, b"one\n")
    reads = reading()
    source = reads.open(log)
    take(source)
    rotated.hardlink_to(log)
    log.unlink()
    assert not source.look(), "there is nothing to read"
    assert take(source) is None
    clock.now += 100
    append(rotated, b"two\n")
    assert take(source)[1] == b"two\n"
    assert source.finished is None
    assert reads.changed == []
    assert Known.from_detail(source.detail()).path == str(log)


async def test_a_name_that_looks_like_a_deleted_one_is_a_name(reading: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"one\n")
    reads = reading()
    source = reads.open(tmp_path / "a.log")
    (tmp_path / "a.log").rename(tmp_path / "a.log (deleted)")
    source.look()
    assert Known.from_detail(source.detail()).path == str(tmp_path / "a.log (deleted)")


# Other content


async def test_a_file_that_is_shorter_than_its_position_was_truncated(reading: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\n" * 10 + b"half")
    source = reading().open(log)
    take(source)
    assert take(source) is None
    log.write_bytes(b"new\n")
    assert take(source) is None
    assert source.finished == ended("truncated", log, 40, 44)


async def test_truncated_and_grown_back_with_the_same_header_is_seen_by_what_was_read(
    reading: Any, tmp_path: Path
) -> None:
    # The race that size alone never shows: between two looks the file is larger than before, with other content.
    log, header = tmp_path / "a.log", b"#" * 2000 + b"\n"
    append(log, header + b"one\n")
    source = reading().open(log)
    take(source)
    log.write_bytes(header + b"two\nthree\n" * 1000)
    assert source.unread == 2001 + 10_000 - 2005
    assert take(source) is None
    assert source.finished == ended("truncated", log, 2005), "the new content is no loss of the old one"


@pytest.mark.parametrize("appended", [b"", b"two\n"])
@pytest.mark.parametrize("restored", [False, True])
async def test_a_file_that_is_overwritten_from_its_beginning_has_other_content(
    reading: Any, tmp_path: Path, *, restored: bool, appended: bytes
) -> None:
    """What `dd conv=notrunc` or a ring buffer wrote over the first lines was never read, without a word."""
    log = tmp_path / "a.log"
    append(log, b"old\n" * 1000)
    source = reading().open(log)
    take(source)
    if restored:
        append(log, b"more\n")
        source = reading().open(log, 4000, known=Known.from_detail(source.detail()))
        take(source)
    with log.open("r+b") as stream:
        stream.write(b"new\n" * 500)
    append(log, appended)
    assert take(source) is None
    assert source.finished.kind == "truncated"


async def test_the_next_content_is_known_though_its_lines_end_alike(reading: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    alike = b"x" * 300 + b"\n"
    append(log, b"1" + alike + b"2" + alike)
    source = reading().open(log)
    take(source)
    log.write_bytes(b"3" + alike + b"4" + alike + b"5" + alike)
    assert take(source) is None
    assert source.finished == ended("truncated", log, 604)


@pytest.mark.parametrize("read", [0, 40])
async def test_truncated_while_it_is_read_gives_no_byte_under_a_wrong_position(
    reading: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    # The file is truncated and written anew after the read was asked for and before it is done.
    log = tmp_path / "a.log"
    append(log, b"one\n" * 10)
    source = reading().open(log)
    if read:
        take(source)
        append(log, b"two\n")
    real = os.preadv

    def late(descriptor: int, buffers: list[memoryview], position: int) -> int:
        monkeypatch.setattr(text_module.os, "preadv", real)
        log.write_bytes(b"three\n" * 30)
        return real(descriptor, buffers, position)

    monkeypatch.setattr(text_module.os, "preadv", late)
    assert take(source) is None
    assert source.finished == ended("truncated", log, read, 40)._replace(seen=bool(read))


@pytest.mark.parametrize("new", [b"", b"new\n", b"new, and longer than before\n"])
@pytest.mark.parametrize("old", [b"half", b"one\nhalf"])
async def test_what_was_seen_and_is_lost_with_a_truncated_file_is_said(
    reading: Any, tmp_path: Path, old: bytes, new: bytes
) -> None:
    # Nothing was found in the file when it was first seen; then a line began.
    log = tmp_path / "a.log"
    append(log, b"")
    source = reading().open(log)
    append(log, old)
    while take(source) is not None:
        pass
    log.write_bytes(new)
    assert take(source) is None
    assert source.finished == ended("truncated", log, len(old) - 4, len(old))


async def test_bytes_that_were_not_read_may_be_cut_off_and_are_known_to_have_been(
    reading: Any, tmp_path: Path, clock: Any
) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\nhalf of a line, and")
    source = reading().open(log)
    take(source)
    assert take(source) is None
    os.truncate(log, 4)
    assert take(source) is None
    assert source.finished is None
    append(log, b"two\n")
    assert take(source)[1] == b"two\n"
    source.conclude()
    clock.now += 10
    assert take(source) is None
    assert source.finished == ended("concluded", log, 8, 23)


async def test_a_line_in_the_making_that_is_cut_off_and_written_anew_is_read_as_it_is_then(
    reading: Any, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\nhalf of a line, and")
    source = reading().open(log)
    take(source)
    assert take(source) is None
    os.truncate(log, 4)
    append(log, b"a\nb\n")
    assert take(source)[1] == b"a\nb\n"


@pytest.mark.parametrize("new", [b"", b"new\n" * 100, b"new\n" * 10])
@pytest.mark.parametrize("position", [0, 20, 40])
async def test_content_that_is_gone_before_the_file_is_opened_or_read_first_is_seen(
    reading: Any, tmp_path: Path, position: int, new: bytes
) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\n" * 10)
    reads, known = reading(), known_of(log)
    opened = reads.open(log, position, known=known, name="opened before")
    log.write_bytes(new)
    for source in (opened, reads.open(log, position, known=known)):
        assert take(source) is None
        assert source.finished == ended("truncated", log, position, 40)._replace(seen=False)


async def test_what_a_text_begins_with_is_known_from_the_first_reading_on(reading: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"Report of 11 November\n" + b"footer\n" * 100)
    source = reading().open(log)
    await reading().drain(source)
    append(log, b"more\n")
    take(source)
    source.release()
    known = Known.from_detail(source.detail())
    log.write_bytes(log.read_bytes().replace(b"11", b"12"))
    again = reading().open(log, log.stat().st_size, known=known)
    assert take(again) is None
    assert again.finished.kind == "truncated"


async def test_a_position_behind_the_end_is_of_other_content(reading: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\n")
    source = reading().open(log, 12, known=known_of(log)._replace(witness=None))
    assert take(source) is None
    assert source.finished == ended("truncated", log, 12)._replace(seen=False)


async def test_what_is_stored_of_a_file_lets_another_worker_go_on(reading: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"one\n" * 100)
    source = reading().open(log, known=Known(str(log), str(log), known_of(log).file))
    append(log, b"two\nhalf")
    take(source)
    known = Known.from_detail(source.detail())
    before = known_of(log, 404).witness
    assert before is not None
    witness = before.with_head(log.read_bytes()[:404])
    assert (known.witness, known.size, known.modified) == (witness, 408, log.stat().st_mtime_ns)
    again = reading().open(log, 400, known=known)
    assert take(again)[1] == b"two\n", "read before, and not acknowledged"


async def test_the_witness_of_a_short_piece_goes_back_behind_where_the_reading_began(
    reading: Any, tmp_path: Path
) -> None:
    """Another file ended with the same last line, "}" perhaps, and was taken for a copy: nobody read it."""
    log = tmp_path / "a.log"
    append(log, b"one\ntwo\n")
    source = reading().open(log, 4, known=known_of(log, 4))
    assert take(source)[1] == b"two\n"
    assert Known.from_detail(source.detail()).witness == known_of(log).witness


# Compressed


async def test_a_compressed_file_is_read_from_its_position_to_its_end(reading: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.log.1.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\nlast"))
    reads = reading()
    source = reads.open(path, 4, known=known_of(path, 4, "gz"), last=True)
    assert await reads.drain(source) == [b"two", b"last"]
    assert source.finished is not None
    assert (source.finished.kind, source.finished.position) == ("concluded", 12)


async def test_decoding_up_to_the_position_gives_others_their_turn(reading: Any, tmp_path: Path) -> None:
    path, text = tmp_path / "a.log.1.gz", b"".join(b"%07d\n" % number for number in range(500_000))
    path.write_bytes(gzip.compress(text, 1))
    reads = reading()
    source = reads.open(path, 3_999_992, known=known_of(path, 0, "gz")._replace(size=4_000_000), last=True)
    turns = 0
    while (taken := take(source, 65536)) is None:
        turns += 1
        await reads.heard()
    assert turns > 5
    assert (taken[0].start, taken[1]) == (3_999_992, b"0499999\n")


async def test_a_compressed_file_is_not_decoded_twice_for_what_was_read_and_not_acknowledged(
    reading: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = tmp_path / "a.log.1.gz", b"".join(b"%07d\n" % number for number in range(1_000_000))
    path.write_bytes(gzip.compress(text, 1))
    known = known_of(path, 8_000_000, "gz")
    begun, real = [], text_module.CompressedText._rewind
    monkeypatch.setattr(text_module.CompressedText, "_rewind", lambda text: (begun.append(text), real(text)))
    reads = reading()
    assert len(await reads.drain(reads.open(path, 0, known=known, last=True))) == 1_000_000
    assert len(begun) == 1


async def test_compressed_text_that_is_not_the_known_one_is_not_read(reading: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.log.1.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    known = known_of(path, 4, "gz")
    with path.open("r+b") as stream:
        stream.write(gzip.compress(b"other\ntext\n"))
    source = reading().open(path, 4, known=known)
    assert take(source) is None
    assert source.finished is not None
    assert (source.finished.kind, source.finished.position) == ("truncated", 4)


@pytest.mark.parametrize("how", ["cut off", "damaged"])
async def test_whole_lines_before_damage_are_taken_and_then_it_is_said(
    reading: Any, tmp_path: Path, clock: Any, how: str
) -> None:
    path = tmp_path / "a.log.1.gz"
    text = b"".join(b"%d %s\n" % (number, os.urandom(50).hex().encode()) for number in range(10_000))
    data = bytearray(gzip.compress(text))
    if how == "cut off":
        del data[len(data) // 2 :]
    else:
        data[-8] ^= 1  # the checksum
    path.write_bytes(data)
    reads = reading()
    source = reads.open(path, known=known_of(path, 0, "gz")._replace(size=0))
    lines = []
    while (taken := take(source)) is not None:
        lines += taken[1].splitlines(keepends=True)
    assert text.startswith(b"".join(lines))
    assert len(lines) > 3000
    assert take(source) is None
    assert source.finished is None, "it may be in the making"
    clock.now += 59
    assert take(source) is None
    assert source.finished is None, "an upload may pause"
    clock.now += 1
    assert take(source) is None
    assert source.finished is not None
    assert (source.finished.kind, source.finished.position) == ("damaged", len(b"".join(lines)))
    assert len(b"".join(lines)) <= source.finished.size <= len(text)


async def test_a_compressed_file_that_was_cut_off_long_ago_is_said_to_be_damaged_soon(
    reading: Any, tmp_path: Path, clock: Any
) -> None:
    path = tmp_path / "a.log.1.gz"
    path.write_bytes(gzip.compress(b"1\n2\n")[:-4])
    os.utime(path, (1, 1))
    source = reading().open(path, known=known_of(path, 0, "gz")._replace(size=0))
    taken = take(source)
    assert taken is not None
    assert taken[1] == b"1\n2\n"
    assert take(source) is None
    assert source.finished is None
    clock.now += 10
    assert take(source) is None
    assert source.finished == ended("damaged", path, 4, why=CUT_OFF)


async def test_a_compressed_file_that_was_cut_off_is_waited_for_since_it_was_written_to(
    reading: Any, tmp_path: Path, clock: Any
) -> None:
    """Not since a start: what is newer waits for it, and a daemon that starts each minute never went on."""
    path = tmp_path / "a.log.1.gz"
    path.write_bytes(gzip.compress(b"1\n2\n")[:-4])
    clock.now += 40
    source = reading().open(path, known=known_of(path, 0, "gz")._replace(size=0))
    assert take(source) is not None
    with structlog.testing.capture_logs() as logs:
        assert take(source) is None
        clock.now += 18
        assert take(source) is None
    assert source.finished is None
    (said,) = [entry for entry in logs if "waited for" in entry["event"]]
    assert (said["route"], said["file"], said["reason"]) == ("access", str(path), CUT_OFF)
    assert 15 <= said["seconds"] <= 20, "in a run with an end people wait, too"
    clock.now += 4
    assert take(source) is None
    assert source.finished == ended("damaged", path, 4, why=CUT_OFF)


async def test_a_compressed_file_in_the_making_is_read_as_it_grows(reading: Any, tmp_path: Path, clock: Any) -> None:
    path = tmp_path / "a.log.1.gz"
    text = b"".join(b"%d %s\n" % (number, os.urandom(50).hex().encode()) for number in range(10_000))
    data = gzip.compress(text)
    path.write_bytes(data[:200_000])
    source = reading().open(path, known=known_of(path, 0, "gz"), last=True)
    lines = b""
    for end in (200_001, 300_000, len(data)):
        while (taken := take(source)) is not None:
            lines += taken[1]
        clock.now += 9
        with path.open("ab") as stream:
            stream.write(data[stream.tell() : end])
        os.utime(path, ns=(end, end))
    while (taken := take(source)) is not None:
        lines += taken[1]
    assert lines == text
    assert source.finished is not None
    assert source.finished.kind == "concluded"


# Errors


async def test_a_file_whose_server_has_forgotten_it_is_an_error_of_read_alone(
    reading: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `unread` is asked between reads, where an error would take the whole worker down.
    append(tmp_path / "a.log", b"one\ntwo\n")
    source = reading().open(tmp_path / "a.log")
    assert source.unread == 8

    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as broken:
        broken.setattr(text_module.os, "fstat", stale)
        broken.setattr(text_module.os, "preadv", stale)
        assert source.unread == 8
        assert source.look()
        with pytest.raises(OSError, match="Stale"):
            take(source)
    assert source._text is None
    assert take(source)[1] == b"one\ntwo\n"


async def test_close_may_be_called_twice(reading: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"one\n")
    source = reading().open(tmp_path / "a.log")
    source.close()
    source.close()
