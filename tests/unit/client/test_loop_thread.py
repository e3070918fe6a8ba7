"""A thread with an event loop: what its calls raise when it ends, is ended twice, or is ended by itself."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ingestd.client.loop_thread import LoopThread, soon
from ingestd.errors import Closed, DeadlineExceeded, IngestdError

PATIENCE = 30.0


async def nothing() -> None:
    """Nothing to end."""


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def test_a_call_that_is_under_way_when_the_thread_ends_raises_closed() -> None:
    thread = LoopThread("thing")
    begun = threading.Event()
    raised: list[BaseException] = []

    async def work() -> None:
        begun.set()
        await for_ever()

    def call() -> None:
        with pytest.raises(Closed, match="working: the thing was closed meanwhile") as caught:
            thread.call(work(), None, "working")
        raised.append(caught.value)

    caller = threading.Thread(target=call)
    caller.start()
    assert begun.wait(PATIENCE)
    thread.close(nothing, 0.0)
    caller.join(PATIENCE)
    assert len(raised) == 1
    with pytest.raises(Closed, match="the thing is closed"):
        thread.call(nothing(), None, "working")


def test_it_is_ended_once_however_many_close_it() -> None:
    thread = LoopThread("thing")
    ended: list[threading.Thread] = []
    closers = [
        threading.Thread(target=thread.close, args=(lambda: soon(ended.append, threading.current_thread()), 0.0))
        for _ in range(8)
    ]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(PATIENCE)
    thread._thread.join(PATIENCE)
    assert (len(ended), thread.closed, thread._thread.is_alive()) == (1, True, False)


def test_what_the_end_raises_is_raised_and_the_thread_ends_all_the_same() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    thread = LoopThread("thing")
    with pytest.raises(ValueError, match="broken"):
        thread.close(fail, 0.0)
    assert not thread._thread.is_alive()


def test_a_deadline_says_what_was_done_and_why_it_was_not() -> None:
    thread = LoopThread("thing")
    with pytest.raises(DeadlineExceeded, match=r"^working: not done within 0\.01 s; nobody answers$"):
        thread.call(for_ever(), 0.01, "working", lambda: "nobody answers")
    thread.close(nothing, 0.0)


def test_what_the_loop_calls_can_not_wait_for_the_loop_but_can_end_it() -> None:
    thread = LoopThread("thing")

    async def work() -> None:
        with pytest.raises(IngestdError, match="working: called in the thing's own thread"):
            thread.call(nothing(), None, "working")
        thread.close(nothing, 0.0)

    thread.call(work(), PATIENCE, "working")
    thread._thread.join(PATIENCE)
    assert not thread._thread.is_alive()


def test_a_beginning_that_fails_leaves_no_thread() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    thread = LoopThread("thing")
    with pytest.raises(ValueError, match="broken"):
        thread.begin(fail())
    assert not thread._thread.is_alive()
