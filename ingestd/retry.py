"""Deadlines, and backoff between attempts: the one mechanism for each, used by every room."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingestd.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["Backoff", "Deadline"]


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock after which waiting is over. `Deadline.never()` has none."""

    at: float
    seconds: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The deadline `seconds` from now."""
        return cls(time.monotonic() + seconds, seconds)

    @classmethod
    def never(cls) -> Deadline:
        """A deadline that does not come; for waits that something else ends."""
        return cls(float("inf"), float("inf"))

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def shown(self) -> str:
        """The seconds, for people: 2 where they are the 1.9998 that somebody else left."""
        return f"{self.seconds:.3g}"

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.at

    async def wait_for(self, awaitable: Awaitable[T], doing: str) -> T:
        """Await within the deadline. Raises `DeadlineExceeded`, naming what was being done."""
        if self.at == float("inf"):
            return await awaitable
        # Not asyncio.wait_for: before Python 3.12 it swallows a cancellation that comes just as the awaitable is done.
        limit = asyncio.timeout(self.remaining)
        try:
            async with limit:
                return await awaitable
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded(f"{doing}: not done within {self.shown} s") from None


@dataclass(slots=True)
class Backoff:
    """Exponential backoff with jitter: seconds to wait before the next attempt.

    The n-th delay is drawn from [1 - jitter, 1 + jitter] times `initial * factor ** n`, at most `maximum`.
    `reset` after a success.
    """

    initial: float = 0.05
    maximum: float = 1.0
    factor: float = 2.0
    jitter: float = 0.2
    attempts: int = field(default=0, init=False)

    def next_delay(self) -> float:
        """The delay before the next attempt, in seconds; counts the attempt."""
        delay = min(self.maximum, self.initial * self.factor ** min(self.attempts, 32))
        self.attempts += 1
        return delay * random.uniform(1 - self.jitter, 1 + self.jitter)  # noqa: S311 - jitter, not cryptography

    def reset(self) -> None:
        """Start over from the initial delay."""
        self.attempts = 0

    async def attempts_until(self, deadline: Deadline) -> AsyncIterator[int]:
        """Yield 0, 1, 2… with the backoff slept in between, until the deadline passes; always at least once."""
        number = 0
        while True:
            yield number
            number += 1
            delay = self.next_delay()
            if delay >= deadline.remaining:
                return
            await asyncio.sleep(delay)
