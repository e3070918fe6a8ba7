"""Awaited: files that may be written to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ingestd.tail.awaited import Awaited
from ingestd.tail.facts import Place
from ingestd.tail.file_id import FileId
from ingestd.tail.files import Files
from ingestd.tail.log import Log
from ingestd.tail.looks import Looks
from ingestd.tail.route import TailRoute
from ingestd.tail.watches import Watches

if TYPE_CHECKING:
    from pathlib import Path

PATH = "/d/app.log"
ROUTE = TailRoute("t", (PATH,), "c", "t")


def test_of_two_files_that_should_be_at_one_path_the_missing_one_is_told() -> None:
    """One was renamed to where the other one was, which nobody saw go."""
    awaited = Awaited(Watches(ROUTE, lambda: None), Files())
    log, other = Log(PATH), Log("/d/web.log")
    gone, here = (Place(PATH, FileId(1, inode, inode, f"{inode:x}", "1"), 0, 100) for inode in (7, 8))
    awaited.hold(log, gone, 0.0)
    awaited.hold(other, here, 0.0)
    assert [awaited.expect(file) for file in awaited] == [(log, PATH), (other, PATH)]
    assert awaited.missed(PATH, here.file) is log
    assert awaited.missed(PATH, None) is None, "it was asked already"


async def test_a_file_that_is_as_long_again_before_it_is_watched_has_changed(tmp_path: Path) -> None:
    """It was truncated, and another line of the same length was written."""
    log = tmp_path / "app.log"
    log.write_bytes(b"one\n")
    watches = Watches(ROUTE, lambda: None)
    watches.open()
    try:
        seen = Looks().look(str(log)).place
        assert seen is not None
        assert watches.file(seen)
        log.write_bytes(b"two\n")
        os.utime(log, ns=(0, seen.modified + 1))
        assert not watches.file(seen)
        assert watches.file(seen._replace(modified=seen.modified + 1))
    finally:
        watches.close()
