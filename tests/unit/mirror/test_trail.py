"""Trail: stretches of what is acknowledged, in the order of the source."""

from ingestd.mirror.stretches import Stretch
from ingestd.mirror.trail import Trail


def test_batches_that_follow_each_other_are_one_stretch():
    trail = Trail(0)
    steps = [trail.sent([(10 * number, 10)]) for number in range(3)]
    for number, step in enumerate(steps):
        trail.acknowledged(step, 7 + 10 * number)
    assert trail.take() == [Stretch(0, 7, 30)]
    assert trail.take() == []


def test_gaps_within_a_batch_and_markers_between_batches_begin_a_new_stretch():
    trail = Trail(0)
    first, second = trail.sent([(0, 2), (5, 3)]), trail.sent([(9, 4)])
    trail.acknowledged(first, 100)
    trail.acknowledged(second, 105)
    assert trail.take() == [Stretch(0, 100, 2), Stretch(5, 102, 3), Stretch(9, 105, 4)]


def test_what_is_acknowledged_too_early_waits_for_what_was_sent_before():
    trail = Trail(0)
    first, second = trail.sent([(0, 5)]), trail.sent([(5, 5)])
    trail.acknowledged(second, 5)
    assert trail.take() == []
    trail.acknowledged(first, 0)
    assert trail.take() == [Stretch(0, 0, 10)]


def test_a_batch_without_an_offset_counts_as_right_behind_the_one_before():
    trail = Trail(40)
    steps = [trail.sent([(10 * number, 10)]) for number in range(3)]
    for step, base in zip(steps, (-1, -1, 70), strict=True):
        trail.acknowledged(step, base)
    assert trail.take() == [Stretch(0, 40, 20), Stretch(20, 70, 10)]


def test_a_batch_that_was_split_is_two_and_one_that_is_left_out_takes_no_place():
    trail = Trail(0)
    step, last = trail.sent([(0, 3), (5, 3)]), trail.sent([(8, 2)])
    first, rest = trail.split(step, 4)
    second, third = trail.split(rest, 1)
    trail.acknowledged(last, 105)
    trail.acknowledged(third, 104)
    trail.left_out(second)
    assert trail.take() == []
    trail.acknowledged(first, 100)
    assert trail.take() == [Stretch(0, 100, 3), Stretch(5, 103, 1), Stretch(7, 104, 3)]
