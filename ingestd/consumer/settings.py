"""Consumer settings: where to start and to end, which records to see, and how much memory fetching may take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, IntEnum
from typing import Final, Literal, TypeAlias

from ingestd.checks import check_kinds, take_names
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.errors import ConfigurationError

__all__ = [
    "AtTime",
    "ConsumerSettings",
    "Edge",
    "End",
    "Isolation",
    "OutOfRange",
    "Recreation",
    "Start",
    "TopicPartition",
    "Truncation",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Edge(Enum):
    """An end of a partition's log, at the moment of asking."""

    earliest = "earliest"
    """The log start offset."""
    latest = "latest"
    """The high watermark. If only committed records are read: the last stable offset."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record whose timestamp is at or after a point in time. If there is none: the latest offset."""

    timestamp_ms: int
    """Milliseconds since 1970 UTC."""

    @classmethod
    def of(cls, moment: datetime) -> AtTime:
        """The point in time `moment`. Raises `ConfigurationError` when it has no time zone."""
        if moment.tzinfo is None:
            raise ConfigurationError(f"start {moment.isoformat()} has no time zone; expected one")
        return cls((moment - _EPOCH) // timedelta(milliseconds=1))


Start: TypeAlias = int | Edge | Literal["earliest", "latest"] | AtTime | OffsetAndMetadata
"""Where reading starts: a literal offset, an end of the log (also by name), a point in time, or a committed offset.

A committed offset is checked by its leader epoch before anything is read (KIP-320).
"""

End: TypeAlias = int | Edge | Literal["earliest", "latest"] | AtTime | None
"""Reading stops before this offset. It is resolved once, at the start. None: reading never stops."""


class Isolation(IntEnum):
    """Which records of transactions are read. The values are the protocol's isolation levels."""

    read_uncommitted = 0
    """All, also those of transactions that are open or were aborted."""
    read_committed = 1
    """Those of committed transactions, and those of no transaction."""


class OutOfRange(Enum):
    """What to do when the asked offset is not, or no longer, in the log (retention, or a log that was cut)."""

    error = "error"
    """Iteration raises `KafkaError` OFFSET_OUT_OF_RANGE."""
    earliest = "earliest"
    """Go on from the log start offset."""
    latest = "latest"
    """Go on from the end of the log."""


class Truncation(Enum):
    """What to do when records that were read are not in the log any more, after an unclean election (KIP-320)."""

    error = "error"
    """Iteration raises `LogTruncated`."""
    rewind = "rewind"
    """Go on from the first offset at which the log differs."""


class Recreation(Enum):
    """What to do when the topic was deleted and created again under its name."""

    error = "error"
    """Iteration raises `TopicRecreated`."""
    earliest = "earliest"
    """Go on from the log start offset of the new topic. A read up to an end raises `TopicRecreated` nevertheless."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer fetches. The defaults suit bulk reads; an idle broker costs two requests a second.

    Raises `ConfigurationError`, naming the setting.
    """

    isolation: Isolation | Literal["read_uncommitted", "read_committed"] = Isolation.read_uncommitted
    """Which records of transactions are seen."""
    out_of_range: OutOfRange | Literal["error", "earliest", "latest"] = OutOfRange.error
    """What to do when the asked offset is not, or no longer, in the log."""
    truncation: Truncation | Literal["error", "rewind"] = Truncation.error
    """What to do when records that were read are not in the log any more, after an unclean election (KIP-320)."""
    recreation: Recreation | Literal["error", "earliest"] = Recreation.error
    """What to do when the topic was deleted and created again under its name."""
    rack: str = ""
    """This consumer's rack. A leader that allows follower fetching (KIP-392) may send it to a replica in that rack."""
    replica_lease: float = 300.0
    """Seconds until a reader of such a replica goes back and asks the leader again."""
    check_crcs: bool = True
    """Verify each batch's CRC-32C before it is decoded or handed out."""
    fetch_min_bytes: int = 1
    """The broker answers as soon as it has this much."""
    fetch_max_bytes: int = 16 * 1024 * 1024
    """Most bytes of one answer. A single larger batch still comes."""
    fetch_max_wait: float = 0.5
    """Seconds that the broker may hold an answer back while it has less than `fetch_min_bytes`."""
    partition_max_bytes: int = 4 * 1024 * 1024
    """Most bytes of one partition in one answer."""
    prefetch_bytes: int = 64 * 1024 * 1024
    """Fetched but not yet consumed bytes, over all partitions of the consumer. Each partition has an equal share."""
    request_timeout: float = 30.0
    """Seconds from sending a request to its answer, on top of `fetch_max_wait`."""
    metadata_timeout: float = 30.0
    """Seconds that finding a topic, a leader or a start offset may take."""

    def __post_init__(self) -> None:
        take_names(self)
        check_kinds(self)
        for name in ("fetch_max_bytes", "partition_max_bytes", "prefetch_bytes"):
            if not 0 < getattr(self, name) < 2**31:
                raise ConfigurationError(f"consumer: {name} is {getattr(self, name)}; expected 1 to {2**31 - 1} bytes")
        if not 0 <= self.fetch_min_bytes <= self.fetch_max_bytes:
            raise ConfigurationError(
                f"consumer: fetch_min_bytes is {self.fetch_min_bytes}; expected 0 to fetch_max_bytes"
            )
        for name in ("fetch_max_wait", "request_timeout", "metadata_timeout", "replica_lease"):
            if not 0 < getattr(self, name) <= 86_400:
                raise ConfigurationError(f"consumer: {name} is {getattr(self, name)}; expected up to 86400 seconds")

    @property
    def isolation_level(self) -> Isolation:
        """`isolation`, never as text."""
        return Isolation[self.isolation] if isinstance(self.isolation, str) else self.isolation
