"""Progress: a position moves over acknowledged spans, in order, never past a hole."""

from hypothesis import given
from hypothesis import strategies as st

from ingestd.daemon.progress import Progress


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.randoms())
def test_the_position_is_the_end_of_the_longest_acknowledged_run_from_the_start(lengths, random):
    progress = Progress(100)
    ends, at = [], 100
    for length in lengths:
        at += length
        ends.append(at)
    spans = [progress.read(end) for end in ends]
    order = list(range(len(spans)))
    random.shuffle(order)
    acknowledged: set[int] = set()
    for number in order:
        before = progress.position
        moved = progress.acknowledge(spans[number])
        acknowledged.add(number)
        run = next((i for i in range(len(spans)) if i not in acknowledged), len(spans))
        assert progress.position == ([100, *ends][run])
        assert moved == (progress.position != before)
    assert progress.settled


def test_nothing_read_is_settled_at_the_start_position():
    progress = Progress(42)
    assert progress.settled
    assert progress.position == 42
    assert progress.unacknowledged == 0


def test_bytes_behind_a_hole_count_as_not_acknowledged():
    progress = Progress(10)
    first, second, _ = progress.read(30), progress.read(60), progress.read(65)
    progress.acknowledge(second)
    assert progress.unacknowledged == 55
    progress.acknowledge(first)
    assert progress.unacknowledged == 5
