"""Reach: a cluster that does not answer is said once, with the last reason, seldom again, and so is its return."""

from __future__ import annotations

import pytest
import structlog

from ingestd.daemon.reach import BETWEEN_WARNINGS, OUTAGE, REPEAT, SILENCE, Reach

REFUSED = "kafka-1:9092: Connection refused"
UNRESOLVED = "kafka-1: Name or service not known"


@pytest.fixture
def said():
    with structlog.testing.capture_logs() as events:
        yield events


def reach(now: float = 100.0) -> Reach:
    return Reach(["kafka-1:9092"], structlog.get_logger(), now)


def test_a_cluster_that_does_not_answer_is_said_with_its_addresses_and_the_last_reason_once(said):
    cluster = reach()
    cluster.failed(UNRESOLVED, 101.0)
    assert not said
    for second in range(60):
        cluster.failed(REFUSED, 100.0 + SILENCE + second)
    assert said == [
        {
            "event": "cluster does not answer",
            "log_level": "warning",
            "bootstrap": ["kafka-1:9092"],
            "reason": REFUSED,
            "silent_seconds": SILENCE,
        }
    ]
    assert cluster.reason == REFUSED
    assert not cluster.reachable


def test_its_return_is_said_with_how_long_it_took_and_only_if_its_silence_was(said):
    cluster = reach()
    cluster.answered(101.0)
    cluster.failed(REFUSED, 102.0)
    cluster.answered(103.0)
    assert not said
    assert cluster.reachable
    cluster.failed(REFUSED, 110.0)
    assert cluster.silent_for(111.0) == 8.0
    cluster.answered(123.5)
    cluster.answered(124.0)
    assert said[1:] == [
        {"event": "cluster answers again", "log_level": "info", "silent_seconds": 20.5, "reason": REFUSED}
    ]
    assert (cluster.reachable, cluster.reason, cluster.silent_for(200.0)) == (True, None, 0.0)


def test_an_outage_soon_after_another_one_is_said_at_its_end(said):
    # A freeze of 13 seconds, soon after a restart of the broker, was in the metrics and never in the log.
    cluster = reach()
    cluster.failed(REFUSED, 105.0)
    cluster.answered(106.0)
    cluster.failed(UNRESOLVED, 112.0)
    cluster.answered(113.0)
    cluster.failed(UNRESOLVED, 121.0)
    cluster.answered(126.0)
    assert [(event["event"], event["silent_seconds"], event["reason"]) for event in said] == [
        ("cluster does not answer", 5.0, REFUSED),
        ("cluster answers again", 6.0, REFUSED),
        ("cluster answers again", 13.0, UNRESOLVED),
    ]


def test_the_end_of_a_wait_in_which_nobody_asked_is_no_news(said):
    cluster = reach()
    cluster.answered(100.0 + 2 * OUTAGE)
    assert not said


def test_an_outage_that_outlasts_the_bound_between_two_warnings_is_said(said):
    cluster = reach()
    cluster.failed(REFUSED, 105.0)
    cluster.answered(106.0)
    for second in range(int(BETWEEN_WARNINGS)):
        cluster.failed(REFUSED, 106.0 + second)
    assert [event["event"] for event in said[2:]] == ["cluster does not answer"]


def test_a_silence_that_lasts_is_said_again_seldom(said):
    cluster = reach()
    for second in range(2 * int(REPEAT) + 60):
        cluster.failed(REFUSED, 100.0 + second)
    assert [event["silent_seconds"] for event in said] == [SILENCE, SILENCE + REPEAT, SILENCE + 2 * REPEAT]


def test_another_reason_is_said_sooner_and_the_same_ones_in_another_order_are_not_another(said):
    cluster = reach()
    for second in range(200):
        cluster.failed("b: refused; a: refused" if second % 2 else "a: refused; b: refused", 100.0 + second)
    assert len(said) == 1
    cluster.failed(UNRESOLVED, 301.0)
    assert said[1]["reason"] == UNRESOLVED


def test_a_cluster_that_comes_and_goes_is_said_once_a_minute_at_most(said):
    cluster, now = reach(), 100.0
    while now < 100.0 + 10 * BETWEEN_WARNINGS:
        cluster.failed(REFUSED, now + 4.0)
        cluster.answered(now + 5.0)
        now += 5.0
    assert len([event for event in said if event["log_level"] == "warning"]) <= 10
    assert len([event for event in said if event["log_level"] == "info"]) <= 10


def test_of_many_brokers_a_few_are_named(said):
    reach().failed("; ".join(f"kafka-{n}:9092: Connection refused" for n in range(50)), 104.0)
    assert said[0]["reason"].count("refused") == 5
    assert said[0]["reason"].endswith("; and 45 more")
