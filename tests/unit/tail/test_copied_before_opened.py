"""A file is found, copied and truncated, and only then opened: the copy has what was found, the file what came since.

Seen in the demo: its third rotation came so soon that the worker met only the copy, and followed it for ever.
"""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.daemon.source import Assignment
from ingestd.tail.opener import TailOpener

if TYPE_CHECKING:
    from pathlib import Path

    from ingestd.daemon.source import Found


async def test_the_copy_is_read_to_its_end_and_then_the_file_anew(follow: Any, tmp_path: Path) -> None:
    follower = follow()
    log, copy = tmp_path / "a.log", tmp_path / "a.log.1"
    log.write_bytes(b"one\n" * 300)
    found: list[Found] = []
    await follower.finder.scan(SimpleNamespace(appeared=found.append, trouble=follower.trouble))
    copy.write_bytes(log.read_bytes())
    log.write_bytes(b"two\n" * 100)
    (assigned,) = found
    follower.appeared(assigned)
    await follower.settle()
    assert follower.texts == [b"one"] * 300 + [b"two"] * 100
    assert follower.ended[assigned.source] == f"truncated, its copy {copy}, read to 1200"


async def read_into_the_copy(follower: Any, tmp_path: Path) -> tuple[str, Path, list[bytes]]:
    """A file is truncated before it is opened, and its copy read and acknowledged in part: source, copy, its lines."""
    log, copy = tmp_path / "a.log", tmp_path / "a.log.1"
    lines = [b"%05d" % number for number in range(30_000)]
    log.write_bytes(b"\n".join(lines) + b"\n")
    await follower.scan()
    (source,) = follower.sources
    copy.write_bytes(log.read_bytes())
    log.write_bytes(b"two\n" * 100)
    assert follower.read(source, 65536)
    follower.acknowledge(source)
    return source, copy, lines


@pytest.mark.parametrize("globs", ["*.log", "*.log*"])
async def test_a_worker_that_dies_within_the_copy_is_followed_by_one_that_reads_it_to_its_end(
    follow: Any, tmp_path: Path, globs: str
) -> None:
    # The successor gets the copy with its position. Were it a file as any other, the truncated one, which the finder
    # takes for what is being read, would never be read again.
    follower = follow(globs)
    source, copy, lines = await read_into_the_copy(follower, tmp_path)
    assert follower.stored[source].detail["path"] == str(copy)
    follower.restart_worker()
    await follower.settle()
    assert follower.texts == lines + [b"two"] * 100
    assert follower.ended[source] == f"truncated, its copy {copy}, read to 180000"


async def test_a_daemon_that_stops_within_the_copy_reads_it_to_its_end_at_its_next_start(
    follow: Any, tmp_path: Path
) -> None:
    follower = follow("*.log*")
    source, copy, lines = await read_into_the_copy(follower, tmp_path)
    follower.restart()
    await follower.settle()
    assert sorted(follower.texts) == lines + [b"two"] * 100
    assert follower.ended[source] == f"truncated, its copy {copy}, read to 180000"


async def test_a_file_truncated_between_its_check_and_its_first_look_is_opened_again(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing of its content would be there to compare with, and the new one be read from the old one's position on.
    follower = follow()
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n" * 300)
    await follower.settle()
    (source,) = follower.sources
    known = TailOpener._open_known

    def late(opener: TailOpener, *arguments: Any) -> int | None:
        descriptor = known(opener, *arguments)
        os.truncate(log, 0)
        return descriptor

    with monkeypatch.context() as truncated:
        truncated.setattr(TailOpener, "_open_known", late)
        with pytest.raises(OSError, match="changed while it was opened"):
            follower.restart_worker()
    follower.sources[source] = follower.opener.open(
        Assignment("access", replace(follower.found[0], position=1200, detail=follower.stored[source].detail), 3)
    )
    log.write_bytes(b"two\n" * 400)
    await follower.settle()
    assert follower.texts == [b"one"] * 300 + [b"two"] * 400
