"""A file is found, copied and truncated, and only then opened: the copy has what was found, the file what came since.

Seen in the demo: its third rotation came so soon that the worker met only the copy, and followed it for ever.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

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
