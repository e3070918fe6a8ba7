"""A record on its way in: what `send` is given, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OutgoingMessage"]


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One record to send. `partition` None has the partitioner choose, `timestamp_ms` None is now."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None
