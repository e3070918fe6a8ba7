"""Offsets: which offsets "earliest", "latest" and points in time are now. Partition leaders tell (ListOffsets)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import NO_LEADER
from ingestd.consumer.settings import AtTime, Edge, Isolation, Start, TopicPartition
from ingestd.errors import ConfigurationError, DeadlineExceeded, ErrorCode, IngestdError, KafkaError, is_retriable
from ingestd.retry import Backoff, Deadline
from ingestd.wire.requests import EARLIEST, LATEST, OffsetAt, list_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingestd.client.client import Client

__all__ = ["resolve_offsets"]

_REQUEST_TIMEOUT = 10.0
"""Seconds for one attempt. After that the broker, or the new leader, is asked again."""

_LATEST_TIME = 2**63 - 1


async def resolve_offsets(
    client: Client, wanted: Mapping[TopicPartition, Start], isolation: Isolation, timeout: float
) -> dict[TopicPartition, int]:
    """The offsets that `wanted` means now; literal offsets stay as they are.

    Tried again, with new metadata, while errors are retriable. Raises `KafkaError` for other errors and for partitions
    that do not exist, `DeadlineExceeded` after `timeout` seconds, `ConfigurationError` for a wrong start.
    """
    deadline = Deadline.after(timeout)
    found: dict[TopicPartition, int] = {}
    missing: dict[TopicPartition, Edge | AtTime] = {}
    for key, start in wanted.items():
        if isinstance(start, OffsetAndMetadata):
            found[key] = start.offset
        elif isinstance(start, int) and not isinstance(start, bool):
            found[key] = start
        elif isinstance(start, str) and start in Edge.__members__:
            missing[key] = Edge[start]
        elif isinstance(start, (Edge, AtTime)):
            missing[key] = start
        else:
            expected = '"earliest", "latest", an offset, AtTime or OffsetAndMetadata'
            raise ConfigurationError(f"start of {key}: {start!r}; expected {expected}")
    last: IngestdError | None = None
    async for _attempt in Backoff().attempts_until(deadline):
        last = await _attempt_all(client, missing, found, isolation, deadline)
        # A time after the last record has no offset: it means the end.
        for key in [key for key, offset in found.items() if offset < 0 and key in missing]:
            del found[key]
            missing[key] = Edge.latest
        missing = {key: start for key, start in missing.items() if key not in found}
        if not missing:
            return found
    names = ", ".join(map(str, list(missing)[:5]))
    raise DeadlineExceeded(f"offsets of {names}: not found within {deadline.shown} s ({last})") from last


async def _attempt_all(
    client: Client,
    missing: Mapping[TopicPartition, Edge | AtTime],
    found: dict[TopicPartition, int],
    isolation: Isolation,
    deadline: Deadline,
) -> IngestdError | None:
    """Ask every leader once, and fill `found`. Returns the last retriable error, and raises any other."""
    by_leader: defaultdict[int, list[OffsetAt]] = defaultdict(list)
    unknown = {key.topic for key in missing if client.metadata.snapshot.partition(*key) is None}
    if unknown:
        await client.metadata.refresh(unknown, deadline.remaining)
    for key, start in missing.items():
        known = client.metadata.snapshot.partition(*key)
        if known is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, str(key))
        by_leader[known.leader].append(OffsetAt(key.topic, key.partition, _timestamp(start), known.leader_epoch))
    answers = await asyncio.gather(
        *(_ask(client, leader, partitions, found, isolation, deadline) for leader, partitions in by_leader.items())
    )
    errors = [error for error in answers if error is not None]
    if errors:
        client.metadata.wanted({key.topic for key in missing}, f"list offsets: {errors[0]}")
    return errors[0] if errors else None


async def _ask(
    client: Client,
    leader: int,
    partitions: Sequence[OffsetAt],
    found: dict[TopicPartition, int],
    isolation: Isolation,
    deadline: Deadline,
) -> IngestdError | None:
    if leader == NO_LEADER:
        return KafkaError(ErrorCode.leader_not_available, f"{partitions[0].topic}-{partitions[0].partition}")
    build = list_offsets(partitions, read_committed=isolation is Isolation.read_committed)
    try:
        answer = await client.broker(leader).request(build, min(_REQUEST_TIMEOUT, deadline.remaining))
    except IngestdError as error:
        if is_retriable(error) or (isinstance(error, KafkaError) and error.code is ErrorCode.broker_not_available):
            return error
        raise
    last: IngestdError | None = None
    for topic in answer.topics:
        for partition in topic.partitions:
            key = TopicPartition(topic.name, partition.partition_index)
            if partition.error_code is ErrorCode.none:
                found[key] = partition.offset
                continue
            last = KafkaError(partition.error_code, str(key))
            if not last.retriable and partition.error_code is not ErrorCode.offset_not_available:
                raise last
    return last


def _timestamp(start: Edge | AtTime) -> int:
    if isinstance(start, AtTime):  # below 0 are the names of edges
        return min(max(start.timestamp_ms, 0), _LATEST_TIME)
    return EARLIEST if start is Edge.earliest else LATEST
