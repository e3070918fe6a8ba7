"""Batches in flight: how old the oldest one is, in whatever order they begin and end."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from ingestd.daemon.in_flight import InFlight
from ingestd.daemon.statistics import RouteCounters


@given(st.lists(st.tuples(st.sampled_from(["begin", "begin late", "end"]), st.integers(0, 50)), max_size=40))
def test_the_oldest_batch_is_the_one_that_was_first_sent_first(steps):
    in_flight, expected = InFlight(RouteCounters()), {}
    start = time.monotonic()
    for number, (step, choice) in enumerate(steps):
        if step == "end":
            if expected:
                gone = list(expected)[choice % len(expected)]
                del expected[gone]
                in_flight.end(gone)
        else:
            expected[number] = start - 100 + number - (choice if step == "begin late" else 0)
            in_flight.begin(number, expected[number])
        assert len(in_flight) == len(expected)
        assert (in_flight.waiting > 0) is bool(expected)
        if expected:
            assert start - min(expected.values()) <= in_flight.oldest <= time.monotonic() - min(expected.values())
        else:
            assert in_flight.oldest == 0


def test_bytes_count_as_acknowledged_once_they_are() -> None:
    # The summary of a run without any acknowledgement said `899 kB sent`: what was handed to the producer.
    counters = RouteCounters(compressed_bytes=900)
    in_flight = InFlight(counters)
    in_flight.begin("batch", 1.0)
    assert counters.compressed_bytes_acknowledged == 0
    in_flight.end("batch")
    in_flight.acknowledged(1.0, 5, 400)
    assert (counters.records_acknowledged, counters.compressed_bytes_acknowledged) == (5, 400)
