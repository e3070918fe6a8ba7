"""A read up to an end that no batch reaches: compaction took the log's tail, or it is only not at hand."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from scripted_cluster import OUTSIDE_SESSION, Asked, Cluster, part, snapshot

from ingestd.consumer.settings import Isolation
from ingestd.errors import CorruptBatch, ErrorCode
from ingestd.wire.apis import Api
from ingestd.wire.versions import ApiVersions

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.wire.requests import Build

EARLIEST_LOCAL = -4


async def drain(partition: PartitionConsumer) -> list[bytes | None]:
    return [record.value async for record in partition]


class Leader:
    """Answers for node 1 where each partition's local log begins, and counts the questions."""

    def __init__(self, cluster: Cluster, first_local: int, *, highest: int = 10) -> None:
        self.first_local = first_local
        self.highest = highest
        self.error = ErrorCode.none
        self.questions: list[list[int]] = []
        cluster._brokers[1].request = self.request  # type: ignore[method-assign]

    async def request(self, build: Build, timeout: float) -> Any:
        assert timeout > 0
        request: Any = build(ApiVersions({Api.list_offsets: (1, self.highest)}))
        (topic,) = request.topics
        assert {one.timestamp for one in topic.partitions} == {EARLIEST_LOCAL}
        assert {one.current_leader_epoch for one in topic.partitions} <= {1, 2}
        self.questions.append([one.partition_index for one in topic.partitions])
        await asyncio.sleep(0)
        parts = [
            SimpleNamespace(partition_index=one.partition_index, error_code=self.error, offset=self.first_local)
            for one in topic.partitions
        ]
        return SimpleNamespace(topics=[SimpleNamespace(name=topic.name, partitions=parts)])


class Busy:
    """A broker whose partition 1 has a batch for every fetch, so that no answer is ever empty. Each takes 0.05 s."""

    def __init__(self, cluster: Cluster, make_batch: Any, known: Callable[[int], Any]) -> None:
        self._cluster = cluster
        self._make_batch = make_batch
        self._known = known
        self._offset = 0
        self._named: set[int] = set()

    async def fetch_outside_session(self) -> Asked:
        """Answer fetches with partition 1's records and what is `known` of the others; the first that is different."""
        async with asyncio.timeout(10):
            while (asked := await self._cluster.asked()).session != OUTSIDE_SESSION:
                await asyncio.sleep(0.05)
                self._offset = asked.offsets.get(1, self._offset)
                others = [self._known(number) for number in asked.offsets if number != 1]
                asked.answer(part(1, self._make_batch(self._offset, [b"."]), high_watermark=2**40), *others)
            return asked


async def test_an_end_that_compaction_emptied_is_reached_beside_a_partition_that_always_has_records(make_batch):
    # Partition 1 has records in every answer: none is ever empty, so nothing said that partition 0 has no more.
    cluster = Cluster([1, 1])
    async with cluster.consumer() as consumer:
        ending = await consumer.consume_partition("t", 0, 0, 100)
        endless = await consumer.consume_partition("t", 1, 0)
        busy = asyncio.create_task(drain(endless))
        reading = asyncio.create_task(drain(ending))
        broker = Busy(cluster, make_batch, lambda number: part(number, high_watermark=100))
        asked = await broker.fetch_outside_session()
        assert (asked.offsets, asked.request.max_wait.total_seconds()) == ({0: 0}, 0.0)
        assert not reading.done()
        asked.answer(part(0, high_watermark=100), session_id=0)
        assert await reading == []
        assert ending.next_offset == 100
        following = await cluster.asked()  # what the broker remembers of the others is as it was
        assert following.session[0] == 5
        assert following.session[1] > 0
        assert following.forgotten == [0]
        endless.close()
        await busy


async def test_a_partition_that_answers_had_no_room_for_is_read_to_its_end(make_batch):
    cluster = Cluster([1, 1])
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 3)))
        endless = await consumer.consume_partition("t", 1, 0)
        busy = asyncio.create_task(drain(endless))
        broker = Busy(cluster, make_batch, lambda number: part(number, high_watermark=3))
        for offset in range(3):
            asked = await broker.fetch_outside_session()
            assert asked.offsets == {0: offset}
            asked.answer(part(0, make_batch(offset, [b"%d" % offset]), high_watermark=3), session_id=0)
        assert await reading == [b"0", b"1", b"2"]
        endless.close()
        await busy


