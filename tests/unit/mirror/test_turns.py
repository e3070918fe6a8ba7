"""Turns: long work lets others run, and is done one piece after the other."""

import asyncio

import pytest

from ingestd.mirror import turns
from ingestd.mirror.turns import Turns


def counted(log, name, steps):
    for step in range(steps):
        log.append((name, step))
        yield step if step % 2 else None


async def test_what_an_iterator_gives_comes_without_its_pauses():
    assert await Turns().take(counted([], "a", 6)) == [1, 3, 5]


async def test_others_run_between_the_steps_and_a_second_piece_waits(monkeypatch):
    monkeypatch.setattr(turns, "SLICE", 0.0)
    one, log = Turns(), []

    async def other():
        for turn in range(3):
            log.append(("other", turn))
            await asyncio.sleep(0)

    await asyncio.gather(one.take(counted(log, "a", 3)), one.take(counted(log, "b", 3)), other())
    assert [entry for entry in log if entry[0] != "other"] == [(name, step) for name in "ab" for step in range(3)]
    assert log.index(("other", 2)) < log.index(("b", 2))


async def test_what_fails_lets_the_next_go_on():
    one = Turns()

    def failing():
        yield None
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        await one.take(failing())
    assert await one.take(counted([], "a", 2)) == [1]
