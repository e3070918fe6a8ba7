"""The offsets of a request to commit them, in a transaction or outside: which can be taken, and why others not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.broker.coordinator.records import Committed
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker

__all__ = ["offsets_to_commit"]


def offsets_to_commit(
    broker: Broker, topics: Any, *, by_id: bool
) -> tuple[dict[tuple[str, int], Committed], dict[tuple[object, int], ErrorCode]]:
    """What can be committed, and why the rest can not: by topic name or id, as the request has it, and partition.

    `by_id`: the request has topic ids.
    """
    now_ms = int(broker.clock.wall() * 1000)
    offsets: dict[tuple[str, int], Committed] = {}
    refused: dict[tuple[object, int], ErrorCode] = {}
    for topic in topics:
        named = topic.topic_id if by_id else topic.name
        try:
            known = broker.topic_with_id(named) if by_id else broker.topic_named(named)
        except KafkaError as error:
            refused.update({(named, one.partition_index): error.code for one in topic.partitions})
            continue
        for one in topic.partitions:
            metadata = one.committed_metadata or ""
            if one.partition_index >= known.partitions or one.partition_index < 0:
                refused[named, one.partition_index] = ErrorCode.unknown_topic_or_partition
            elif _java_length(metadata) > broker.settings.offset_metadata_bytes:
                refused[named, one.partition_index] = ErrorCode.offset_metadata_too_large
            else:
                offsets[known.name, one.partition_index] = Committed(
                    one.committed_offset, getattr(one, "committed_leader_epoch", -1), metadata, now_ms
                )
    return offsets, refused


def _java_length(text: str) -> int:
    """The length of a string in Java: the limit is not in bytes, whatever it is called."""
    return len(text.encode("utf-16-le")) // 2
