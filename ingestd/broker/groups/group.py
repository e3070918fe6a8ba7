"""Group: all that a coordinator knows of one group id: its members, and the offsets that it committed.

A group speaks one of two protocols. Callers need not know which one, but where they ask for `classic` or `consumer`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ingestd.broker.groups.classic_values import GroupState
from ingestd.errors import ErrorCode, KafkaError, ProtocolError
from ingestd.wire.consumer_protocol import PROTOCOL_TYPE, decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ingestd.broker.coordinator.records import Committed
    from ingestd.broker.groups.classic_group import ClassicGroup
    from ingestd.broker.groups.consumer_group import ConsumerGroup

__all__ = ["Group", "TopicPartition"]

TopicPartition: TypeAlias = "tuple[str, int]"


@dataclass(slots=True, eq=False)
class Group:
    """One group. `consumer` is the group if it is one of KIP-848; else it is `classic`.

    `saving` counts the changes of `consumer` on their way into the log. `offsets` has what is in the log. `writing`
    counts the commits on their way there, by partition, and those of open transactions. `since` is when it was last
    to be stored as a classic group, in milliseconds since the epoch; None: never. `wakes` is when its timer goes off.
    `unremoved` has the keys of records that are to go from the log, where the disk had no room to say so: the group's
    next records say it.
    """

    id: str
    classic: ClassicGroup
    consumer: ConsumerGroup | None = None
    saving: int = 0
    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)
    writing: Counter[TopicPartition] = field(default_factory=Counter)
    since: int | None = None
    wakes: float = math.inf
    unremoved: dict[Any, None] = field(default_factory=dict)

    @property
    def bare(self) -> bool:
        """Whether nothing would be lost with it, but a generation that nobody is in."""
        stored = self.consumer is not None and self.consumer.kept.epoch > 0
        return self.vacant and not stored and not self.offsets and not self.writing

    @property
    def vacant(self) -> bool:
        """Whether nobody is in it, or about to be."""
        if self.consumer is not None:
            return not self.consumer.kept.members
        return self.classic.state is GroupState.empty and not self.classic.pending

    @property
    def state(self) -> str:
        """The state that ListGroups gives."""
        return self.classic.state.value if self.consumer is None else self.consumer.kept.state.value

    @property
    def protocol_type(self) -> str:
        """What its members speak among each other."""
        return (self.classic.protocol_type or "") if self.consumer is None else PROTOCOL_TYPE

    @property
    def kind(self) -> str:
        """The type that ListGroups gives."""
        return "classic" if self.consumer is None else "consumer"

    @property
    def deadline(self) -> float | None:
        """When its members are to be told the time next."""
        return self.classic.deadline if self.consumer is None else self.consumer.deadline

    def check_commit(
        self,
        member: tuple[str, str | None, int],
        partitions: Iterable[TopicPartition],
        now: float,
        version: int | None,
    ) -> None:
        """Raise `KafkaError` unless these offsets may be committed. A classic member that may lives.

        `member`: member id, instance id, generation or member epoch. `version`: that of OffsetCommit; None for a commit
        in a transaction.
        """
        if self.consumer is None:
            self.classic.check_commit(*member, now, transactional=version is None)
            return
        topics = self.consumer.kept.topics
        known = [(topic.topic_id, number) for name, number in partitions if (topic := topics.named(name)) is not None]
        self.consumer.check_commit(member[0], member[2], known, version)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise `KafkaError` unless this member may read committed offsets."""
        if self.consumer is not None:
            self.consumer.check_fetch(member_id, epoch)

    def check_offsets_deletable(self) -> None:
        """Raise `KafkaError` (NON_EMPTY_GROUP) if it is not known what members read."""
        if self.consumer is None and not self.vacant and self.classic.protocol_type != PROTOCOL_TYPE:
            raise KafkaError(ErrorCode.non_empty_group, f"{self.id!r} has members that do not say what they read")

    @property
    def known_partitions(self) -> set[TopicPartition]:
        """Partitions with an offset that is in the log, or may be by now."""
        return {*self.offsets, *self.writing}

    def subscribes(self, topic: str) -> bool:
        """Whether a member may be reading the topic. Of members that speak another protocol it is not known."""
        topics = self._subscribed()
        return topics is None or topic in topics

    def _subscribed(self) -> set[str] | None:
        if self.consumer is not None:
            return self.consumer.kept.subscribed()
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
        left = None
        if self.consumer is None:
            if self.classic.state not in {GroupState.empty, GroupState.stable}:
                return
            left = self.since if self.classic.state is GroupState.empty and self.classic.protocol_type else None
        subscribed = self._subscribed()
        if subscribed is None:
            return
        for partition, committed in self.offsets.items():
            since = max(left or 0, committed.timestamp)
            if partition[0] not in subscribed and partition not in self.writing and now_ms - since >= retention_ms:
                yield partition
