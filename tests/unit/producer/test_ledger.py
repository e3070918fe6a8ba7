"""The ledger bounds memory and tells flushes when they are done."""

from __future__ import annotations

import asyncio

import pytest
from simulated_clock import simulate

from ingestd.errors import DeadlineExceeded
from ingestd.producer.breaker import CircuitBreaker
from ingestd.producer.ledger import Ledger
from ingestd.retry import Deadline


async def test_a_flush_waits_for_what_was_entered_before_it_and_not_for_what_comes_after() -> None:
    ledger = Ledger(100)
    before = ledger.enter()
    flush = asyncio.create_task(ledger.drained(Deadline.after(5), "flush"))
    await asyncio.sleep(0)
    after = ledger.enter()
    assert after != before
    ledger.leave(before)
    await flush
    assert ledger.entries == 1


async def test_a_later_flush_waits_for_the_entries_of_earlier_ones_too() -> None:
    ledger = Ledger(100)
    first = ledger.enter()
    early = asyncio.create_task(ledger.drained(Deadline.after(5), "flush"))
    await asyncio.sleep(0)
    second = ledger.enter()
    late = asyncio.create_task(ledger.drained(Deadline.after(5), "flush"))
    await asyncio.sleep(0)
    ledger.leave(second)
    await asyncio.sleep(0)
    assert not late.done()
    ledger.leave(first)
    await asyncio.gather(early, late)


async def test_a_flush_of_nothing_is_done_at_once_and_one_too_slow_raises() -> None:
    ledger = Ledger(100)
    await ledger.drained(Deadline.after(5), "flush")
    ledger.enter()
    with pytest.raises(DeadlineExceeded, match="flush"):
        await ledger.drained(Deadline.after(0.01), "flush")


async def test_those_who_wait_for_room_are_woken_one_after_the_other_while_there_is_room() -> None:
    ledger = Ledger(10)
    ledger.reserve(10)
    order: list[int] = []

    async def sender(number: int) -> None:
        await ledger.room()
        order.append(number)
        ledger.reserve(4)

    senders = [asyncio.create_task(sender(number)) for number in range(5)]
    await asyncio.sleep(0)
    ledger.release(10)
    for _ in range(10):
        await asyncio.sleep(0)
    assert order == [0, 1, 2]
    ledger.release(12)
    await asyncio.gather(*senders)
    assert order == [0, 1, 2, 3, 4]


async def test_one_who_gives_up_its_turn_passes_it_on() -> None:
    ledger = Ledger(10)
    ledger.reserve(10)
    first, second = (asyncio.create_task(ledger.room()) for _ in range(2))
    await asyncio.sleep(0)
    ledger.release(10)
    first.cancel()
    await asyncio.wait_for(second, 30)


def test_the_breaker_opens_after_failures_in_a_row_and_one_attempt_decides_after_the_pause() -> None:
    async def work() -> None:
        breaker = CircuitBreaker(3, 10.0)
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
        for _ in range(3):
            assert not breaker.open
            breaker.failed()
        assert breaker.open
        await asyncio.sleep(10.1)
        assert not breaker.open
        breaker.failed()
        assert breaker.open
        await asyncio.sleep(10.1)
        breaker.succeeded()
        breaker.failed()
        assert not breaker.open

    simulate(work)
