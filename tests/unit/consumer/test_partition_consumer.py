"""How a partition is read: in which form, from where, how far behind; and what all partitions give together."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_cluster import Cluster, part

from ingestd.client.group import OffsetAndMetadata
from ingestd.consumer.events import NoEvents
from ingestd.consumer.settings import Edge, Isolation, TopicPartition
from ingestd.errors import Closed, ConnectionLost, CorruptBatch, ErrorCode, IngestdError, KafkaError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ingestd.consumer.consumer import Consumer
    from ingestd.consumer.partition_consumer import PartitionConsumer


async def take(records: AsyncIterator[Any], count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(5):
        async for record in records:
            found.append(record)
            if len(found) == count:
                break
    return found


def offsets_of(columns: Any) -> list[int]:
    return memoryview(columns.offsets).cast("B").cast("q").tolist()


async def filled(cluster: Cluster, consumer: Consumer, make_batch: Any, end: int | None = None) -> PartitionConsumer:
    """Partition 0 with three batches fetched: offsets 0 to 2 of epoch 1, 3 to 5 of epoch 2, 6 and 7 of epoch 2."""
    partition = await consumer.consume_partition("t", 0, 0, end)
    data = make_batch(0, [b"0", b"1", b"2"]) + make_batch(3, [b"3", b"4", b"5"], leader_epoch=2)
    (await cluster.asked()).answer(part(0, data + make_batch(6, [b"6", b"7"], leader_epoch=2), high_watermark=20))
    while not partition.readable:
        await asyncio.sleep(0)
    return partition


async def test_a_record_says_where_it_comes_from(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await filled(cluster, consumer, make_batch)
        first, *_, fourth = await take(aiter(partition), 4)
        assert (first.topic, first.partition, first.offset, first.leader_epoch) == ("t", 0, 0, 1)
        assert (fourth.offset, fourth.leader_epoch, fourth.value) == (3, 2, b"3")


async def test_what_was_handed_out_can_be_committed_with_its_leader_epoch(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await filled(cluster, consumer, make_batch)
        assert partition.committable == OffsetAndMetadata(0, -1)
        for offset, epoch in [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 2), (8, 2)]:
            await take(aiter(partition), 1)
            assert partition.committable == OffsetAndMetadata(offset, epoch)
            assert partition.next_offset == offset


async def test_lag_is_counted_to_the_end_that_the_isolation_shows(make_batch):
    for isolation, lag in ((Isolation.read_uncommitted, 7), (Isolation.read_committed, 4)):
        cluster = Cluster([1])
        async with cluster.consumer(isolation=isolation) as consumer:
            partition = await consumer.consume_partition("t", 0, 2)
            assert partition.lag is None
            (await cluster.asked()).answer(
                part(0, make_batch(2, [b"a", b"b"]), high_watermark=10, last_stable_offset=7)
            )
            await take(aiter(partition), 1)
            assert partition.lag == lag
            assert partition.log_end == partition.next_offset + lag


async def test_nobody_lags_behind_a_transactions_marker(make_batch, make_marker):
    # No record has its offset: whoever reads until the lag is 0 would read for ever.
    lags: list[int] = []

    class Lags(NoEvents):
        def answered(self, topic: str, partition: int, next_offset: int, end: int) -> None:
            lags.append(end - next_offset)

    cluster = Cluster([1])
    async with cluster.consumer(Lags()) as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        data = make_batch(0, [b"a", b"b"], producer_id=7, transactional=True) + make_marker(2, 7, commit=True)
        (await cluster.asked()).answer(part(0, data, high_watermark=3))
        await take(aiter(partition), 1)
        assert partition.lag == 2
        await take(aiter(partition), 1)
        assert (partition.next_offset, partition.lag) == (2, 0)
        (await cluster.asked()).answer()
        await cluster.asked()
        assert lags[-1] == 0


FORMS = ("record", "chunk", "columns", "batch", "messages")


async def read_in_form(consumer: Consumer, partition: PartitionConsumer, form: str) -> list[int]:
    if form == "record":
        return [record.offset for record in await take(aiter(partition), 1)]
    if form == "messages":
        return [record.offset for record in await take(consumer.messages(), 1)]
    if form == "chunk":
        return [record.offset for chunk in await take(partition.chunks(), 1) for record in chunk]
    if form == "columns":
        return [offset for columns in await take(partition.columns(), 1) for offset in offsets_of(columns)]
    return [
        offset
        for batch in await take(partition.batches(), 1)
        for offset in range(max(batch.first, batch.header.base_offset), batch.next_offset)
    ]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(forms=st.lists(st.sampled_from(FORMS), max_size=8))
def test_every_form_of_reading_goes_on_where_the_one_before_was_left(make_batch, forms):
    async def run() -> None:
        cluster = Cluster([1])
        async with cluster.consumer() as consumer:
            partition = await filled(cluster, consumer, make_batch, end=8)
            found: list[int] = []
            for form in forms:
                if partition.next_offset < 8:
                    found += await read_in_form(consumer, partition, form)
                    assert partition.next_offset == len(found)
                    assert partition.committable.leader_epoch == (1 if len(found) <= 3 else 2)
            found += [record.offset async for record in partition]
            assert found == list(range(8))

    asyncio.run(run())


# Going elsewhere


async def test_seeking_drops_what_was_fetched_and_what_is_under_way(make_batch):
    cluster = Cluster([1])
    cluster.edge = 12
    async with cluster.consumer() as consumer:
        partition = await filled(cluster, consumer, make_batch)
        await take(aiter(partition), 1)
        under_way = await cluster.asked()
        assert await partition.seek(30) == 30
        assert (partition.next_offset, partition.fetched_bytes) == (30, 0)
        under_way.answer(part(0, make_batch(8, [b"8"])))
        asked = await cluster.asked()
        assert asked.offsets == {0: 30}
        asked.answer(part(0, make_batch(30, [b"30"])))
        assert [record.value for record in await take(aiter(partition), 1)] == [b"30"]
        assert await partition.seek(Edge.earliest) == 12
        assert await partition.seek(OffsetAndMetadata(4, 1)) == 4
        while (asked := await cluster.asked()).offsets != {0: 4}:
            asked.answer()
        assert cluster.epochs_asked[-1][2:] == (1, 1)


async def test_seeking_ends_an_error(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 50)
        (await cluster.asked()).answer(part(0, error=ErrorCode.offset_out_of_range))
        for _ in range(2):
            with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE"):
                await take(aiter(partition), 1)
        await partition.seek(0)
        (await cluster.asked()).answer(part(0, make_batch(0, [b"a"])))
        assert [record.value for record in await take(aiter(partition), 1)] == [b"a"]
        partition.close()
        with pytest.raises(Closed):
            await partition.seek(0)


async def test_a_reader_that_waits_sees_the_records_of_the_new_place(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        reading = asyncio.create_task(take(aiter(partition), 1))
        old = await cluster.asked()
        await partition.seek(7)
        old.answer(part(0, make_batch(0, [b"old"])))
        (await cluster.asked()).answer(part(0, make_batch(7, [b"new"])))
        assert [record.value for record in await reading] == [b"new"]


async def test_some_partitions_are_paused_and_resumed(make_batch):
    cluster = Cluster([1, 1, 1])
    keys = [TopicPartition("t", number) for number in range(3)]
    async with cluster.consumer() as consumer:
        partitions = await consumer.consume_partitions(dict.fromkeys(keys, 0))
        consumer.pause([keys[0], keys[2], TopicPartition("t", 9)])
        assert (await cluster.asked()).offsets == {1: 0}
        assert [partitions[key].paused for key in keys] == [True, False, True]
        consumer.resume([keys[0]])
        assert [partitions[key].paused for key in keys] == [False, False, True]
        consumer.resume_all()
        consumer.pause_all()
        assert all(partition.paused for partition in partitions.values())


# What is told


async def test_errors_are_told_as_they_are_met_although_fetching_goes_on(make_batch):
    events = []

    class Events(NoEvents):
        def retried(self, topic: str, partition: int, error: IngestdError) -> None:
            events.append(("retried", topic, partition, error))

        def failed(self, topic: str, partition: int, error: IngestdError) -> None:
            events.append(("failed", topic, partition, error))

    cluster = Cluster([1])
    async with cluster.consumer(Events()) as consumer:
        partition = await consumer.consume_partition("t", 0, 0)

        async def listen() -> list[IngestdError]:
            return [error async for error in partition.errors]

        listening = asyncio.create_task(listen())
        (await cluster.asked()).future.set_exception(ConnectionLost("gone"))
        (await cluster.asked()).answer(part(0, error=ErrorCode.not_leader_or_follower))
        (await cluster.asked()).answer(part(0, error=ErrorCode.topic_authorization_failed))
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
            await take(aiter(partition), 1)
        partition.close()
        told = await asyncio.wait_for(listening, 5)
    assert [type(error) for error in told] == [ConnectionLost, KafkaError, KafkaError]
    assert [name for name, *_ in events] == ["retried", "retried", "failed"]
    assert [error for *_, error in events] == told


async def test_errors_that_nobody_reads_are_bounded():
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        for number in range(1_000):
            partition.report(IngestdError(str(number)))
        partition.close()
        assert [str(error) async for error in partition.errors] == [str(number) for number in range(900, 1_000)]


async def test_whoever_watches_learns_of_every_answer_and_every_place(make_batch):
    seen: list[tuple[Any, ...]] = []

    class Events(NoEvents):
        def answered(self, *event: Any) -> None:
            seen.append(event)

        def placed(self, *event: Any) -> None:
            seen.append(event)

    cluster = Cluster([1])
    async with cluster.consumer(Events()) as consumer:
        partition = await consumer.consume_partition("t", 0, 3)
        (await cluster.asked()).answer(part(0, make_batch(3, [b"a"]), high_watermark=9))
        await take(aiter(partition), 1)
        (await cluster.asked()).answer(part(0, high_watermark=10))
        (await cluster.asked()).answer(part(0, make_batch(4, [b"b"]), high_watermark=10))
        await take(aiter(partition), 1)
        (await cluster.asked()).answer()  # nothing new there, but here
        await cluster.asked()
    assert seen == [("t", 0, 1, 1), ("t", 0, 3, 9), ("t", 0, 4, 10), ("t", 0, 4, 10), ("t", 0, 5, 10)]


async def test_the_status_is_fit_for_a_bug_report(make_batch):
    cluster = Cluster([1, -1])
    async with cluster.consumer() as consumer:
        partition = await filled(cluster, consumer, make_batch)
        await consumer.consume_partition("t", 1, 5)
        await take(aiter(partition), 1)
        status = json.loads(json.dumps(cluster.sections["consumer"]()))
        assert status == consumer.status()
        known = status["partitions"]["t-0"]
        assert (known["next_offset"], known["position"], known["lag"]) == (1, 8, 19)
        assert (known["node"], known["leader"], known["error"]) == (1, 1, None)
        assert status["partitions"]["t-1"]["node"] is None
    assert cluster.sections == {}


# Memory


async def test_what_is_fetched_never_exceeds_the_share_of_a_partition(make_batch):
    """The bytes of every answer count until the last of its batches is handed out."""
    share = 64 * 1024
    cluster = Cluster([1])
    async with cluster.consumer(prefetch_bytes=share) as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        most = position = 0
        reader = partition.batches()
        for _ in range(40):
            while (asked := await cluster.asked_within(0.005)) is not None:
                (limit,) = [one.partition_max_bytes for topic in asked.request.topics for one in topic.partitions]
                data = b""
                while True:
                    batch = make_batch(position, [b"x" * 3_000])
                    if len(data) + len(batch) > limit:
                        break
                    data += batch
                    position += 1
                asked.answer(part(0, data))
                await asyncio.sleep(0)
            most = max(most, partition.fetched_bytes)
            await anext(reader)
        assert share // 2 <= most <= share


# All partitions together


async def test_messages_of_all_partitions_come_in_turn_and_in_order(make_batch):
    cluster = Cluster([1, 1])
    async with cluster.consumer() as consumer:
        for number in (0, 1):
            await consumer.consume_partition("t", number, 0, 6)
        batches = [[make_batch(first, [b"x", b"y"]) for first in (0, 2, 4)] for _ in range(2)]
        (await cluster.asked()).answer(*(part(number, b"".join(batches[number])) for number in (0, 1)))
        found = [(record.partition, record.offset) async for record in consumer.messages()]
        turns = [partition for partition, offset in found if offset % 2 == 0]
        assert turns in ([0, 1] * 3, [1, 0] * 3)
        for number in (0, 1):
            assert [offset for partition, offset in found if partition == number] == list(range(6))
        assert [record async for record in consumer.messages()] == []


async def two_filled(cluster: Cluster, consumer: Consumer, make_batch: Any) -> list[PartitionConsumer]:
    """Two partitions, each with a batch of ten records from offset 0 or 100 on, fetched."""
    partitions = [await consumer.consume_partition("t", number, 100 * number) for number in (0, 1)]
    parts = (part(number, make_batch(100 * number, [b"x"] * 10), high_watermark=200) for number in (0, 1))
    (await cluster.asked()).answer(*parts)
    while not all(partition.readable for partition in partitions):
        await asyncio.sleep(0)
    return partitions


async def test_a_partition_whose_turn_is_over_keeps_its_own_place(make_batch):
    # The stream of all partitions holds records of the other one by then.
    cluster = Cluster([1, 1])
    async with cluster.consumer() as consumer:
        partitions = await two_filled(cluster, consumer, make_batch)
        read = await take(consumer.messages(), 13)
        after = {record.partition: record.offset + 1 for record in read}
        assert {partition.partition: partition.next_offset for partition in partitions} == after
        assert {partition.partition: partition.committable.offset for partition in partitions} == after


async def test_seeking_a_partition_whose_turn_is_over_drops_nothing_of_another_one(make_batch):
    cluster = Cluster([1, 1])
    async with cluster.consumer() as consumer:
        partitions = await two_filled(cluster, consumer, make_batch)
        read = await take(consumer.messages(), 13)
        await partitions[read[0].partition].seek(50)
        read += await take(consumer.messages(), 7)
        assert sorted(record.offset for record in read) == [*range(10), *range(100, 110)]


async def test_a_partition_whose_batch_is_damaged_is_told_once_and_the_others_are_read_to_their_end(make_batch):
    cluster = Cluster([1, 1])
    async with cluster.consumer() as consumer:
        for number in (0, 1):
            await consumer.consume_partition("t", number, 0, 2)
        damaged = bytearray(make_batch(0, [b"a", b"b"]))
        damaged[-1] ^= 1
        (await cluster.asked()).answer(part(0, bytes(damaged)), part(1, make_batch(0, [b"a", b"b"])))
        with pytest.raises(CorruptBatch):
            await take(consumer.messages(), 9)
        assert [(record.partition, record.offset) for record in await take(consumer.messages(), 9)] == [(1, 0), (1, 1)]


@pytest.mark.parametrize("meanwhile", ["seek", "cancel"])
async def test_a_reader_that_lets_others_run_is_not_kept_waiting_by_what_they_do(make_batch, meanwhile):
    # After each MiB there is one turn of the event loop between a partition's turn and its records.
    cluster = Cluster([1, 1])
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        large, small = make_batch(0, [b"x" * 1_048_576]), make_batch(1, [b"y"])
        (await cluster.asked()).answer(part(0, large + small))
        messages = consumer.messages()
        assert [record.offset for record in await take(messages, 1)] == [0]
        reading = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        if meanwhile == "cancel":
            reading.cancel()
            await asyncio.wait([reading])
            assert [record.offset for record in await take(messages, 1)] == [1]
            return
        await partition.seek(50)
        other = await consumer.consume_partition("t", 1, 0)
        while 1 not in (asked := await cluster.asked()).offsets:
            asked.answer()
        asked.answer(part(1, make_batch(0, [b"z"])))
        async with asyncio.timeout(5):
            assert (await reading).partition == other.partition


async def test_messages_include_partitions_that_are_added_while_they_are_waited_for(make_batch):
    cluster = Cluster([1, 1])
    async with cluster.consumer() as consumer:
        await consumer.consume_partition("t", 0, 0)
        reading = asyncio.create_task(take(consumer.messages(), 1))
        asked = await cluster.asked()
        await consumer.consume_partition("t", 1, 4, 5)
        asked.answer()
        asked = await cluster.asked()
        asked.answer(part(1, make_batch(4, [b"late"])))
        assert [(record.partition, record.offset) for record in await reading] == [(1, 4)]
        with pytest.raises(IngestdError, match="two tasks"):
            await asyncio.gather(take(consumer.messages(), 1), take(consumer.messages(), 1))


async def test_a_partition_that_fails_is_told_once_and_the_others_are_read_on(make_batch):
    cluster = Cluster([1, 1])
    async with cluster.consumer() as consumer:
        for number in (0, 1):
            await consumer.consume_partition("t", number, 0, 2)
        (await cluster.asked()).answer(
            part(0, error=ErrorCode.topic_authorization_failed), part(1, make_batch(0, [b"a", b"b"]))
        )
        with pytest.raises(KafkaError, match="t-0"):
            await take(consumer.messages(), 9)
        assert [record.offset async for record in consumer.messages()] == [0, 1]


async def test_a_reader_that_never_waits_lets_other_tasks_run(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0, 40)
        data = b"".join(make_batch(number, [b"x" * 200_000]) for number in range(40))
        (await cluster.asked()).answer(part(0, data, high_watermark=40))
        while not partition.readable:
            await asyncio.sleep(0)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        assert len([record async for record in partition]) == 40
        task.cancel()
        assert turns >= 5
