"""Consumer group: one group of KIP-848, as a state machine. Events in, actions out.

It has no I/O and no clock. Every event brings the time, and `deadline` says when `expire` is to be called. Time is in
seconds of a clock that never goes back, and in milliseconds since the epoch for what is stored. A group's epoch rises
with each change of its members or topics. Then targets are made for that epoch, and each member is led to its target
in its own heartbeats (`reconciliation.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ingestd.broker.groups.consumer_state import FIRST_EPOCH, Member, preferred
from ingestd.broker.groups.consumer_values import (
    JOINING,
    LEAVING,
    LEAVING_FOR_NOW,
    HeartbeatAnswer,
    MatchedTopics,
    MemberState,
)
from ingestd.broker.groups.reconciliation import Target, reconciled, without_unsubscribed
from ingestd.broker.patterns import check_pattern, matching
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ingestd.broker.coordinator.records import CoordinatorRecord
    from ingestd.broker.groups.classic_values import Joined, Synced
    from ingestd.broker.groups.consumer_state import ConsumerState
    from ingestd.broker.groups.consumer_values import HeartbeatAsked, Profile, TopicIdPartition

__all__ = ["Answer", "ConsumerGroup", "ConsumerRules", "Removal", "Save", "Ticket"]

Ticket: TypeAlias = object
"""Whoever waits for an answer. The group only hands it back."""

Removal: TypeAlias = "tuple[str, str | None, ErrorCode]"
"""A member's id and instance as they were given, and what became of it."""

Answer: TypeAlias = "HeartbeatAnswer | list[Removal] | Joined | Synced"

_FIRST_COMMIT_WITH_EPOCH: Final = 9
"""The version of OffsetCommit from which on it can have a member epoch."""


@dataclass(frozen=True, slots=True)
class Save:
    """Action: append `records` to the log, then answer. Without records: answer when all before is in the log.

    If they can not be appended, tell `ConsumerGroup.not_saved`, and answer with an error.
    """

    records: Sequence[CoordinatorRecord]
    ticket: Ticket | None = None
    answer: Answer | None = None

    @property
    def refused(self) -> bool:
        """Whether this is a refusal, which changed nothing."""
        return not isinstance(self.answer, list) and self.answer is not None and bool(self.answer.error)


@dataclass(frozen=True, slots=True)
class ConsumerRules:
    """What holds for all groups. Times are seconds.

    `assignors` are the names that members may vote for, the default first. `assignment_interval` is how long targets
    are kept at least.
    """

    assignors: tuple[str, ...] = ("uniform", "range")
    session_timeout: float = 45.0
    heartbeat_interval: float = 5.0
    assignment_interval: float = 0.0


