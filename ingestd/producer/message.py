"""A record as `send` gets it, and where it is after that."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OutgoingMessage", "SentMessage"]


class OutgoingMessage(NamedTuple):
    """One record to send. `partition` None has the partitioner choose, `timestamp_ms` None is now.

    A tuple, because one is made for each record. `message._replace(topic="…")` makes another one with some fields
    changed.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


class SentMessage(NamedTuple):
    """Where a record is now. The offset is -1 with acks=0, and if the broker did not say.

    `timestamp_ms` is in milliseconds since 1970. It is the one that the record was sent with, or the log's own if the
    topic stamps records itself (`message.timestamp.type=LogAppendTime`).
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