async def test_those_that_answers_had_no_room_for_are_asked_for_one_at_a_time(make_batch):
    cluster = Cluster([1, 1, 1])
    async with cluster.consumer() as consumer:
        readings = {
            number: asyncio.create_task(drain(await consumer.consume_partition("t", number, 0, 2))) for number in (0, 2)
        }
        endless = await consumer.consume_partition("t", 1, 0)
        busy = asyncio.create_task(drain(endless))
        broker = Busy(cluster, make_batch, lambda number: part(number, high_watermark=2))
        asked = await broker.fetch_outside_session()
        (first,) = asked.offsets  # both wait equally long
        asked.answer(part(first, make_batch(0, [b"a", b"b"]), high_watermark=2), session_id=0)
        assert await readings.pop(first) == [b"a", b"b"]
        asked = await broker.fetch_outside_session()
        ((second, reading),) = readings.items()
        assert asked.offsets == {second: 0}
        assert not reading.done()
        asked.answer(part(second, high_watermark=2), session_id=0)
        assert await reading == []
        endless.close()
        await busy


async def test_a_partition_whose_log_has_not_reached_the_end_is_not_asked_for_alone(make_batch):
    cluster = Cluster([1, 1])
    async with cluster.consumer(isolation=Isolation.read_committed) as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 10)))
        endless = await consumer.consume_partition("t", 1, 0)
        busy = asyncio.create_task(drain(endless))
        for offset in range(30):
            asked = await cluster.asked()
            assert asked.session != OUTSIDE_SESSION
            others = [part(0, high_watermark=50, last_stable_offset=9)] if 0 in asked.offsets else []
            record = make_batch(asked.offsets[1], [b"%d" % offset])
            asked.answer(part(1, record, high_watermark=2**40, last_stable_offset=2**40), *others)
            await asyncio.sleep(0.05)
        assert not reading.done()
        endless.close()
        await busy
        reading.cancel()


async def test_what_lies_in_remote_storage_is_waited_for_however_often_nothing_comes(make_batch):
    # A leader whose read of remote storage takes too long answers with nothing and no error (KIP-405).
    cluster = Cluster([1])
    leader = Leader(cluster, first_local=50)
    async with cluster.consumer(fetch_max_wait=0.02) as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 10, 100)))
        (await cluster.asked()).answer(part(0, high_watermark=100))
        for _ in range(20):
            (await cluster.asked()).answer()
        assert leader.questions == [[0]]  # the local log never begins earlier than it did
        assert consumer.status()["partitions"]["t-0"]["waits_for_remote_storage"] is True
        (await cluster.asked()).answer(part(0, make_batch(10, [b"a"] * 40), high_watermark=100))
        # From its first local offset on a leader has what there is.
        (await cluster.asked()).answer()
        assert consumer.status()["partitions"]["t-0"]["waits_for_remote_storage"] is False
        (await cluster.asked()).answer()
        assert await reading == [b"a"] * 40
        assert leader.questions == [[0], [0]]


async def test_what_is_not_at_hand_is_given_time_without_taking_it_all_from_the_others(make_batch):
    # Kafka 3.6 and 3.7 read remote storage for as long as a fetch may wait, and hold back everything else meanwhile.
    cluster = Cluster([1, 1])
    leader = Leader(cluster, first_local=50)
    loop = asyncio.get_running_loop()
    async with cluster.consumer(fetch_max_wait=0.5) as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 10, 100)))
        endless = await consumer.consume_partition("t", 1, 0)
        busy = asyncio.create_task(drain(endless))
        waits = []
        offset = 0
        end = loop.time() + 30
        while loop.time() < end:
            asked = await cluster.asked()
            if asked.session == OUTSIDE_SESSION:
                waits.append(asked.request.max_wait.total_seconds())
                await asyncio.sleep(waits[-1])
                asked.answer(session_id=0)
                continue
            await asyncio.sleep(0.01)
            offset = asked.offsets.get(1, offset)
            others = [part(0, high_watermark=100)] if 0 in asked.offsets else []
            asked.answer(part(1, make_batch(offset, [b"."]), high_watermark=2**40), *others)
        assert waits[:7] == pytest.approx([0.0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32])
        assert set(waits[7:]) == {0.5}
        assert sum(waits) < 30 / 2.9
        assert leader.questions == [[0]]
        assert not reading.done()
        endless.close()
        await busy
        reading.cancel()


