"""Content: where the last line of a file begins is found without reading much of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ingestd.tail import content
from ingestd.tail.content import last_line_start

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (b"", 0),
        (b"half", 0),
        (b"one\n", 4),
        (b"one\nhalf", 4),
        (b"\n" + b"x" * 4095, 1),
        (b"\n" + b"x" * 4096, 1),
        (b"one\n" + b"x" * 300_000, 4),
        (b"\n" + b"x" * (MIB - 1), 1),
        (b"\n" + b"x" * MIB, MIB + 1),
        (b"x" * MIB, 0),
        (b"x" * (MIB + 1), MIB + 1),
    ],
)
def test_the_last_line_begins_behind_the_last_newline_if_that_is_within_a_mebibyte(
    tmp_path: Path, text: bytes, start: int
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(text + b"written since\n")
    assert last_line_start(os.fspath(path), len(text)) == start


def test_little_is_read_where_lines_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A mebibyte of each of ten thousand files, when a tail began at their ends, held the supervisor up for longer
    # than systemd's watchdog bears.
    path = tmp_path / "a.log"
    path.write_bytes(b"%099d\n" % 0 * 20_000)
    asked = []
    pread = os.pread
    monkeypatch.setattr(content.os, "pread", lambda file, size, at: asked.append(size) or pread(file, size, at))
    assert last_line_start(os.fspath(path), 2_000_000) == 2_000_000
    assert sum(asked) <= 4096
