"""Stopping: signals that end what runs in a plain loop."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["until_signalled"]


@contextlib.contextmanager
def until_signalled() -> Iterator[Callable[[], bool]]:
    """A function that says whether SIGTERM or SIGINT came since its first call. Until then they do what they did.

    So a library that sets handlers when it starts does not take them away.
    """
    before: dict[signal.Signals, Any] = {}
    came: list[int] = []

    def signalled() -> bool:
        if not before:
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, lambda which, _: came.append(which))
        return bool(came)

    try:
        yield signalled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
