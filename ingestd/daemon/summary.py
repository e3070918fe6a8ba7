"""Summary of a run: what was delivered, what was not, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.daemon.source import Words

__all__ = ["RouteSummary", "Summary"]


@dataclass(frozen=True, slots=True)
class RouteSummary:
    """One route: sources taken, what of them is acknowledged, and why it failed if it did."""

    name: str
    words: Words
    """What people call its sources and records."""
    sources: int
    records: int
    bytes: int
    compressed_bytes: int
    """Of the batches that carried them, as sent."""
    failure: str | None = None
    helped_bytes: int = 0
    """How many of `bytes` were encoded by workers that do not own the source."""
    unacknowledged_sources: int = 0
    unacknowledged_bytes: int = 0
    """Bytes that were read and not acknowledged by the end. They are read and sent again at the next start."""
    deleted: Mapping[str, int] = field(default_factory=dict)
    """Of files without a name, bytes that were not acknowledged, read or not, by the last path of the file."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole run. CPU seconds are those of the supervisor and all its workers, start-up included."""

    routes: tuple[RouteSummary, ...]
    seconds: float
    cpu_seconds: float
    unacknowledged: int
    """Sources of which something was read and not acknowledged. It is read and sent again at the next start."""
    failures: tuple[str, ...] = ()
    """What could not be done, besides the failures of routes."""

    @property
    def complete(self) -> bool:
        """Whether everything was done."""
        delivered = all(route.failure is None and not route.deleted for route in self.routes)
        return not self.failures and not self.unacknowledged and delivered
