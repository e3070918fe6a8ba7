"""Stopping: signals that end what runs in a plain loop."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["until_signalled"]


@contextlib.contextmanager
def until_signalled() -> Iterator[Callable[[], bool]]:
    """A function that says whether SIGTERM or SIGINT came since its first call. Until then they do what they did.

    So a library that sets handlers when it starts does not take them away. The first signal is logged. A second one
    ends the process at once.
    """
    before: dict[signal.Signals, Any] = {}
    came: list[int] = []
    said: list[int] = []

    def take(which: int, _: FrameType | None) -> None:
        came.append(which)
        for number in before:
            signal.signal(number, signal.SIG_DFL)

    def signalled() -> bool:
        if not before:
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, take)
        if came and not said:
            said.extend(came)
            get_logger(__name__).info("signal", signal=signal.Signals(came[0]).name)
        return bool(came)

    try:
        yield signalled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
