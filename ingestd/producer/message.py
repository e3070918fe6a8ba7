"""A record on its way in, as `send` is given it; and where it is in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OutgoingMessage", "SentMessage"]


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


class SentMessage(NamedTuple):
    """Where a record is now. The offset is -1 with acks=0, and where the broker did not say.

    `timestamp_ms` is the one that it was sent with, or the log's own where the topic stamps records itself
    (`message.timestamp.type=LogAppendTime`); milliseconds since 1970.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
