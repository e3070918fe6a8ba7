"""Lease: until when a worker may send for a mirror. What is closed at its end waits here for the next one."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.mirror.partition import CopiedPartition

__all__ = ["Lease"]


class Lease:
    """One for each mirror in a worker. Until it is renewed for the first time it has no end.

    Invariant
        A partition is opened again only within a lease, and once nothing of it is with the producer.
    """

    def __init__(self, end: Callable[[], None], reopen: Callable[[CopiedPartition], None]) -> None:
        """`end` is called when the lease is over, `reopen` for each partition that goes on."""
        self.end = end
        self.until = math.inf
        """Of the monotonic clock. From then on nothing may be sent."""
        self._reopen = reopen
        self._timer: asyncio.TimerHandle | None = None
        self._suspended: dict[str, CopiedPartition] = {}

    def renew(self, until: float) -> None:
        """Something may be sent until then, of the monotonic clock.

        A timer ends it. After a time in which this process stood still, timers come before anything else is sent.
        """
        self.until = until
        if self._timer is not None:
            self._timer.cancel()
        left = until - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self.end)
        if left > 0:
            for held in list(self._suspended.values()):
                self.resume(held)

    def suspend(self, held: CopiedPartition) -> None:
        """A partition was closed at the end of the lease."""
        self._suspended[held.name] = held

    def resume(self, held: CopiedPartition) -> None:
        """Have a suspended partition opened again behind what was sent, if all of that is acknowledged."""
        if not held.bytes and time.monotonic() < self.until and self._suspended.get(held.name) is held:
            self._reopen(held)

    def suspended(self, source: str) -> CopiedPartition | None:
        """The partition of this name, if it waits for the next lease."""
        return self._suspended.get(source)

    def forget(self, source: str) -> bool:
        """Do not open this partition again. Returns whether it waited."""
        return self._suspended.pop(source, None) is not None

    def close(self) -> None:
        """Open nothing again, and end nothing."""
        self._suspended.clear()
        if self._timer is not None:
            self._timer.cancel()
