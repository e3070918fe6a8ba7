"""The group of KIP-848 as a state machine: what it promises under any interleaving, and what it answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from consumer_groups import REBALANCE, SESSION, Client, Driven, SomeTopics
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

from ingestd.broker.groups.consumer_group import ConsumerRules
from ingestd.broker.groups.consumer_state import FIRST_EPOCH
from ingestd.broker.groups.consumer_values import ConsumerGroupState, MemberState
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ingestd.broker.groups.consumer_values import HeartbeatAsked, TopicIdPartition


@pytest.fixture
def driven() -> Driven:
    return Driven(SomeTopics(orders=6, other=2))


def numbers(client: Client) -> list[int]:
    return sorted(number for _topic, number in client.has)


def test_the_first_heartbeat_brings_everything_and_the_next_ones_what_is_different(driven: Driven) -> None:
    only = driven.member("orders")
    joined = driven.beat(only)
    assert (joined.error, joined.epoch, joined.interval) == (ErrorCode.none, 2, 5.0)
    assert joined.assigned == driven.topics.all_of("orders")
    quiet = driven.beat(only, rebalance_timeout=None, topics=None, owned=None)
    assert (quiet.epoch, quiet.assigned) == (2, None)
    assert driven.beat(only).assigned == only.has, "whoever says everything is told everything"


def test_a_partition_goes_to_the_next_member_when_the_first_has_given_it_up(driven: Driven) -> None:
    first, second = driven.member("orders"), driven.member("orders")
    driven.beat(first)
    joined = driven.beat(second)
    assert (joined.epoch, joined.assigned) == (3, frozenset())
    asked = driven.beat(first, revokes=False)
    assert asked.epoch == 2, "it stays in its epoch until it gave up"
    assert asked.assigned is not None
    assert len(asked.assigned) == 3
    assert driven.beat(second).assigned == frozenset(), "they are still the first one's"
    first.has = first.told
    assert driven.beat(first).epoch == 3
    assert driven.beat(second).assigned == driven.topics.all_of("orders") - first.has
    assert driven.group.kept.state is ConsumerGroupState.stable


def test_a_member_whose_answer_was_lost_says_its_epoch_before_once_more(driven: Driven) -> None:
    first, second = driven.member("orders"), driven.member("orders")
    driven.settle(first)
    driven.settle(second, first)
    before, had = first.epoch, first.has
    driven.ask(driven.member("orders", instance_id="x").says())
    lost = driven.beat(first)
    first.has = first.told
    moved = driven.beat(first)
    assert moved.epoch == before + 1
    again = driven.beat(Client(first.id, first.topics, epoch=before, has=first.has))
    assert again.epoch == moved.epoch
    stale = Client(first.id, first.topics, epoch=before, has=had)
    assert driven.beat(stale).error is ErrorCode.fenced_member_epoch, "it has what is not its own any more"
    assert lost.epoch == before


@pytest.mark.parametrize("epoch", [5, 99])
def test_who_has_another_epoch_is_fenced_and_may_join_again(driven: Driven, epoch: int) -> None:
    only = driven.member("orders")
    driven.settle(only)
    assert driven.beat(only, epoch=epoch).error is ErrorCode.fenced_member_epoch
    assert driven.beat(only, epoch=0, owned=frozenset()).assigned == driven.topics.all_of("orders")


def test_who_is_no_member_is_told_so(driven: Driven) -> None:
    driven.settle(driven.member("orders"))
    stranger = driven.member("orders", epoch=1)
    assert driven.beat(stranger).error is ErrorCode.unknown_member_id
    assert driven.beat(stranger, epoch=-1).error is ErrorCode.unknown_member_id


def test_what_a_member_that_left_had_is_free_at_once(driven: Driven) -> None:
    first, second = driven.member("orders"), driven.member("orders")
    driven.settle(first, second)
    left = driven.beat(first, epoch=-1)
    assert (left.error, left.epoch) == (ErrorCode.none, -1)
    assert driven.beat(second).assigned == driven.topics.all_of("orders")


def test_who_is_not_heard_of_is_out_after_the_session_timeout(driven: Driven) -> None:
    first, second = driven.member("orders"), driven.member("orders")
    driven.settle(first, second)
    driven.move(SESSION - 1)
    driven.beat(second)
    driven.move(1)
    assert list(driven.group.kept.members) == [second.id]
    driven.settle(second)
    assert second.has == driven.topics.all_of("orders")
    driven.move(SESSION)
    assert driven.group.kept.state is ConsumerGroupState.empty
    assert driven.group.deadline is None


def test_who_does_not_give_up_in_time_is_out(driven: Driven) -> None:
    first, second = driven.member("orders"), driven.member("orders")
    driven.settle(first)
    driven.beat(second)
    for _ in range(3):
        driven.beat(first, revokes=False)
        driven.beat(second)
        driven.move(REBALANCE / 3)
    assert list(driven.group.kept.members) == [second.id]
    assert driven.beat(second).assigned == driven.topics.all_of("orders")


def test_a_static_member_that_comes_back_gets_the_same_and_nobody_else_notices(driven: Driven) -> None:
    first, second = driven.member("orders", instance_id="a"), driven.member("orders", instance_id="b")
    driven.settle(first, second)
    epoch = driven.group.kept.epoch
    gone = driven.beat(first, epoch=-2)
    assert (gone.error, gone.epoch) == (ErrorCode.none, -2)
    back = driven.member("orders", instance_id="a")
    assert driven.beat(back).assigned == first.told
    assert driven.group.kept.epoch == epoch
    assert list(driven.group.kept.members) == [second.id, back.id]
    first.epoch = epoch
    assert driven.beat(first).error is ErrorCode.fenced_instance_id
    assert driven.beat(first, epoch=-1).error is ErrorCode.fenced_instance_id


def test_an_instance_is_one_members_until_that_leaves(driven: Driven) -> None:
    first, second = driven.member("orders", instance_id="a"), driven.member("orders", instance_id="a")
    driven.settle(first)
    assert driven.beat(second).error is ErrorCode.unreleased_instance_id
    driven.beat(first, epoch=-1)
    assert driven.beat(second).assigned == driven.topics.all_of("orders")
    assert driven.beat(driven.member("orders", instance_id="b", epoch=3)).error is ErrorCode.unknown_member_id


def test_an_instance_of_a_member_that_went_under_another_is_not_given_away(driven: Driven) -> None:
    """As in Kafka, which answers so until the group is loaded again."""
    first, second = driven.member("orders", instance_id="a"), driven.member("orders", instance_id="a")
    driven.settle(first)
    first.instance_id, first.epoch = "b", 0
    assert driven.beat(first).error is ErrorCode.none
    driven.beat(first, epoch=-1)
    assert driven.beat(second).error is ErrorCode.unknown_member_id
    assert driven.beat(first, instance_id="a", epoch=3).error is ErrorCode.unknown_member_id


def test_a_static_member_that_does_not_come_back_is_out_after_its_session(driven: Driven) -> None:
    only = driven.member("orders", instance_id="a")
    driven.settle(only)
    driven.beat(only, epoch=-2)
    driven.move(SESSION)
    assert not driven.group.kept.members


def test_topics_are_shared_when_they_grow_and_are_made_and_taken_back_when_they_are_deleted(driven: Driven) -> None:
    only = driven.member("orders", "later")
    driven.settle(only)
    driven.topics.put("orders", 8)
    driven.settle(only)
    assert numbers(only) == list(range(8))
    driven.topics.put("later", 2)
    driven.settle(only)
    assert only.has == driven.topics.all_of("orders", "later")
    driven.topics.delete("orders")
    driven.settle(only)
    assert only.has == driven.topics.all_of("later")
    driven.topics.put("orders", 1)
    driven.settle(only)
    assert only.has == driven.topics.all_of("orders", "later"), "the new one has another id"


def test_a_topic_of_nobody_changes_nothing(driven: Driven) -> None:
    only = driven.member("orders")
    driven.settle(only)
    driven.topics.put("other", 9)
    assert driven.beat(only).epoch == 2


def test_a_member_that_subscribes_to_something_else_gives_up_what_it_does_not_read(driven: Driven) -> None:
    first, second = driven.member("orders"), driven.member("orders")
    driven.settle(first, second)
    first.topics = frozenset({"other"})
    driven.settle(first, second)
    assert first.has == driven.topics.all_of("other")
    assert second.has == driven.topics.all_of("orders")


def test_members_vote_for_an_assignor_and_the_first_configured_one_is_the_default(driven: Driven) -> None:
    first = driven.member("orders", assignor="range")
    driven.settle(first)
    assert driven.group.assignor == "range"
    driven.settle(first, driven.member("orders"), driven.member("orders"))
    assert driven.group.assignor == "range", "who does not vote does not count"
    assert Driven(SomeTopics(), ConsumerRules(("range", "uniform"))).group.assignor == "range"


def test_a_pattern_reads_what_matches_as_a_whole_now_and_later(driven: Driven) -> None:
    driven.topics.put("orders-eu", 1)
    only = driven.member(pattern="orders-.*")
    driven.settle(only)
    assert only.has == driven.topics.all_of("orders-eu")
    driven.topics.put("orders-us", 2)
    driven.settle(only)
    assert only.has == driven.topics.all_of("orders-eu", "orders-us")
    assert driven.group.kept.subscribed() == {"orders-eu", "orders-us"}
    only.pattern = "o.*"
    driven.settle(only)
    assert only.has == driven.topics.all_of("orders", "other", "orders-eu", "orders-us")
    assert list(driven.group.kept.matches) == ["o.*"]
    driven.beat(only, epoch=-1)
    assert not driven.group.kept.matches


def test_a_topic_that_another_member_has_by_name_begins_to_match_a_pattern(driven: Driven) -> None:
    by_name, by_pattern = driven.member("later"), driven.member(pattern="la.*|other")
    driven.settle(by_name, by_pattern)
    assert by_pattern.has == driven.topics.all_of("other")
    driven.topics.put("later", 2)
    driven.settle(by_name, by_pattern)
    assert by_name.has | by_pattern.has == driven.topics.all_of("later", "other")


def test_a_pattern_that_is_none_is_refused_and_changes_nothing(driven: Driven) -> None:
    refused = driven.beat(driven.member(pattern="t(?=x)"))
    assert refused.error is ErrorCode.invalid_regular_expression
    assert "(?=x)" in (refused.message or "")
    assert (driven.group.kept.epoch, driven.group.kept.members, driven.log) == (FIRST_EPOCH, {}, [])


def test_a_pattern_takes_linear_time(driven: Driven) -> None:
    """Python's own would need years for this one."""
    driven.topics.put("a" * 240, 1)
    only = driven.member(pattern="(a|aa|a?)*b")
    driven.settle(only)
    assert only.has == frozenset()


