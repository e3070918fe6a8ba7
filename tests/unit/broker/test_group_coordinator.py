"""Groups in `__consumer_offsets`: what is there after a restart, what expires, and what a full disk leaves of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from moved_clock import MovedClock

from ingestd.broker.broker import Broker
from ingestd.broker.coordinator.coordinator_log import RecordFormat
from ingestd.broker.coordinator.placement import coordinating_partition
from ingestd.broker.coordinator.records import CommitKey, Committed, GroupEntry, GroupKey, encode_record, read_record
from ingestd.broker.groups.classic_values import GroupState, Join, StoredGroup, StoredMember, Sync
from ingestd.broker.settings import BrokerSettings, Flush
from ingestd.broker.storage import NewTopic
from ingestd.errors import ErrorCode, KafkaError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from ingestd.broker.groups.group_partition import GroupPartition

SIMPLE = ("", None, -1)
DAY = 86_400.0


def offset(number: int, clock: MovedClock) -> Committed:
    return Committed(number, 0, "", int(clock.wall() * 1000))


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def started(tmp_path: Path, clock: MovedClock) -> AsyncIterator[Callable[..., Broker]]:
    """`started(flush=Flush.always)`: a broker on the one directory of the test; the one before it ends first."""
    running: list[Broker] = []

    async def start(*, flush: Flush = Flush.os) -> Broker:
        for broker in running:
            await broker.close()
        broker = Broker(BrokerSettings(tmp_path / "data", flush=flush, offsets_partitions=3), clock)
        broker.start()
        running.append(broker)
        broker.groups.begin()
        if broker.storage.topics.named("orders") is None:
            broker.storage.create([NewTopic("orders", 2, {}, {})])
        return broker

    yield start
    for broker in running:
        await broker.close()


async def loaded(broker: Broker, group_id: str = "g") -> GroupPartition:
    """The group's partition, when it is loaded."""
    async with asyncio.timeout(10):
        while True:
            try:
                return broker.groups.of(group_id)
            except KafkaError as refused:
                if refused.code is not ErrorCode.coordinator_load_in_progress:
                    raise
                await asyncio.sleep(0)


async def stable(partition: GroupPartition, clock: MovedClock, instance_id: str | None = None) -> tuple[str, int]:
    """A group "g" with one member: its id and generation."""
    asked = Join("", instance_id, "c", "/h", 10.0, 30.0, "consumer", (("range", b""),), "member")
    joining = partition.join("g", asked)
    await clock.move(0)
    joined = await joining
    synced = partition.sync("g", Sync("member", instance_id, joined.generation, None, None, {"member": b"all"}))
    assert (await synced).assignment == b"all"
    return "member", joined.generation


@pytest.mark.parametrize("flush", Flush)
async def test_after_a_restart_a_group_goes_on_where_it_was(
    started: Callable[..., Broker], clock: MovedClock, flush: Flush
) -> None:
    partition = await loaded(await started(flush=flush))
    member_id, generation = await stable(partition, clock)
    member = (member_id, None, generation)
    assert await partition.commit("g", member, {("orders", 0): offset(5, clock)}) is ErrorCode.none
    assert await partition.commit("g", member, {("orders", 0): offset(7, clock)}) is ErrorCode.none
    partition = await loaded(await started(flush=flush))
    group = partition.get("g")
    assert group is not None
    assert group.offsets["orders", 0].offset == 7
    assert group.classic.state is GroupState.stable
    assert partition.heartbeat("g", member_id, None, generation) is ErrorCode.none
    synced = await partition.sync("g", Sync(member_id, None, generation, None, None, {}))
    assert synced.assignment == b"all"
    await clock.move(10.0)
    assert partition.heartbeat("g", member_id, None, generation) is ErrorCode.unknown_member_id


async def test_an_offset_is_fetched_when_it_is_on_the_disk(started: Callable[..., Broker], clock: MovedClock) -> None:
    partition = await loaded(await started(flush=Flush.always))
    committing = partition.commit("g", SIMPLE, {("orders", 0): offset(5, clock)})
    group = partition.get("g")
    assert group is not None
    assert group.offsets == {}
    assert await committing is ErrorCode.none
    assert group.offsets["orders", 0].offset == 5


