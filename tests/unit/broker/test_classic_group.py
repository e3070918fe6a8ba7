"""The classic group as a state machine: what it promises under any interleaving, and what it answers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ingestd.broker.groups.classic_group import ClassicGroup, Reply, Store
from ingestd.broker.groups.classic_values import GroupState, Join, Joined, Sync, Synced
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ingestd.broker.groups.classic_group import Action

RANGE = (("range", b"r"),)
BOTH = (("range", b"r"), ("sticky", b"s"))
SESSION, REBALANCE = 10.0, 30.0
_numbers = itertools.count()


def join(
    member_id: str = "",
    instance_id: str | None = None,
    protocols: tuple[tuple[str, bytes], ...] = BOTH,
    *,
    must_know_id: bool = False,
    can_skip_assignment: bool = True,
    protocol_type: str = "consumer",
) -> Join:
    return Join(
        member_id,
        instance_id,
        "client",
        "/127.0.0.1",
        SESSION,
        REBALANCE,
        protocol_type,
        protocols,
        f"member-{next(_numbers)}",
        must_know_id,
        can_skip_assignment,
    )


class Driven:
    """A group with its answers by ticket, its time, and a log that is done when the test says so."""

    def __init__(self, initial_delay: float = 0.0) -> None:
        self.group = ClassicGroup(initial_delay)
        self.now = 1000.0
        self.answers: dict[object, Any] = {}
        self.stores: list[Store] = []
        self.asked = 0

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                assert action.ticket not in self.answers, "answered twice"
                self.answers[action.ticket] = action.answer
            else:
                self.stores.append(action)

    def join(self, asked: Join) -> int:
        self.asked += 1
        ticket = self.asked
        self.do(self.group.join(asked, ticket, self.now))
        return ticket

    def sync(self, joined: Joined, instance_id: str | None = None, **assignments: bytes) -> int:
        self.asked += 1
        ticket = self.asked
        given = {name.replace("_", "-"): assignment for name, assignment in assignments.items()}
        asked = Sync(joined.member_id, instance_id, joined.generation, joined.protocol_type, joined.protocol, given)
        self.do(self.group.sync(asked, ticket, self.now))
        return ticket

    def stored(self, error: ErrorCode = ErrorCode.none) -> None:
        self.do(self.group.stored(self.stores.pop(0), error, self.now))

    def move(self, seconds: float) -> None:
        """Let the time pass. The group hears of it at its deadlines alone."""
        end = self.now + seconds
        for _ in range(100):
            deadline = self.group.deadline
            if deadline is None or deadline > end:
                self.now = end
                return
            self.now = max(self.now, deadline)
            self.do(self.group.expire(self.now))
        raise AssertionError("a deadline that does not go on")

    def joined(self, *asked: Join) -> list[Joined]:
        """Members of a group that has them all, and waits for the leader's assignment."""
        tickets = [self.join(each) for each in asked]
        self.move(0)
        return [self.answers[ticket] for ticket in tickets]

    def stable(self, *asked: Join) -> list[Joined]:
        """Members of a stable group. Each has its own id as its assignment."""
        members = self.joined(*asked)
        leader = next(one for one in members if one.member_id == one.leader)
        given = {one.member_id.replace("-", "_"): one.member_id.encode() for one in members}
        for one, each in zip(members, asked, strict=True):
            self.sync(one, each.instance_id, **(given if one is leader else {}))
        self.stored()
        assert self.group.state is GroupState.stable
        return members


def test_the_first_member_leads_and_each_gets_its_own_assignment_after_it_was_stored() -> None:
    driven = Driven(initial_delay=3.0)
    tickets = [driven.join(join()) for _ in range(3)]
    assert driven.answers == {}
    driven.move(3.0)
    driven.move(3.0)
    members = [driven.answers[ticket] for ticket in tickets]
    assert {one.leader for one in members} == {members[0].member_id}
    assert [len(one.members) for one in members] == [3, 0, 0]
    given = {one.member_id.replace("-", "_"): one.member_id.encode() for one in members}
    synced = [driven.sync(one, **(given if number == 0 else {})) for number, one in enumerate(members)]
    assert not any(ticket in driven.answers for ticket in synced)
    driven.stored()
    assert [driven.answers[ticket].assignment for ticket in synced] == [one.member_id.encode() for one in members]


