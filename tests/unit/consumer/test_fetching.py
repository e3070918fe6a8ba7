import asyncio

import pytest
from scripted_cluster import Cluster, part, snapshot

from ingestd.consumer.partition_consumer import PartitionConsumer
from ingestd.consumer.settings import AtTime, Edge, Isolation, TopicPartition
from ingestd.errors import ConnectionLost, CorruptBatch, ErrorCode, IngestdError, KafkaError


async def drain(partition):
    return [record.value async for record in partition]


async def test_an_end_that_compaction_emptied_is_reached_after_two_empty_answers(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 100)))
        (await cluster.asked()).answer(part(0, make_batch(0, [b"a"]), high_watermark=100))
        (await cluster.asked()).answer()
        last = await cluster.asked()
        assert not reading.done()
        last.answer()
        assert await reading == [b"a"]
    assert cluster.given_back == [5]


async def test_a_partition_that_is_opened_again_is_told_of_its_log_again(make_batch):
    # The broker tells a session only what is new, and it knows nothing of who reads.
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        for session_epoch in (0, 0):
            partition = await consumer.consume_partition("t", 0, 5, 10)
            reading = asyncio.create_task(drain(partition))
            asked = await cluster.asked()
            assert (asked.offsets, asked.session[1]) == ({0: 5}, session_epoch)
            asked.answer(part(0, high_watermark=10))
            (await cluster.asked()).answer()
            assert await reading == []
            assert partition.high_watermark == 10


async def test_where_there_is_no_session_a_partition_that_had_its_turn_goes_behind_the_others(make_batch):
    # The broker fills an answer in the order of the request, and only the first batch of it may be above the limits:
    # what stays behind a partition that always has more would never come.
    cluster = Cluster([1, 1, 1])
    async with cluster.consumer() as consumer:
        for number in range(3):
            await consumer.consume_partition("t", number, 0)
        orders = []
        for _ in range(4):
            asked = await cluster.asked()
            orders.append(list(asked.offsets))
            first = orders[-1][0]
            asked.answer(part(first, make_batch(asked.offsets[first], [b"a"])), session_id=0)
        assert len({order[0] for order in orders[:3]}) == 3
        assert orders[3] == orders[0]


async def test_an_empty_answer_below_the_end_of_a_lagging_replica_ends_nothing(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 10)))
        for _ in range(3):
            (await cluster.asked()).answer(part(0, high_watermark=9))
        (await cluster.asked()).answer(part(0, make_batch(9, [b"z"]), high_watermark=10))
        assert await reading == [b"z"]


async def test_empty_answers_before_the_log_reached_the_end_do_not_count(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 10)))
        for _ in range(3):
            (await cluster.asked()).answer(part(0, high_watermark=9))
        (await cluster.asked()).answer(part(0, high_watermark=10))
        (await cluster.asked()).answer(part(0, make_batch(9, [b"z"]), high_watermark=10))
        assert await reading == [b"z"]


async def test_committed_readers_measure_the_end_by_the_last_stable_offset(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer(isolation=Isolation.read_committed) as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 10)))
        for _ in range(3):
            (await cluster.asked()).answer(part(0, high_watermark=50, last_stable_offset=4))
        (await cluster.asked()).answer(part(0, make_batch(4, [b"x"] * 6), high_watermark=50, last_stable_offset=10))
        assert await reading == [b"x"] * 6


async def test_a_throttled_empty_answer_says_nothing_about_the_end(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 1)))
        (await cluster.asked()).answer(part(0, high_watermark=1), throttle_ms=1)
        for _ in range(3):
            (await cluster.asked()).answer(throttle_ms=1)
        (await cluster.asked()).answer(part(0, make_batch(0, [b"a"]), high_watermark=1))
        assert await reading == [b"a"]


async def test_requests_of_a_session_name_only_what_moved(make_batch):
    cluster = Cluster([1, 1])
    async with cluster.consumer() as consumer:
        partitions = [await consumer.consume_partition("t", number, 0) for number in (0, 1)]
        first = await cluster.asked()
        assert (first.session, first.offsets) == ((0, 0), {0: 0, 1: 0})
        first.answer(part(0, make_batch(0, [b"a", b"b"])), part(1))
        second = await cluster.asked()
        assert (second.session, second.offsets) == ((5, 1), {0: 2})
        second.answer()
        third = await cluster.asked()
        assert (third.session, third.offsets) == ((5, 2), {})
        partitions[0].pause()
        third.answer()
        assert (await cluster.asked()).forgotten == [0]


