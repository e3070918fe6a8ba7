"""What `ingestd run` shows while it runs and says at its end."""

from __future__ import annotations

import pytest
from rich.console import Console

from ingestd.cli.live_table import LiveTable
from ingestd.cli.main import main
from ingestd.cli.run import ran_well, spark_settings, summary_lines
from ingestd.daemon.source import Words
from ingestd.daemon.status import ClusterStatus, DaemonStatus, RouteStatus, SourceStatus
from ingestd.daemon.summary import RouteSummary, Summary
from ingestd.errors import ConfigurationError
from ingestd.figures import in_bytes, in_count, in_rate


def status(records: int, *, unread: int = 0, error: str | None = None) -> DaemonStatus:
    source = SourceStatus("id", "/a", unread, records * 200)
    route = RouteStatus("access", "local", "t", records, records * 200 + 50, records * 200, {}, [source])
    return DaemonStatus("1", 1, 1.0, True, [], [route], [ClusterStatus("local", True, [], error)])


def shown(live: LiveTable) -> str:
    console = Console(width=120, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(live.table)
    return capture.get()


FILES = Words("file", "line", "file")


def test_the_live_table_shows_lines_rate_and_lag() -> None:
    live = LiveTable()
    live.take(status(0), now=10.0)
    live.take(status(500_000, unread=1950), now=12.0)
    header, row = shown(live).splitlines()[:2]
    assert header.split() == ["route", "sources", "records", "bytes", "rate", "lag", "errors"]
    assert row.split() == ["access", "1", "500,000", "100", "MB", "50.0", "MB/s", "2.0", "kB"]


def test_the_live_table_shows_what_is_wrong_with_a_cluster() -> None:
    live = LiveTable()
    live.take(status(0, error="no broker answers"))
    assert "local: no broker answers" in shown(live)


def test_a_summary_has_a_line_a_route_and_the_cost() -> None:
    summary = Summary((RouteSummary("access", FILES, 3, 1000, 2 * 10**9, 10**9),), 4.0, 1.5, 0)
    assert summary_lines(summary) == [
        "access  3 files, 1,000 lines, 2.0 GB, 1.0 GB sent",
        "4.00 s (500 MB/s), 1.50 CPU seconds, 0.75 for each GB",
    ]
    assert ran_well(summary, once=True)


def test_a_small_run_has_no_cost_for_a_gigabyte_that_it_did_not_move() -> None:
    """`10.07 s (4.96 MB/s), 0.61 CPU seconds (12.18 per GB)`: most of that was the start."""
    summary = Summary((RouteSummary("access", FILES, 1, 1000, 50_000_000, 0, helped_bytes=31_000_000),), 10.0, 0.61, 0)
    assert summary_lines(summary) == [
        "access  1 file, 1,000 lines, 50.0 MB, 62% encoded by idle workers",
        "10.00 s (5.0 MB/s), 0.61 CPU seconds",
    ]


def test_what_failed_is_said_and_is_no_success() -> None:
    summary = Summary((RouteSummary("access", FILES, 1, 0, 0, 0, "MESSAGE_TOO_LARGE"),), 1.0, 0.1, 0, ("local: gone",))
    lines = summary_lines(summary)
    assert "access  stopped: MESSAGE_TOO_LARGE" in lines
    assert "failed: local: gone" in lines
    assert not ran_well(summary, once=False)


def test_lines_left_behind_fail_a_run_with_an_end_but_not_a_stopped_daemon() -> None:
    summary = Summary((RouteSummary("access", FILES, 1, 0, 0, 0),), 1.0, 0.1, 1)
    assert "sources with records not acknowledged, which are read again next time: 1" in summary_lines(summary)
    assert not ran_well(summary, once=True)
    assert ran_well(summary, once=False)


def test_bytes_left_behind_are_said_by_route() -> None:
    route = RouteSummary("access", FILES, 5, 0, 0, 0, unacknowledged_sources=2, unacknowledged_bytes=15_200)
    lines = summary_lines(Summary((route,), 1.0, 0.1, 2))
    assert "access  not acknowledged: 15.2 kB of 2 files, read and sent again at the next start" in lines


def test_figures_have_three_digits_or_four() -> None:
    assert [in_bytes(size) for size in (0, 999, 1000, 1500, 99_940, 999_600, 2.5e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.5 kB",
        "99.9 kB",
        "1.0 MB",
        "2.5 TB",
    ]
    assert in_rate(100, 0) == "-"
    assert in_rate(3e6, 2) == "1.5 MB/s"
    assert in_count(2540000) == "2,540,000"
    assert [in_count(number, "file") for number in (0, 1, 2000)] == ["0 files", "1 file", "2,000 files"]


def test_settings_of_spark_are_names_and_values() -> None:
    given = ["spark.a=1", "spark.b=x=y", "spark.c="]
    assert spark_settings(given) == {"spark.a": "1", "spark.b": "x=y", "spark.c": ""}
    for wrong in ("spark.a", "executor.memory=1g", "=1", ""):
        with pytest.raises(ConfigurationError, match=f"--conf {wrong}: expected spark.NAME=VALUE"):
            spark_settings([wrong])


@pytest.mark.parametrize("option", [["--master", "local[2]"], ["--conf", "spark.a=1"]])
def test_what_is_for_spark_is_refused_without_it(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *option, __file__]) == 2
    assert "--master and --conf are for --engine spark" in capsys.readouterr().err
