"""Losses: every one counts, the last ones are shown."""

from datetime import datetime

from ingestd.daemon.losses import LossCount, Losses
from ingestd.daemon.source import Loss


def test_losses_count_by_route_and_reason():
    losses = Losses()
    losses.expect("r", ["deleted", "truncated"])
    losses.count("r", Loss("/a", "deleted", 0, 10, exact=True))
    losses.count("r", Loss("/b", "deleted", 5, 1, exact=False))
    losses.count("s", Loss("/a", "gone", 0, 3, exact=True))
    losses.expect("r", ["deleted"])
    assert losses.counts == {
        ("r", "deleted"): LossCount(2, 11),
        ("r", "truncated"): LossCount(0, 0),
        ("s", "gone"): LossCount(1, 3),
    }


def test_lost_offsets_are_shown_and_count_no_bytes():
    losses = Losses()
    losses.count("m", Loss("orders-0", "retention", 40, 60, exact=True, unit="offsets"))
    assert losses.counts == {("m", "retention"): LossCount(1, 0)}
    (last,) = losses.last("m")
    assert (last.file, last.start, last.bytes, last.offsets) == ("orders-0", 40, 0, 60)


def test_the_last_losses_of_a_route_are_kept_with_their_time():
    losses = Losses()
    for number in range(25):
        losses.count("r", Loss(f"/{number}", "deleted", number, 1, exact=False))
    last = losses.last("r")
    assert [loss.file for loss in last] == [f"/{number}" for number in range(5, 25)]
    assert (last[-1].reason, last[-1].start, last[-1].bytes, last[-1].at_least) == ("deleted", 24, 1, True)
    assert datetime.fromisoformat(last[-1].time).tzinfo is not None
    assert losses.last("s") == ()
