"""Unassigned: which partitions of some topics no member of a classic group has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.client.admin.group_values import described_classic_group
from ingestd.client.metadata import TopicPartition
from ingestd.errors import IngestdError
from ingestd.retry import Deadline
from ingestd.wire.requests.group_admin import describe_classic_groups

if TYPE_CHECKING:
    from collections.abc import Collection

    from ingestd.client.client import Client
    from ingestd.consumer.group.coordinator import GroupCoordinator

__all__ = ["unassigned"]

_SETTLED: Final = "Stable"


async def unassigned(
    client: Client, coordinator: GroupCoordinator, topics: Collection[str], timeout: float
) -> list[TopicPartition]:
    """The partitions of `topics` that no member has. Empty while the group rebalances: its leader sees them then.

    Raises `KafkaError`, `ConnectionLost`, `DeadlineExceeded` after `timeout` seconds.
    """
    deadline = Deadline.after(timeout)
    cluster = await client.metadata.refresh(topics, deadline.remaining)
    answer = await coordinator.request(describe_classic_groups([coordinator.group_id]), deadline.remaining)
    group = described_classic_group(answer.groups[0])
    if isinstance(group, IngestdError):
        raise group
    if group.state != _SETTLED:
        return []
    assigned = {partition for member in group.members for partition in member.assignment}
    partitions = (
        TopicPartition(name, number)
        for name in sorted(topics)
        if name in cluster.topics
        for number in range(len(cluster.topics[name].partitions))
    )
    return [partition for partition in partitions if partition not in assigned]
