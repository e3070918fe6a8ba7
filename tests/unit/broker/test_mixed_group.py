"""Groups whose members speak both protocols: upgrade, downgrade, and what classic members are told meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from consumer_groups import Client, SomeTopics
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
from moved_clock import MovedClock

from ingestd.broker.coordinator.coordinator_log import LogBatch
from ingestd.broker.groups.classic_values import Join, Joined, Sync, Synced
from ingestd.broker.groups.consumer_group import ConsumerRules
from ingestd.broker.groups.group_partition import GroupPartition
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.consumer_protocol import decode, encode, module_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from ingestd.broker.coordinator.records import CoordinatorRecord
    from ingestd.broker.groups.consumer_values import HeartbeatAnswer, TopicIdPartition
    from ingestd.broker.groups.group import Group

SESSION, REBALANCE = 10.0, 30.0
_ids = itertools.count()


class Log:
    """A coordinator's log in memory, which can be full."""

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self.full = False

    def append(self, records: Sequence[CoordinatorRecord], timestamp: int, done: Callable[[ErrorCode], None]) -> None:
        try:
            self.write(records, timestamp)
        except KafkaError as full:
            done(full.code)
        else:
            done(ErrorCode.none)

    def write(self, records: Sequence[CoordinatorRecord], _timestamp: int) -> None:
        if self.full:
            raise KafkaError(ErrorCode.coordinator_not_available, "full")
        self.records += records

    def when_written(self, done: Callable[[ErrorCode], None]) -> None:
        done(ErrorCode.none)

    async def replay(self) -> AsyncIterator[LogBatch[CoordinatorRecord]]:
        yield LogBatch(self.records)


class Broker:
    """The partition of one group, with its topics, its log and its time."""

    def __init__(self, **topics: int) -> None:
        self.topics = SomeTopics(**topics)
        self.clock = MovedClock()
        self.log = Log()
        self.partition = self._made()
        self.partition.refusal = None

    def _made(self) -> GroupPartition:
        log: Any = self.log
        return GroupPartition(log, self.clock, 0.0, self.topics, ConsumerRules())

    async def restart(self) -> None:
        self.partition.close()
        self.partition = self._made()
        await self.partition.load()

    @property
    def group(self) -> Group:
        found = self.partition.get("g")
        assert found is not None
        return found

    async def beat(self, client: Client) -> HeartbeatAnswer:
        """A heartbeat of a client of the new protocol, which does at once what it is told."""
        answer = await self.partition.consumer_heartbeat("g", client.says())
        if not answer.error:
            client.epoch = answer.epoch
            client.has = client.told = client.told if answer.assigned is None else answer.assigned
        return answer


