"""A record on its way in: what `send` is given, as one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OutgoingMessage"]


class OutgoingMessage(NamedTuple):
    """One record to send. `partition` None has the partitioner choose, `timestamp_ms` None is now.

    A tuple, since it is made for each record; another one with some fields changed: `message._replace(topic="…")`.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None
