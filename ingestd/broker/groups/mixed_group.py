"""Mixed group: a group of KIP-848 with members that speak the classic protocol, while it is upgraded or downgraded.

A classic member joins to come to its target, and syncs to hear what it has. Its generation is its member epoch. A
heartbeat tells it to join again. Nobody leads: the group assigns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ingestd.broker.groups.classic_values import Joined, Synced
from ingestd.broker.groups.consumer_group import Save
from ingestd.broker.groups.consumer_state import Member
from ingestd.broker.groups.consumer_values import ClassicSide, MemberState
from ingestd.broker.groups.embedded_protocol import read_subscription, write_assignment
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.consumer_protocol import PROTOCOL_TYPE

if TYPE_CHECKING:
    from ingestd.broker.groups.classic_values import Join, Sync
    from ingestd.broker.groups.consumer_group import ConsumerGroup, Ticket

__all__ = ["ClassicMembers"]


@dataclass(slots=True)
class ClassicMembers:
    """The events of a group's classic members. Each returns what is to be done."""

    group: ConsumerGroup

    def join(self, asked: Join, ticket: Ticket, now: float, now_ms: int) -> list[Save]:
        """Become a member, or come nearer to the target. `ticket` is answered when that is in the log."""
        try:
            joined = self._join(asked, now, now_ms)
        except KafkaError as refused:
            named = asked.new_member_id if refused.code is ErrorCode.member_id_required else asked.member_id
            return [Save((), ticket, Joined(refused.code, named))]
        return [Save(self.group.kept.take_unsaved(), ticket, joined)]

    def sync(self, asked: Sync, ticket: Ticket, now: float) -> list[Save]:
        """Hear what it has. `ticket` is answered when that is in the log."""
        try:
            synced = self._sync(asked, now)
        except KafkaError as refused:
            synced = Synced(refused.code)
        return [Save((), ticket, synced)]

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> ErrorCode:
        """Note that a member lives. REBALANCE_IN_PROGRESS tells it to join again."""
        try:
            member = self._member(member_id, instance_id, generation)
        except KafkaError as refused:
            return refused.code
        self.group.live(member, now)
        behind = member.held.epoch < self.group.kept.target_epoch
        revokes = member.held.state is MemberState.unrevoked_partitions
        gets = member.held.state is MemberState.unreleased_partitions and not self._waits_for_others(member)
        if not (behind or revokes or gets):
            return ErrorCode.none
        self._expect_join(member, now)
        return ErrorCode.rebalance_in_progress

    # Joins.

    def _join(self, asked: Join, now: float, now_ms: int) -> Joined:
        group = self.group
        if not self._takes(asked):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if not asked.member_id and asked.instance_id is None and asked.must_know_id:
            raise KafkaError(ErrorCode.member_id_required)
        said = read_subscription(asked.protocols[0][1], group.kept.topics)
        member = self._joining(asked)
        profile = replace(
            member.profile,
            instance_id=asked.instance_id or member.profile.instance_id,
            rack=said.rack or member.profile.rack,
            client_id=asked.client_id,
            client_host=asked.client_host,
            topics=said.topics,
            pattern="",
            rebalance_timeout=asked.rebalance_timeout,
            classic=ClassicSide(asked.session_timeout, asked.protocols),
        )
        group.come_nearer(member, profile, said.owned, now, now_ms)
        member.join_by, member.sync_by = None, now + asked.rebalance_timeout
        group.live(member, now)
        return Joined(ErrorCode.none, member.id, member.held.epoch, PROTOCOL_TYPE, asked.protocols[0][0])

    def _takes(self, asked: Join) -> bool:
        """Whether there would still be a protocol that all classic members have."""
        if asked.protocol_type != PROTOCOL_TYPE or not asked.protocols:
            return False
        classic = [side for one in self.group.kept.members.values() if (side := one.profile.classic) is not None]
        counted = Counter(name for side in classic for name in dict(side.protocols))
        return any(counted[name] == len(classic) for name, _metadata in asked.protocols)

    def _joining(self, asked: Join) -> Member:
        kept = self.group.kept
        member_id = asked.member_id or asked.new_member_id
        if asked.instance_id is None:
            return kept.members.get(member_id) or Member.new(member_id)
        if asked.member_id:
            return self.group.static(asked.instance_id, asked.member_id)
        known = kept.instances.get(asked.instance_id)
        return Member.new(member_id) if known is None else kept.replace(self.group.known(known), member_id)

    # Syncs.

    def _sync(self, asked: Sync, now: float) -> Synced:
        member = self._member(asked.member_id, asked.instance_id, asked.generation)
        assert member.profile.classic is not None
        protocol, metadata = member.profile.classic.protocols[0]
        for named, known in ((asked.protocol_type, PROTOCOL_TYPE), (asked.protocol, protocol)):
            if named is not None and named != known:
                raise KafkaError(ErrorCode.inconsistent_group_protocol)
        behind = member.held.epoch < self.group.kept.target_epoch
        if behind and member.held.state is not MemberState.unrevoked_partitions:
            self._expect_join(member, now)
            raise KafkaError(ErrorCode.rebalance_in_progress)
        member.sync_by = None
        self.group.live(member, now)
        assignment = write_assignment(member.held.assigned, self.group.kept.topics, metadata)
        return Synced(ErrorCode.none, assignment, asked.protocol_type, asked.protocol)

    # Members.

    def _member(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        group = self.group
        member = group.known(member_id) if instance_id is None else group.static(instance_id, member_id)
        if member.profile.classic is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"{member_id!r} speaks the new protocol")
        if generation != member.held.epoch:
            raise KafkaError(ErrorCode.illegal_generation, f"generation {generation}, expected {member.held.epoch}")
        return member

    def _waits_for_others(self, member: Member) -> bool:
        owners = self.group.kept.owners
        missing = (member.target or frozenset()).difference(member.held.assigned)
        return any(partition in owners for partition in missing)

    @staticmethod
    def _expect_join(member: Member, now: float) -> None:
        if member.join_by is None:
            member.join_by = now + member.profile.rebalance_timeout