@dataclass(eq=False)
class Classic:
    """A client of the classic protocol, one call at a time. With "cooperative-sticky" it joins with what it has."""

    broker: Broker
    topics: frozenset[str]
    protocol: str = "range"
    instance_id: str | None = None
    id: str = ""
    joined: Joined | None = None
    has: frozenset[TopicIdPartition] = frozenset()
    must_join: bool = True
    waits: asyncio.Future[Any] | None = None

    def metadata(self) -> bytes:
        module = module_of("subscription", 3)
        owned = tuple(
            module.TopicPartition(topic=name, partitions=tuple(numbers))
            for name, numbers in named(self.has, self.broker.topics).items()
        )
        return encode(
            module.ConsumerProtocolSubscription(
                topics=tuple(self.topics), user_data=None, owned_partitions=owned, generation_id=-1, rack_id=None
            )
        )

    def join(self) -> asyncio.Future[Joined]:
        if self.protocol == "range":
            self.has = frozenset()
        name = f"classic-{next(_ids)}"
        asked = Join(
            self.id, self.instance_id, "c", "/h", SESSION, REBALANCE, "consumer",
            ((self.protocol, self.metadata()),), name, must_know_id=True, can_skip_assignment=True,
        )  # fmt: skip
        return self.broker.partition.join("g", asked)

    def sync(self, assignments: dict[str, bytes] | None = None) -> asyncio.Future[Synced]:
        assert self.joined is not None
        asked = Sync(
            self.id, self.instance_id, self.joined.generation, "consumer", self.joined.protocol, assignments or {}
        )
        return self.broker.partition.sync("g", asked)

    def beat(self) -> ErrorCode:
        assert self.joined is not None
        return self.broker.partition.heartbeat("g", self.id, self.instance_id, self.joined.generation)

    # One step after the other, as a client goes on.

    def step(self) -> None:
        """Hear what it waited for, and do what follows; else send a heartbeat."""
        if self.waits is not None:
            if not self.waits.done():
                return
            answer, self.waits = self.waits.result(), None
            if isinstance(answer, Joined):
                self._heard_join(answer)
            else:
                self._heard_sync(answer)
        elif self.must_join or self.joined is None:
            self.must_join = False
            self.waits = self.join()
        else:
            self._heard(self.beat())

    def _heard_join(self, joined: Joined) -> None:
        if joined.error is ErrorCode.member_id_required:
            self.id, self.must_join = joined.member_id, True
        elif joined.error:
            self._heard(joined.error)
        else:
            self.id, self.joined = joined.member_id, joined
            self.waits = self.sync(self._assigned(joined) if joined.members else None)

    def _assigned(self, joined: Joined) -> dict[str, bytes]:
        """What a leader assigns: everybody keeps what it has, and what nobody has goes round."""
        said = {member: decode("subscription", metadata) for member, _instance, metadata in joined.members}
        shares: dict[str, list[tuple[str, int]]] = {
            member: [(one.topic, number) for one in each.owned_partitions for number in one.partitions]
            for member, each in said.items()
        }
        kept = {partition for share in shares.values() for partition in share}
        for topic in self.broker.topics:
            readers = itertools.cycle([member for member, each in said.items() if topic.name in each.topics] or [""])
            for number in range(topic.partitions):
                reader = next(readers)
                if reader and (topic.name, number) not in kept:
                    shares[reader].append((topic.name, number))
        return {member: assignment_of(share) for member, share in shares.items()}

    def _heard_sync(self, synced: Synced) -> None:
        if synced.error:
            self._heard(synced.error)
            return
        assigned = assigned_in(synced.assignment, self.broker.topics)
        self.must_join = self.protocol != "range" and not self.has <= assigned
        self.has = assigned

    def _heard(self, error: ErrorCode) -> None:
        match error:
            case ErrorCode.none:
                return
            case ErrorCode.rebalance_in_progress | ErrorCode.coordinator_not_available:
                pass
            case ErrorCode.inconsistent_group_protocol:
                pass  # one that vanished has another protocol, until its session ends
            case ErrorCode.unknown_member_id | ErrorCode.illegal_generation | ErrorCode.fenced_instance_id:
                self.has, self.joined = frozenset(), None
                self.id = self.id if error is ErrorCode.illegal_generation else ""
            case _:
                raise AssertionError(error)
        self.must_join = True

    async def settle(self) -> None:
        """Until it has an assignment and nothing is asked of it. Only in a group where nobody has to be waited for."""
        for _ in range(12):
            self.step()
            await self.broker.clock.move(0)
        assert self.waits is None
        assert self.beat() is ErrorCode.none


def named(partitions: Iterable[TopicIdPartition], topics: SomeTopics) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topic = topics.identified(topic_id)
        if topic is not None:
            found.setdefault(topic.name, []).append(number)
    return found


def assignment_of(partitions: Iterable[tuple[str, int]], user_data: bytes | None = None) -> bytes:
    module = module_of("assignment", 3)
    grouped = {topic: [number for name, number in partitions if name == topic] for topic, _number in partitions}
    assigned = tuple(module.TopicPartition(topic=topic, partitions=tuple(each)) for topic, each in grouped.items())
    return encode(module.ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=user_data))


