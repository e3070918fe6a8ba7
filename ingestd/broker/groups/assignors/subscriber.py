"""Subscriber: a group member as the broker's assignors see it: its topics, and what it had before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from ingestd.broker.groups.consumer_values import TopicIdPartition

__all__ = ["Subscriber"]


@dataclass(frozen=True, slots=True)
class Subscriber:
    """The topics that a member reads, all of which exist, and the assignment that it had."""

    topics: frozenset[UUID]
    had: frozenset[TopicIdPartition] = frozenset()
    instance_id: str | None = None