async def test_another_leader_is_asked_again_what_it_has_at_hand():
    cluster = Cluster([1])
    leader = Leader(cluster, first_local=50)
    async with cluster.consumer(fetch_max_wait=0.02) as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 10, 100)))
        for _ in range(6):
            (await cluster.asked()).answer(part(0, high_watermark=100))
        assert leader.questions == [[0]]
        leader.first_local = 10
        cluster.metadata.push(snapshot([1], leader_epoch=2, version=2))
        while (asked := await cluster.asked_within(1)) is not None:
            asked.answer(part(0, high_watermark=100))
        assert await reading == []
        assert leader.questions == [[0], [0]]


@pytest.mark.parametrize(("highest", "first_local"), [(7, 50), (10, -1)], ids=["older", "without an answer"])
async def test_a_broker_that_does_not_tell_its_local_offsets_is_given_more_than_a_second(
    highest: int, first_local: int
):
    # To Kafka before 3.5 the question would be one about a point in time. It has everything at hand; others may not.
    cluster = Cluster([1])
    Leader(cluster, first_local, highest=highest)
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 10, 100)))
        waits = []
        while (asked := await cluster.asked_within(1)) is not None:
            assert not reading.done()
            wait = asked.request.max_wait.total_seconds()
            if asked.session == OUTSIDE_SESSION:
                waits.append(wait)
            await asyncio.sleep(wait)
            asked.answer(part(0, high_watermark=100))
        assert await reading == []
        assert waits == pytest.approx([0.0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5])


async def test_records_that_a_silent_broker_brings_late_are_read(make_batch):
    cluster = Cluster([1])
    Leader(cluster, first_local=0, highest=7)
    async with cluster.consumer() as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 10, 12)))
        for _ in range(9):
            (await cluster.asked()).answer(part(0, high_watermark=12))
        (await cluster.asked()).answer(part(0, make_batch(10, [b"a"]), high_watermark=12))
        for _ in range(7):
            (await cluster.asked()).answer()
        (await cluster.asked()).answer(part(0, make_batch(11, [b"b"]), high_watermark=12))
        assert await reading == [b"a", b"b"]


async def test_partitions_that_end_together_are_at_their_ends_after_a_fetch_of_each():
    cluster = Cluster([1] * 5)
    leader = Leader(cluster, first_local=0)
    async with cluster.consumer() as consumer:
        readings = [
            asyncio.create_task(drain(await consumer.consume_partition("t", number, 3, 9))) for number in range(5)
        ]
        alone = []
        while (asked := await cluster.asked_within(1)) is not None:
            if asked.session == OUTSIDE_SESSION:
                alone += asked.offsets
            asked.answer(*(part(number, high_watermark=9) for number in asked.offsets))
        assert await asyncio.gather(*readings) == [[]] * 5
        assert sorted(alone) == [0, 1, 2, 3, 4]
        assert sorted(leader.questions) == [[0], [1], [2], [3], [4]]


async def test_a_batch_that_was_left_out_beside_a_slow_read_of_remote_storage_is_read(make_batch):
    # From Kafka 4.2 on a batch above the limits is left out where another partition is read from remote storage, also
    # where nothing comes of that: the whole answer is empty, and what is on the leader's disk is not in it.
    cluster = Cluster([1, 1])
    leader = Leader(cluster, first_local=5)
    async with cluster.consumer() as consumer:
        remote = await consumer.consume_partition("t", 1, 0)
        waiting = asyncio.create_task(drain(remote))
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 5, 6)))
        (await cluster.asked()).answer(part(0, high_watermark=6), part(1, high_watermark=6))
        asked = await cluster.asked()
        assert (asked.session, asked.offsets) == (OUTSIDE_SESSION, {0: 5})
        assert not asked.request.max_wait
        assert leader.questions == []
        asked.answer(part(0, make_batch(5, [b"large"]), high_watermark=6), session_id=0)
        assert await reading == [b"large"]
        remote.close()
        await waiting


async def test_an_error_in_answer_to_where_the_local_log_begins_is_tried_again_and_ends_nothing(make_batch):
    cluster = Cluster([1])
    leader = Leader(cluster, first_local=0)
    leader.error = ErrorCode.not_leader_or_follower
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0, 1)
        reading = asyncio.create_task(drain(partition))
        for _ in range(2):
            (await cluster.asked()).answer(part(0, high_watermark=1))
        again = await cluster.asked()
        assert leader.questions == [[0]]
        assert "t" in cluster.wanted
        again.answer(part(0, make_batch(0, [b"a"]), high_watermark=1))
        assert await reading == [b"a"]


