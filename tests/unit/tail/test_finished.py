"""Finished generations: which of those that were deleted are remembered."""

from __future__ import annotations

import pytest

from ingestd.tail import finished as finished_module
from ingestd.tail.finished import Finished
from ingestd.tail.log import Log

BUSY, QUIET = Log("/d/busy.log"), Log("/d/quiet.log")


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> Finished:
    """Three of a log, five of all, are remembered."""
    monkeypatch.setattr(finished_module, "_BURIED_OF_A_LOG_MOST", 3)
    monkeypatch.setattr(finished_module, "_BURIED_MOST", 5)
    return Finished()


def buried(finished: Finished, log: Log, *sources: str) -> list[str]:
    """What is forgotten for them."""
    return [oldest for source in sources for oldest, of in finished.bury(source, log)]


def test_of_one_log_the_last_are_remembered_and_all_of_another(finished: Finished) -> None:
    assert buried(finished, QUIET, "q1", "q2") == []
    assert buried(finished, BUSY, "b1", "b2", "b3", "b4", "b5") == ["b1", "b2"]
    assert buried(finished, BUSY, "b5") == []


def test_of_all_logs_the_last_are_remembered(finished: Finished) -> None:
    assert buried(finished, QUIET, "q1", "q2", "q3") == []
    assert buried(finished, BUSY, "b1", "b2", "b3") == ["q1"]


def test_what_was_forgotten_counts_no_more(finished: Finished) -> None:
    assert buried(finished, BUSY, "b1", "b2", "b3") == []
    finished.forget("b2")
    finished.forget("b2")
    assert buried(finished, BUSY, "b4") == []
    assert buried(finished, BUSY, "b5") == ["b1"]
