"""Pace: over any longer time no more is sent than the rate allows, and no less if there is enough to send."""

from hypothesis import given
from hypothesis import strategies as st

from ingestd.mirror.pace import Pace


def alone(rate):
    return Pace(rate, lambda _: None, lambda: 0)


def workers(rate, count):
    """Paces that see what the others published, as workers on each other's notice boards do."""
    board = [0] * count

    def publish(number):
        return lambda total: board.__setitem__(number, total)

    def elsewhere(number):
        return lambda: sum(board[:number]) + sum(board[number + 1 :])

    return [Pace(rate, publish(number), elsewhere(number)) for number in range(count)]


@given(st.floats(1, 1e9), st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 10)), min_size=1))
def test_whoever_waits_as_told_holds_the_rate(rate, sends):
    pace, now, free_at = alone(rate), 100.0, 0.0
    for size, pause in sends:
        waited = pace.spend(size, now)
        assert abs(waited - max(0.0, free_at - now)) <= 1e-6 * (1 + free_at)
        now += waited
        free_at = now + size / rate
        now += pause


def test_several_who_wait_share_the_rate():
    pace = alone(100)
    assert [pace.spend(50, 10.0) for _ in range(4)] == [0.0, 0.5, 1.0, 1.5]
    assert [pace.spend(50, 13.0) for _ in range(2)] == [0.0, 0.5]


@given(st.integers(1, 8), st.integers(1, 8), st.lists(st.integers(20, 200), min_size=8, max_size=8))
def test_workers_share_the_rate_whoever_of_them_is_busy(count, busy, sizes):
    paces, busy = workers(100, count), min(busy, count)
    free_at, sent = [0.0] * busy, 0
    while min(free_at) < 100:
        now, number = min((at, number) for number, at in enumerate(free_at))
        waited = paces[number].spend(sizes[number], now)
        sent += sizes[number] if now + waited < 100 else 0
        free_at[number] = now + waited + 0.001
    most = sum(sizes[:busy])
    assert 10_000 - 2 * most <= sent <= 10_000 + 2 * most


def test_what_others_spent_while_nobody_waited_here_is_not_waited_for():
    one, other = workers(100, 2)
    for second in range(100):
        assert one.spend(100, float(second)) == 0.0
    assert other.spend(100, 100.0) == 0.0
    assert one.spend(100, 100.0) == 1.0
