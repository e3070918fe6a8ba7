"""What becomes of a record or a batch: the one value that every accepted record ends in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ingestd.errors import IngestdError

__all__ = ["Delivered", "Delivery"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The end of one batch: an offset, or the error that ended it.

    `base_offset` is that of the batch's first record (-1 where the broker does not say: acks=0, or a duplicate of a
    batch older than the last five). `log_append_time_ms` is -1 unless the topic stamps records itself.
    """

    topic: str
    partition: int
    records: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    error: IngestdError | None = None


Delivered: TypeAlias = "Callable[[Delivery], None]"
"""Called exactly once for every batch accepted, on the event loop; must not raise and must not block."""
