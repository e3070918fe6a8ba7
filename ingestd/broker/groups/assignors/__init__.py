"""Assignors of the broker (KIP-848): who of a group gets which partitions. The first name is the default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.groups.assignors.range import assign_ranges
from ingestd.broker.groups.assignors.uniform import assign_uniformly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from ingestd.broker.groups.assignors.subscriber import Subscriber
    from ingestd.broker.groups.consumer_values import TopicIdPartition

__all__ = ["ASSIGNORS"]

ASSIGNORS: Final[
    Mapping[str, Callable[[Mapping[str, Subscriber], Mapping[UUID, int]], Mapping[str, frozenset[TopicIdPartition]]]]
] = {"uniform": assign_uniformly, "range": assign_ranges}
"""By name. Each gets the members by id, and how many partitions each topic has. Every member gets an assignment."""
