"""Where a partition is fetched: followers that are closer, new leaders and their logs, topics that are others now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from scripted_cluster import NODES, OTHER_TOPIC_ID, TOPIC_ID, Cluster, EpochAsked, part, snapshot

from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import ClusterMetadata, TopicMetadata
from ingestd.consumer import broker_choice
from ingestd.consumer.events import NoEvents
from ingestd.consumer.position import Position
from ingestd.consumer.settings import OutOfRange, Recreation, Truncation
from ingestd.errors import (
    ConnectionLost,
    ErrorCode,
    KafkaError,
    LogTruncated,
    ProtocolError,
    TopicRecreated,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from scripted_cluster import Asked

    from ingestd.consumer.partition_consumer import PartitionConsumer


async def take(partition: PartitionConsumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(5):
        async for record in partition:
            found.append(record.value)
            if len(found) == count:
                break
    return found


async def drain(partition: PartitionConsumer) -> list[bytes | None]:
    return [record.value async for record in partition]


def rack_of(asked: Asked) -> str:
    return asked.request.rack_id


# A replica that is closer


async def test_the_replica_that_the_leader_prefers_is_read_from_then_on(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer(rack="r2") as consumer:
        partition = await consumer.consume_partition("t", 0, 0, 3)
        reading = asyncio.create_task(drain(partition))
        leader = await cluster.asked()
        assert (leader.node_id, rack_of(leader)) == (1, "r2")
        leader.answer(part(0, preferred=2, high_watermark=3))
        for offset in range(3):
            follower = await cluster.asked()
            assert (follower.node_id, follower.offsets) == (2, {0: offset})
            assert consumer.status()["partitions"]["t-0"]["node"] == 2
            follower.answer(part(0, make_batch(offset, [b"%d" % offset]), high_watermark=3))
        assert await reading == [b"0", b"1", b"2"]


async def test_without_a_rack_none_is_sent_and_the_leader_is_read(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        asked = await cluster.asked()
        assert rack_of(asked) == ""
        asked.answer(part(0, make_batch(0, [b"a"])))
        assert await take(partition, 1) == [b"a"]


@pytest.mark.parametrize(
    "trouble",
    [
        ErrorCode.offset_out_of_range,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.not_leader_or_follower,
        ErrorCode.topic_authorization_failed,
        ConnectionLost("gone"),
        ProtocolError("nonsense"),
    ],
)
async def test_a_follower_that_fails_in_any_way_is_left_for_the_leader_and_nothing_is_skipped(
    make_batch, trouble, monkeypatch
):
    monkeypatch.setattr(broker_choice, "_REPLICA_PENALTY", 0.2)
    cluster = Cluster([1])
    async with cluster.consumer(rack="r2", out_of_range=OutOfRange.latest) as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        (await cluster.asked()).answer(part(0, preferred=2))
        failing = await cluster.asked()
        assert failing.node_id == 2
        if isinstance(trouble, ErrorCode):
            failing.answer(part(0, error=trouble))
        else:
            failing.future.set_exception(trouble)
        leader = await cluster.asked()
        # A leader that is told the rack would send us back to the follower at once.
        assert (leader.node_id, rack_of(leader), partition.position) == (1, "", 0)
        leader.answer(part(0, make_batch(0, [b"a"])))
        assert await take(partition, 1) == [b"a"]
        async with asyncio.timeout(5):
            while rack_of(asked := await cluster.asked()) == "":
                await asyncio.sleep(0.01)
                asked.answer()
        asked.answer(part(0, preferred=2))
        assert (await cluster.asked()).node_id == 2


async def test_the_leader_is_asked_again_when_the_lease_of_a_follower_ends(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer(rack="r2", replica_lease=0.05) as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        (await cluster.asked()).answer(part(0, preferred=2))
        assert (await cluster.asked()).node_id == 2
        again = await cluster.asked()
        assert (again.node_id, rack_of(again)) == (1, "r2")
        again.answer(part(0, make_batch(0, [b"a"])))
        assert await take(partition, 1) == [b"a"]


@pytest.mark.parametrize("change", [{"gone": [2]}, {"leader_epoch": 2}])
async def test_a_follower_that_left_the_cluster_or_lost_its_leader_is_left(make_batch, change):
    cluster = Cluster([1])
    async with cluster.consumer(rack="r2") as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        (await cluster.asked()).answer(part(0, preferred=2))
        frozen = await cluster.asked()
        cluster.metadata.push(snapshot([1], version=2, **change))
        leader = await cluster.asked()
        assert leader.node_id == 1
        frozen.answer(part(0, make_batch(0, [b"late"])))
        leader.answer(part(0, make_batch(0, [b"a"])))
        assert await take(partition, 1) == [b"a"]


async def test_a_preferred_replica_that_nobody_knows_is_looked_up_while_the_leader_is_read(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer(rack="r2") as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        (await cluster.asked()).answer(part(0, preferred=9))
        asked = await cluster.asked()
        assert (asked.node_id, rack_of(asked)) == (1, "")
        assert cluster.wanted == ["t"]
        asked.answer(part(0, make_batch(0, [b"a"])))
        assert await take(partition, 1) == [b"a"]


# A new leader and its log


async def read_one(cluster: Cluster, partition: PartitionConsumer, make_batch: Any) -> None:
    """Read offsets 0 to 3, of epoch 1, from node 1; the next fetch is left unanswered."""
    (await cluster.asked()).answer(part(0, make_batch(0, [b"a", b"b", b"c", b"d"])))
    assert await take(partition, 4) == [b"a", b"b", b"c", b"d"]
    assert (await cluster.asked()).offsets == {0: 4}


async def test_a_new_leader_is_asked_about_its_log_before_anything_is_fetched(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        await read_one(cluster, partition, make_batch)
        cluster.metadata.push(snapshot([2], leader_epoch=3, version=2))
        asked = await cluster.asked()
        assert cluster.epochs_asked == [EpochAsked(2, 0, leader_epoch=1, current_leader_epoch=3)]
        assert (asked.node_id, asked.offsets) == (2, {0: 4})
        asked.answer(part(0, make_batch(4, [b"e"], leader_epoch=3)))
        assert await take(partition, 1) == [b"e"]
        assert partition.committable == OffsetAndMetadata(5, 3)
        cluster.metadata.push(snapshot([2], leader_epoch=3, version=3))
        await asyncio.sleep(0.01)
        assert len(cluster.epochs_asked) == 1


@pytest.mark.parametrize(
    ("answer", "diverged_at"),
    [
        ((1, 2), 2),  # our epoch ends before what we read
        ((0, 4), 0),  # it does not know our epoch at all: everything of it is gone
        ((-1, -1), 0),  # it knows no epoch that old
    ],
)
async def test_a_log_that_was_cut_is_told_with_its_offsets(make_batch, answer, diverged_at):
    cluster = Cluster([1])
    cluster.end_of_epoch = lambda _: answer
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        await read_one(cluster, partition, make_batch)
        cluster.metadata.push(snapshot([2], leader_epoch=3, version=2))
        with pytest.raises(LogTruncated, match="t-0: read up to offset 4 of leader epoch 1") as caught:
            await take(partition, 1)
        error = caught.value
        assert (error.topic, error.partition, error.offset, error.leader_epoch) == ("t", 0, 4, 1)
        assert error.diverged_at == diverged_at
        assert cluster.quiet
        # The reader decides, and goes on.
        await partition.seek(diverged_at)
        assert (await cluster.asked()).offsets == {0: diverged_at}


async def test_a_log_that_was_cut_is_read_again_from_there_where_the_policy_says_so(make_batch):
    moves = []

    class Events(NoEvents):
        def moved(self, *move: Any) -> None:
            moves.append(move)

    cluster = Cluster([1])
    cluster.end_of_epoch = lambda asked: (asked.leader_epoch, 2)
    async with cluster.consumer(Events(), truncation=Truncation.rewind) as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        await read_one(cluster, partition, make_batch)
        cluster.metadata.push(snapshot([2], leader_epoch=3, version=2))
        asked = await cluster.asked()
        assert (asked.node_id, asked.offsets) == (2, {0: 2})
        assert (moves, partition.next_offset) == ([("t", 0, 4, 2)], 2)
        asked.answer(part(0, make_batch(2, [b"C", b"D"], leader_epoch=3)))
        assert await take(partition, 2) == [b"C", b"D"]


async def test_what_was_fetched_and_is_gone_from_the_log_is_not_handed_out(make_batch):
    cluster = Cluster([1])
    cluster.end_of_epoch = lambda asked: (asked.leader_epoch, 2)
    async with cluster.consumer(truncation=Truncation.rewind) as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        (await cluster.asked()).answer(part(0, make_batch(0, [b"a", b"b"]) + make_batch(2, [b"x"])))
        await cluster.asked()
        cluster.metadata.push(snapshot([2], leader_epoch=3, version=2))
        (await cluster.asked()).answer(part(0, make_batch(2, [b"c"], leader_epoch=3)))
        assert await take(partition, 3) == [b"a", b"b", b"c"]


async def test_an_epoch_that_began_within_what_was_read_is_gone_from_there_on(make_batch):
    """Epoch 1 up to 2, epoch 2 up to 4; the new leader never saw epoch 2."""
    cluster = Cluster([1])
    cluster.end_of_epoch = lambda _: (1, 100)
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        data = make_batch(0, [b"a", b"b"]) + make_batch(2, [b"c", b"d"], leader_epoch=2)
        (await cluster.asked()).answer(part(0, data))
        assert await take(partition, 4) == [b"a", b"b", b"c", b"d"]
        cluster.metadata.push(snapshot([2], leader_epoch=3, version=2))
        with pytest.raises(LogTruncated) as caught:
            await take(partition, 1)
        assert caught.value.diverged_at == 2


async def test_a_committed_offset_is_checked_before_the_first_fetch(make_batch):
    cluster = Cluster([1])
    cluster.end_of_epoch = lambda asked: (asked.leader_epoch, 40)
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, OffsetAndMetadata(50, 1))
        with pytest.raises(LogTruncated) as caught:
            await take(partition, 1)
        assert (caught.value.offset, caught.value.diverged_at) == (50, 40)
        assert cluster.quiet
    async with cluster.consumer() as consumer:
        await consumer.consume_partition("t", 0, OffsetAndMetadata(30, 1))
        assert (await cluster.asked()).offsets == {0: 30}
    async with cluster.consumer() as consumer:
        await consumer.consume_partition("t", 0, OffsetAndMetadata(50))
        assert (await cluster.asked()).offsets == {0: 50}
        assert len(cluster.epochs_asked) == 2


@pytest.mark.parametrize("code", [ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch])
async def test_a_leader_of_another_epoch_is_asked_again_with_fresh_metadata(make_batch, code):
    answers: list[Any] = [code, (1, 100)]
    cluster = Cluster([1])
    cluster.end_of_epoch = lambda _: answers.pop(0)
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        await read_one(cluster, partition, make_batch)
        cluster.metadata.push(snapshot([2], leader_epoch=3, version=2))
        assert (await cluster.asked()).offsets == {0: 4}
        assert (answers, cluster.wanted) == ([], ["t"])


async def test_an_error_of_the_check_that_does_not_pass_is_the_readers(make_batch):
    cluster = Cluster([1])
    cluster.end_of_epoch = lambda _: ErrorCode.topic_authorization_failed
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, OffsetAndMetadata(5, 1))
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
            await take(partition, 1)


async def test_a_broker_that_can_not_be_asked_is_trusted(make_batch, monkeypatch):
    cluster = Cluster([1])

    def unsupported(asked: EpochAsked) -> tuple[int, int]:
        raise UnsupportedVersion("OffsetForLeaderEpoch")

    cluster.end_of_epoch = unsupported
    async with cluster.consumer() as consumer:
        await consumer.consume_partition("t", 0, OffsetAndMetadata(5, 1))
        assert (await cluster.asked()).offsets == {0: 5}


async def test_an_answer_about_a_position_that_was_left_counts_for_nothing(make_batch):
    cluster = Cluster([1])
    cluster.end_of_epoch = lambda asked: (asked.leader_epoch, 1)
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, OffsetAndMetadata(50, 1))
        await partition.seek(7)
        asked = await cluster.asked()
        assert asked.offsets == {0: 7}
        asked.answer(part(0, make_batch(7, [b"h"])))
        assert await take(partition, 1) == [b"h"]


def test_a_position_knows_where_its_epoch_began():
    position = Position(10, leader_epoch=3, epoch_start=6)
    assert position.diverges_at(3, 10) is None
    assert position.diverges_at(3, 9) == 9
    assert position.diverges_at(2, 6) == 6
    assert position.diverges_at(2, 4) == 4
    assert position.diverges_at(2, 99) == 6
    assert position.diverges_at(-1, -1) == 6
    assert Position(10, 3).diverges_at(2, 99) == 10
    assert Position(10, 3).diverges_at(2, 99) is not None


# A position that a policy is looking for


@pytest.mark.parametrize("code", [ErrorCode.offset_out_of_range, ErrorCode.unknown_topic_id])
async def test_nothing_is_fetched_from_a_position_that_a_policy_gives_up(make_batch, code):
    """Metadata changes while the new offset is being asked for: the partition must not go to its leader before."""
    cluster = Cluster([1])
    cluster.edge = 3
    async with cluster.consumer(out_of_range=OutOfRange.earliest, recreation=Recreation.earliest) as consumer:
        partition = await consumer.consume_partition("t", 0, 7)
        asked = await cluster.asked()
        cluster.answers_offsets.clear()
        asked.answer(part(0, error=code))
        while partition.key in consumer._choice._placed:
            await asyncio.sleep(0)
        topic_id = OTHER_TOPIC_ID if code is ErrorCode.unknown_topic_id else TOPIC_ID
        for epoch in (2, 3):
            cluster.metadata.push(snapshot([2], leader_epoch=epoch, version=epoch, topic_id=topic_id))
            assert await cluster.asked_within(0.02) is None
        cluster.answers_offsets.set()
        asked = await cluster.asked()
        assert (asked.node_id, asked.offsets) == (2, {0: 3})
        asked.answer(part(0, make_batch(3, [b"a"], leader_epoch=3)), topic_id=topic_id)
        assert await take(partition, 1) == [b"a"]


async def test_a_reader_that_seeks_meanwhile_is_not_moved_by_the_policy(make_batch):
    cluster = Cluster([1])
    cluster.edge = 3
    async with cluster.consumer(out_of_range=OutOfRange.earliest) as consumer:
        partition = await consumer.consume_partition("t", 0, 7)
        asked = await cluster.asked()
        cluster.answers_offsets.clear()
        asked.answer(part(0, error=ErrorCode.offset_out_of_range))
        while partition.key in consumer._choice._placed:
            await asyncio.sleep(0)
        await partition.seek(5)
        assert (await cluster.asked()).offsets == {0: 5}
        cluster.answers_offsets.set()
        await asyncio.sleep(0.02)
        assert (partition.position, cluster.quiet) == (5, True)


# A topic that is gone, or another now


async def test_a_topic_that_metadata_does_not_have_any_more_is_told_to_its_reader_in_time():
    cluster = Cluster([1])
    async with cluster.consumer(metadata_timeout=0.3) as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        (await cluster.asked()).answer(part(0, error=ErrorCode.unknown_topic_id))
        deleted = TopicMetadata("t", None, (), error=ErrorCode.unknown_topic_or_partition)
        cluster.metadata.push(ClusterMetadata("c", 1, NODES, {"t": deleted}, 2))
        with pytest.raises(KafkaError, match=r"UNKNOWN_TOPIC_OR_PARTITION.*t-0"):
            await take(partition, 1)
        assert cluster.quiet


async def test_a_topic_that_was_made_again_is_told_once_its_fetch_was_refused(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        await read_one(cluster, partition, make_batch)
        # Still fetched by the old id: a broker that was away may say so.
        cluster.metadata.push(snapshot([1], leader_epoch=0, version=2, topic_id=OTHER_TOPIC_ID))
        await asyncio.sleep(0.01)
        assert partition.error is None
        assert cluster.quiet
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        asked = await cluster.asked()
        assert asked.topic_id == TOPIC_ID
        asked.answer(part(0, error=ErrorCode.unknown_topic_id))
        cluster.metadata.push(snapshot([1], leader_epoch=0, version=2, topic_id=OTHER_TOPIC_ID))
        with pytest.raises(TopicRecreated, match="t-0 at offset 0"):
            await take(partition, 1)


async def test_a_topic_that_was_made_again_is_read_from_its_start_where_the_policy_says_so(make_batch):
    cluster = Cluster([1])
    cluster.edge = 3
    async with cluster.consumer(recreation=Recreation.earliest) as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        (await cluster.asked()).answer(part(0, make_batch(0, [b"a"] * 20)))
        assert len(await take(partition, 20)) == 20
        (await cluster.asked()).answer(part(0, error=ErrorCode.unknown_topic_id))
        cluster.metadata.push(snapshot([2], leader_epoch=0, version=2, topic_id=OTHER_TOPIC_ID))
        asked = await cluster.asked()
        assert (asked.node_id, asked.topic_id, asked.offsets) == (2, TOPIC_ID, {0: 20})
        asked.answer(part(0, error=ErrorCode.unknown_topic_id))
        asked = await cluster.asked()
        assert (asked.node_id, asked.topic_id, asked.offsets) == (2, OTHER_TOPIC_ID, {0: 3})
        assert cluster.epochs_asked == []
        asked.answer(part(0, make_batch(3, [b"new"], leader_epoch=0)), topic_id=OTHER_TOPIC_ID)
        assert await take(partition, 1) == [b"new"]


async def test_an_end_offset_of_a_topic_that_is_gone_means_nothing_in_the_new_one(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer(recreation=Recreation.earliest) as consumer:
        partition = await consumer.consume_partition("t", 0, 0, 10)
        (await cluster.asked()).answer(part(0, error=ErrorCode.unknown_topic_id))
        cluster.metadata.push(snapshot([1], leader_epoch=0, version=2, topic_id=OTHER_TOPIC_ID))
        with pytest.raises(TopicRecreated):
            await take(partition, 1)


async def test_where_fetches_name_topics_metadata_is_believed_at_once(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        await cluster.asked()
        partition.standing.fetched_by_id = False  # as of Kafka 2.8, which has topic ids but does not fetch by them
        cluster.metadata.push(snapshot([1], leader_epoch=0, version=2, topic_id=OTHER_TOPIC_ID))
        with pytest.raises(TopicRecreated):
            await take(partition, 1)