def test_a_new_group_waits_for_more_members_as_long_as_they_come_and_not_beyond_the_rebalance_timeout() -> None:
    driven = Driven(initial_delay=10.0)
    tickets = [driven.join(join())]
    for _ in range(2):
        driven.move(9.0)
        tickets.append(driven.join(join()))
        driven.move(1.0)
        assert driven.answers == {}
    driven.move(10.0)
    assert len(driven.answers) == 3


def test_a_member_without_id_is_told_one_and_is_waited_for() -> None:
    """KIP-394. Its id counts as a member that has not joined yet, until its session timeout."""
    driven = Driven()
    (first,) = driven.stable(join())
    told = driven.answers[driven.join(join(must_know_id=True))]
    assert told.error is ErrorCode.member_id_required
    again = driven.join(join(first.member_id))
    assert again not in driven.answers
    driven.join(join(told.member_id))
    assert driven.answers[again].error is ErrorCode.none
    assert len(driven.group.members) == 2


def test_who_was_told_an_id_and_leaves_has_a_group_with_members_rebalance_and_no_other() -> None:
    """As in Apache Kafka 4.3."""
    driven = Driven()
    told = driven.answers[driven.join(join(must_know_id=True))]
    results, actions = driven.group.leave([(told.member_id, None)], driven.now)
    assert (results[0][2], actions, driven.group.state) == (ErrorCode.none, [], GroupState.empty)
    (only,) = driven.stable(join())
    told = driven.answers[driven.join(join(must_know_id=True))]
    driven.group.leave([(told.member_id, None)], driven.now)
    beat = driven.group.heartbeat(only.member_id, None, only.generation, driven.now)
    assert beat is ErrorCode.rebalance_in_progress


def test_an_id_that_was_told_and_not_used_expires() -> None:
    driven = Driven()
    told = driven.answers[driven.join(join(must_know_id=True))]
    driven.move(SESSION)
    assert driven.answers[driven.join(join(told.member_id))].error is ErrorCode.unknown_member_id


def test_who_does_not_join_again_in_time_is_out() -> None:
    driven = Driven()
    first, _second = driven.stable(join(), join())
    again = driven.join(join(first.member_id, protocols=RANGE))
    for _ in range(10):
        assert again not in driven.answers
        for member in driven.group.members.values():
            member.expires = driven.now + SESSION  # it sends heartbeats
        driven.move(REBALANCE / 10)
    assert list(driven.group.members) == [driven.answers[again].member_id]


def test_heartbeats_keep_a_member_and_tell_it_to_join_again() -> None:
    driven = Driven()
    first, second = driven.stable(join(), join())

    def beat(member: Joined, generation: int | None = None) -> ErrorCode:
        generation = member.generation if generation is None else generation
        return driven.group.heartbeat(member.member_id, None, generation, driven.now)

    for _ in range(3):
        driven.move(SESSION - 1)
        assert beat(first) is beat(second) is ErrorCode.none
    assert beat(first, first.generation - 1) is ErrorCode.illegal_generation
    assert driven.group.heartbeat("nobody", None, 1, driven.now) is ErrorCode.unknown_member_id
    driven.move(SESSION - 1)
    assert beat(first) is ErrorCode.none
    driven.move(1)  # the second one's session ends
    assert beat(second) is ErrorCode.unknown_member_id
    assert beat(first) is ErrorCode.rebalance_in_progress


def test_the_last_member_leaves_an_empty_group_that_is_stored() -> None:
    driven = Driven()
    (only,) = driven.stable(join())
    results, actions = driven.group.leave([(only.member_id, None), ("nobody", None)], driven.now)
    driven.do(actions)
    assert [code for _id, _instance, code in results] == [ErrorCode.none, ErrorCode.unknown_member_id]
    assert driven.group.state is GroupState.empty
    assert driven.stores[0].group.members == ()
    assert driven.stores[0].group.generation == only.generation + 1