def assigned_in(assignment: bytes, topics: SomeTopics) -> frozenset[TopicIdPartition]:
    if not assignment:
        return frozenset()
    said = decode("assignment", assignment).assigned_partitions
    known = [(topic, one.partitions) for one in said if (topic := topics.named(one.topic)) is not None]
    return frozenset((topic.topic_id, number) for topic, numbers in known for number in numbers)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    made = Broker(orders=4)
    yield made
    made.partition.close()


def reader(broker: Broker, protocol: str = "range", **fields: Any) -> Classic:
    return Classic(broker, frozenset({"orders"}), protocol, **fields)


def consumer(name: str, **fields: Any) -> Client:
    return Client(name, frozenset({"orders"}), **fields)


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
async def test_a_group_is_upgraded_by_its_first_member_of_the_new_protocol_and_downgraded_by_its_last(
    broker: Broker, protocol: str
) -> None:
    old, new = reader(broker, protocol), consumer("new")
    await old.settle()
    assert old.joined is not None
    generation = old.joined.generation
    joined = await broker.beat(new)
    assert (joined.epoch, joined.assigned) == (generation + 1, frozenset()), "the classic member has them all"
    assert broker.group.kind == "consumer"
    assert old.beat() is ErrorCode.rebalance_in_progress
    await old.settle()
    assert old.joined.generation == generation + 1
    assert old.joined.leader == ""
    await broker.beat(new)
    assert len(old.has) == len(new.has) == 2
    assert not old.has & new.has
    new.epoch = -1
    assert not (await broker.beat(new)).error
    assert broker.group.kind == "classic"
    assert old.beat() is ErrorCode.rebalance_in_progress, "and not that its generation is unknown"
    await old.settle()
    assert old.has == broker.topics.all_of("orders")


async def test_whoever_waits_for_a_join_or_a_sync_joins_again_when_the_group_is_upgraded(broker: Broker) -> None:
    first, second = reader(broker), reader(broker)
    await first.settle()
    for _ in range(2):
        second.step()
        second.step()
    assert second.waits is not None
    await broker.beat(consumer("new"))
    assert (await second.waits).error is ErrorCode.rebalance_in_progress
    await second.settle()


async def test_a_classic_static_member_that_comes_back_with_the_new_protocol_keeps_its_place(broker: Broker) -> None:
    old, new = reader(broker, instance_id="one"), consumer("new", instance_id="one")
    await old.settle()
    had = old.has
    assert (await broker.beat(new)).assigned == had
    assert list(broker.group.consumer.kept.members) == ["new"]  # type: ignore[union-attr]
    back = reader(broker, instance_id="one")
    await back.settle()
    assert broker.group.kind == "classic"
    assert back.has == had
    fenced = await broker.beat(replace(new, epoch=new.epoch))
    assert fenced.error is ErrorCode.group_id_not_found


async def test_a_group_that_is_no_consumers_is_not_upgraded(broker: Broker) -> None:
    asked = Join("", None, "c", "/h", SESSION, REBALANCE, "connect", (("sessioned", b""),), "worker")
    joining = broker.partition.join("g", asked)
    await broker.clock.move(0)
    assert not (await joining).error
    answer = await broker.beat(consumer("new"))
    assert answer.error is ErrorCode.group_id_not_found
    assert "does not use the consumer embedded protocol" in (answer.message or "")


async def test_a_group_whose_assignor_has_data_of_its_own_is_not_upgraded(broker: Broker) -> None:
    old = reader(broker)
    old.id = (await old.join()).member_id
    joining = old.join()
    await broker.clock.move(0)
    old.joined = await joining
    assert not (await old.sync({old.id: assignment_of([("orders", 0)], b"mine")})).error
    assert (await broker.beat(consumer("new"))).error is ErrorCode.group_id_not_found
    assert broker.group.kind == "classic"
    assert old.beat() is ErrorCode.none


