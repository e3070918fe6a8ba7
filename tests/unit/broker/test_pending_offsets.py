"""Offsets that are committed in transactions: which count, when, and what a restart knows of them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from moved_clock import MovedClock

from ingestd.broker.broker import Broker
from ingestd.broker.coordinator.records import Committed
from ingestd.broker.groups.classic_values import Join
from ingestd.broker.settings import BrokerSettings, Flush
from ingestd.broker.storage import NewTopic
from ingestd.broker.topics import OFFSETS_TOPIC
from ingestd.broker.transactions.admission import Missing, admit
from ingestd.broker.transactions.transitions import End, Start
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from ingestd.broker.groups.group import Group
    from ingestd.broker.groups.group_partition import GroupPartition
    from ingestd.broker.transactions.transaction import Ids

NOBODY = ("", None, -1)
PLACES = [("orders", 0), ("orders", 1)]


def offset(number: int) -> Committed:
    return Committed(number, 0, "", 1)


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def started(tmp_path: Path, clock: MovedClock) -> AsyncIterator[Callable[..., Broker]]:
    """`started()`: a broker on the one directory of the test, loaded; the one before it ends first."""
    running: list[Broker] = []

    async def start(*, flush: Flush = Flush.os) -> Broker:
        for broker in running:
            await broker.close()
        settings = BrokerSettings(
            tmp_path / "data", flush=flush, offsets_partitions=1, transaction_partitions=1, offsets_retention=1e9
        )
        broker = Broker(settings, clock)
        broker.start()
        running.append(broker)
        broker.groups.begin()
        broker.transactions.begin()
        if broker.storage.topics.named("orders") is None:
            broker.storage.create([NewTopic("orders", 2, {"retention.ms": "-1"}, {})])
        async with asyncio.timeout(10):
            while any(one.refusal is not None for one in (*broker.groups.partitions, *broker.transactions.partitions)):
                await asyncio.sleep(0)
        return broker

    yield start
    for broker in running:
        await broker.close()


async def begun(broker: Broker, transactional_id: str = "shop") -> Ids:
    return (await broker.transactions.of(transactional_id).initialize(transactional_id, Start(60_000, 2))).ids


async def commit_in(
    broker: Broker,
    ids: Ids,
    offsets: dict[tuple[str, int], Committed],
    transactional_id: str = "shop",
    group: str = "g",
) -> ErrorCode:
    """As TxnOffsetCommit 5 does it."""
    where = (OFFSETS_TOPIC, 0)
    admit(broker.transactions, transactional_id, ids, where, broker.partition(*where).log, Missing.added)
    transaction = (ids.producer_id, ids.epoch)
    return await broker.groups.of(group).commit_in_transaction(group, NOBODY, transaction, offsets)


async def end(broker: Broker, ids: Ids, transactional_id: str = "shop", *, commits: bool) -> Ids:
    return (await broker.transactions.of(transactional_id).end(transactional_id, End(ids, commits, 2))).ids


def place(broker: Broker) -> GroupPartition:
    return broker.groups.of("g")


def offsets_of(broker: Broker, group_id: str = "g") -> dict[tuple[str, int], int]:
    group = broker.groups.of(group_id).get(group_id)
    return {} if group is None else {partition: known.offset for partition, known in group.offsets.items()}


@pytest.mark.parametrize("flush", Flush)
@pytest.mark.parametrize("commits", [True, False])
async def test_offsets_count_when_their_transaction_is_committed_and_vanish_when_it_is_not(
    started: Callable[..., Broker], flush: Flush, commits: bool
) -> None:
    broker = await started(flush=flush)
    await place(broker).commit("g", NOBODY, {PLACES[0]: offset(3)})
    ids = await begun(broker)
    assert await commit_in(broker, ids, {PLACES[0]: offset(5), PLACES[1]: offset(6)}) is ErrorCode.none
    assert offsets_of(broker) == {PLACES[0]: 3}
    assert [place(broker).unstable("g", one) for one in PLACES] == [True, True]
    broker = await started(flush=flush)
    assert offsets_of(broker) == {PLACES[0]: 3}
    assert [place(broker).unstable("g", one) for one in PLACES] == [True, True]
    await end(broker, ids, commits=commits)
    expected = {PLACES[0]: 5, PLACES[1]: 6} if commits else {PLACES[0]: 3}
    assert offsets_of(broker) == expected
    assert not any(place(broker).unstable("g", one) for one in PLACES)
    assert offsets_of(await started(flush=flush)) == expected


async def test_a_group_that_has_nothing_else_lives_until_its_transaction_ends(started: Callable[..., Broker]) -> None:
    broker = await started()
    ids = await begun(broker)
    await commit_in(broker, ids, {PLACES[0]: offset(5)})
    place(broker).expire(1 << 50, 1)
    assert place(broker).get("g") is not None
    broker = await started()
    assert place(broker).get("g") is not None
    await end(broker, ids, commits=False)
    assert place(broker).get("g") is None


async def test_only_a_member_or_nobody_commits_in_a_transaction(
    started: Callable[..., Broker], clock: MovedClock
) -> None:
    broker = await started()
    transaction = (77, 0)
    asked = Join("", None, "c", "/h", 10.0, 30.0, "consumer", (("range", b""),), "member")
    joining = place(broker).join("g", asked)
    await clock.move(0)
    generation = (await joining).generation

    def refused(group: str, *member: object) -> ErrorCode:
        with pytest.raises(KafkaError) as error:
            place(broker).commit_in_transaction(group, member, transaction, {PLACES[0]: offset(5)})  # type: ignore[arg-type]
        return error.value.code

    assert refused("g", "stranger", None, generation) is ErrorCode.unknown_member_id
    assert refused("g", "member", None, generation + 1) is ErrorCode.illegal_generation
    assert refused("nowhere", "stranger", None, 3) is ErrorCode.illegal_generation
    assert place(broker).get("nowhere") is None
    member = ("member", None, generation)
    for allowed in (member, NOBODY):
        waiting = place(broker).commit_in_transaction("g", allowed, transaction, {PLACES[0]: offset(5)})
        assert await waiting is ErrorCode.none
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
        place(broker).commit("g", NOBODY, {PLACES[0]: offset(5)})


class Model:
    """The log of the groups as a list. The offset that counts is the last one of those that count."""

    def __init__(self) -> None:
        self.log: list[tuple[str, tuple[str, int], int | None, int | None]] = []
        self.ended: dict[int, bool] = {}

    def write(self, group: str, partition: tuple[str, int], number: int | None, transaction: int | None = None) -> None:
        self.log.append((group, partition, number, transaction))

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for of, partition, number, transaction in self.log:
            if of != group or (transaction is not None and not self.ended.get(transaction)):
                continue
            if number is None:
                found.pop(partition, None)
            else:
                found[partition] = number
        return found

    def unstable(self, group: str, partition: tuple[str, int]) -> bool:
        return any(
            (of, where) == (group, partition) and transaction is not None and transaction not in self.ended
            for of, where, _number, transaction in self.log
        )


@pytest.mark.parametrize("flush", Flush)
@pytest.mark.parametrize("seed", range(12))
async def test_the_offset_that_counts_is_the_last_one_in_the_log_whatever_happens(
    started: Callable[..., Broker], seed: int, flush: Flush
) -> None:
    """Two transactions at a time, commits beside them, deletions, and restarts."""
    rng = random.Random(seed)
    broker = await started(flush=flush)
    model = Model()
    producers = {name: await begun(broker, name) for name in ("a", "b")}
    numbers = {name: index for index, name in enumerate(producers)}
    for step in range(60):
        group, partition = rng.choice("gh"), rng.choice(PLACES)
        name = rng.choice(list(producers))
        match rng.choice(["plain", "within", "within", "within", "end", "delete", "delete group", "restart"]):
            case "plain":
                await broker.groups.of(group).commit(group, NOBODY, {partition: offset(step)})
                model.write(group, partition, step)
            case "within":
                await commit_in(broker, producers[name], {partition: offset(step)}, name, group)
                model.write(group, partition, step, numbers[name])
            case "end":
                commits = rng.random() < 0.6
                producers[name] = await end(
                    broker, producers[name], name, commits=commits and open_one(model, numbers[name])
                )
                model.ended[numbers[name]] = commits
                numbers[name] = step + 100
            case "delete" | "delete group" as what:
                known = broker.groups.of(group).get(group)
                if known is not None:
                    await delete(broker, known, partition if what == "delete" else None)
                    for gone in (partition,) if what == "delete" else PLACES:
                        model.write(group, gone, None)
            case "restart":
                broker = await started(flush=flush)
        for one in "gh":
            assert offsets_of(broker, one) == model.offsets(one)
            unstable = [broker.groups.of(one).unstable(one, where) for where in PLACES]
            assert unstable == [model.unstable(one, where) for where in PLACES]


def open_one(model: Model, number: int) -> bool:
    """Whether the transaction has anything: one that has nothing can only be aborted."""
    return any(transaction == number for _group, _partition, _number, transaction in model.log)


async def delete(broker: Broker, group: Group, partition: tuple[str, int] | None) -> None:
    of = broker.groups.of(group.id)
    await (of.delete_group(group) if partition is None else of.delete_offsets(group, [partition]))