def test_what_is_not_stored_is_stored_with_the_next_heartbeat(driven: Driven) -> None:
    first, second = driven.member("orders"), driven.member("orders")
    driven.settle(first)
    driven.fails = True
    assert driven.ask(second.says()) is None
    assert driven.ask(first.says()) is None
    driven.fails = False
    driven.settle(first, second)
    again = driven.again()
    assert again is not None
    assert described(again) == described(driven.group)


def test_what_the_assignor_makes_is_kept_for_the_assignment_interval() -> None:
    driven = Driven(SomeTopics(orders=6), ConsumerRules(assignment_interval=1.0))
    first, second = driven.member("orders"), driven.member("orders")
    driven.settle(first)
    assert driven.beat(second).epoch == 2
    assert driven.group.kept.state is ConsumerGroupState.assigning
    driven.move(1.0)
    driven.settle(first, second)
    assert len(first.has) == len(second.has) == 3


def refused(driven: Driven, client: Client, epoch: int, partition: TopicIdPartition, version: int | None = 9) -> Any:
    try:
        driven.group.check_commit(client.id, epoch, [partition], version)
    except KafkaError as error:
        return error.code
    return ErrorCode.none


def test_who_may_commit_and_for_which_partitions(driven: Driven) -> None:
    nobody = driven.member()
    nobody.id = ""
    orders = sorted(driven.topics.all_of("orders"))
    assert refused(driven, nobody, -1, orders[0]) is ErrorCode.none
    first, second = driven.member("orders"), driven.member("orders")
    driven.settle(first)
    old = first.epoch
    driven.settle(first, second)
    (kept, *_), (gained, *_) = sorted(first.has), sorted(second.has)
    assert refused(driven, first, first.epoch, gained) is ErrorCode.none, "the consumer's word counts"
    assert refused(driven, first, old, kept) is ErrorCode.none, "KIP-1251: it has had it since then"
    assert refused(driven, first, old, gained) is ErrorCode.stale_member_epoch
    assert refused(driven, first, first.epoch + 1, kept) is ErrorCode.stale_member_epoch
    assert refused(driven, first, first.epoch, kept, 8) is ErrorCode.unsupported_version
    assert refused(driven, first, first.epoch + 1, kept, None) is ErrorCode.illegal_generation
    assert refused(driven, nobody, -1, kept) is ErrorCode.unknown_member_id
    assert refused(driven, nobody, -1, kept, None) is ErrorCode.none
    driven.group.check_fetch(None, -1)
    driven.group.check_fetch(first.id, first.epoch)
    with pytest.raises(KafkaError, match="expected 3"):
        driven.group.check_fetch(first.id, old)
    with pytest.raises(KafkaError, match="nobody"):
        driven.group.check_fetch("nobody", 1)


