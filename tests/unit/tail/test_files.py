"""What the tails of one daemon share: whose a file is, who takes a path, and when all have looked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingestd.tail.file_id import FileId
from ingestd.tail.files import Files
from ingestd.tail.known import Known
from ingestd.tail.log import Log


class Tail:
    """A finder, as far as `Files` knows it."""

    def __init__(self, *names: str, leads_to: str = "", reads: str = "") -> None:
        self.names = names
        self.end_of_link = leads_to
        self.read = reads

    def matches(self, path: str) -> bool:
        return path in self.names

    def leads_to(self, path: str) -> bool:
        return path == self.end_of_link

    def reads(self, path: str) -> bool:
        return path == self.read


def tail(*names: str, leads_to: str = "", reads: str = "") -> Any:
    return Tail(*names, leads_to=leads_to, reads=reads)


@pytest.fixture
def files() -> Files:
    return Files()


def known(inode: int, handle: str = "", **more: Any) -> Known:
    return Known("/a.log", "/a.log", FileId(1, inode, handle=handle, volume="v" if handle else ""), **more)


def test_a_file_is_found_by_the_strongest_that_is_known_of_it(files: Files) -> None:
    log, finder = Log("/a.log"), tail()
    first = log.restore("first", 0, known(7, "01"))
    second = log.restore("second", 0, known(7, "02"))
    for generation in (first, second, second):
        files.note(finder, log, generation)
    found = files.find(FileId(1, 7, handle="02", volume="v"))
    assert found is not None
    assert (found.finder, found.log, found.generation) == (finder, log, second)
    assert files.find(FileId(1, 7, handle="03", volume="v")) is None
    assert files.find(FileId(1, 8)) is None


def test_what_is_stored_is_found_after_its_file_system_was_given_another_id(files: Files) -> None:
    log = Log("/a.log")
    stored = log.restore("stored", 0, known(7, "01"))
    files.note(tail(), log, stored)
    found = files.find(FileId(9, 7, handle="01", volume="another"))
    assert found is not None
    assert found.generation is stored


def test_a_generation_that_is_over_is_not_found(files: Files) -> None:
    log = Log("/a.log")
    generations = [log.restore(str(number), 0, known(7, f"{number:02}")) for number in range(2)]
    for generation in generations:
        files.note(tail(), log, generation)
    for generation in (*generations, generations[0]):
        files.drop(generation)
        assert files.find(generation.known.file) is None


def test_the_first_tail_that_matches_a_path_takes_it(files: Files) -> None:
    first, second = tail("/a"), tail("/a", "/b")
    files.enter(first)
    files.enter(second)
    assert files.taker("/a") is first
    assert files.taker("/b") is second
    assert files.taker("/c") is None
    assert not files.taken_before(first, "/a")
    assert not files.taken_before(second, "/b")
    assert files.taken_before(second, "/a")
    assert files.match("/b")
    assert not files.match("/c")


async def test_what_a_link_of_the_first_tail_leads_to_is_its_file(files: Files) -> None:
    """With /var/log/containers in one tail and /var/log/pods in the next, it went to whichever looked first."""
    first, second = tail("/containers/web.log", leads_to="/pods/web/0.log"), tail("/pods/web/0.log")
    files.enter(first)
    files.enter(second)
    assert files.taker("/pods/web/0.log") is first
    waiting = asyncio.create_task(files.led(second, 60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    await files.led(first, 60.0)
    await waiting


async def test_a_tail_whose_directories_do_not_answer_is_not_waited_for(files: Files) -> None:
    for each in (hanging := tail("/containers/web.log"), second := tail("/pods/web/0.log")):
        files.enter(each)
    await files.led(second, 0.01)
    assert files.taker("/containers/web.log") is hanging


def test_a_link_of_the_first_tail_to_what_another_one_reads_takes_nothing(files: Files) -> None:
    linked = tail("/containers/web.log", leads_to="/pods/web/0.log")
    reading = tail("/pods/web/0.log", reads="/pods/web/0.log")
    files.enter(linked)
    files.enter(reading)
    assert files.taker("/pods/web/0.log") is reading
    linked.read = "/pods/web/0.log"
    assert files.taker("/pods/web/0.log") is linked


def test_what_the_globs_of_the_first_tail_match_is_its_file_whoever_read_it_before(files: Files) -> None:
    first = tail("/a")
    files.enter(first)
    files.enter(tail("/a", reads="/a"))
    assert files.taker("/a") is first


async def test_nobody_goes_on_before_all_have_looked(files: Files) -> None:
    first, second = tail(), tail()
    files.enter(first)
    files.enter(second)
    waiting = asyncio.ensure_future(files.looked(first, 60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    await files.looked(second, 60.0)
    await waiting


async def test_one_that_hangs_is_not_waited_for_for_ever(files: Files) -> None:
    first = tail()
    files.enter(first)
    files.enter(tail())
    await asyncio.wait_for(files.looked(first, 0.01), 10)
