"""Replayed: what the records of a partition of `__consumer_offsets` say of its groups, the oldest first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingestd.broker.coordinator.consumer_records import (
    ConsumerGroupKey,
    CurrentKey,
    MatchedTopicsKey,
    MemberKey,
    TargetKey,
    TargetMemberKey,
)
from ingestd.broker.coordinator.records import CommitKey, Committed, GroupEntry, GroupKey
from ingestd.broker.groups.consumer_state import ConsumerState, Member
from ingestd.broker.groups.consumer_values import GroupEpoch, Held, MatchedTopics, Profile, TargetEpoch
from ingestd.broker.groups.pending_offsets import PendingOffsets
from ingestd.records.batch import NO_PRODUCER_ID
from ingestd.records.decode import ControlKind

if TYPE_CHECKING:
    from ingestd.broker.coordinator.consumer_records import ConsumerKey
    from ingestd.broker.coordinator.coordinator_log import LogBatch
    from ingestd.broker.coordinator.records import CoordinatorRecord
    from ingestd.broker.groups.consumer_state import Topics
    from ingestd.broker.groups.consumer_values import TopicIdPartition
    from ingestd.broker.groups.group import TopicPartition

__all__ = ["Replayed", "ReplayedGroups"]


@dataclass(slots=True)
class Replayed:
    """A group as its records tell it so far.

    Invariants
        A group is of one protocol: the one that its newest record is about.
    """

    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)
    entry: GroupEntry | None = None
    epoch: GroupEpoch | None = None
    target_epoch: TargetEpoch = TargetEpoch(0, 0)  # noqa: RUF009 - frozen
    profiles: dict[str, Profile] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    targets: dict[str, frozenset[TopicIdPartition]] = field(default_factory=dict)
    matches: dict[str, MatchedTopics] = field(default_factory=dict)

    @property
    def gone(self) -> bool:
        """Whether there is no such group any more."""
        return not self.offsets and self.entry is None and self.epoch is None

    def take(self, record: CoordinatorRecord) -> None:
        """The next record of this group."""
        key, value = record
        if isinstance(key, CommitKey):
            if isinstance(value, Committed):
                self.offsets[key.topic, key.partition] = value
            else:
                self.offsets.pop((key.topic, key.partition), None)
        elif isinstance(key, GroupKey):
            self.entry = value if isinstance(value, GroupEntry) else None
            if self.entry is not None:
                self._forget_consumers()
        else:
            self._take_consumer(key, value)

    def _take_consumer(self, key: ConsumerKey, value: object) -> None:
        match key, value:
            case ConsumerGroupKey(), GroupEpoch():
                self.epoch, self.entry = value, None
            case ConsumerGroupKey(), _:
                self._forget_consumers()
            case MemberKey(), Profile():
                self.profiles[key.member] = value
            case MemberKey(), _:
                self.profiles.pop(key.member, None)
            case TargetKey(), _:
                self.target_epoch = value if isinstance(value, TargetEpoch) else TargetEpoch(0, 0)
            case TargetMemberKey(), frozenset():
                self.targets[key.member] = value
            case TargetMemberKey(), _:
                self.targets.pop(key.member, None)
            case CurrentKey(), Held():
                self.held[key.member] = value
            case CurrentKey(), _:
                self.held.pop(key.member, None)
            case MatchedTopicsKey(), MatchedTopics():
                self.matches[key.pattern] = value
            case MatchedTopicsKey(), _:
                self.matches.pop(key.pattern, None)

    def _forget_consumers(self) -> None:
        self.epoch, self.target_epoch = None, TargetEpoch(0, 0)
        for kept in (self.profiles, self.held, self.targets, self.matches):
            kept.clear()

    def consumer_state(self, group_id: str, topics: Topics) -> ConsumerState | None:
        """The group of KIP-848 that this is; None if it is none."""
        if self.epoch is None:
            return None
        members = {}
        for member_id, profile in self.profiles.items():
            member = members[member_id] = Member.new(member_id)
            member.profile = profile
            member.held = self.held.get(member_id, member.held)
            member.target = self.targets.get(member_id)
        return ConsumerState(
            group_id,
            topics,
            self.epoch.epoch,
            self.epoch.topics_hash,
            self.target_epoch.epoch,
            self.target_epoch.made,
            members,
            matches=dict(self.matches),
        )


class ReplayedGroups:
    """The groups of a partition, by id, and the offsets of transactions that are still open."""

    def __init__(self) -> None:
        self.groups: dict[str, Replayed] = {}
        self.pending = PendingOffsets()

    def take(self, batch: LogBatch[CoordinatorRecord]) -> None:
        """The next batch of the partition."""
        if batch.marker is not None:
            commits = batch.marker.kind is ControlKind.commit
            offsets, _settled = self.pending.end(batch.marker.producer_id, commits=commits)
            for key, committed in offsets.items():
                self._group(key.group).take((key, committed))
        elif batch.producer_id != NO_PRODUCER_ID:
            self.pending.add(
                batch.producer_id,
                {
                    key: value
                    for key, value in batch.records
                    if isinstance(key, CommitKey) and isinstance(value, Committed)
                },
            )
        else:
            for record in batch.records:
                self._group(record[0].group).take(record)
            self.pending.replace(key for key, _value in batch.records if isinstance(key, CommitKey))

    def _group(self, group_id: str) -> Replayed:
        return self.groups.setdefault(group_id, Replayed())
