"""The judge of rotations: a line that had its time must be there, and only what a kill cut short may come twice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from harness.judge import START_SECONDS, Judge, Line, Run

if TYPE_CHECKING:
    from pathlib import Path


def judge_of(*lines: Line, runs: tuple[Run, ...] = ()) -> Judge:
    judge = Judge()
    judge.lines = {b"%s%d" % (line.log.encode(), line.number): line for line in lines}
    judge.runs = list(runs)
    return judge


def test_lines_that_stand_are_missing_until_they_are_there() -> None:
    judge = judge_of(Line("a", 0, 0, 0.0), Line("a", 0, 1, 0.0))
    assert [line.number for line in judge.verdict({0: [b"a0"]}).missing] == [1]
    judge.verdict({0: [b"a0"], 1: [b"a1"]}).check()


@pytest.mark.parametrize(
    ("removed", "missing"), [(14.9, 0), (15.1, 1)], ids=["before it stood long", "after it stood long"]
)
def test_a_line_removed_under_a_daemon_counts_once_it_stood_long_enough(removed: float, missing: int) -> None:
    judge = judge_of(Line("a", 0, 0, 10.0, removed), runs=(Run(0.0, 1.0),))
    assert len(judge.verdict({0: []}).missing) == missing


def test_a_line_that_stood_when_the_daemon_started_counts_soon_after_it_is_ready() -> None:
    runs = (Run(5.0, ready=6.0),)
    assert judge_of(Line("a", 0, 0, 1.0, removed=6.1 + START_SECONDS), runs=runs).verdict({0: []}).missing
    judge_of(Line("a", 0, 0, 1.0, removed=5.9 + START_SECONDS), runs=runs).verdict({0: []}).check()


def test_a_line_removed_while_no_daemon_ran_long_enough_does_not_count() -> None:
    runs = (Run(0.0, 1.0, ended=2.0), Run(20.0, 21.0))
    judge_of(Line("a", 0, 0, 1.5, removed=19.0), runs=runs).verdict({0: []}).check()


def test_a_line_that_comes_again_after_a_clean_stop_is_twice() -> None:
    runs = (Run(0.0, 1.0, ended=3.0), Run(4.0, 5.0))
    assert len(judge_of(Line("a", 0, 0, 2.0), runs=runs).verdict({0: [b"a0", b"a0"]}).twice) == 1


@pytest.mark.parametrize(("killed_at", "twice"), [(6.9, 0), (7.1, 1)], ids=["cut short", "long acknowledged"])
def test_a_line_may_come_again_for_each_kill_that_cut_it_short(killed_at: float, twice: int) -> None:
    runs = (Run(0.0, 1.0, ended=killed_at, killed=True), Run(8.0, 9.0))
    verdict = judge_of(Line("a", 0, 0, 2.0), runs=runs).verdict({0: [b"a0", b"a0"]})
    assert (len(verdict.twice), verdict.repeated) == (twice, 1 - twice)
    assert judge_of(Line("a", 0, 0, 2.0), runs=runs).verdict({0: [b"a0"] * 3}).twice


def test_what_workers_deliver_after_a_kill_may_come_again_and_need_not_come() -> None:
    runs = (Run(0.0, 1.0, ended=5.0, gone=8.0, killed=True), Run(9.0, 10.0))
    judge_of(Line("a", 0, 0, 7.0), runs=runs).verdict({0: [b"a0", b"a0"]}).check()
    judge_of(Line("a", 0, 0, 0.5, removed=7.5), runs=runs).verdict({0: []}).check()


def test_order_is_that_of_first_occurrences_within_a_generation_and_a_partition() -> None:
    lines = (Line("a", 0, 0, 0.0), Line("a", 0, 1, 0.0), Line("a", 1, 2, 0.0))
    assert [line.number for line in judge_of(*lines).verdict({0: [b"a1", b"a0", b"a2"]}).disordered] == [0]
    late = judge_of(*lines).verdict({0: [b"a0", b"a2", b"a1"]})
    late.check()
    assert late.overtaken == 1
    judge_of(*lines).verdict({0: [b"a1", b"a2"], 1: [b"a0"]}).check()


def test_a_record_that_nobody_wrote_is_foreign_unless_it_is_tolerated() -> None:
    judge = judge_of()
    assert judge.verdict({0: [b"half a li"]}).foreign == [b"half a li"]
    judge.tolerate(b"half a li")
    judge.verdict({0: [b"half a li", b"half a li"]}).check()


def test_lines_of_a_file_that_is_removed_are_removed(tmp_path: Path) -> None:
    judge = Judge()
    judge.wrote("a", 0, [b"one", b"two"])
    (tmp_path / "file").write_bytes(b"header\none\nhalf")
    judge.removing(tmp_path / "file")
    assert judge.lines[b"one"].removed <= time.monotonic()
    assert judge.standing == 1
