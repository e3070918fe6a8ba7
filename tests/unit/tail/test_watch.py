"""One inotify descriptor says of many things what changed, each once a wake-up, and stops when it is told to."""

from __future__ import annotations

import asyncio
import os
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.tail import watch
from ingestd.tail.watch import (
    CREATED,
    DELETED,
    DIRECTORY_EVENTS,
    FILE_EVENTS,
    IS_DIRECTORY,
    MOVED_FROM,
    MOVED_TO,
    OVERFLOW,
    WRITTEN,
    Event,
    EventStream,
    Inotify,
    WatchLimit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from pathlib import Path


class Heard:
    """What was called, and the wait for it."""

    def __init__(self, pause: float) -> None:
        self.calls: list[tuple[Hashable, int]] = []
        self.news = asyncio.Event()
        self.inotify = Inotify(self.changed, pause=pause)

    def changed(self, key: Hashable, events: int) -> None:
        self.calls.append((key, events))
        self.news.set()

    async def wait(self) -> list[tuple[Hashable, int]]:
        await asyncio.wait_for(self.news.wait(), 10.0)
        self.news.clear()
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def hear() -> Iterator[Callable[..., Heard]]:
    made = []

    def make(pause: float = 0.0) -> Heard:
        made.append(Heard(pause))
        return made[-1]

    yield make
    for heard in made:
        heard.inotify.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.log"
    path.write_text("one\n")
    return path


def beside(path: Path) -> Path:
    other = path.with_name("b.log")
    other.touch()
    return other


def append(path: Path, text: str = "more\n") -> None:
    with path.open("a") as stream:
        stream.write(text)


async def test_it_is_silent_until_something_happens_and_once_that_is_told(
    hear: Callable[..., Heard], tmp_path: Path
) -> None:
    heard = hear()
    heard.inotify.add("directory", str(tmp_path), DIRECTORY_EVENTS)
    assert heard.inotify.silent
    (tmp_path / "a").write_text("a")
    assert not heard.inotify.silent
    assert not heard.calls
    heard.inotify.drain()
    assert heard.inotify.silent
    assert heard.calls


async def test_many_writes_are_one_call(hear: Any, file: Path) -> None:
    heard = hear()
    heard.inotify.add("a", os.fspath(file), FILE_EVENTS)
    for _ in range(100):
        append(file)
    assert await heard.wait() == [("a", WRITTEN)]


async def test_while_it_pauses_it_gathers(hear: Any, file: Path) -> None:
    heard = hear(0.02)
    heard.inotify.add("a", os.fspath(file), FILE_EVENTS)
    append(file)
    await heard.wait()
    goes_on = heard.inotify._resume.when()
    append(file)
    await asyncio.sleep(0.005)
    append(file)
    assert heard.calls == [] or asyncio.get_running_loop().time() >= goes_on
    assert await heard.wait() == [("a", WRITTEN)]


async def test_renamed_and_deleted_are_told_apart_from_written(hear: Any, file: Path, tmp_path: Path) -> None:
    heard = hear()
    heard.inotify.add("a", os.fspath(file), FILE_EVENTS)
    os.rename(file, tmp_path / "b.log")  # noqa: PTH104 - the rule of asyncio knows Path only
    ((_, events),) = await heard.wait()
    assert events != WRITTEN
    (tmp_path / "b.log").unlink()
    await heard.wait()
    assert "a" not in heard.inotify, "the kernel drops the watch of a file that is gone"


async def test_a_file_watched_for_two_keys_is_watched_until_the_second_is_dropped(hear: Any, file: Path) -> None:
    # The old source of a truncated file and the new one stand on the same inode for a moment.
    heard = hear()
    heard.inotify.add("old", os.fspath(file), FILE_EVENTS)
    heard.inotify.add("new", os.fspath(file), FILE_EVENTS)
    append(file)
    assert sorted(await heard.wait()) == [("new", WRITTEN), ("old", WRITTEN)]
    heard.inotify.drop("old")
    heard.inotify.drop("old")
    append(file)
    assert await heard.wait() == [("new", WRITTEN)]


async def test_a_key_moves_to_another_file(hear: Any, file: Path) -> None:
    heard = hear()
    other = beside(file)
    heard.inotify.add("a", os.fspath(file), FILE_EVENTS)
    heard.inotify.add("a", os.fspath(other), FILE_EVENTS)
    append(file)
    append(other)
    assert await heard.wait() == [("a", WRITTEN)]
    assert heard.inotify.keys == {"a"}


async def test_a_directory_tells_of_names_that_come_and_go_and_not_of_writes(hear: Any, file: Path) -> None:
    heard = hear()
    heard.inotify.add("directory", os.fspath(file.parent), DIRECTORY_EVENTS)
    append(file)
    beside(file)
    await heard.wait()
    for _ in range(3):
        append(file)
        await asyncio.sleep(0)
    assert heard.calls == []


async def test_when_the_kernel_lost_events_everything_is_told(
    hear: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = hear()
    other = beside(file)
    heard.inotify.add("a", os.fspath(file), FILE_EVENTS)
    heard.inotify.add("b", os.fspath(other), FILE_EVENTS)

    def overflowed(descriptor: int, size: int) -> bytes:
        os.read(descriptor, size)
        return struct.pack("iIII", -1, OVERFLOW, 0, 0)

    monkeypatch.setattr(watch, "os", SimpleNamespace(read=overflowed, close=os.close))
    append(file)
    assert sorted(await heard.wait()) == [("a", OVERFLOW), ("b", OVERFLOW)]


async def test_a_path_that_is_not_there_is_an_ordinary_error(hear: Any, tmp_path: Path) -> None:
    heard = hear()
    with pytest.raises(FileNotFoundError):
        heard.inotify.add("a", os.fspath(tmp_path / "none"), FILE_EVENTS)


async def test_a_limit_of_the_kernel_is_a_watch_limit(hear: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = hear()
    monkeypatch.setattr("ctypes.get_errno", lambda: 28)
    with pytest.raises(WatchLimit):
        heard.inotify.add("a", os.fspath(file.parent / "none"), FILE_EVENTS)


async def test_nothing_is_called_after_close(hear: Any, file: Path) -> None:
    heard = hear(0.001)
    heard.inotify.add("a", os.fspath(file), FILE_EVENTS)
    append(file)
    await heard.wait()
    append(file)
    heard.inotify.close()
    heard.inotify.close()
    heard.inotify.drop("a")
    await asyncio.sleep(0.005)
    assert heard.calls == []


# A stream of events


class Listened:
    """What a stream told, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[list[Event]] = []
        self.stream = EventStream(self.heard, pause=0.0)

    def heard(self, events: list[Event]) -> None:
        self.batches.append(events)

    @property
    def events(self) -> list[Event]:
        self.stream.drain()
        batches, self.batches = self.batches, []
        return [event for batch in batches for event in batch]


@pytest.fixture
def listened() -> Iterator[Callable[[], Listened]]:
    made = []

    def make() -> Listened:
        made.append(Listened())
        return made[-1]

    yield make
    for each in made:
        each.stream.close()


async def test_a_stream_tells_every_event_of_a_directory_in_order(listened: Any, tmp_path: Path) -> None:
    told = listened()
    told.stream.add("d", os.fspath(tmp_path), DIRECTORY_EVENTS)
    (tmp_path / "a").touch()
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "b").unlink()
    (tmp_path / "sub").mkdir()
    events = told.events
    assert [(event.key, event.mask, event.name) for event in events] == [
        ("d", CREATED, "a"),
        ("d", MOVED_FROM, "a"),
        ("d", MOVED_TO, "b"),
        ("d", DELETED, "b"),
        ("d", CREATED | IS_DIRECTORY, "sub"),
    ]
    assert events[1].cookie == events[2].cookie != 0


async def test_the_two_sides_of_a_rename_between_directories_have_one_cookie(listened: Any, tmp_path: Path) -> None:
    told = listened()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        told.stream.add(name, os.fspath(tmp_path / name), DIRECTORY_EVENTS)
    (tmp_path / "one" / "a").touch()
    (tmp_path / "one" / "a").rename(tmp_path / "two" / "b")
    _, left, came = told.events
    assert (left.key, left.mask, left.name) == ("one", MOVED_FROM, "a")
    assert (came.key, came.mask, came.name) == ("two", MOVED_TO, "b")
    assert left.cookie == came.cookie


async def test_what_a_watch_tells_before_its_key_is_registered_is_kept(listened: Any, tmp_path: Path) -> None:
    told = listened()
    watch_of = told.stream.watch(os.fspath(tmp_path), DIRECTORY_EVENTS)
    (tmp_path / "a").touch()
    assert told.events == []
    told.stream.register("d", watch_of)
    told.stream.replay()
    assert told.events == [Event("d", CREATED, 0, "a")]
    told.stream.replay()
    assert told.events == []


async def test_more_of_that_than_is_kept_is_an_overflow(
    listened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_STRANGE_MOST", 10)
    told = listened()
    told.stream.watch(os.fspath(tmp_path), DIRECTORY_EVENTS)
    for number in range(11):
        (tmp_path / str(number)).touch()
    assert told.events == [Event(None, OVERFLOW, 0, "")]


async def test_a_stream_tells_once_that_the_kernel_lost_events(
    listened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = listened()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        told.stream.add(name, os.fspath(tmp_path / name), DIRECTORY_EVENTS)
    (tmp_path / "one" / "a").touch()
    read = iter([struct.pack("iIII", -1, OVERFLOW, 0, 0)])

    def none_left(*_: int) -> bytes:
        try:
            return next(read)
        except StopIteration:
            raise BlockingIOError from None

    with monkeypatch.context() as overflowing:
        overflowing.setattr(watch, "os", SimpleNamespace(read=none_left, close=os.close))
        assert told.events == [Event(None, OVERFLOW, 0, "")]


async def test_a_directory_that_goes_is_told_and_watched_no_more(listened: Any, tmp_path: Path) -> None:
    told = listened()
    (tmp_path / "sub").mkdir()
    told.stream.add("sub", os.fspath(tmp_path / "sub"), DIRECTORY_EVENTS)
    (tmp_path / "sub").rmdir()
    assert {event.name for event in told.events} == {""}
    assert "sub" not in told.stream
    assert told.stream.keys == frozenset()


async def test_a_file_is_no_directory_to_watch(listened: Any, file: Path) -> None:
    with pytest.raises(NotADirectoryError):
        listened().stream.add("a", os.fspath(file), DIRECTORY_EVENTS)
