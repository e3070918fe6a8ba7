"""What a producer tells whoever counts: one method per event, nothing called where nobody listens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ingestd.errors import IngestdError

__all__ = ["ProducerEvents"]


class ProducerEvents(Protocol):
    """Hooks for metrics. Called on the event loop, once per batch, not per record; must neither raise nor block."""

    def acknowledged(self, topic: str, partition: int, records: int, size: int, seconds: float) -> None:
        """A batch of `size` bytes, as sent, was acknowledged `seconds` after it was handed over."""
        ...

    def retried(self, topic: str, partition: int, error: IngestdError) -> None:
        """A batch came back with `error` and will be sent again."""
        ...

    def failed(self, topic: str, partition: int, records: int, error: IngestdError) -> None:
        """A batch ended with `error`; its `done` is told as well."""
        ...

    def throttled(self, node: int, seconds: float) -> None:
        """A broker asks to be left alone for `seconds` (a quota)."""
        ...
