"""Events of a producer, for metrics: one method for each event. Without a listener nothing is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from ingestd.errors import IngestdError

__all__ = ["LATENCY_BOUNDS", "ProducerEvents"]

LATENCY_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of histograms of latencies, in seconds; one more bucket stands for everything above."""


class ProducerEvents(Protocol):
    """Hooks for metrics. Called on the event loop, once per batch, not per record; must neither raise nor block."""

    def acknowledged(self, topic: str, partition: int, records: int, size: int, seconds: float) -> None:
        """A batch of `size` bytes, as sent, was acknowledged `seconds` after it was handed over."""
        ...

    def retried(self, topic: str, partition: int, error: IngestdError) -> None:
        """A batch came back with `error` and will be sent again: one that was too large, in halves."""
        ...

    def failed(self, topic: str, partition: int, records: int, error: IngestdError) -> None:
        """A batch ended with `error`; its `done` is told as well."""
        ...

    def throttled(self, node: int, seconds: float) -> None:
        """A broker asks to be left alone for `seconds` (a quota)."""
        ...
