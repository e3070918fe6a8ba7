"""Consumer state: what a group of KIP-848 is, as the log keeps it. Every change of it is noted for the log."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingestd.broker.coordinator.consumer_records import (
    ConsumerGroupKey,
    CurrentKey,
    MatchedTopicsKey,
    MemberKey,
    TargetKey,
    TargetMemberKey,
)
from ingestd.broker.groups.assignors import ASSIGNORS
from ingestd.broker.groups.assignors.subscriber import Subscriber
from ingestd.broker.groups.consumer_values import (
    ConsumerGroupState,
    GroupEpoch,
    Held,
    MemberState,
    Profile,
    TargetEpoch,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from uuid import UUID

    from ingestd.broker.coordinator.consumer_records import ConsumerKey, ConsumerRecord, ConsumerValue
    from ingestd.broker.coordinator.records import CoordinatorRecord
    from ingestd.broker.groups.consumer_values import MatchedTopics, TopicIdPartition
    from ingestd.broker.topics import Topic

__all__ = ["FIRST_EPOCH", "ConsumerState", "Member", "Topics"]

FIRST_EPOCH: Final = 1
"""That of a new group. Its first member raises it, as in Kafka."""
_HASHED: Final = Struct(">16sI")
_SIGNED: Final = Struct(">q")


class Topics(Protocol):
    """The topics of the broker. `version` is another number after each change."""

    @property
    def version(self) -> int:
        """Rises with each change."""
        ...

    def __iter__(self) -> Iterator[Topic]: ...

    def named(self, name: str) -> Topic | None:
        """The topic of that name."""
        ...

    def identified(self, topic_id: UUID | None) -> Topic | None:
        """The topic with that id."""
        ...


@dataclass(slots=True, eq=False)
class Member:
    """A member: what it said, what it has, what it is to have. Its timers are on a clock that never goes back.

    `expires` is when its session ends, `revoke_by` until when it has to give up what it is asked for. Members of the
    classic protocol have to join again by `join_by`, and to ask for their assignment by `sync_by`.
    """

    id: str
    profile: Profile
    held: Held
    target: frozenset[TopicIdPartition] | None = None
    expires: float = 0.0
    revoke_by: float | None = None
    join_by: float | None = None
    sync_by: float | None = None

    @classmethod
    def new(cls, member_id: str) -> Member:
        """A member that has said nothing yet."""
        return cls(member_id, Profile(), Held(0, -1, MemberState.stable, {}, {}))

    @property
    def deadline(self) -> float:
        """When it is out, if it does nothing."""
        return min(ends for ends in (self.expires, self.revoke_by, self.join_by, self.sync_by) if ends is not None)


@dataclass(slots=True)
class ConsumerState:
    """A group's epoch, members, their assignments and targets.

    Invariants
        A partition has one owner at most: the member that has it, until it gave it up.
        What changed and is not on its way into the log is in `unsaved`, by key, with the newest value.
    """

    id: str
    topics: Topics
    epoch: int = FIRST_EPOCH
    topics_hash: int = 0
    target_epoch: int = 0
    target_made: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    matches: dict[str, MatchedTopics] = field(default_factory=dict)
    owners: dict[TopicIdPartition, str] = field(default_factory=dict)
    unsaved: dict[Any, Any] = field(default_factory=dict)
    """Values by key, both those of records."""

    def __post_init__(self) -> None:
        for member in self.members.values():
            if member.profile.instance_id is not None:
                self.instances[member.profile.instance_id] = member.id
            self.owners.update(dict.fromkeys((*member.held.assigned, *member.held.revoking), member.id))

    # Changes.

    def note(self, key: ConsumerKey, value: ConsumerValue) -> None:
        """Have this record written to the log with the next `Save`."""
        self.unsaved.pop(key, None)
        self.unsaved[key] = value

    def put_profile(self, member: Member, profile: Profile) -> None:
        """A member, maybe a new one, says this of itself."""
        known = self.members.get(member.id) is member
        if known and profile == member.profile:
            return
        member.profile = profile
        self.members[member.id] = member
        if profile.instance_id is not None:
            self.instances[profile.instance_id] = member.id
        self.note(MemberKey(self.id, member.id), profile)

    def put_held(self, member: Member, held: Held) -> None:
        """A member has this now."""
        if held == member.held:
            return
        self._disown(member)
        member.held = held
        self.owners.update(dict.fromkeys((*held.assigned, *held.revoking), member.id))
        self.note(CurrentKey(self.id, member.id), held)

    def put_target(self, member: Member, target: frozenset[TopicIdPartition]) -> None:
        """A member is to have this."""
        if target != member.target:
            member.target = target
            self.note(TargetMemberKey(self.id, member.id), target)

    def put_match(self, pattern: str, match: MatchedTopics | None) -> None:
        """These topics match a regular expression. None: nobody subscribes to it any more."""
        if match is None:
            del self.matches[pattern]
        else:
            self.matches[pattern] = match
        self.note(MatchedTopicsKey(self.id, pattern), match)

    def remove(self, member: Member) -> None:
        """A member is gone, and what it had is free."""
        self._disown(member)
        del self.members[member.id]
        if member.profile.instance_id is not None:
            del self.instances[member.profile.instance_id]
        for key in (CurrentKey, TargetMemberKey, MemberKey):
            self.note(key(self.id, member.id), None)

    def replace(self, old: Member, new_id: str) -> Member:
        """A member with another id in the place of `old`, with all that it had and was to have."""
        member = Member(new_id, old.profile, old.held, None, old.expires)
        self.remove(old)
        self.put_profile(member, old.profile)
        self.put_target(member, old.target or frozenset())
        member.held = Held(0, 0, MemberState.stable, {}, {})
        self.put_held(member, Held(0, 0, old.held.state, old.held.assigned, old.held.revoking))
        return member

    def put_epoch(self, epoch: int) -> None:
        """Something is different: targets have to be made anew."""
        self.epoch = epoch
        self.topics_hash = self.hash_of_topics()
        self.note(ConsumerGroupKey(self.id), GroupEpoch(epoch, self.topics_hash))

    def make_targets(self, assignor: str, now_ms: int) -> None:
        """Make the targets for the group's epoch."""
        ids = {name: topic for name in self.subscribed() if (topic := self.topics.named(name)) is not None}
        members = {
            member.id: Subscriber(
                frozenset(ids[name].topic_id for name in self.names_of(member.profile) if name in ids),
                member.target or frozenset(),
                member.profile.instance_id,
            )
            for member in self.members.values()
        }
        made = ASSIGNORS[assignor](members, {topic.topic_id: topic.partitions for topic in ids.values()})
        for member in self.members.values():
            self.put_target(member, made[member.id])
        self.put_target_epoch(self.epoch, now_ms)

    def put_target_epoch(self, epoch: int, now_ms: int) -> None:
        """The targets are for this group epoch."""
        self.target_epoch, self.target_made = epoch, now_ms
        self.note(TargetKey(self.id), TargetEpoch(epoch, now_ms))

    def _disown(self, member: Member) -> None:
        for partition in (*member.held.assigned, *member.held.revoking):
            if self.owners.get(partition) == member.id:
                del self.owners[partition]

    # What it is.

    @property
    def state(self) -> ConsumerGroupState:
        """The state that ListGroups gives."""
        if not self.members:
            return ConsumerGroupState.empty
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.assigning
        settled = all(
            member.held.state is MemberState.stable and member.held.epoch == self.target_epoch
            for member in self.members.values()
        )
        return ConsumerGroupState.stable if settled else ConsumerGroupState.reconciling

    def names_of(self, profile: Profile) -> frozenset[str]:
        """The names of the topics that a member reads, by name or by its pattern."""
        match = self.matches.get(profile.pattern or "")
        return profile.topics if match is None else profile.topics | match.topics

    def ids_of(self, profile: Profile) -> set[UUID]:
        """The ids of the topics that a member reads and that exist."""
        found = (self.topics.named(name) for name in self.names_of(profile))
        return {topic.topic_id for topic in found if topic is not None}

    def subscribed(self) -> set[str]:
        """The names of the topics that anybody reads."""
        patterns = Counter(member.profile.pattern for member in self.members.values())
        names = {name for member in self.members.values() for name in member.profile.topics}
        return names.union(*(match.topics for pattern, match in self.matches.items() if patterns[pattern]))

    def hash_of_topics(self) -> int:
        """Another number whenever a topic of the group is made, grown, deleted, or subscribed to first or last."""
        hashed = hashlib.blake2b(digest_size=_SIGNED.size)
        for name in sorted(self.subscribed()):
            topic = self.topics.named(name)
            if topic is not None:
                hashed.update(_HASHED.pack(topic.topic_id.bytes, topic.partitions))
        return int(_SIGNED.unpack(hashed.digest())[0])

    def records(self) -> Iterator[ConsumerRecord]:
        """All that the log keeps of the group."""
        for member in self.members.values():
            yield MemberKey(self.id, member.id), member.profile
        yield ConsumerGroupKey(self.id), GroupEpoch(self.epoch, self.topics_hash)
        for member in self.members.values():
            yield TargetMemberKey(self.id, member.id), member.target or frozenset()
        yield TargetKey(self.id), TargetEpoch(self.target_epoch, self.target_made)
        for member in self.members.values():
            yield CurrentKey(self.id, member.id), member.held
        for pattern, match in self.matches.items():
            yield MatchedTopicsKey(self.id, pattern), match

    def tombstones(self) -> list[ConsumerRecord]:
        """What takes the group out of the log. The group itself comes last."""
        gone: list[ConsumerRecord] = [(key, None) for key, _value in self.records() if not _is_group(key)]
        return [*gone, (ConsumerGroupKey(self.id), None)]

    # On the way into the log.

    def take_unsaved(self) -> list[CoordinatorRecord]:
        """What goes into the log now."""
        taken, self.unsaved = list(self.unsaved.items()), {}
        return taken

    def not_saved(self, records: Iterable[CoordinatorRecord]) -> None:
        """These did not get into the log. They go with the next ones, unless there are newer ones of their keys."""
        self.unsaved = {**dict(records), **self.unsaved}


def _is_group(key: ConsumerKey) -> bool:
    return isinstance(key, ConsumerGroupKey)


def preferred(votes: Mapping[str, int], order: Iterable[str]) -> str:
    """The assignor with most votes, the first of `order` among equals."""
    return max(order, key=lambda name: votes.get(name, 0))
