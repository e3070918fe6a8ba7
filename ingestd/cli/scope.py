"""Partitions as people name them, `TOPIC` or `TOPIC:0,2,5`, and what their offsets are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.client.admin import OffsetAt
from ingestd.client.metadata import TopicPartition
from ingestd.errors import ConfigurationError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ingestd.client.admin import ClusterAdmin, ListedOffset

__all__ = ["offsets_at", "parse_scope", "partitions_in"]


def parse_scope(texts: Iterable[str], option: str) -> dict[str, list[int] | None]:
    """Topics, each `TOPIC` or `TOPIC:0,2,5`, with the partitions meant; None: all.

    Raises `ConfigurationError`, naming the `option` that they were given with.
    """
    scope: dict[str, list[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        parts = numbers.split(",") if colon else []
        if not topic or not all(part.isascii() and part.isdigit() for part in parts):
            raise ConfigurationError(f"{option} {text!r}: expected TOPIC or TOPIC:0,2,5")
        before = scope.get(topic, [])
        scope[topic] = sorted({*before, *map(int, parts)}) if colon and before is not None else None
    return scope


async def partitions_in(admin: ClusterAdmin, scope: Mapping[str, Collection[int] | None]) -> list[TopicPartition]:
    """The partitions of a scope. Raises `KafkaError` for a topic or partition that is not there."""
    described = await admin.describe_topics(scope)
    partitions = []
    for topic, numbers in scope.items():
        found = described.get(topic)
        if found is None or found.error is not ErrorCode.none:
            raise KafkaError(ErrorCode.unknown_topic_or_partition if found is None else found.error, topic)
        for number in range(len(found.partitions)) if numbers is None else numbers:
            if number >= len(found.partitions):
                raise KafkaError(ErrorCode.unknown_topic_or_partition, f"{topic}-{number}")
            partitions.append(TopicPartition(topic, number))
    return partitions


async def offsets_at(
    admin: ClusterAdmin, partitions: Sequence[TopicPartition], at: int
) -> dict[TopicPartition, ListedOffset]:
    """Each partition's offset at a time in milliseconds since 1970, `EARLIEST` or `LATEST`."""
    listed = await admin.list_offsets([OffsetAt(*partition, at) for partition in partitions])
    return {TopicPartition(one.topic, one.partition): one for one in listed}
