"""The demo's verdict is good where all that was written arrived and was mirrored, and for nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accesslog import AccessLog
from demo import Outcome, RotatedLog, Verdict, compare, progress_of

from ingestd.mirror.comparison import Difference
from ingestd.mirror.verify import PartitionVerdict, Verification

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


# The mirror


def outcome_of(*partitions: PartitionVerdict, found: int = 10) -> Outcome:
    """All is well in east, which has ten records."""
    return Outcome(Verdict(expected=10, found=found), Verification("east-to-west", partitions))


def copied(number: int, records: int, **more: Any) -> PartitionVerdict:
    return PartitionVerdict("access", "east.access", number, records, records, **more)


def test_all_records_mirrored_is_good() -> None:
    assert outcome_of(copied(0, 7), copied(1, 3)).good


def test_a_record_that_was_mirrored_twice_is_good() -> None:
    assert outcome_of(copied(0, 7, duplicates=2), copied(1, 3)).good


@pytest.mark.parametrize("what", ["missing", "extra", "order", "value"])
def test_a_record_that_differs_is_not_good(what: str) -> None:
    outcome = outcome_of(copied(0, 7), copied(1, 3, difference=Difference(what, 2, 2)))
    assert (outcome.lines.good, outcome.mirrored, outcome.good) == (True, False, False)


def test_a_partition_that_could_not_be_compared_is_not_good() -> None:
    assert not outcome_of(copied(0, 7), copied(1, 3, problem="no answer")).good


def test_a_comparison_of_fewer_records_than_were_read_is_not_good() -> None:
    """A mirror that begins late, or a partition that it never found, is no difference to `ingestd mirror verify`."""
    assert not outcome_of(copied(0, 7)).good
    assert not outcome_of().good


def test_a_good_mirror_of_a_damaged_log_is_not_good() -> None:
    outcome = Outcome(Verdict(expected=10, found=10, missing=1), Verification("east-to-west", [copied(0, 10)]))
    assert (outcome.mirrored, outcome.good) == (True, False)


# When all is done


def status_of(*lags: int | None, pid: int | None = 1, unread: int = 0) -> dict[str, Any]:
    return {
        "workers": [{"pid": pid, "arena_bytes": 1}],
        "routes": [
            {"name": "access", "records": 5, "sources": [{"path": "/gone", "unread": unread, "position": 9}]},
            {"name": "east-to-west", "records": 4, "sources": [{"lag": lag} for lag in lags]},
        ],
    }


def test_done_is_what_leaves_nothing_to_tail_and_nothing_to_mirror() -> None:
    progress = progress_of(status_of(0, 0))
    assert (progress.tailed, progress.mirrored, progress.done) == (5, 4, True)
    assert not progress_of(status_of(0, 0, unread=1)).done
    assert not progress_of(status_of(0, 3)).done


def test_a_partition_that_was_not_found_yet_or_was_never_fetched_is_not_done() -> None:
    assert not progress_of(status_of()).done
    assert not progress_of(status_of(0)).done
    assert not progress_of(status_of(0, None)).done


def test_while_a_worker_is_started_again_nothing_is_done() -> None:
    assert not progress_of(status_of(0, 0, pid=None)).done
