"""The access log of the demo, the tests and the benchmarks: the same for the same seed, every line unique."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from accesslog import AccessLog, parse_size, serial_of, write_log

if TYPE_CHECKING:
    from pathlib import Path


def test_equal_seeds_give_equal_bytes_whatever_the_sizes_asked_for() -> None:
    whole = b"".join(AccessLog(7).blocks(700_000))
    pieces = AccessLog(7)
    assert b"".join(b"".join(pieces.blocks(size)) for size in (1, 1000, 300_000, 250_000))[:500_000] == whole[:500_000]


def test_different_seeds_give_different_lines() -> None:
    assert AccessLog(1).block() != AccessLog(2).block()


def test_lines_are_counted_and_numbered_from_zero() -> None:
    log = AccessLog()
    lines = b"".join(log.blocks(500_000)).splitlines()
    assert log.lines == len(lines)
    assert [serial_of(line) for line in lines] == list(range(len(lines)))


def test_a_log_ends_with_a_whole_line_just_past_the_size(tmp_path: Path) -> None:
    lines = write_log(tmp_path / "access.log", 100_000)
    content = (tmp_path / "access.log").read_bytes()
    assert content.endswith(b"\n")
    assert content.count(b"\n") == lines
    assert 100_000 <= len(content) < 100_500


def test_a_line_is_about_200_bytes() -> None:
    block = AccessLog().block()
    assert 180 < len(block) / block.count(b"\n") < 220


@pytest.mark.parametrize(
    ("text", "size"), [("17", 17), ("64kB", 64_000), ("200MB", 200_000_000), ("1.5GB", 1_500_000_000)]
)
def test_sizes_are_powers_of_ten(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_a_size_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'many'"):
        parse_size("many")