async def test_a_session_that_the_broker_lost_is_opened_anew_and_nothing_is_lost(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 2)))
        (await cluster.asked()).answer(part(0, make_batch(0, [b"a"])))
        (await cluster.asked()).answer(error=ErrorCode.fetch_session_id_not_found)
        again = await cluster.asked()
        assert (again.session, again.offsets) == ((0, 0), {0: 1})
        again.answer(part(0, make_batch(1, [b"b"])))
        assert await reading == [b"a", b"b"]


async def test_a_partition_whose_answer_names_a_new_leader_is_asked_there(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 1)))
        asked = await cluster.asked()
        assert asked.node_id == 1
        asked.answer(part(0, error=ErrorCode.not_leader_or_follower, leader=2, leader_epoch=7))
        moved = await cluster.asked()
        assert moved.node_id == 2
        assert moved.request.topics[0].partitions[0].current_leader_epoch == 7
        moved.answer(part(0, make_batch(0, [b"a"])))
        assert await reading == [b"a"]


async def test_a_partition_whose_leader_moved_is_asked_there_when_metadata_says_so(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 1)))
        hung = await cluster.asked()
        cluster.metadata.push(snapshot([2], leader_epoch=2, version=2))
        moved = await cluster.asked()
        assert moved.node_id == 2
        hung.answer(part(0, make_batch(0, [b"stale"])))
        moved.answer(part(0, make_batch(0, [b"a"])))
        assert await reading == [b"a"]


async def test_a_lost_connection_is_tried_again_and_metadata_is_wished_for(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 1)))
        (await cluster.asked()).future.set_exception(ConnectionLost("gone"))
        again = await cluster.asked()
        assert cluster.wanted == ["t"]
        assert again.session == (0, 0)
        again.answer(part(0, make_batch(0, [b"a"])))
        assert await reading == [b"a"]


async def test_an_error_that_does_not_pass_ends_the_iteration_naming_the_partition():
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0)))
        (await cluster.asked()).answer(part(0, error=ErrorCode.topic_authorization_failed))
        with pytest.raises(KafkaError, match=r"TOPIC_AUTHORIZATION_FAILED.*t-0"):
            await reading


async def test_a_topic_that_stays_away_is_told_to_its_reader():
    cluster = Cluster([1])
    async with cluster.consumer(metadata_timeout=0.2) as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0)))
        async with asyncio.timeout(10):
            while not reading.done():
                asked = asyncio.create_task(cluster.asked())
                await asyncio.wait([asked, reading], return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    asked.result().answer(part(0, error=ErrorCode.unknown_topic_id))
                else:
                    asked.cancel()
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_ID"):
            await reading


async def test_what_came_before_a_corrupt_batch_is_handed_out_first(make_batch):
    good, bad = make_batch(0, [b"a"]), bytearray(make_batch(1, [b"b"]))
    bad[16] = 9  # the magic byte
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        (await cluster.asked()).answer(part(0, good + bad))
        (await cluster.asked()).answer(part(0, bytes(bad)))
        assert await asyncio.wait_for(anext(aiter(partition)), 5)
        assert partition.next_offset == 1
        with pytest.raises(CorruptBatch, match="t-0 at offset 1"):
            await drain(partition)


async def test_a_checksum_that_does_not_fit_is_an_error(make_batch):
    batch = bytearray(make_batch(0, [b"a"]))
    batch[-1] ^= 1
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0)))
        (await cluster.asked()).answer(part(0, bytes(batch)))
        with pytest.raises(CorruptBatch, match="CRC"):
            await reading


async def test_an_answer_without_a_whole_batch_fails_instead_of_being_asked_for_ever(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0)))
        (await cluster.asked()).answer(part(0, make_batch(0, [b"a"])[:-1]))
        with pytest.raises(CorruptBatch, match="no batch"):
            await reading


async def test_nothing_is_sent_and_no_task_runs_while_nothing_can_be_fetched(make_batch):
    cluster = Cluster([1])
    async with cluster.consumer(prefetch_bytes=1) as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        value = b"x" * 40_000  # more than half of the least share of 64 KiB
        (await cluster.asked()).answer(part(0, make_batch(0, [value])))
        while consumer._choice._tasks._tasks:
            await asyncio.sleep(0)
        assert cluster.quiet
        async for _record in partition:
            break
        assert (await cluster.asked()).offsets == {0: 1}


async def test_two_tasks_can_not_read_one_partition():
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0)
        first = asyncio.create_task(partition.take())
        await cluster.asked()
        with pytest.raises(IngestdError, match="two tasks"):
            await partition.take()
        partition.close()
        assert await first is None


