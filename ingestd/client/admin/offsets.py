"""Logs: where partitions begin and end, and deleting their oldest records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestd.checks import require_all_of
from ingestd.client.admin.calls import Administration, error_of
from ingestd.client.admin.targets import ToLeaders
from ingestd.errors import IngestdError
from ingestd.retry import Deadline
from ingestd.wire import requests
from ingestd.wire.requests import EARLIEST, LATEST, OffsetAt
from ingestd.wire.requests.topics import delete_records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["EARLIEST", "LATEST", "DeletedRecords", "ListedOffset", "LogAdmin", "OffsetAt"]


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """One partition's offset, and that record's timestamp. -1: no record is as late as the time asked for."""

    topic: str
    partition: int
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1
    error: IngestdError | None = None


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """The outcome of one partition: its first offset from now on; -1 if it failed."""

    topic: str
    partition: int
    first_offset: int = -1
    error: IngestdError | None = None


class LogAdmin(Administration):
    """Partitions' logs. Everything goes to the partition's leader."""

    async def list_offsets(
        self, offsets: Sequence[OffsetAt], *, read_committed: bool = False, timeout: float = 30.0
    ) -> list[ListedOffset]:
        """Offsets of partitions, in the order asked. Each leader answers. If the leader moved, the new one is asked."""
        deadline = Deadline.after(timeout)
        offsets = require_all_of(OffsetAt, "offsets", offsets)
        outcomes = await self._items(
            offsets,
            ToLeaders(self._client, lambda asked: (asked.topic, asked.partition)),
            lambda asked: requests.list_offsets(
                asked, read_committed=read_committed, timeout_ms=self._milliseconds(deadline)
            ),
            _listed,
            deadline,
        )
        return [
            ListedOffset(asked.topic, asked.partition, error=found) if isinstance(found, IngestdError) else found
            for asked in offsets
            for found in [outcomes.found[asked]]
        ]

    async def delete_records(
        self, before: Mapping[tuple[str, int], int], *, timeout: float = 30.0
    ) -> list[DeletedRecords]:
        """Delete the records before an offset of each partition. -1: all records that there are now."""
        deadline = Deadline.after(timeout)
        outcomes = await self._items(
            before,
            ToLeaders(self._client),
            lambda keys: delete_records({key: before[key] for key in keys}, timeout_ms=self._milliseconds(deadline)),
            lambda answer, _: {
                (topic.name, partition.partition_index): error_of(
                    partition.error_code, f"{topic.name}-{partition.partition_index}"
                )
                or partition.low_watermark
                for topic in answer.topics
                for partition in topic.partitions
            },
            deadline,
        )
        return [
            DeletedRecords(*key, error=found) if isinstance(found, IngestdError) else DeletedRecords(*key, found)
            for key, found in outcomes.found.items()
        ]


def _listed(answer: Any, asked: Sequence[OffsetAt]) -> dict[OffsetAt, ListedOffset | IngestdError]:
    by_partition = {(one.topic, one.partition): one for one in asked}
    listed: dict[OffsetAt, ListedOffset | IngestdError] = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            one = by_partition.get((topic.name, partition.partition_index))
            if one is not None:
                listed[one] = error_of(partition.error_code, f"{topic.name}-{one.partition}") or ListedOffset(
                    one.topic,
                    one.partition,
                    partition.offset,
                    partition.timestamp,
                    getattr(partition, "leader_epoch", -1),
                )
    return listed
