"""A cleaning as the broker asks for it, and what its child process answers. All of it pickles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ingestd.broker.log.transactions import AbortedTransaction

__all__ = ["Cleaned", "Cleaning", "Failed", "Group", "Source"]


@dataclass(frozen=True, slots=True)
class Source:
    """A segment to be cleaned: bytes [0, size) of a file, which do not change."""

    path: Path
    base_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Group:
    """Segments that become one, with offsets [first, end). `cleaned` and `index` are files to be made.

    `modified`: seconds since the epoch, the new file's time of modification.
    """

    sources: tuple[Source, ...]
    first: int
    end: int
    cleaned: Path
    index: Path
    modified: float


@dataclass(frozen=True, slots=True)
class Cleaning:
    """One log. Its groups follow each other from the log's first segment on.

    Records from `first_dirty` on were never compared with those before them. `aborted` has all aborted transactions
    with records in the groups. `last_batches` has the base offset of each active producer's last batch; of a producer
    without one in its epoch, `last_markers` has the epoch. Times in ms since the epoch, sizes in bytes.
    """

    groups: tuple[Group, ...]
    first_dirty: int
    aborted: tuple[AbortedTransaction, ...]
    last_batches: dict[int, int]
    last_markers: dict[int, int]
    now_ms: int
    delete_retention_ms: int
    index_interval: int
    map_bytes: int


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A group whose files are made, with the segment's bytes on the disk.

    `end`: the offset up to which the log is clean once all groups have taken their places.
    """

    group: int
    end: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The cleaning ended early."""

    reason: str