async def test_what_classic_members_are_refused_in_a_mixed_group(broker: Broker) -> None:
    old, new = reader(broker), consumer("new")
    await old.settle()
    await broker.beat(new)
    await old.settle()
    partition = broker.partition
    other = Join("", None, "c", "/h", SESSION, REBALANCE, "consumer", (("other", old.metadata()),), "x")
    assert (await partition.join("g", other)).error is ErrorCode.inconsistent_group_protocol
    unreadable = Join("", None, "c", "/h", SESSION, REBALANCE, "consumer", (("range", b"?"),), "x")
    assert (await partition.join("g", unreadable)).error is ErrorCode.inconsistent_group_protocol
    assert partition.heartbeat("g", "new", None, new.epoch) is ErrorCode.unknown_member_id
    assert partition.heartbeat("g", old.id, None, 99) is ErrorCode.illegal_generation
    assert partition.heartbeat("g", old.id, "instance", 1) is ErrorCode.unknown_member_id
    assert old.joined is not None
    wrong = Sync(old.id, None, old.joined.generation, "consumer", "sticky", {})
    assert (await partition.sync("g", wrong)).error is ErrorCode.inconsistent_group_protocol
    await broker.beat(consumer("third"))
    assert (await old.sync()).error is ErrorCode.rebalance_in_progress


async def test_a_classic_member_that_does_not_join_or_sync_in_time_is_out(broker: Broker) -> None:
    old, new = reader(broker), consumer("new")
    await old.settle()
    await broker.beat(new)
    for _ in range(8):
        assert old.beat() is ErrorCode.rebalance_in_progress
        await broker.clock.move(REBALANCE / 8)
        if broker.group.consumer is not None:
            await broker.beat(new)
    assert old.beat() is ErrorCode.unknown_member_id
    await broker.beat(new)
    assert new.has == broker.topics.all_of("orders")
    await old.settle()
    joining = old.join()
    assert not (await joining).error
    for _ in range(8):
        await broker.clock.move(REBALANCE / 8)
        await broker.beat(new)
        old.beat()
    assert list(broker.group.consumer.kept.members) == ["new"]  # type: ignore[union-attr]


async def test_a_mixed_group_is_the_same_after_a_restart_and_so_is_one_that_was_downgraded(broker: Broker) -> None:
    old, new = reader(broker, "cooperative-sticky"), consumer("new")
    await old.settle()
    await broker.beat(new)
    await broker.restart()
    await old.settle()
    await broker.beat(new)
    await broker.restart()
    assert broker.group.kind == "consumer"
    assert old.beat() is ErrorCode.none
    assert not (await broker.beat(new)).error
    assert len(old.has) == len(new.has) == 2
    new.epoch = -1
    await broker.beat(new)
    await broker.restart()
    assert broker.group.kind == "classic"
    await old.settle()
    assert old.has == broker.topics.all_of("orders")


async def test_a_downgrade_that_is_not_stored_is_stored_with_the_next_generation(broker: Broker) -> None:
    old, new = reader(broker), consumer("new")
    await old.settle()
    await broker.beat(new)
    await old.settle()
    await broker.beat(new)
    broker.log.full = True
    new.epoch = -1
    assert (await broker.beat(new)).error is ErrorCode.coordinator_not_available
    broker.log.full = False
    await old.settle()
    await broker.restart()
    assert broker.group.kind == "classic"
    assert old.beat() is ErrorCode.none


async def test_whoever_left_while_the_disk_was_full_does_not_come_back_with_a_restart(broker: Broker) -> None:
    """Its leave makes the group a classic one, which is not stored. The next member makes it one of KIP-848 again."""
    old, new, later = reader(broker), consumer("new"), consumer("later")
    await old.settle()
    await broker.beat(new)
    await old.settle()
    await broker.beat(new)
    broker.log.full = True
    new.epoch = -1
    assert (await broker.beat(new)).error is ErrorCode.coordinator_not_available
    broker.log.full = False
    await broker.beat(later)
    await broker.restart()
    assert broker.group.consumer is not None
    assert set(broker.group.consumer.kept.members) == {old.id, "later"}


