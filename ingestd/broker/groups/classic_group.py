"""Classic group: one group of Kafka's first protocol, as a state machine. Events in, actions out.

It has no I/O and no clock. Every event brings the time, and `deadline` says when `expire` is to be called. Time is in
seconds of a clock that never goes back. What Kafka's coordinator answers: KIP-62, KIP-134 (initial delay), KIP-345
(static members), KIP-394 (member ids), KIP-559 (protocol type and name), KIP-814 (static leader).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from ingestd.broker.groups.classic_member import NEW_MEMBER_TIMEOUT, Member
from ingestd.broker.groups.classic_values import GroupState, Joined, StoredGroup, Synced
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.consumer_protocol import PROTOCOL_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ingestd.broker.groups.classic_member import Ticket
    from ingestd.broker.groups.classic_values import Join, Sync

__all__ = ["Action", "ClassicGroup", "Reply", "Store"]


@dataclass(frozen=True, slots=True)
class Reply:
    """Action: answer whoever waits."""

    ticket: Ticket
    answer: Joined | Synced


@dataclass(frozen=True, slots=True)
class Store:
    """Action: append `group` to the log, then call `stored` with this value.

    `assignments`: those of the leader's sync. `replaced`: an instance's member before this generation was stored with
    another, and who waits for that.
    """

    group: StoredGroup
    assignments: Mapping[str, bytes] | None = None
    replaced: tuple[Member, Member, Joined] | None = None


Action: TypeAlias = "Reply | Store"


@dataclass(slots=True)
class _Rebalance:
    """A rebalance that waits for joins until `ends`. `initial`: it waits as long as new members come."""

    ends: float
    initial: bool = False
    remaining: float = 0.0
    joined_meanwhile: bool = False


@dataclass(slots=True)
class ClassicGroup:
    """A group's members, generation and state.

    Invariants
        A group that is not empty has one leader from the end of a join phase on, who is a member.
        A generation's assignment is handed out after it was stored. Each member gets its own, in that generation.
        Whoever waits is answered: by an answer to the event, by another one's event, or at `deadline`.
        Nothing is waited for beyond `deadline`, but for `stored`.
    """

    initial_delay: float = 0.0
    state: GroupState = GroupState.empty
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    """Member ids that were given out and not used yet, and until when they are waited for."""
    _rebalance: _Rebalance | None = None
    _unsynced: set[str] = field(default_factory=set)
    _sync_ends: float = 0.0
    _storing: Store | None = None
    _actions: list[Action] = field(default_factory=list)

    @classmethod
    def restored(cls, stored: StoredGroup, now: float, initial_delay: float = 0.0) -> ClassicGroup:
        """A group as the log has it. Its members have a session timeout from now on to say that they live.

        If it has no leader, it was to rebalance when it was stored, and does so now.
        """
        group = cls(initial_delay, generation=stored.generation, protocol_type=stored.protocol_type or None)
        group.protocol, group.leader = stored.protocol, stored.leader
        for kept in stored.members:
            group._put(Member.restored(kept, stored.protocol, now))
        if group.members:
            group.state = GroupState.stable
            if group.leader not in group.members:
                group._prepare_rebalance(now)
        return group

    @classmethod
    def taken_over(cls, members: Sequence[Member], generation: int, initial_delay: float = 0.0) -> ClassicGroup:
        """A stable group of members that were in one of KIP-848."""
        group = cls(initial_delay, GroupState.stable, generation, PROTOCOL_TYPE)
        for member in members:
            group._put(member)
        group.protocol, group.leader = group._voted(), members[0].id
        return group

    # Events. Each returns what is to be done.

    def rebalance(self, now: float) -> list[Action]:
        """Have all members join again."""
        self._prepare_rebalance(now)
        return self._taken()

    def dissolve(self) -> list[Reply]:
        """The group is to be one of KIP-848: all who wait are to join again."""
        replies = []
        for member in self.members.values():
            if member.joining is not None:
                replies.append(Reply(member.joining, Joined(ErrorCode.rebalance_in_progress, member.id)))
            if member.syncing is not None:
                replies.append(Reply(member.syncing, Synced(ErrorCode.rebalance_in_progress)))
        return replies

    def to_store(self) -> StoredGroup:
        """The group as the log keeps it, without its leader: whoever reads it again begins a rebalance."""
        return replace(self._to_store({}), leader=None)

    def join(self, asked: Join, ticket: Ticket, now: float) -> list[Action]:
        """Become a member, or take part in a rebalance. `ticket` is answered now or later."""
        try:
            self._join(asked, ticket, now)
        except KafkaError as refused:
            named = asked.new_member_id if refused.code is ErrorCode.member_id_required else asked.member_id
            self._reply(ticket, Joined(refused.code, named))
        return self._taken()

    def sync(self, asked: Sync, ticket: Ticket, now: float) -> list[Action]:
        """Get an assignment, or give those of all members. `ticket` is answered now or later."""
        try:
            self._sync(asked, ticket, now)
        except KafkaError as refused:
            self._reply(ticket, Synced(refused.code))
        return self._taken()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> ErrorCode:
        """Note that a member lives. REBALANCE_IN_PROGRESS tells it to join again."""
        try:
            member = self._member(member_id, instance_id, generation)
        except KafkaError as refused:
            return refused.code
        member.expires = now + member.session_timeout
        rebalancing = self.state is GroupState.preparing_rebalance
        return ErrorCode.rebalance_in_progress if rebalancing else ErrorCode.none

    def leave(
        self, leaving: Sequence[tuple[str, str | None]], now: float
    ) -> tuple[list[tuple[str, str | None, ErrorCode]], list[Action]]:
        """Remove members, each named by member id and instance id. An empty member id: the instance's member.

        Returns the result of each, and what is to be done.
        """
        results = []
        left = False
        for member_id, instance_id in leaving:
            try:
                self._leave(member_id, instance_id)
            except KafkaError as refused:
                results.append((member_id, instance_id, refused.code))
            else:
                left = True
                results.append((member_id, instance_id, ErrorCode.none))
        # In Kafka, one that was told an id and leaves before it joined begins a rebalance too.
        self._after_removal(now, left=left)
        return results, self._taken()

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now: float, *, transactional: bool = False
    ) -> None:
        """Raise `KafkaError` unless this member may commit offsets. If it is one, it lives.

        In a transaction, a producer may leave out who it is (before KIP-447 it had to).
        """
        if generation < 0 and self.state is GroupState.empty:
            return
        if generation < 0 and not member_id and instance_id is None:
            if transactional:
                return
            raise KafkaError(ErrorCode.unknown_member_id, "the group has members, and only they commit")
        member = self._member(member_id, instance_id, generation)
        if self.state is GroupState.completing_rebalance and not transactional:
            raise KafkaError(ErrorCode.rebalance_in_progress, "the generation has no assignment yet")
        member.expires = now + member.session_timeout

    def stored(self, store: Store, error: ErrorCode, now: float) -> list[Action]:
        """What a `Store` asked for is in the log, or could not be brought there."""
        if self._storing is store:
            self._storing = None
        if store.replaced is not None:
            self._replaced(*store.replaced, error, now)
        if store.assignments is not None and self._current(store):
            if error is ErrorCode.none:
                self._assigned(store.assignments, now)
            else:
                self._prepare_rebalance(now, error)
        return self._taken()

    def expire(self, now: float) -> list[Action]:
        """Do what is due."""
        for member_id in [member_id for member_id, until in self.pending.items() if until <= now]:
            del self.pending[member_id]
            self._after_removal(now, left=False)
        for member in [one for one in self.members.values() if one.may_expire and one.expires <= now]:
            # Its removal may have ended a phase, after which another one has time again.
            if self.members.get(member.id) is member and member.may_expire and member.expires <= now:
                self._remove(member)
                self._after_removal(now, left=True)
        if self._rebalance is not None and self._rebalance.ends <= now:
            self._end_wait(self._rebalance, now)
        if self._unsynced and self._sync_ends <= now:
            for member_id in tuple(self._unsynced):
                self._remove(self.members[member_id])
            self._prepare_rebalance(now)
        return self._taken()

    @property
    def deadline(self) -> float | None:
        """When `expire` is to be called next, at the latest."""
        return min(self._deadlines(), default=None)

    def _deadlines(self) -> Iterator[float]:
        yield from self.pending.values()
        yield from (member.expires for member in self.members.values() if member.may_expire)
        if self._rebalance is not None:
            yield self._rebalance.ends
        if self._unsynced:
            yield self._sync_ends

    # Joins.

    def _join(self, asked: Join, ticket: Ticket, now: float) -> None:
        if not self._takes(asked):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if not asked.member_id:
            self._join_as_new(asked, ticket, now)
        elif asked.member_id in self.pending and asked.instance_id is None:
            self._add(asked, asked.member_id, ticket, now)
        else:
            self._join_again(self._known(asked.member_id, asked.instance_id), asked, ticket, now)

    def _takes(self, asked: Join) -> bool:
        """Whether there would still be a protocol that all members have."""
        names = {name for name, _metadata in asked.protocols}
        if not self.members:
            return bool(asked.protocol_type and names)
        return asked.protocol_type == self.protocol_type and bool(names & self._common())

    def _common(self) -> set[str]:
        counted = Counter(name for member in self.members.values() for name in dict(member.protocols))
        return {name for name, times in counted.items() if times == len(self.members)}

    def _join_as_new(self, asked: Join, ticket: Ticket, now: float) -> None:
        if asked.instance_id is not None:
            known = self.instances.get(asked.instance_id)
            if known is None:
                self._add(asked, asked.new_member_id, ticket, now)
            else:
                self._replace(self.members[known], asked, ticket, now)
        elif asked.must_know_id:
            self.pending[asked.new_member_id] = now + asked.session_timeout
            raise KafkaError(ErrorCode.member_id_required)
        else:
            self._add(asked, asked.new_member_id, ticket, now)

    def _add(self, asked: Join, member_id: str, ticket: Ticket, now: float) -> None:
        self.pending.pop(member_id, None)
        if not self.members:
            self.protocol_type = asked.protocol_type
        member = Member.joining_as(member_id, asked, now + NEW_MEMBER_TIMEOUT)
        member.joining = ticket
        self._put(member)
        if self._rebalance is not None:
            self._rebalance.joined_meanwhile = True
        self._rebalance_or_end_it(now)

    def _put(self, member: Member) -> None:
        self.members[member.id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.id

    def _join_again(self, member: Member, asked: Join, ticket: Ticket, now: float) -> None:
        same = member.protocols == asked.protocols
        match self.state:
            case GroupState.completing_rebalance if same:
                # The answer to its join was lost.
                self._reply(ticket, self._joined(member))
            case GroupState.stable if same and member.id != self.leader:
                self._reply(ticket, self._joined(member))
            case _:
                self._update(member, asked, ticket)
                self._rebalance_or_end_it(now)

    def _update(self, member: Member, asked: Join, ticket: Ticket) -> None:
        member.client_id, member.client_host = asked.client_id, asked.client_host
        member.session_timeout, member.rebalance_timeout = asked.session_timeout, asked.rebalance_timeout
        member.protocols = asked.protocols
        # A client has one connection for this: the one behind the older ticket is gone.
        self._answer_join(member, Joined(ErrorCode.rebalance_in_progress, member.id))
        member.joining = ticket

    def _replace(self, old: Member, asked: Join, ticket: Ticket, now: float) -> None:
        """A static member comes back under a new member id. Without a rebalance, if it wants what it had."""
        self._answer_join(old, Joined(ErrorCode.fenced_instance_id, old.id))
        self._answer_sync(old, Synced(ErrorCode.fenced_instance_id))
        new = Member.joining_as(asked.new_member_id, asked, now + asked.session_timeout)
        new.assignment, new.new, new.joining = old.assignment, False, ticket
        self._exchange(old, new)
        if self.state is not GroupState.stable or self._voted() != self.protocol:
            self._rebalance_or_end_it(now)
            return
        # An older client that leads would assign anew. So it is told of another leader, which is nobody.
        leads = self.leader == new.id
        answer = Joined(
            ErrorCode.none,
            new.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            new.id if leads and asked.can_skip_assignment else old.id if leads else self.leader or "",
            skip_assignment=leads and asked.can_skip_assignment,
            members=self._for_leader() if leads and asked.can_skip_assignment else (),
        )
        self._store(Store(self._to_store({}), replaced=(old, new, answer)))

    def _exchange(self, old: Member, new: Member) -> None:
        """Put `new` in the place of `old`, with all that `old` was."""
        self.members = {
            (new.id if member is old else member_id): (new if member is old else member)
            for member_id, member in self.members.items()
        }
        assert new.instance_id is not None
        self.instances[new.instance_id] = new.id
        if self.leader == old.id:
            self.leader = new.id
        if old.id in self._unsynced:
            self._unsynced.remove(old.id)
            self._unsynced.add(new.id)

    def _replaced(self, old: Member, new: Member, answer: Joined, error: ErrorCode, now: float) -> None:
        if new.joining is None or self.members.get(new.id) is not new:
            return
        if error is not ErrorCode.none:
            self._exchange(new, old)
            self._answer_join(new, Joined(error, ""))
        elif self.state is GroupState.stable:
            new.expires = now + new.session_timeout
            self._answer_join(new, answer)
        # Else a rebalance began meanwhile. It has joined that one.

    def _rebalance_or_end_it(self, now: float) -> None:
        if self.state is not GroupState.preparing_rebalance:
            self._prepare_rebalance(now)
        else:
            self._end_join_if_complete(now)

    # Rebalances.

    def _prepare_rebalance(self, now: float, error: ErrorCode = ErrorCode.rebalance_in_progress) -> None:
        """Wait for all members to join again. Those who wait for an assignment are told to."""
        for member in self.members.values():
            if self.state is GroupState.completing_rebalance:
                member.assignment = b""
            self._answer_sync(member, Synced(error))
        self._unsynced.clear()
        timeout = self._rebalance_timeout()
        if self.state is GroupState.empty:
            delay = min(self.initial_delay, timeout)
            self._rebalance = _Rebalance(now + delay, initial=True, remaining=timeout - delay)
            self.state = GroupState.preparing_rebalance
            return
        self._rebalance = _Rebalance(now + timeout)
        self.state = GroupState.preparing_rebalance
        self._end_join_if_complete(now)

    def _rebalance_timeout(self) -> float:
        return max((member.rebalance_timeout for member in self.members.values()), default=0.0)

    def _end_join_if_complete(self, now: float) -> None:
        rebalance = self._rebalance
        assert rebalance is not None
        complete = not self.pending and all(member.joining is not None for member in self.members.values())
        if complete and (not rebalance.initial or not self.members):
            self._end_join(now)

    def _end_wait(self, rebalance: _Rebalance, now: float) -> None:
        delay = min(self.initial_delay, rebalance.remaining)
        if rebalance.initial and rebalance.joined_meanwhile and delay > 0:
            rebalance.ends, rebalance.joined_meanwhile = now + delay, False
            rebalance.remaining -= delay
        else:
            self._end_join(now)

    def _end_join(self, now: float) -> None:
        """Begin a generation of those who have joined. Static members stay members until their session ends."""
        for member in [one for one in self.members.values() if one.joining is None and one.instance_id is None]:
            self._remove(member)
        if self.members and not self._elect():
            # Nobody is there who could assign. The static members may come back, or expire.
            assert self._rebalance is not None
            self._rebalance = _Rebalance(now + max(self._rebalance_timeout(), 1.0))
            return
        self._rebalance = None
        self.generation += 1
        if not self.members:
            self._become_empty()
            return
        self.state = GroupState.completing_rebalance
        self.protocol = self._voted()
        self._unsynced = set(self.members)
        self._sync_ends = now + self._rebalance_timeout()
        for member in self.members.values():
            member.new = False
            member.expires = now + member.session_timeout
            self._answer_join(member, self._joined(member))

    def _become_empty(self) -> None:
        self.state = GroupState.empty
        self.protocol = self.leader = None
        self._store(Store(self._to_store({})))

    def _elect(self) -> bool:
        """Make sure that the leader has joined. Returns False if nobody has."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.joining is None:
            self.leader = next((one.id for one in self.members.values() if one.joining is not None), self.leader)
        leader = self.members.get(self.leader or "")
        return leader is not None and leader.joining is not None

    def _voted(self) -> str:
        """Each member votes for the first of its protocols that all have."""
        common = self._common()
        votes = Counter(
            next(name for name, _metadata in member.protocols if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _joined(self, member: Member) -> Joined:
        return Joined(
            ErrorCode.none,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            members=self._for_leader() if member.id == self.leader else (),
        )

    def _for_leader(self) -> tuple[tuple[str, str | None, bytes], ...]:
        return tuple((one.id, one.instance_id, one.metadata(self.protocol)) for one in self.members.values())

    # Syncs.

    def _sync(self, asked: Sync, ticket: Ticket, now: float) -> None:
        member = self._member(asked.member_id, asked.instance_id, asked.generation)
        for said, known in ((asked.protocol_type, self.protocol_type), (asked.protocol, self.protocol)):
            if said is not None and said != known:
                raise KafkaError(ErrorCode.inconsistent_group_protocol)
        match self.state:
            case GroupState.preparing_rebalance:
                raise KafkaError(ErrorCode.rebalance_in_progress)
            case GroupState.stable:
                self._unsynced.discard(member.id)
                self._reply(ticket, self._synced(member))
            case _:
                self._unsynced.discard(member.id)
                self._answer_sync(member, Synced(ErrorCode.rebalance_in_progress))
                member.syncing = ticket
                if member.id == self.leader and not self._current(self._storing):
                    self._store(Store(self._to_store(asked.assignments), assignments=dict(asked.assignments)))
        member.expires = now + member.session_timeout

    def _current(self, store: Store | None) -> bool:
        """Whether this is about the generation that waits for its assignment."""
        return (
            store is not None
            and store.assignments is not None
            and self.state is GroupState.completing_rebalance
            and store.group.generation == self.generation
        )

    def _assigned(self, assignments: Mapping[str, bytes], now: float) -> None:
        self.state = GroupState.stable
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
            if member.syncing is not None:
                member.expires = now + member.session_timeout
                self._answer_sync(member, self._synced(member))

    def _synced(self, member: Member) -> Synced:
        return Synced(ErrorCode.none, member.assignment, self.protocol_type, self.protocol)

    def _to_store(self, assignments: Mapping[str, bytes]) -> StoredGroup:
        stable = self.state is GroupState.stable
        return StoredGroup(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader,
            tuple(
                one.stored(self.protocol, one.assignment if stable else assignments.get(one.id, b""))
                for one in self.members.values()
            ),
        )

    # Members.

    def _known(self, member_id: str, instance_id: str | None) -> Member:
        """The member. Raises `KafkaError`: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if instance_id is not None:
            named = self.instances.get(instance_id)
            if named is None:
                raise KafkaError(ErrorCode.unknown_member_id, instance_id)
            if named != member_id:
                raise KafkaError(ErrorCode.fenced_instance_id, instance_id)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id, member_id)
        return member

    def _member(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        member = self._known(member_id, instance_id)
        if generation != self.generation:
            raise KafkaError(ErrorCode.illegal_generation, f"generation {generation}, expected {self.generation}")
        return member

    def _leave(self, member_id: str, instance_id: str | None) -> None:
        """Remove a member, or a member id that was given out."""
        if member_id in self.pending:
            del self.pending[member_id]
            return
        if not member_id and instance_id is not None:
            member_id = self.instances.get(instance_id, "")
        self._remove(self._known(member_id, instance_id))

    def _remove(self, member: Member) -> None:
        self._answer_join(member, Joined(ErrorCode.unknown_member_id, ""))
        self._answer_sync(member, Synced(ErrorCode.unknown_member_id))
        del self.members[member.id]
        self._unsynced.discard(member.id)
        if member.instance_id is not None:
            del self.instances[member.instance_id]

    def _after_removal(self, now: float, *, left: bool) -> None:
        if self.state is GroupState.preparing_rebalance:
            self._end_join_if_complete(now)
        elif left and self.state is not GroupState.empty:
            self._prepare_rebalance(now)

    # Answers.

    def _answer_join(self, member: Member, answer: Joined) -> None:
        ticket, member.joining = member.joining, None
        if ticket is not None:
            self._reply(ticket, answer)

    def _answer_sync(self, member: Member, answer: Synced) -> None:
        ticket, member.syncing = member.syncing, None
        if ticket is not None:
            self._reply(ticket, answer)

    def _reply(self, ticket: Ticket, answer: Joined | Synced) -> None:
        self._actions.append(Reply(ticket, answer))

    def _store(self, store: Store) -> None:
        self._storing = store
        self._actions.append(store)

    def _taken(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