async def test_an_error_that_stays_ends_the_iteration():
    cluster = Cluster([1])
    Leader(cluster, first_local=0).error = ErrorCode.topic_authorization_failed
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 0, 1)
        reading = asyncio.create_task(drain(partition))
        for _ in range(2):
            (await cluster.asked()).answer(part(0, high_watermark=1))
        with pytest.raises(Exception, match="first local offset"):
            await reading


async def test_a_reader_that_seeks_while_the_leader_is_asked_reads_on_from_there(make_batch):
    cluster = Cluster([1])
    cluster.answers_offsets.clear()
    async with cluster.consumer() as consumer:
        partition = await consumer.consume_partition("t", 0, 5, 9)
        reading = asyncio.create_task(drain(partition))
        for _ in range(2):
            (await cluster.asked()).answer(part(0, high_watermark=9))
        assert await cluster.asked_within(0.05) is None
        await partition.seek(3)
        cluster.answers_offsets.set()
        (await cluster.asked()).answer(part(0, make_batch(3, [b"a"] * 6), high_watermark=9))
        assert await reading == [b"a"] * 6


async def test_a_follower_that_has_nothing_sends_the_reader_to_the_leader_whose_local_log_is_known(make_batch):
    # A follower's local log may begin behind its leader's.
    cluster = Cluster([1])
    async with cluster.consumer(rack="near") as consumer:
        reading = asyncio.create_task(drain(await consumer.consume_partition("t", 0, 0, 1)))
        (await cluster.asked()).answer(part(0, high_watermark=1, preferred=2))
        for _ in range(2):
            asked = await cluster.asked()
            assert asked.node_id == 2
            asked.answer(part(0, high_watermark=1))
        asked = await cluster.asked()
        assert (asked.node_id, asked.request.rack_id) == (1, "")
        asked.answer(part(0, make_batch(0, [b"a"]), high_watermark=1))
        assert await reading == [b"a"]


async def test_a_partition_that_comes_back_before_the_next_fetch_is_told_how_far_this_broker_has_its_log(make_batch):
    # Node 1 would tell its session only what is new there. It has less than node 2 had: its empty answers, with what
    # node 2 said of the log's end, looked like an end that compaction took.
    cluster = Cluster([1, 1])
    async with cluster.consumer() as consumer:
        ending = await consumer.consume_partition("t", 0, 90, 100)
        reading = asyncio.create_task(drain(ending))
        await consumer.consume_partition("t", 1, 0)
        (await cluster.asked()).answer(part(0, high_watermark=90), part(1, high_watermark=0))
        held = await cluster.asked()
        cluster.metadata.push(snapshot([2, 1], leader_epoch=2, version=2))
        elsewhere = await cluster.asked()
        assert elsewhere.node_id == 2
        elsewhere.answer(part(0, high_watermark=100), session_id=6)
        away = await cluster.asked()
        cluster.metadata.push(snapshot([1, 1], leader_epoch=3, version=3))
        held.answer()
        again = await cluster.asked()
        assert (again.node_id, again.session[1], again.offsets) == (1, 0, {0: 90, 1: 0})
        again.answer(part(0, high_watermark=90), part(1, high_watermark=0))
        for _ in range(3):
            (await cluster.asked()).answer()
        assert not reading.done()
        (await cluster.asked()).answer(part(0, make_batch(90, [b"a"] * 10), high_watermark=100))
        assert await reading == [b"a"] * 10
        away.answer(session_id=6)


async def test_a_part_without_a_whole_batch_beside_others_is_asked_for_alone_and_then_is_an_error(make_batch):
    # A batch whose length is damaged on the broker's disk never comes whole: both partitions would be asked for ever.
    cluster = Cluster([1, 1])
    async with cluster.consumer() as consumer:
        torn = make_batch(0, [b"x" * 100])[:-7]
        partitions = [await consumer.consume_partition("t", number, 0) for number in (0, 1)]
        readings = [asyncio.create_task(drain(partition)) for partition in partitions]
        (await cluster.asked()).answer(part(0, torn), part(1, torn))
        failed = []
        for _ in range(2):
            asked = await cluster.asked()
            assert asked.session == OUTSIDE_SESSION
            (number,) = asked.offsets
            asked.answer(part(number, torn), session_id=0)
            with pytest.raises(CorruptBatch, match=f"t-{number} at offset 0: no batch of it"):
                await readings[number]
            failed.append(number)
        assert sorted(failed) == [0, 1]
