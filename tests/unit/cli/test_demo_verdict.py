"""The demo's verdict is good for what was written, and for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from accesslog import AccessLog
from demo import RotatedLog, compare

SIZE = 100_000


@pytest.fixture
def lines() -> list[bytes]:
    return b"".join(AccessLog().blocks(SIZE)).split(b"\n")[:-1]


@pytest.fixture
def log(lines: list[bytes]) -> RotatedLog:
    """A log of two files, cut in the middle."""
    return RotatedLog(Path("access.log"), SIZE, 1, lines=len(lines), generations=[0, len(lines) // 2])


def verdict_of(log: RotatedLog, *partitions: list[bytes]):
    return compare(log, iter([iter([partition]) for partition in partitions]))


def test_everything_in_order_is_good(log: RotatedLog, lines: list[bytes]) -> None:
    assert verdict_of(log, lines).good
    assert verdict_of(log, lines[::2], lines[1::2]).good


def test_files_may_be_interleaved_but_not_lines_of_a_file(log: RotatedLog, lines: list[bytes]) -> None:
    half = len(lines) // 2
    assert verdict_of(log, lines[half:] + lines[:half]).good
    swapped = [lines[1], lines[0], *lines[2:]]
    assert verdict_of(log, swapped).out_of_order == 1
    assert not verdict_of(log, swapped).good


def test_a_line_twice_is_told_and_is_good(log: RotatedLog, lines: list[bytes]) -> None:
    verdict = verdict_of(log, [*lines, lines[3]])
    assert (verdict.twice, verdict.good) == (1, True)


def test_a_line_that_was_sent_again_to_another_partition_says_nothing_of_order(
    log: RotatedLog, lines: list[bytes]
) -> None:
    """Partition 0 had the third line, when the worker died; of the second, nobody knows which one came first."""
    again = lines[1]
    verdict = verdict_of(log, [lines[0], lines[2], again, *lines[3:]], [again])
    assert (verdict.out_of_order, verdict.twice, verdict.missing, verdict.good) == (0, 1, 0, True)


def test_a_missing_line_is_not_good(log: RotatedLog, lines: list[bytes]) -> None:
    verdict = verdict_of(log, lines[1:])
    assert (verdict.missing, verdict.good) == (1, False)


def test_a_damaged_line_is_not_good(log: RotatedLog, lines: list[bytes]) -> None:
    verdict = verdict_of(log, [lines[0][:-1], *lines])
    assert (verdict.unknown, verdict.missing, verdict.good) == (1, 0, False)
