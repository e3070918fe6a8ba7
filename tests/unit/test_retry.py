"""Deadlines and backoff."""

from __future__ import annotations

import asyncio

import pytest

from ingestd.errors import DeadlineExceeded
from ingestd.retry import Backoff, Deadline


async def test_waiting_ends_at_the_deadline_and_says_what_for() -> None:
    never = asyncio.get_running_loop().create_future()
    with pytest.raises(DeadlineExceeded, match=r"reading: not done within 0\.01 s"):
        await Deadline.after(0.01).wait_for(never, "reading")
    assert never.cancelled()


async def test_what_is_done_in_time_is_returned_even_at_an_expired_deadline() -> None:
    done = asyncio.get_running_loop().create_future()
    done.set_result(7)
    assert await Deadline.after(0).wait_for(done, "x") == 7
    assert await Deadline.never().wait_for(asyncio.sleep(0, 8), "x") == 8


async def test_an_errors_own_timeout_is_not_taken_for_the_deadline() -> None:
    async def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await Deadline.after(5).wait_for(late(), "x")


async def test_a_cancellation_that_comes_just_as_the_wait_is_over_is_not_lost() -> None:
    """The wait is done and the task is cancelled in the same turn of the loop; asyncio.wait_for returned normally."""
    wait = asyncio.get_running_loop().create_future()
    went_on = False

    async def waiter() -> None:
        nonlocal went_on
        await Deadline.after(5).wait_for(wait, "x")
        await asyncio.sleep(0)
        went_on = True

    task = asyncio.create_task(waiter())
    await asyncio.sleep(0)
    wait.set_result(None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not went_on


def test_the_time_left_is_never_negative() -> None:
    deadline = Deadline.after(-1)
    assert (deadline.remaining, deadline.expired) == (0.0, True)
    assert not Deadline.never().expired


def test_delays_grow_to_the_maximum_with_jitter_around_them() -> None:
    backoff = Backoff(initial=0.1, maximum=1.0, factor=2.0, jitter=0.2)
    for expected in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert 0.8 * expected <= backoff.next_delay() <= 1.2 * expected
    backoff.reset()
    assert backoff.next_delay() <= 0.12
    backoff.attempts = 10_000
    assert backoff.next_delay() <= 1.2


async def test_attempts_are_made_until_the_deadline_and_at_least_once() -> None:
    backoff = Backoff(initial=0.005, maximum=0.005)
    assert [number async for number in backoff.attempts_until(Deadline.after(0))] == [0]
    numbers = [number async for number in Backoff(0.005, 0.005).attempts_until(Deadline.after(0.5))]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 2