@pytest.mark.parametrize("flush", Flush)
async def test_a_deleted_group_takes_a_commit_with_it_that_was_on_its_way(
    started: Callable[..., Broker], clock: MovedClock, flush: Flush
) -> None:
    partition = await loaded(await started(flush=flush))
    committing = partition.commit("g", SIMPLE, {("orders", 0): offset(5, clock)})
    group = partition.get("g")
    assert group is not None
    deleting = partition.delete_group(group)
    later = partition.commit("g", SIMPLE, {("orders", 1): offset(6, clock)})
    assert await committing is await deleting is await later is ErrorCode.none
    for _ in range(2):
        group = partition.get("g")
        assert group is not None
        assert {key: committed.offset for key, committed in group.offsets.items()} == {("orders", 1): 6}
        partition = await loaded(await started(flush=flush))


async def test_offsets_expire_after_the_last_member_has_left_and_the_group_with_them(
    started: Callable[..., Broker], clock: MovedClock
) -> None:
    broker = await started()
    partition = await loaded(broker)
    member_id, generation = await stable(partition, clock)
    await partition.commit("g", (member_id, None, generation), {("orders", 0): offset(5, clock)})
    await partition.commit("plain", SIMPLE, {("orders", 0): offset(5, clock)})
    group = partition.get("g")
    assert group is not None
    for _ in range(8):
        clock.now += DAY
        partition.heartbeat("g", member_id, None, generation)
        group.classic.members[member_id].expires = clock.now + 10
        broker_ms, week = int(clock.wall() * 1000), int(7 * DAY * 1000)
        partition.expire(broker_ms, week)
    assert partition.get("g") is not None, "it has members, and nobody knows what they read"
    assert partition.get("plain") is None
    partition.leave("g", [(member_id, None)])
    partition.expire(int(clock.wall() * 1000), week)
    assert group.offsets
    clock.now += 7 * DAY
    partition.expire(int(clock.wall() * 1000), week)
    assert partition.get("g") is None
    assert list(await loaded(await started())) == []


async def test_a_deleted_topic_takes_its_offsets_with_it(started: Callable[..., Broker], clock: MovedClock) -> None:
    broker = await started()
    broker.storage.create([NewTopic("other", 1, {}, {})])
    partition = await loaded(broker)
    await partition.commit("g", SIMPLE, {("orders", 0): offset(5, clock), ("other", 0): offset(6, clock)})
    broker.groups.topic_deleted("orders")
    for _ in range(2):
        group = partition.get("g")
        assert group is not None
        assert list(group.offsets) == [("other", 0)]
        partition = await loaded(await started())


