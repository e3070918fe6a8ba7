"""Content: where text and its last line begin is found without reading much of a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ingestd.tail import content
from ingestd.tail.content import HEAD_BYTES, last_line_start, not_text, text_start

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
    with path.open("rb") as file:
        assert last_line_start(file.fileno(), len(text)) == start


def test_little_is_read_where_lines_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A mebibyte of each of ten thousand files, when a tail began at their ends, held the supervisor up for longer
    # than systemd's watchdog bears.
    path = tmp_path / "a.log"
    path.write_bytes(b"%099d\n" % 0 * 20_000)
    asked = []
    pread = os.pread
    monkeypatch.setattr(content.os, "pread", lambda file, size, at: asked.append(size) or pread(file, size, at))
    with path.open("rb") as file:
        assert last_line_start(file.fileno(), 2_000_000) == 2_000_000
    assert sum(asked) <= 4096


@pytest.mark.parametrize("before", [0, 1, 1023, 1024, 4096, 65536, 200_000])
@pytest.mark.parametrize("text", [b"line\n", b"x" * 5000, b""])
def test_text_begins_behind_the_nul_bytes_that_a_truncation_left(tmp_path: Path, before: int, text: bytes) -> None:
    for name, written in (("hole", b""), ("written", bytes(before))):
        path = tmp_path / name
        with path.open("wb") as file:
            file.write(written)
            file.seek(before)
            file.write(text)
            file.truncate()
        with path.open("rb") as file:
            start = text_start(file.fileno(), file.read(HEAD_BYTES))
        assert start in ({before} if text or before < HEAD_BYTES else {0, before}), "0 if all of it is a hole"


@pytest.mark.parametrize(
    ("head", "wrong"),
    [
        (b"line\n", None),
        (b"", None),
        (b"\0\0line\n", None),
        (b"li\0ne\n", "holds NUL bytes"),
        (b"\0li\0ne\n", "holds NUL bytes"),
        (b"\x1f\x8b\x08", "compressed, but not called so: give its name the ending .gz "),
        (b"\x28\xb5\x2f\xfd", "compressed, but not called so: give its name the ending .zst "),
        (b"PK\x03\x04", "an archive of zip"),
    ],
)
def test_what_is_not_text_is_told_from_its_head(head: bytes, wrong: str | None) -> None:
    assert (not_text(head) or "").startswith(wrong or "")
    assert (not_text(head) is None) is (wrong is None)
