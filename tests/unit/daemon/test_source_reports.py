"""Source reports: what is told of a source is told once."""

from types import SimpleNamespace

import pytest

from ingestd.daemon.lane import LaneQueue, OpenSource
from ingestd.daemon.progress import Progress
from ingestd.daemon.source import Assignment, Found, Lane
from ingestd.daemon.source_reports import SourceReports
from ingestd.daemon.statistics import SourceGauges


@pytest.fixture
def sources():
    """Two open sources, by name."""
    return {
        name: OpenSource(
            Assignment("r", Found(name, 10, {}, label=f"/{name}"), 1), Progress(10), LaneQueue(Lane()),
            SimpleNamespace(unread=5),
        )
        for name in ("a", "b")
    }  # fmt: skip


def test_only_what_changed_is_told(sources):
    # Thousands of quiet sources, told anew with each change of any, held the supervisor's loop up.
    reports = SourceReports("r")
    for held in sources.values():
        reports.touch(held)
    assert reports.gauges(sources) == {name: SourceGauges(f"/{name}", 5, 10) for name in ("a", "b")}
    reports.touch(sources["a"])
    reports.touch(sources["b"])
    sources["b"].source.unread = 0
    assert reports.gauges(sources) == {"b": SourceGauges("/b", 0, 10)}
    assert reports.gauges(sources) == {}


def test_what_is_not_open_any_more_is_told_as_gone_and_anew_when_it_is_back(sources):
    reports = SourceReports("r")
    gone = sources.pop("a")
    reports.touch(gone)
    reports.gauges({"a": gone})
    reports.drop(gone)
    assert reports.gauges(sources) == {"a": None}
    reports.touch(gone)
    assert reports.gauges({"a": gone}) == {"a": SourceGauges("/a", 5, 10)}
