"""Awaited: files that may be written to."""

from __future__ import annotations

from ingestd.tail.awaited import Awaited
from ingestd.tail.facts import Place
from ingestd.tail.file_id import FileId
from ingestd.tail.files import Files
from ingestd.tail.log import Log
from ingestd.tail.route import TailRoute
from ingestd.tail.watches import Watches

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