class Interleavings(RuleBasedStateMachine):
    """Clients of both protocols that come, go on step by step, leave and vanish; a disk that is full; kills."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.old: list[Classic] = []
        self.new: list[Client] = []

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    @initialize()
    def begin(self) -> None:
        async def make() -> Broker:
            return Broker(a=3, b=2)

        self.broker = self.run(make())

    @rule(protocol=st.sampled_from(["range", "range", "cooperative-sticky"]), both=st.booleans())
    def old_comes(self, protocol: str, both: bool) -> None:
        if not self.old or (len(self.old) < 3 and protocol == self.old[0].protocol):
            self.old.append(Classic(self.broker, frozenset({"a", "b"} if both else {"a"}), protocol))
            self.go_on(len(self.old) - 1)

    @rule(topics=st.sampled_from([{"a"}, {"a", "b"}]))
    def new_comes(self, topics: set[str]) -> None:
        if len(self.new) < 3:
            self.new.append(Client(f"new-{next(_ids)}", frozenset(topics)))
            self._beat(self.new[-1])

    @precondition(lambda self: self.old)
    @rule(number=st.integers(0, 2))
    def go_on(self, number: int) -> None:
        client = self.old[number % len(self.old)]

        async def step() -> None:
            client.step()
            await self.broker.clock.move(0)

        self.run(step())

    @precondition(lambda self: self.new)
    @rule(number=st.integers(0, 2))
    def beat(self, number: int) -> None:
        self._beat(self.new[number % len(self.new)])

    def _beat(self, client: Client) -> None:
        answer = self.run(self.broker.beat(client))
        if answer.error and answer.error is not ErrorCode.coordinator_not_available:
            client.epoch, client.has, client.told = 0, frozenset(), frozenset()

    @precondition(lambda self: self.old)
    @rule(number=st.integers(0, 2), says_so=st.booleans())
    def old_goes(self, number: int, says_so: bool) -> None:
        client = self.old.pop(number % len(self.old))
        if says_so and client.id:
            self.run(leaving(self.broker, client.id))

    @precondition(lambda self: self.new)
    @rule(number=st.integers(0, 2), says_so=st.booleans())
    def new_goes(self, number: int, says_so: bool) -> None:
        client = self.new.pop(number % len(self.new))
        if says_so:
            client.epoch = -1
            self.run(self.broker.beat(client))

    @rule(full=st.booleans())
    def disk(self, full: bool) -> None:
        self.broker.log.full = full

    @rule()
    def kill(self) -> None:
        self.run(self.broker.restart())
        for client in self.old:
            if client.waits is not None:
                client.waits, client.must_join = None, True

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owned = [partition for client in (*self.old, *self.new) for partition in client.has]
        assert len(owned) == len(set(owned))

    def teardown(self) -> None:
        """When nothing disturbs them, all that is read is shared."""
        self.broker.log.full = False
        for _ in range(60):
            self.run(self.broker.clock.move(SESSION / 6))
            for number in range(len(self.old)):
                self.go_on(number)
                self.go_on(number)
            for client in self.new:
                self._beat(client)
        names = {name for client in (*self.old, *self.new) for name in client.topics}
        owned = [partition for client in (*self.old, *self.new) for partition in client.has]
        assert set(owned) == self.broker.topics.all_of(*names)
        if self.new or self.old:
            assert self.broker.group.kind == ("consumer" if self.new else "classic")
        self.broker.partition.close()
        self.loop.close()


async def leaving(broker: Broker, member_id: str) -> None:
    await broker.partition.leave("g", [(member_id, None)])


def test_whatever_protocols_members_speak_no_partition_has_two_owners_and_all_are_shared_in_the_end() -> None:
    run_state_machine_as_test(Interleavings, settings=settings(max_examples=100, stateful_step_count=60, deadline=None))
