"""CopiedPartition: what has nothing to copy is passed after what was fetched before it, and never before."""

from types import SimpleNamespace

import pytest

from ingestd.daemon.source import Assignment, Found, Loss
from ingestd.mirror.partition import CopiedPartition
from ingestd.mirror.stretches import Stretch
from ingestd.mirror.trail import Trail

DETAIL = {"topic": "orders", "partition": 0, "target_topic": "east.orders", "target_id": "t"}
DETAIL |= {"epoch": 3, "topic_id": "s", "target_offset": 7}


@pytest.fixture
def held():
    made = CopiedPartition(Assignment("m", Found("orders-0", 10, DETAIL), 1), Trail(7))
    made.consumer = SimpleNamespace(reached=10, high_watermark=-1, fetch_position=SimpleNamespace(leader_epoch=4))
    return made


def test_a_gap_is_passed_once_all_that_was_fetched_before_it_is_taken_and_sent(held):
    assert held.skip(20, 50) == Loss("orders-0", "retention", 20, 30, exact=True, unit="offsets")
    assert held.pass_gap() is None, "the consumer has handed out nothing yet"
    held.consumer.reached = 20
    held.sending = True
    assert held.pass_gap() is None
    held.sending = False
    span = held.pass_gap()
    assert (span.end, span.mark, held.read_to, held.gap) == (50, (-1, "s"), 50, None)
    assert held.pass_gap() is None


def test_a_log_that_became_shorter_has_no_gap(held):
    assert held.skip(20, 5) is None
    assert held.gap is None


def test_hidden_records_are_passed_where_nothing_waits_before_them(held):
    held.consumer.reached = 13
    held.gap = (12, 13)
    assert held.pass_hidden() is None, "the gap comes first"
    held.gap = None
    span = held.pass_hidden()
    assert (span.end, span.mark) == (13, (4, "s"))
    assert held.pass_hidden() is None


@pytest.mark.parametrize("why", ["sending", "closed"])
def test_nothing_is_passed_while_what_was_taken_may_not_be_sent(held, why):
    setattr(held, why, True)
    held.consumer.reached = 13
    assert held.pass_hidden() is None
    held.skip(13, 20)
    assert held.pass_gap() is None


def test_its_position_goes_with_what_belongs_to_it(held):
    step = held.trail.sent(((10, 5),))
    span = held.read(15, 4)
    held.read(20, 5)
    held.trail.acknowledged(step, 107)
    held.target_offset = 112
    assert held.progress.acknowledge(span)
    move = held.moved()
    assert (move.route, move.source, move.generation, move.position) == ("m", "orders-0", 1, 15)
    assert move.detail == {**DETAIL, "epoch": 4, "target_offset": 112}
    assert move.note == [Stretch(10, 107, 5)]
    assert held.moved().note is None
    again = held.again()
    assert (again.found.position, again.found.detail) == (15, move.detail)
    assert CopiedPartition(again, None).read_to == 15


def test_its_lag_shows_in_records_and_in_seconds(held):
    held.answered()
    assert (held.gauge().lag, held.gauge().lag_seconds) == (None, 0.0)
    held.consumer.high_watermark = 30
    assert (held.gauge().lag, held.gauge().lag_seconds) == (20, 0.0)
    held.newest_ms = 1
    assert held.gauge().lag_seconds > 10**6
    held.consumer = None
    held.silent_since = 0.0
    assert held.gauge().lag is None
    assert held.gauge().lag_seconds > 0
