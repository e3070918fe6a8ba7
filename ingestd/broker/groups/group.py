"""Group: all that a coordinator knows of one group id: its members, and the offsets that it committed."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ingestd.broker.groups.classic_values import GroupState
from ingestd.errors import ProtocolError
from ingestd.wire.consumer_protocol import PROTOCOL_TYPE, decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.broker.coordinator.records import Committed
    from ingestd.broker.groups.classic_group import ClassicGroup

__all__ = ["Group", "TopicPartition"]

TopicPartition: TypeAlias = "tuple[str, int]"


@dataclass(slots=True, eq=False)
class Group:
    """One group.

    `offsets` has what is in the log. `writing` counts the commits on their way there, by partition. `since` is when the
    group was stored last, in milliseconds since the epoch; None: never. `wakes` is when its timer goes off.
    """

    id: str
    classic: ClassicGroup
    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)
    writing: Counter[TopicPartition] = field(default_factory=Counter)
    since: int | None = None
    wakes: float = math.inf

    @property
    def bare(self) -> bool:
        """Whether nothing would be lost with it, but a generation that nobody is in."""
        vacant = self.classic.state is GroupState.empty and not self.classic.pending
        return vacant and not self.offsets and not self.writing

    @property
    def known_partitions(self) -> set[TopicPartition]:
        """Partitions with an offset that is in the log, or may be by now."""
        return {*self.offsets, *self.writing}

    def subscribes(self, topic: str) -> bool:
        """Whether a member may be reading the topic. Of members that speak another protocol it is not known."""
        topics = self._subscribed()
        return topics is None or topic in topics

    def _subscribed(self) -> set[str] | None:
        classic = self.classic
        if classic.state is GroupState.empty:
            return set()
        if classic.protocol_type != PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        try:
            for member in classic.members.values():
                for _name, metadata in member.protocols:
                    topics.update(decode("subscription", metadata).topics)
        except ProtocolError:
            return None
        return topics

    def expired(self, now_ms: int, retention_ms: int) -> Iterator[TopicPartition]:
        """Partitions whose offset nobody needs any more (KIP-211).

        The time runs from the moment when the last member left, or from the commit if there never was one. In a group
        with members it runs from the commit, for topics that nobody subscribes to.
        """
        classic = self.classic
        if classic.state not in {GroupState.empty, GroupState.stable}:
            return
        left = self.since if classic.state is GroupState.empty and classic.protocol_type else None
        subscribed = self._subscribed()
        if subscribed is None:
            return
        for partition, committed in self.offsets.items():
            since = max(left or 0, committed.timestamp)
            if partition[0] not in subscribed and partition not in self.writing and now_ms - since >= retention_ms:
                yield partition