def test_members_must_have_a_protocol_in_common() -> None:
    driven = Driven()
    driven.stable(join(protocols=RANGE))
    for other in (join(protocols=(("sticky", b""),)), join(protocol_type="connect"), join(protocols=())):
        assert driven.answers[driven.join(other)].error is ErrorCode.inconsistent_group_protocol


def test_the_protocol_is_the_one_with_most_votes_among_those_that_all_have() -> None:
    driven = Driven()
    preferring = (("sticky", b"s"), ("range", b"r"))
    members = driven.joined(join(protocols=BOTH), join(protocols=preferring), join(protocols=preferring))
    assert {one.protocol for one in members[1:]} == {"sticky"}


def test_a_sync_that_names_another_protocol_is_refused() -> None:
    driven = Driven()
    (only,) = driven.joined(join())
    other = Sync(only.member_id, None, only.generation, "consumer", "other", {})
    driven.do(driven.group.sync(other, "ticket", driven.now))
    assert driven.answers["ticket"].error is ErrorCode.inconsistent_group_protocol


def test_an_assignment_that_could_not_be_stored_is_given_to_nobody() -> None:
    driven = Driven()
    (only,) = driven.joined(join())
    ticket = driven.sync(only)
    driven.stored(ErrorCode.coordinator_not_available)
    assert driven.answers[ticket] == Synced(ErrorCode.coordinator_not_available)
    again = driven.join(join(only.member_id))
    assert driven.answers[again].generation == only.generation + 1


def test_members_that_do_not_sync_are_out() -> None:
    driven = Driven()
    leader, other = driven.joined(join(), join())
    driven.sync(leader)
    driven.stored()
    for _ in range(10):
        driven.group.heartbeat(leader.member_id, None, leader.generation, driven.now)
        driven.group.heartbeat(other.member_id, None, leader.generation, driven.now)
        driven.move(REBALANCE / 10)
    assert list(driven.group.members) == [leader.member_id]
    assert driven.group.state is GroupState.preparing_rebalance


def test_the_time_for_the_sync_of_a_generation_ends_with_it() -> None:
    driven = Driven()
    members = driven.joined(join(), join())
    for _ in range(4):
        driven.move(REBALANCE / 4 - 1)
        for member in members:
            driven.group.heartbeat(member.member_id, None, member.generation, driven.now)
    again = driven.join(join(members[0].member_id, protocols=RANGE))
    driven.move(SESSION / 2)
    assert again not in driven.answers
    assert set(driven.group.members) == {member.member_id for member in members}


def test_a_static_member_that_comes_back_gets_its_assignment_without_a_rebalance() -> None:
    """KIP-345 and KIP-814. Whoever used the old member id is fenced."""
    driven = Driven()
    leader, other = driven.stable(join(instance_id="a"), join(instance_id="b"))
    ticket = driven.join(join(instance_id="b"))
    assert ticket not in driven.answers, "not before it is stored"
    driven.stored()
    back = driven.answers[ticket]
    assert (back.error, back.generation, back.leader) == (ErrorCode.none, other.generation, leader.member_id)
    assert back.member_id != other.member_id
    assert driven.answers[driven.sync(back, "b")].assignment == other.member_id.encode()
    assert driven.group.heartbeat(other.member_id, "b", other.generation, driven.now) is ErrorCode.fenced_instance_id
    ticket = driven.join(join(instance_id="a"))
    driven.stored()
    lead = driven.answers[ticket]
    assert lead.skip_assignment
    assert lead.leader == lead.member_id
    assert {instance for _member, instance, _metadata in lead.members} == {"a", "b"}


def test_an_older_static_leader_that_comes_back_is_not_told_that_it_leads() -> None:
    driven = Driven()
    (leader,) = driven.stable(join(instance_id="a"))
    ticket = driven.join(join(instance_id="a", can_skip_assignment=False))
    driven.stored()
    assert driven.answers[ticket].leader == leader.member_id != driven.answers[ticket].member_id
    assert driven.answers[ticket].members == ()


def test_a_static_member_is_removed_by_its_instance_id() -> None:
    driven = Driven()
    driven.stable(join(instance_id="a"))
    results, _actions = driven.group.leave([("", "a"), ("", "b")], driven.now)
    assert [code for _id, _instance, code in results] == [ErrorCode.none, ErrorCode.unknown_member_id]


