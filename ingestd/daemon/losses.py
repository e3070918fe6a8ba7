"""Losses: data that can no longer be read, counted since the daemon's start. The last losses are kept to be shown."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ingestd.daemon.source import Loss

__all__ = ["LossCount", "LossStatus", "Losses"]

_SHOWN: Final = 20
"""How many losses of a route /status shows."""


@dataclass(slots=True)
class LossCount:
    """How many losses, and how many bytes at least, of those that are known in bytes."""

    events: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class LossStatus:
    """One loss, with the fields of the log event `data lost`: when it was noticed (ISO 8601), which file, why.

    Lost are `bytes` bytes from `start` on, or at least that many if `at_least`. Of a mirror's partition, `offsets` were
    lost, and `bytes` is 0.
    """

    time: str
    file: str
    reason: str
    start: int
    bytes: int
    at_least: bool
    offsets: int = 0


class Losses:
    """The losses of all routes. Belongs to the supervisor's event loop."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], LossCount] = {}
        self._last: dict[str, deque[LossStatus]] = {}

    def expect(self, route: str, reasons: Iterable[str]) -> None:
        """Show these reasons for a route from now on, starting at zero."""
        for reason in reasons:
            self._counts.setdefault((route, reason), LossCount())

    def count(self, route: str, loss: Loss) -> None:
        """Count a loss, and keep it as one of the last."""
        count = self._counts.setdefault((route, loss.reason), LossCount())
        count.events += 1
        size, offsets = (loss.length, 0) if loss.unit == "bytes" else (0, loss.length)
        count.bytes += size
        now = datetime.now(UTC).isoformat(timespec="seconds")
        shown = LossStatus(now, loss.thing, loss.reason, loss.start, size, not loss.exact, offsets)
        self._last.setdefault(route, deque(maxlen=_SHOWN)).append(shown)

    @property
    def counts(self) -> Mapping[tuple[str, str], LossCount]:
        """By route and reason."""
        return self._counts

    def last(self, route: str) -> Sequence[LossStatus]:
        """The last losses of a route, oldest first."""
        return tuple(self._last.get(route, ()))