@dataclass(slots=True)
class ConsumerGroup:
    """A group's events.

    Invariants
        A member gets a partition after the member that had it has said that it gave it up, or is out.
        A member's epoch is never beyond the epoch of the targets, nor that beyond the group's.
        An event that is refused changes nothing.
    """

    kept: ConsumerState
    rules: ConsumerRules
    _topics_version: int = -1
    """The version of the topics that the group has been compared with."""

    @classmethod
    def restored(cls, kept: ConsumerState, rules: ConsumerRules, now: float) -> ConsumerGroup:
        """A group as the log has it. Its members have a session timeout from now on to say that they live."""
        group = cls(kept, rules)
        for member in kept.members.values():
            member.expires = now + group._session_timeout(member)
            group._time_revocation(member, now)
        return group

    # Events. Each returns what is to be done.

    def heartbeat(self, asked: HeartbeatAsked, ticket: Ticket, now: float, now_ms: int) -> list[Save]:
        """A member joins, lives, tells what it has, or leaves. `ticket` is answered when all of it is in the log."""
        try:
            if asked.epoch in {LEAVING, LEAVING_FOR_NOW}:
                answer = self._leave(asked, now)
            else:
                answer = self._heartbeat(asked, now, now_ms)
        except KafkaError as refused:
            return [Save((), ticket, HeartbeatAnswer(refused.code, message=refused.detail or None))]
        return [Save(self.kept.take_unsaved(), ticket, answer)]

    def remove(self, leaving: Sequence[tuple[str, str | None]], ticket: Ticket) -> list[Save]:
        """A LeaveGroup request: remove members, each named by member id and instance id, whatever they speak.

        An empty member id: the instance's member. `ticket` is answered with what becomes of each.
        """
        results: list[Removal] = []
        gone: dict[str, Member] = {}
        for member_id, instance_id in leaving:
            try:
                member = self._named(member_id, instance_id)
            except KafkaError as refused:
                results.append((member_id, instance_id, refused.code))
            else:
                gone[member.id] = member
                results.append((member_id, instance_id, ErrorCode.none))
        self._remove(list(gone.values()))
        return [Save(self.kept.take_unsaved(), ticket, results)]

    def expire(self, now: float) -> list[Save]:
        """Do what is due."""
        self._remove([member for member in self.kept.members.values() if member.deadline <= now])
        return self._changes()

    def not_saved(self, save: Save) -> None:
        """What a `Save` asked for could not be brought into the log."""
        self.kept.not_saved(save.records)

    def check_commit(
        self, member_id: str, epoch: int, partitions: Iterable[TopicIdPartition], version: int | None
    ) -> None:
        """Raise `KafkaError` unless this member may commit these offsets.

        `version`: that of OffsetCommit; None for a commit in a transaction. An older epoch than the member's counts for
        partitions that it has had since then (KIP-1251).
        """
        transactional = version is None
        if epoch < 0 and not self.kept.members:
            return
        if transactional and epoch < 0 and not member_id:
            return
        member = self.known(member_id)
        classic = member.profile.classic is not None
        if not classic and version is not None and version < _FIRST_COMMIT_WITH_EPOCH:
            raise KafkaError(ErrorCode.unsupported_version, f"OffsetCommit version {version} has no member epoch")
        if epoch == member.held.epoch:
            return
        refusal = ErrorCode.illegal_generation if classic or transactional else ErrorCode.stale_member_epoch
        since = {**member.held.assigned, **member.held.revoking}
        if epoch > member.held.epoch or any(epoch < since.get(partition, epoch + 1) for partition in partitions):
            raise KafkaError(refusal, f"member epoch {epoch}, expected {member.held.epoch}")

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise `KafkaError` unless committed offsets may be read in this member's name. None: in nobody's."""
        if member_id is None and epoch < 0:
            return
        member = self.known(member_id or "")
        if epoch != member.held.epoch:
            classic = member.profile.classic is not None
            code = ErrorCode.illegal_generation if classic else ErrorCode.stale_member_epoch
            raise KafkaError(code, f"member epoch {epoch}, expected {member.held.epoch}")

    @property
    def deadline(self) -> float | None:
        """When `expire` is to be called next, at the latest."""
        return min((member.deadline for member in self.kept.members.values()), default=None)

    @property
    def classic_alone(self) -> bool:
        """Whether it has members, all of whom speak the classic protocol."""
        members = self.kept.members.values()
        return bool(members) and all(member.profile.classic is not None for member in members)

    @property
    def assignor(self) -> str:
        """The assignor that most members voted for."""
        votes = Counter(member.profile.assignor or "" for member in self.kept.members.values())
        return preferred(votes, self.rules.assignors)

    # Heartbeats.

    def _heartbeat(self, asked: HeartbeatAsked, now: float, now_ms: int) -> HeartbeatAnswer:
        member, had = self._member(asked)
        before = member.held.assigned
        profile = _updated(member.profile, asked)
        self._check_pattern(profile)
        if had is not None:
            member = self.kept.replace(had, asked.member_id)
        self.come_nearer(member, profile, asked.owned, now, now_ms)
        member.join_by = member.sync_by = None
        self.live(member, now)
        told = asked.epoch == JOINING or asked.full or member.held.assigned != before
        assigned = frozenset(member.held.assigned) if told else None
        return HeartbeatAnswer(ErrorCode.none, member.id, member.held.epoch, self.rules.heartbeat_interval, assigned)

    def come_nearer(
        self, member: Member, profile: Profile, owned: frozenset[TopicIdPartition] | None, now: float, now_ms: int
    ) -> None:
        """Note what a member says of itself and has, make targets if something is different, and reconcile it."""
        subscribed = self._update(member, profile, now_ms)
        self._make_targets(now_ms)
        self._reconcile(member, owned, now, subscribed=subscribed)

    def live(self, member: Member, now: float) -> None:
        """A member has a whole session from now on."""
        member.expires = now + self._session_timeout(member)

    def _member(self, asked: HeartbeatAsked) -> tuple[Member, Member | None]:
        """The member that asks, and the one whose place it takes. Raises `KafkaError`."""
        kept = self.kept
        joining = asked.epoch == JOINING
        static = kept.instances.get(asked.instance_id) if asked.instance_id is not None else None
        if asked.instance_id is None or (joining and static is None):
            if not joining:
                self.known(asked.member_id)
            member = kept.members.get(asked.member_id) or Member.new(asked.member_id)
        elif joining and static is not None:
            old = self.known(static)  # as in Kafka: the member that had the instance may have gone under another
            if old.profile.classic is None and old.held.epoch != LEAVING_FOR_NOW:
                raise KafkaError(
                    ErrorCode.unreleased_instance_id, f"{asked.instance_id!r} is the instance of {old.id!r}"
                )
            return old, old
        else:
            member = self.static(asked.instance_id, asked.member_id)
        self._check_epoch(member, asked)
        return member, None

    def known(self, member_id: str) -> Member:
        """The member. Raises `KafkaError` (UNKNOWN_MEMBER_ID)."""
        member = self.kept.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"{member_id!r} is not a member of {self.kept.id!r}")
        return member

    def static(self, instance_id: str, member_id: str) -> Member:
        """The member with this instance. Raises `KafkaError`: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        known = self.kept.instances.get(instance_id)
        if known is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"no member of {self.kept.id!r} has instance {instance_id!r}")
        if known != member_id:
            raise KafkaError(ErrorCode.fenced_instance_id, f"{instance_id!r} is the instance of {known!r}")
        return self.known(known)

    def _named(self, member_id: str, instance_id: str | None) -> Member:
        if instance_id is None:
            return self.known(member_id)
        return self.static(instance_id, member_id or self.kept.instances.get(instance_id, ""))

    @staticmethod
    def _check_epoch(member: Member, asked: HeartbeatAsked) -> None:
        held = member.held
        if asked.epoch in {JOINING, held.epoch}:
            return
        # It did not get the answer with its new epoch.
        lost = asked.epoch == held.previous_epoch and asked.owned is not None and asked.owned <= held.assigned.keys()
        if asked.epoch > held.epoch or not lost:
            raise KafkaError(
                ErrorCode.fenced_member_epoch,
                f"member epoch {asked.epoch}, expected {held.epoch}: give up all partitions, and join again",
            )

    def _check_pattern(self, profile: Profile) -> None:
        if profile.pattern and profile.pattern not in self.kept.matches:
            try:
                check_pattern(profile.pattern)
            except KafkaError as refused:
                raise KafkaError(refused.code, f"SubscribedTopicRegex {refused.detail}") from refused

    def _update(self, member: Member, profile: Profile, now_ms: int) -> bool:
        """Note what a member says, and how topics are now. Returns whether the member subscribes to something else."""
        kept = self.kept
        before = member.profile
        kept.put_profile(member, profile)
        version = kept.topics.version
        matched = self._match(now_ms, again=version != self._topics_version)
        subscribed = profile.topics != before.topics or (profile.pattern or "") != (before.pattern or "")
        moved = version != self._topics_version and kept.hash_of_topics() != kept.topics_hash
        self._topics_version = version
        if subscribed or matched or moved or kept.epoch == FIRST_EPOCH:
            kept.put_epoch(kept.epoch + 1)
        return subscribed

    def _match(self, now_ms: int, *, again: bool) -> bool:
        """Find the topics of patterns: of all if `again`, else of new ones. Returns whether a known one has others."""
        kept = self.kept
        wanted = {member.profile.pattern for member in kept.members.values() if member.profile.pattern}
        for pattern in kept.matches.keys() - wanted:
            kept.put_match(pattern, None)
        asked = wanted if again else wanted - kept.matches.keys()
        different = False
        for pattern, topics in matching(asked, [topic.name for topic in kept.topics] if asked else ()).items():
            known = kept.matches.get(pattern)
            if known is None or known.topics != topics:
                different = different or known is not None
                kept.put_match(pattern, MatchedTopics(topics, kept.topics.version, now_ms))
        return different

    def _make_targets(self, now_ms: int) -> None:
        kept = self.kept
        fresh = kept.target_made and now_ms < kept.target_made + self.rules.assignment_interval * 1000
        if kept.epoch > kept.target_epoch and not fresh:
            kept.make_targets(self.assignor, now_ms)

    def _reconcile(
        self, member: Member, owned: frozenset[TopicIdPartition] | None, now: float, *, subscribed: bool
    ) -> None:
        kept = self.kept
        settled = member.held.state is MemberState.stable and member.held.epoch == kept.target_epoch
        if settled and not subscribed:
            return
        target = Target(
            kept.target_epoch,
            member.target or frozenset(),
            kept.owners,
            owned,
            kept.ids_of(member.profile),
        )
        held = reconciled(member.id, member.held, target)
        if held is member.held and subscribed:
            held = without_unsubscribed(held, target)
        if held != member.held:
            kept.put_held(member, held)
            self._time_revocation(member, now)

    def _time_revocation(self, member: Member, now: float) -> None:
        waits = member.held.state is MemberState.unrevoked_partitions and member.profile.classic is None
        member.revoke_by = now + member.profile.rebalance_timeout if waits else None

    def _session_timeout(self, member: Member) -> float:
        classic = member.profile.classic
        return self.rules.session_timeout if classic is None else classic.session_timeout

    # Members that go.

    def _leave(self, asked: HeartbeatAsked, now: float) -> HeartbeatAnswer:
        if asked.instance_id is None:
            member = self.known(asked.member_id)
        else:
            member = self.static(asked.instance_id, asked.member_id)
        if asked.instance_id is not None and asked.epoch == LEAVING_FOR_NOW:
            self.kept.put_held(member, replace(member.held, epoch=LEAVING_FOR_NOW, revoking={}))
            self._time_revocation(member, now)
        else:
            self._remove([member])
        return HeartbeatAnswer(ErrorCode.none, member.id, asked.epoch)

    def _remove(self, members: Sequence[Member]) -> None:
        if not members:
            return
        for member in members:
            self.kept.remove(member)
        for pattern in self.kept.matches.keys() - {one.profile.pattern for one in self.kept.members.values()}:
            self.kept.put_match(pattern, None)
        # A group of classic members alone is to be a classic one, whose generation is this epoch.
        if not self.classic_alone:
            self.kept.put_epoch(self.kept.epoch + 1)

    def _changes(self) -> list[Save]:
        records = self.kept.take_unsaved()
        return [Save(records)] if records else []


def _updated(profile: Profile, asked: HeartbeatAsked) -> Profile:
    """A member's profile with what it says now. It speaks the new protocol."""
    said: dict[str, Any] = {
        "instance_id": asked.instance_id,
        "rack": asked.rack,
        "rebalance_timeout": asked.rebalance_timeout,
        "topics": asked.topics,
        "pattern": asked.pattern,
        "assignor": asked.assignor,
    }
    known = {name: value for name, value in said.items() if value is not None}
    return replace(profile, client_id=asked.client_id, client_host=asked.client_host, classic=None, **known)
