"""What /metrics shows of what workers report: counters never fall, series of gone files disappear."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ingestd.daemon.metrics import Metrics
from ingestd.daemon.source import Loss
from ingestd.daemon.statistics import (
    ERROR_KINDS,
    LATENCY_BOUNDS,
    NOT_TAKEN,
    RouteCounters,
    SourceGauges,
    WorkerStatistics,
)
from ingestd.daemon.totals import Totals


def report(slot: int = 0, incarnation: int = 0, *, records: int = 0, sources: dict | None = None) -> WorkerStatistics:
    latency = [0] * (len(LATENCY_BOUNDS) + 1)
    latency[0], latency[-1] = records, 1
    counters = RouteCounters(
        bytes_read=records * 200,
        records=records,
        batches=1,
        uncompressed_bytes=records * 210,
        compressed_bytes=records * 70,
        records_acknowledged=records,
        bytes_acknowledged=records * 200,
        retries={"not_leader_or_follower": 2},
        errors={"vanished": 1},
        latency_counts=latency,
        latency_sum=40.0,
    )
    return WorkerStatistics(
        slot=slot,
        incarnation=incarnation,
        cpu_seconds=records / 1000,
        arena_pages=1024,
        arena_pages_used=3,
        routes={"access": counters},
        sources=sources or {},
    )


def gauges(label: str, unread: int = 7, position: int = 100) -> SourceGauges:
    return SourceGauges(label=label, unread=unread, position=position)


def samples(totals: Totals) -> dict[tuple, float]:
    _, body = Metrics(totals).exposition()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in parse_text(body.decode())
        for sample in family.samples
    }


def test_totals_add_up_over_workers() -> None:
    totals = Totals()
    totals.take(report(0, records=10))
    totals.take(report(1, records=5))
    shown = samples(totals)
    assert shown["ingestd_records_total", "access"] == 15
    assert shown["ingestd_read_bytes_total", "access"] == 3000
    assert shown["ingestd_produce_retries_total", "access", "not_leader_or_follower"] == 4
    assert shown["ingestd_compression_ratio", "access"] == 3
    assert shown["ingestd_worker_cpu_seconds_total", "1"] == 0.005
    assert shown["ingestd_arena_size_bytes", "0"] == 64 * 1024 * 1024
    assert shown["ingestd_arena_used_bytes", "0"] == 3 * 64 * 1024
    assert totals.routes()["access"].bytes_acknowledged == 3000
    assert totals.arena(0) == (64 * 1024 * 1024, 3 * 64 * 1024)
    assert totals.arena(7) == (0, 0)


def test_kinds_of_errors_are_there_from_the_start_at_zero() -> None:
    totals = Totals()
    totals.expect("access")
    shown = samples(totals)
    assert [shown["ingestd_errors_total", "access", kind] for kind in ERROR_KINDS] == [0, 0, 0, 0, 0]
    assert shown["ingestd_route_stopped", "access"] == 0
    totals.error("access", NOT_TAKEN)
    assert samples(totals)["ingestd_errors_total", "access", "not_taken"] == 1


def test_whether_a_cluster_answers_is_shown() -> None:
    totals = Totals()
    totals.reachable = {"main": False, "other": True}
    shown = samples(totals)
    assert shown["ingestd_cluster_reachable", "main"] == 0
    assert shown["ingestd_cluster_reachable", "other"] == 1


def test_a_route_that_stopped_is_shown_and_so_is_one_that_did_not() -> None:
    totals = Totals()
    totals.stopped = {"access": False, "errors": True}
    shown = samples(totals)
    assert shown["ingestd_route_stopped", "access"] == 0
    assert shown["ingestd_route_stopped", "errors"] == 1


def test_a_route_waits_as_long_as_the_worker_that_waits_longest() -> None:
    totals = Totals()
    totals.stopped = {"access": False, "errors": False}
    totals.take(WorkerStatistics(slot=0, incarnation=0, waiting={"access": 1.0, "errors": 0.0}))
    totals.take(WorkerStatistics(slot=1, incarnation=0, waiting={"access": 7.5, "errors": 0.0}))
    shown = samples(totals)
    assert shown["ingestd_route_waiting_seconds", "access"] == 7.5
    assert shown["ingestd_route_waiting_seconds", "errors"] == 0
    totals.worker_ended(1)
    assert totals.waiting() == {"access": 1.0, "errors": 0.0}


def test_a_routes_oldest_batch_is_that_of_the_worker_that_has_the_oldest() -> None:
    totals = Totals()
    totals.stopped = {"access": False}
    totals.take(WorkerStatistics(slot=0, incarnation=0, oldest={"access": 1.0}))
    totals.take(WorkerStatistics(slot=1, incarnation=0, oldest={"access": 90.5}))
    assert samples(totals)["ingestd_route_oldest_batch_seconds", "access"] == 90.5
    totals.worker_ended(1)
    assert totals.oldest() == {"access": 1.0}


def test_the_last_reason_to_send_again_is_known() -> None:
    totals = Totals()
    counts = {"not_leader_or_follower": 3}
    totals.take(WorkerStatistics(slot=0, incarnation=0, routes={"access": RouteCounters(retries=counts)}))
    assert totals.retried == {"access": "not_leader_or_follower"}
    later = counts | {"kafka_storage_error": 1}
    totals.take(WorkerStatistics(slot=0, incarnation=0, routes={"access": RouteCounters(retries=later)}))
    totals.take(WorkerStatistics(slot=0, incarnation=0, routes={"access": RouteCounters(retries=later)}))
    assert totals.retried == {"access": "kafka_storage_error"}


def test_a_newer_report_stands_in_place_of_the_last() -> None:
    totals = Totals()
    totals.take(report(records=10))
    totals.take(report(records=12))
    assert samples(totals)["ingestd_records_total", "access"] == 12


def test_no_counter_falls_when_a_worker_is_killed_and_restarted() -> None:
    totals = Totals()
    totals.worker_started(0)
    steps = [
        lambda: totals.take(report(0, 0, records=10)),
        lambda: totals.worker_ended(0),
        lambda: totals.worker_restarted(0),
        lambda: totals.take(WorkerStatistics(slot=0, incarnation=1)),
        lambda: totals.take(report(0, 1, records=3)),
        lambda: totals.worker_ended(0),
        lambda: totals.worker_restarted(0),
        lambda: totals.take(report(0, 2, records=1)),
        lambda: totals.take(report(0, 1, records=2)),
    ]
    before: dict[tuple, float] = {}
    for step in steps:
        step()
        after = samples(totals)
        for key, value in before.items():
            if key[0].endswith(("_total", "_bucket", "_count", "_sum")):
                assert after[key] >= value, key
        before = after
    assert before["ingestd_records_total", "access"] == 14
    assert before["ingestd_worker_restarts_total", "0"] == 2
    assert before["ingestd_worker_cpu_seconds_total", "0"] == pytest.approx(0.014)


def test_a_file_that_is_gone_has_no_series() -> None:
    totals = Totals()
    totals.take(report(sources={("access", "a"): gauges("/a"), ("access", "b"): gauges("/b")}))
    assert samples(totals)["ingestd_source_unread_bytes", "/b", "access"] == 7
    totals.take(report(sources={("access", "b"): None, ("access", "never shown"): None}))
    shown = samples(totals)
    assert ("ingestd_source_unread_bytes", "/a", "access") in shown
    assert not any("/b" in key for key in shown)


def test_the_files_of_a_dead_worker_have_no_series_even_if_its_last_report_comes_late() -> None:
    totals = Totals()
    totals.worker_started(0)
    totals.take(report(sources={("access", "a"): gauges("/a")}))
    totals.worker_ended(0)
    assert not any("/a" in key for key in samples(totals))
    totals.take(report(records=20, sources={("access", "a"): gauges("/a")}))
    shown = samples(totals)
    assert not any("/a" in key for key in shown)
    assert shown["ingestd_records_total", "access"] == 20
    assert shown["ingestd_arena_used_bytes", "0"] == 0


def test_two_sources_of_one_path_are_one_series() -> None:
    totals = Totals()
    totals.take(report(sources={("access", "old"): gauges("/a", 5, 100), ("access", "new"): gauges("/a", 3, 10)}))
    shown = samples(totals)
    assert shown["ingestd_source_unread_bytes", "/a", "access"] == 8
    assert shown["ingestd_source_position_bytes", "/a", "access"] == 100
    assert shown["ingestd_sources", "access"] == 2


def test_latency_buckets_are_cumulative() -> None:
    totals = Totals()
    totals.take(report(records=10))
    shown = samples(totals)
    assert shown["ingestd_produce_latency_seconds_bucket", "0.001", "access"] == 10
    assert shown["ingestd_produce_latency_seconds_bucket", "30.0", "access"] == 10
    assert shown["ingestd_produce_latency_seconds_bucket", "+Inf", "access"] == 11
    assert shown["ingestd_produce_latency_seconds_count", "access"] == 11
    assert shown["ingestd_produce_latency_seconds_sum", "access"] == 40


def test_errors_of_the_supervisor_count_too() -> None:
    totals = Totals()
    totals.take(report())
    totals.error("access", "unreadable")
    totals.error("access", "unreadable")
    shown = samples(totals)
    assert shown["ingestd_errors_total", "access", "unreadable"] == 2
    assert shown["ingestd_errors_total", "access", "vanished"] == 1


def test_losses_are_shown_at_zero_from_the_start_and_count_events_and_bytes() -> None:
    totals = Totals()
    totals.losses.expect("access", ("deleted", "truncated"))
    shown = samples(totals)
    assert {key: value for key, value in shown.items() if key[0].startswith("ingestd_lost")} == {
        ("ingestd_lost_events_total", "access", "deleted"): 0,
        ("ingestd_lost_events_total", "access", "truncated"): 0,
        ("ingestd_lost_bytes_total", "access", "deleted"): 0,
        ("ingestd_lost_bytes_total", "access", "truncated"): 0,
    }
    totals.losses.count("access", Loss("/a", "deleted", 100, 50, exact=True))
    totals.losses.count("access", Loss("/b", "deleted", 0, 7, exact=False))
    shown = samples(totals)
    assert shown["ingestd_lost_events_total", "access", "deleted"] == 2
    assert shown["ingestd_lost_bytes_total", "access", "deleted"] == 57
    assert shown["ingestd_lost_events_total", "access", "truncated"] == 0


def test_ready_and_alive_are_shown() -> None:
    totals = Totals()
    assert samples(totals)[("ingestd_ready",)] == 0
    totals.ready = True
    totals.worker_started(0)
    shown = samples(totals)
    assert shown[("ingestd_ready",)] == 1
    assert shown[("ingestd_workers_alive",)] == 1
    assert shown["ingestd_worker_restarts_total", "0"] == 0


def test_openmetrics_is_spoken_to_whom_asks_for_it() -> None:
    totals = Totals()
    totals.take(report(records=10, sources={("access", "a"): gauges('/odd "name"\n')}))
    content_type, body = Metrics(totals).exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(body.decode())} >= {"ingestd_records", "ingestd_build"}


@pytest.mark.peers
def test_promtool_is_content() -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is in Debian's package `prometheus`"
    totals = Totals()
    totals.worker_started(0)
    totals.take(report(records=10, sources={("access", "a"): gauges("/a")}))
    _, body = Metrics(totals).exposition()
    answer = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, check=False, timeout=60)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, b"", b"")


def test_a_report_without_sources_leaves_them_as_they_were() -> None:
    totals = Totals()
    totals.take(report(records=1, sources={("access", "a"): gauges("/a", unread=5)}))
    totals.take(report(records=2))
    shown = samples(totals)
    assert shown["ingestd_source_unread_bytes", "/a", "access"] == 5
    assert shown["ingestd_records_total", "access"] == 2
    totals.take(report(incarnation=1))
    assert not any("/a" in key for key in samples(totals))