async def test_what_the_disk_does_not_take_is_not_there(
    started: Callable[..., Broker], clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await started()
    partition = await loaded(broker)
    member_id, generation = await stable(partition, clock)

    def full() -> None:
        raise KafkaError(ErrorCode.kafka_storage_error, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(broker.storage, "check_writable", full)
        refused = await partition.commit("g", (member_id, None, generation), {("orders", 0): offset(5, clock)})
    assert refused is ErrorCode.coordinator_not_available
    group = partition.get("g")
    assert group is not None
    assert group.offsets == {}
    assert not group.writing
    assert partition.heartbeat("g", member_id, None, generation) is ErrorCode.none


async def test_what_ends_after_the_close_sets_no_timer(started: Callable[..., Broker], clock: MovedClock) -> None:
    broker = await started(flush=Flush.always)
    partition = await loaded(broker)
    partition.join("g", Join("", None, "c", "/h", 10.0, 30.0, "consumer", (("range", b""),), "member"))
    await clock.move(0)
    syncing = partition.sync("g", Sync("member", None, 1, None, None, {}))
    partition.close()
    assert (await syncing).error is ErrorCode.none
    await clock.move(100.0)
    group = partition.get("g")
    assert group is not None
    assert list(group.classic.members) == ["member"]


async def test_a_commit_that_is_refused_leaves_no_group_behind(
    started: Callable[..., Broker], clock: MovedClock
) -> None:
    partition = await loaded(await started())
    with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
        partition.commit("g", ("member", None, 3), {("orders", 0): offset(5, clock)})
    assert list(partition) == []


@pytest.mark.parametrize("protocols", [(), (("range", b""),)], ids=["refused", "told an id"])
async def test_a_group_is_there_from_the_first_that_asks_to_join_until_nobody_needs_it(
    started: Callable[..., Broker], clock: MovedClock, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    """As in Apache Kafka 4.3, also after a restart."""
    partition = await loaded(await started())
    asked = Join("", None, "c", "/h", 10.0, 30.0, "consumer", protocols, "member", must_know_id=True)
    refused = ErrorCode.member_id_required if protocols else ErrorCode.inconsistent_group_protocol
    assert (await partition.join("g", asked)).error is refused
    await clock.move(10.0)
    partition = await loaded(await started())
    assert [(group.id, group.state, group.protocol_type) for group in partition] == [("g", "Empty", "")]
    partition.expire(int(clock.wall() * 1000), int(DAY * 1000))
    assert list(partition) == []
    assert list(await loaded(await started())) == []


@pytest.mark.parametrize("times_out", [False, True])
async def test_a_group_whose_only_member_is_gone_before_its_first_sync_is_empty(
    started: Callable[..., Broker], clock: MovedClock, times_out: bool
) -> None:
    """As in Apache Kafka 4.3."""
    partition = await loaded(await started())
    asked = Join("", None, "c", "/h", 10.0, 30.0, "consumer", (("range", b""),), "member")
    joining = partition.join("g", asked)
    await clock.move(0.0)
    assert (await joining).generation == 1
    if times_out:
        await clock.move(10.0)
    else:
        assert await partition.leave("g", [("member", None)]) == [("member", None, ErrorCode.none)]
    for _ in range(2):
        (group,) = partition
        assert (group.state, group.protocol_type, group.classic.generation) == ("Empty", "consumer", 2)
        partition = await loaded(await started())
    (group,) = partition
    assert await partition.delete_group(group) is ErrorCode.none
    assert list(await loaded(await started())) == []


async def test_a_group_that_is_deleted_while_it_is_stored_does_not_come_back(
    started: Callable[..., Broker], clock: MovedClock
) -> None:
    partition = await loaded(await started(flush=Flush.always))
    partition.join("g", Join("", None, "c", "/h", 10.0, 30.0, "consumer", (), "member"))
    (group,) = partition
    await partition.delete_group(group)
    assert list(await loaded(await started())) == []


async def test_groups_of_a_damaged_log_are_refused_and_the_others_served(
    started: Callable[..., Broker], clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await started()
    assert await broker.groups.of("g").commit("g", SIMPLE, {("orders", 0): offset(5, clock)}) is ErrorCode.none
    damaged = RecordFormat(encode_record, lambda _key, _value: read_record(b"\0\1", b""))
    monkeypatch.setattr("ingestd.broker.groups.group_coordinator.GROUP_RECORDS", damaged)
    broker = await started()
    await asyncio.sleep(0.05)
    with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
        broker.groups.of("g")
    refusals = {partition.refusal for partition in broker.groups.partitions}
    assert refusals == {None, ErrorCode.coordinator_not_available}


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [("polygenelubricants", 0), ("hello", 22), ("", 0), ("😀", 49), ("connect-cluster", 13)],
)
def test_a_group_is_where_kafka_has_it(group_id: str, partition: int) -> None:
    """Java: `Math.abs("hello".hashCode())` is 99162322; the hash of "polygenelubricants" is the smallest integer."""
    assert coordinating_partition(group_id, 50) == partition


def test_records_are_read_as_they_were_written() -> None:
    member = StoredMember("m", "static", "c", "/h", 10.0, 30.0, b"sub", b"asg")
    for record in (
        (CommitKey("g", "t", 3), Committed(1 << 40, 5, "meta", 99)),
        (CommitKey("g", "t", 3), None),
        (GroupKey("g"), GroupEntry(StoredGroup("consumer", 4, "range", "m", (member,)), 77)),
        (GroupKey("g"), GroupEntry(StoredGroup("consumer", 5, None, None, ()), 78)),
        (GroupKey("g"), None),
    ):
        assert read_record(*encode_record(record)) == record


@pytest.mark.parametrize("key", [None, b"", b"\0"])
def test_a_record_without_a_key_is_refused(key: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        read_record(key, b"")


def test_a_record_of_another_kind_is_passed_over_and_a_value_of_another_version_refused() -> None:
    assert read_record(b"\0\x0b\0\1g", b"\0\0") is None
    key, value = encode_record((CommitKey("g", "t", 3), Committed(1, 5, "", 99)))
    assert value is not None
    with pytest.raises(ProtocolError, match="OffsetCommitValue version 9: expected 3"):
        read_record(key, b"\0\x09" + value[2:])