def test_who_may_commit() -> None:
    def refused(member_id: str, generation: int) -> ErrorCode:
        try:
            driven.group.check_commit(member_id, None, generation, driven.now)
        except KafkaError as error:
            return error.code
        return ErrorCode.none

    driven = Driven()
    assert refused("", -1) is ErrorCode.none
    (only,) = driven.joined(join())
    assert refused(only.member_id, only.generation) is ErrorCode.rebalance_in_progress
    driven.sync(only)
    driven.stored()
    assert refused(only.member_id, only.generation) is ErrorCode.none
    assert refused("", -1) is refused("nobody", only.generation) is ErrorCode.unknown_member_id
    assert refused(only.member_id, only.generation + 1) is ErrorCode.illegal_generation


def test_a_group_from_the_log_goes_on_and_gives_its_members_a_session() -> None:
    driven = Driven()
    (only,) = driven.joined(join())
    members = list(driven.group.members)
    driven.sync(only, **{members[0].replace("-", "_"): b"all"})
    store = driven.stores[0]
    again = ClassicGroup.restored(store.group, 5.0)
    assert again.deadline == 5.0 + SESSION
    assert again.heartbeat(members[0], None, 1, 6.0) is ErrorCode.none
    asked = Sync(members[0], None, 1, "consumer", "range", {})
    assert again.sync(asked, "ticket", 6.0) == [Reply("ticket", Synced(ErrorCode.none, b"all", "consumer", "range"))]


def test_an_assignment_counts_in_its_generation_alone() -> None:
    """The leader's assignment is on its way to the disk while another member comes, and a new generation begins."""
    driven = Driven()
    (first,) = driven.joined(join())
    driven.sync(first, **{first.member_id.replace("-", "_"): b"old"})
    other = driven.join(join())
    again = driven.answers[driven.join(join(first.member_id))]
    synced = driven.sync(driven.answers[other])
    driven.stored()
    assert synced not in driven.answers
    driven.sync(again, **{again.member_id.replace("-", "_"): b"new"})
    driven.stored()
    assert driven.answers[synced].assignment == b""
    assert driven.group.members[first.member_id].assignment == b"new"