def test_a_group_from_the_log_is_the_same_and_gives_its_members_a_session(driven: Driven) -> None:
    first, second = driven.member("orders", instance_id="a"), driven.member(pattern="o.*")
    driven.settle(first)
    driven.beat(second)
    driven.beat(first, revokes=False)
    before = described(driven.group)
    driven.now += 10
    driven.restart()
    assert described(driven.group) == before
    assert driven.group.deadline == driven.now + REBALANCE
    driven.settle(first, second)
    assert driven.group.deadline == driven.now + SESSION


def test_nothing_is_left_of_a_group_whose_tombstones_are_in_the_log(driven: Driven) -> None:
    driven.settle(driven.member("orders"), driven.member(pattern="o.*"))
    driven.log += driven.group.kept.tombstones()
    assert driven.again() is None
    newest = dict(driven.log)
    assert set(newest.values()) == {None}


def described(group: Any) -> Any:
    kept = group.kept
    members = {
        member.id: (member.profile, member.held, member.target or frozenset()) for member in kept.members.values()
    }
    matches = {pattern: match.topics for pattern, match in kept.matches.items()}
    return kept.epoch, kept.target_epoch, kept.topics_hash, members, matches, kept.owners, kept.instances


def heartbeat_of(client: Client, epoch: int, **fields: Any) -> HeartbeatAsked:
    return replace(client.says(), epoch=epoch, owned=frozenset() if epoch <= 0 else client.has, **fields)