async def test_closing_ends_every_reader_while_the_broker_is_silent():
    cluster = Cluster([1, 2])
    consumer = cluster.consumer()
    readings = [asyncio.create_task(drain(await consumer.consume_partition("t", number, 0))) for number in (0, 1)]
    assert {(await cluster.asked()).node_id, (await cluster.asked()).node_id} == {1, 2}
    await asyncio.wait_for(consumer.close(), 1)
    assert await asyncio.gather(*readings) == [[], []]


async def test_a_partition_without_a_leader_waits_for_one(make_batch):
    cluster = Cluster([-1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 1)))
        await asyncio.sleep(0)
        assert cluster.quiet
        assert cluster.wanted == ["t"]
        cluster.metadata.push(snapshot([2], version=2))
        asked = await cluster.asked()
        asked.answer(part(0, make_batch(0, [b"a"])))
        assert await reading == [b"a"]


async def pushed_when_wanted(cluster, leaders):
    """Bring this metadata once somebody asked for some."""
    async with asyncio.timeout(5):
        while not cluster.wanted:
            await asyncio.sleep(0)
    cluster.metadata.push(snapshot(leaders, version=2))


async def test_a_start_at_an_edge_of_a_partition_that_does_not_exist_is_refused():
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        opening = asyncio.create_task(consumer.consume_partition("t", 3, Edge.earliest))
        await pushed_when_wanted(cluster, [1])
        with pytest.raises(KafkaError, match="t-3"):
            await opening


async def test_a_partition_that_was_added_since_metadata_came_is_read(make_batch):
    # A group's leader assigns it as soon as it knows of it; the members' own metadata may be minutes old.
    cluster = Cluster([1])
    async with cluster.consumer() as consumer:
        opening = asyncio.create_task(
            consumer.consume_partitions({TopicPartition("t", 0): 0, TopicPartition("t", 1): 0})
        )
        await pushed_when_wanted(cluster, [1, 2])
        added = (await opening)[TopicPartition("t", 1)]
        while (asked := await cluster.asked()).node_id != 2:
            asked.answer()
        asked.answer(part(1, make_batch(0, [b"a"])))
        assert await anext(aiter(added.chunks()))


async def test_a_time_before_1970_is_not_taken_for_the_name_of_an_edge(monkeypatch):
    # On the wire -1 is the end of the log, -2 its beginning.
    cluster = Cluster([1])
    broker, times = cluster.broker(1), []
    listed = broker._listed

    def listen(topic):
        times.extend(part.timestamp for part in topic.partitions)
        return listed(topic)

    monkeypatch.setattr(broker, "_listed", listen)
    async with cluster.consumer() as consumer:
        for time in (-2, -1, 0, 5, 2**63):
            await consumer.offsets({TopicPartition("t", 0): AtTime(time)})
    assert times == [0, 0, 0, 5, 2**63 - 1]


async def test_partitions_without_news_cost_a_fetch_nothing(make_batch, monkeypatch):
    looks = 0
    fetchable = PartitionConsumer.fetchable

    def counted(consumer: PartitionConsumer) -> bool:
        nonlocal looks
        looks += 1
        return fetchable.fget(consumer)

    cluster = Cluster([1] * 200)
    async with cluster.consumer() as consumer:
        await consumer.consume_partitions({TopicPartition("t", number): 0 for number in range(200)})
        (await cluster.asked()).answer(*(part(number) for number in range(200)))
        (await cluster.asked()).answer()
        monkeypatch.setattr(PartitionConsumer, "fetchable", property(counted))
        for offset in range(10):
            (await cluster.asked()).answer(part(7, make_batch(offset, [b"a"])))
        await cluster.asked()
    assert looks <= 40


async def test_a_share_of_the_memory_that_shrinks_is_heeded_by_the_next_fetch(make_batch):
    cluster = Cluster([1, 1])
    async with cluster.consumer(prefetch_bytes=1_000_000) as consumer:
        await consumer.consume_partition("t", 0, 0)
        limits = {}
        asked = await cluster.asked()
        limits.update({one.partition: one.partition_max_bytes for one in asked.request.topics[0].partitions})
        await consumer.consume_partition("t", 1, 0)
        asked.answer()
        asked = await cluster.asked()
        limits_now = {one.partition: one.partition_max_bytes for one in asked.request.topics[0].partitions}
    assert limits == {0: 500_000}
    assert limits_now == {0: 250_000, 1: 250_000}