class Interleavings(RuleBasedStateMachine):
    """Clients that join, sync, beat, leave and vanish, a log that is slow or fails, and time that passes."""

    def __init__(self) -> None:
        super().__init__()
        self.driven = Driven()
        self.clients: list[dict[str, Any]] = []
        self.leaders: dict[int, set[str]] = {}
        self.given: dict[int, dict[str, bytes]] = {}
        self.generation = 0

    @initialize(initial_delay=st.sampled_from([0.0, 3.0]))
    def begin(self, initial_delay: float) -> None:
        self.driven = Driven(initial_delay)

    @rule(
        static=st.sampled_from([None, None, "a", "b"]), protocols=st.sampled_from([RANGE, BOTH]), modern=st.booleans()
    )
    def come(self, static: str | None, protocols: tuple[tuple[str, bytes], ...], modern: bool) -> None:
        if len(self.clients) < 6:
            client = {"static": static, "protocols": protocols, "modern": modern, "joined": None, "id": ""}
            self.clients.append(client)
            self._join(client)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 5))
    def join_again(self, number: int) -> None:
        client = self._client(number)
        if client["waits"] is None:
            self._join(client)

    def _client(self, number: int) -> dict[str, Any]:
        return self.clients[number % len(self.clients)]

    def _join(self, client: dict[str, Any]) -> None:
        asked = join(
            client["id"],
            client["static"],
            client["protocols"],
            must_know_id=client["modern"],
            can_skip_assignment=client["modern"],
        )
        client["waits"] = ("join", self.driven.join(asked))
        self._hear()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 5))
    def sync(self, number: int) -> None:
        client = self._client(number)
        joined = client["joined"]
        if client["waits"] is not None or joined is None:
            return
        given = {}
        if joined.leader == joined.member_id and not joined.skip_assignment:
            given = {one[0]: f"{joined.generation} {one[0]}".encode() for one in joined.members}
        named = {name.replace("-", "_"): assignment for name, assignment in given.items()}
        client["waits"] = ("sync", self.driven.sync(joined, client["static"], **named))
        self._hear()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 5))
    def beat(self, number: int) -> None:
        client = self._client(number)
        joined = client["joined"]
        if joined is not None:
            code = self.driven.group.heartbeat(joined.member_id, client["static"], joined.generation, self.driven.now)
            self._refused(client, code)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 5), says_so=st.booleans())
    def go(self, number: int, says_so: bool) -> None:
        client = self._client(number)
        self.clients.remove(client)
        if says_so and client["id"]:
            self.driven.do(self.driven.group.leave([(client["id"], client["static"])], self.driven.now)[1])
            self._hear()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 5))
    def lose_connection(self, number: int) -> None:
        """It hears no answer, and asks again."""
        self._client(number)["waits"] = None

    @precondition(lambda self: self.driven.stores)
    @rule(error=st.sampled_from([ErrorCode.none, ErrorCode.none, ErrorCode.coordinator_not_available]))
    def log(self, error: ErrorCode) -> None:
        self.driven.stored(error)
        self._hear()

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.0, 31.0]))
    def pass_time(self, seconds: float) -> None:
        self.driven.move(seconds)
        self._hear()

    def _hear(self) -> None:
        for client in self.clients:
            kind, ticket = client["waits"] or ("", None)
            if ticket is None or ticket not in self.driven.answers:
                continue
            client["waits"] = None
            answer = self.driven.answers[ticket]
            if answer.error is not ErrorCode.none:
                if answer.error is ErrorCode.member_id_required:
                    client["id"] = answer.member_id
                self._refused(client, answer.error)
            elif kind == "join":
                self._heard_join(client, answer)
            else:
                self._heard_sync(client, answer)

    def _heard_join(self, client: dict[str, Any], joined: Joined) -> None:
        client["joined"], client["id"] = joined, joined.member_id
        if joined.members:
            assert joined.leader == joined.member_id
            assert joined.member_id in {member_id for member_id, _instance, _metadata in joined.members}
        if joined.members and not joined.skip_assignment:
            self.leaders.setdefault(joined.generation, set()).add(joined.member_id)

    def _heard_sync(self, client: dict[str, Any], synced: Synced) -> None:
        generation = client["joined"].generation
        if synced.assignment and client["static"] is None:
            assert synced.assignment == f"{generation} {client['id']}".encode(), "its own, and of its generation"
        before = self.given.setdefault(generation, {}).setdefault(client["id"], synced.assignment)
        assert before == synced.assignment, "handed out once"

    @staticmethod
    def _refused(client: dict[str, Any], code: ErrorCode) -> None:
        if code in {ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id}:
            client["id"] = ""
        if code is not ErrorCode.none:
            client["joined"] = None

    @invariant()
    def generations_rise_and_have_one_leader(self) -> None:
        group = self.driven.group
        assert group.generation >= self.generation
        self.generation = group.generation
        assert all(len(leaders) == 1 for leaders in self.leaders.values())
        if group.state in {GroupState.completing_rebalance, GroupState.stable}:
            assert group.leader in group.members
        assert (group.state is not GroupState.empty) or not group.members

    @invariant()
    def whoever_waits_has_a_deadline(self) -> None:
        group = self.driven.group
        waiting = [one for one in group.members.values() if one.joining is not None or one.syncing is not None]
        assert not waiting or group.deadline is not None or self.driven.stores

    def teardown(self) -> None:
        """Nobody does anything any more: all that wait are answered, and the group becomes empty."""
        driven = self.driven
        for _ in range(60):
            while driven.stores:
                driven.stored()
            deadline = driven.group.deadline
            if deadline is None:
                break
            driven.move(max(0.0, deadline - driven.now))
        assert driven.group.state is GroupState.empty
        assert not driven.group.pending
        assert len(driven.answers) == driven.asked, "all who asked were answered"


def test_one_generation_one_leader_one_assignment_each_and_nobody_waits_for_ever() -> None:
    some = settings(max_examples=150, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(Interleavings, settings=some)  # type: ignore[no-untyped-call]