class Interleavings(RuleBasedStateMachine):
    """Clients that join, revoke slowly, lose answers, leave and vanish; topics that change; a log that fails; kills."""

    def __init__(self) -> None:
        super().__init__()
        self.driven = Driven(SomeTopics())
        self.clients: list[Client] = []
        self.epoch = 0

    @initialize(assignor=st.sampled_from(["uniform", "range"]), interval=st.sampled_from([0.0, 2.0]))
    def begin(self, assignor: str, interval: float) -> None:
        rules = ConsumerRules((assignor,), assignment_interval=interval)
        self.driven = Driven(SomeTopics(a=4, b=1), rules)

    @rule(
        topics=st.sampled_from([{"a"}, {"a", "b"}, {"c"}, set()]),
        instance=st.sampled_from([None, None, "x", "y"]),
        pattern=st.sampled_from([None, None, "[ab]", "c.*"]),
    )
    def come(self, topics: set[str], instance: str | None, pattern: str | None) -> None:
        if len(self.clients) < 5:
            client = self.driven.member(*topics, instance_id=instance, pattern=pattern)
            self.clients.append(client)
            self._beat(client)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 4), hears=st.sampled_from([True, True, True, False]), brief=st.booleans())
    def beat(self, number: int, hears: bool, brief: bool) -> None:
        self._beat(self._client(number), hears=hears, brief=brief and hears)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 4))
    def give_up(self, number: int) -> None:
        client = self._client(number)
        client.has &= client.told

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 4), topics=st.sampled_from([{"a"}, {"b", "c"}, set()]))
    def subscribe(self, number: int, topics: set[str]) -> None:
        client = self._client(number)
        client.topics, client.pattern = frozenset(topics), "" if client.pattern else None
        self._beat(client, topics=client.topics)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 4), epoch=st.sampled_from([-1, -2, None]))
    def go(self, number: int, epoch: int | None) -> None:
        client = self._client(number)
        self.clients.remove(client)
        if epoch == -1 or (epoch == -2 and client.instance_id is not None):
            client.has = frozenset()
            self.driven.ask(heartbeat_of(client, epoch))

    @rule(name=st.sampled_from(["a", "b", "c", "cc"]), more=st.integers(1, 3))
    def grow(self, name: str, more: int) -> None:
        topic = self.driven.topics.named(name)
        self.driven.topics.put(name, more + (topic.partitions if topic else 0))

    @rule(name=st.sampled_from(["a", "b", "c"]))
    def delete(self, name: str) -> None:
        if self.driven.topics.named(name) is not None:
            self.driven.topics.delete(name)

    @rule(seconds=st.sampled_from([0.0, 1.0, REBALANCE, SESSION]))
    def pass_time(self, seconds: float) -> None:
        self.driven.move(seconds)
        for client in self.clients:
            if client.id not in self.driven.group.kept.members:
                # A client counts the time too, and stops in time.
                self._lose(client)

    @rule(fails=st.booleans())
    def disk(self, fails: bool) -> None:
        self.driven.fails = fails

    @rule()
    def kill(self) -> None:
        self.driven.restart()
        self.epoch = min(self.epoch, self.driven.group.kept.epoch)

    def _client(self, number: int) -> Client:
        return self.clients[number % len(self.clients)]

    def _beat(self, client: Client, *, hears: bool = True, brief: bool = False, **fields: Any) -> None:
        said = {"topics": None, "pattern": None, "rebalance_timeout": None} if brief and client.epoch else {}
        answer = self.driven.ask(heartbeat_of(client, client.epoch, **said, **fields))
        if answer is None or not hears:
            return
        if answer.error:
            allowed = {
                ErrorCode.fenced_member_epoch,
                ErrorCode.unknown_member_id,
                ErrorCode.unreleased_instance_id,
                ErrorCode.fenced_instance_id,
            }
            assert answer.error in allowed
            self._lose(client)
            return
        assert 0 <= answer.epoch <= self.driven.group.kept.target_epoch
        client.epoch = answer.epoch
        if answer.assigned is not None:
            client.told = answer.assigned
            client.has |= client.told
            # It begins with what is new at once. What it is to give up it has until `give_up`.

    @staticmethod
    def _lose(client: Client) -> None:
        client.epoch, client.has, client.told = 0, frozenset(), frozenset()

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        seen: set[TopicIdPartition] = set()
        members = self.driven.group.kept.members
        for client in self.clients:
            if client.id not in members:
                continue
            assert not seen & client.has
            seen |= client.has

    @invariant()
    def what_the_group_is_fits_together(self) -> None:
        kept = self.driven.group.kept
        assert kept.epoch >= self.epoch
        self.epoch = kept.epoch
        assert kept.target_epoch <= kept.epoch
        held = [(partition, one.id) for one in kept.members.values() for partition in one.held.assigned]
        held += [(partition, one.id) for one in kept.members.values() for partition in one.held.revoking]
        assert len(held) == len(dict(held)), "a partition has one owner"
        assert dict(held) == kept.owners
        targets = [partition for one in kept.members.values() for partition in one.target or ()]
        assert len(targets) == len(set(targets))
        for member in kept.members.values():
            assert member.held.epoch <= kept.target_epoch
            if member.held.state is MemberState.unrevoked_partitions:
                assert member.revoke_by is not None or member.held.epoch == -2
        assert set(kept.matches) == {one.profile.pattern for one in kept.members.values() if one.profile.pattern}

    @invariant()
    def the_log_has_what_the_group_is(self) -> None:
        if self.driven.group.kept.unsaved:
            return
        again = self.driven.again()
        if again is None:
            assert self.driven.group.kept.epoch == FIRST_EPOCH
        else:
            assert described(again) == described(self.driven.group)

    def teardown(self) -> None:
        """When nothing disturbs them, all that is read is shared."""
        self.driven.fails = False
        self.driven.move(SESSION)
        for client in self.clients:
            self._lose(client)
        instances: dict[str | None, Client] = {one.instance_id: one for one in self.clients if one.instance_id}
        alive = [one for one in self.clients if one.instance_id is None or instances[one.instance_id] is one]
        for _ in range(12):
            self.driven.move(2.0)
            for client in alive:
                self._beat(client)
                client.has &= client.told
        kept = self.driven.group.kept
        if alive:
            assert kept.state is ConsumerGroupState.stable
            assert frozenset().union(*(one.has for one in alive)) == self.driven.topics.all_of(*kept.subscribed())


def test_no_partition_has_two_owners_and_all_are_shared_in_the_end_whatever_happens() -> None:
    run_state_machine_as_test(Interleavings, settings=settings(max_examples=120, stateful_step_count=60, deadline=None))
