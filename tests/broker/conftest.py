"""Fixtures of tests on transports: each runs on both event loops, which differ in when they send and what they hold."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
SECONDS = 30


@pytest.fixture(params=LOOPS)
def on_loop(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Run a coroutine on one of the loops, within 30 s; unhandled errors of the loop fail the test."""

    def run(work: Coroutine[Any, Any, None]) -> None:
        unhandled: list[dict[str, Any]] = []

        async def bounded() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
            async with asyncio.timeout(SECONDS):
                await work

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(bounded())
        assert unhandled == []

    return run
