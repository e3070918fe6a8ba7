"""The consumer and the replicas of its partitions: racks, leaders that move, logs that were cut, topics made again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, Producer
from harness.request_log import read_request_log

from ingestd.client.client import Client
from ingestd.client.settings import ClientSettings
from ingestd.consumer import broker_choice
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import ConsumerSettings, Edge, Recreation, Truncation
from ingestd.errors import IngestdError, KafkaError, LogTruncated, TopicRecreated
from ingestd.wire.connection import ConnectionSettings
from ingestd.wire.requests.reassignments import alter_partition_reassignments, elect_leaders

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from harness.cluster import KafkaCluster

    from ingestd.consumer.partition_consumer import PartitionConsumer

PATIENCE = 60.0


def produce(cluster: KafkaCluster, topic: str, first: int, count: int) -> None:
    idempotent = cluster.release != "0.10"
    producer = Producer(
        {"bootstrap.servers": cluster.servers, "acks": "all", "enable.idempotence": idempotent, "log_level": 2}
    )
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE) == 0


@contextlib.asynccontextmanager
async def consumer(cluster: KafkaCluster, client_id: str = "reader", **settings: Any) -> AsyncIterator[Consumer]:
    connection = ConnectionSettings(client_id=client_id)
    async with (
        Client(cluster.bootstrap, ClientSettings(connection=connection)) as client,
        Consumer(client, ConsumerSettings(**({"request_timeout": 5.0} | settings))) as made,
    ):
        yield made


async def take(partition: PartitionConsumer, count: int, patience: float = PATIENCE) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(patience):
        async for record in partition:
            found.append(int(record.value or b"-1"))
            if len(found) == count:
                break
    return found


def fetched_from(consumer: Consumer, topic: str) -> int | None:
    node: int | None = consumer.status()["partitions"][f"{topic}-0"]["node"]
    return node


async def until_fetched_from(consumer: Consumer, topic: str, node: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while fetched_from(consumer, topic) != node:
            await asyncio.sleep(0.05)


def fetches(cluster: KafkaCluster, client_id: str) -> Counter[int]:
    """How many fetches of this client each node answered."""
    return Counter(
        node.node_id
        for node in cluster.nodes.values()
        for request in read_request_log(node.request_log)
        if (request.api, request.client_id) == ("Fetch", client_id)
    )


@pytest.mark.timeout(300)
async def test_a_replica_in_the_readers_rack_is_read_and_its_leader_when_it_dies(
    racks: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_choice, "_REPLICA_PENALTY", 1.0)
    topic = await asyncio.to_thread(racks.create_topic, "racked", replicas=[[1, 2, 3]])
    produce(racks, topic, 0, 500)
    async with consumer(racks, "racked", rack="rack-2", request_timeout=30.0) as reader:
        partition = await reader.consume_partition(topic, 0, Edge.earliest)
        assert await take(partition, 500) == list(range(500))
        assert fetched_from(reader, topic) == 2
        for first in range(500, 600, 10):
            await asyncio.to_thread(produce, racks, topic, first, 10)
            assert await take(partition, 10) == list(range(first, first + 10))
        await asyncio.to_thread(racks.wait_for_request, "racked", "Fetch", 10)
        counted = fetches(racks, "racked")
        assert counted[2] >= 10
        assert counted[1] <= 3
        assert counted[3] == 0

        await asyncio.to_thread(racks.kill, 2)
        await asyncio.to_thread(produce, racks, topic, 600, 100)
        assert await take(partition, 100) == list(range(600, 700))
        assert fetched_from(reader, topic) == 1

        await asyncio.to_thread(racks.start, 2)
        await until_fetched_from(reader, topic, 2)
        await asyncio.to_thread(produce, racks, topic, 700, 100)
        assert await take(partition, 100) == list(range(700, 800))


@pytest.mark.timeout(300)
async def test_a_frozen_replica_is_left_for_the_leader_before_the_request_times_out(racks: KafkaCluster) -> None:
    topic = await asyncio.to_thread(racks.create_topic, "frozen", replicas=[[1, 3, 2]])
    produce(racks, topic, 0, 50)
    async with consumer(racks, "frozen", rack="rack-3", request_timeout=250.0) as reader:
        partition = await reader.consume_partition(topic, 0, Edge.earliest)
        assert await take(partition, 50) == list(range(50))
        await until_fetched_from(reader, topic, 3)
        await asyncio.to_thread(racks.freeze, 3)
        await asyncio.to_thread(produce, racks, topic, 50, 50)
        assert await take(partition, 50) == list(range(50, 100))
        assert fetched_from(reader, topic) == 1


@pytest.mark.timeout(300)
async def test_leaders_that_move_by_reassignment_cost_a_reader_no_record(racks: KafkaCluster) -> None:
    topic = await asyncio.to_thread(racks.create_topic, "moving", replicas=[[1, 2]])
    async with consumer(racks, "moving") as reader:
        partition = await reader.consume_partition(topic, 0, Edge.earliest)
        reading = asyncio.create_task(take(partition, 600, 4 * PATIENCE))  # while the leader moves six times
        async with Client(racks.bootstrap) as client:
            for turn, replicas in enumerate([[2, 3], [3, 1], [1, 2], [2, 1], [1, 3], [3, 2]]):
                await asyncio.to_thread(produce, racks, topic, 100 * turn, 100)
                controller = await client.controller()
                move = alter_partition_reassignments({(topic, 0): replicas}, timeout_ms=10_000)
                await controller.request(move, 20.0)
                async with asyncio.timeout(PATIENCE):
                    while await asyncio.to_thread(racks.leader, topic) not in replicas:
                        await asyncio.sleep(0.05)
                await controller.request(elect_leaders([(topic, 0)], timeout_ms=10_000), 20.0)
        assert await reading == list(range(600))


@pytest.mark.timeout(300)
async def test_records_that_an_unclean_election_took_from_the_log_are_told_or_read_anew(racks: KafkaCluster) -> None:
    topic = await asyncio.to_thread(
        racks.create_topic, "cut", replicas=[[1, 2]], unclean_leader_election_enable="true", min_insync_replicas="1"
    )
    produce(racks, topic, 0, 100)
    async with (
        consumer(racks, "told") as told,
        consumer(racks, "rewound", truncation=Truncation.rewind) as rewound,
    ):
        partitions = [await one.consume_partition(topic, 0, Edge.earliest) for one in (told, rewound)]
        for partition in partitions:
            assert await take(partition, 100) == list(range(100))
        await asyncio.to_thread(racks.kill, 2)
        # Acknowledged once node 2 is out of the in-sync replicas: only node 1 has them.
        await asyncio.to_thread(produce, racks, topic, 100, 50)
        for partition in partitions:
            assert await take(partition, 50) == list(range(100, 150))
        # Until node 2 is back there is no quorum, and nobody hears of what node 1 has.
        await asyncio.to_thread(racks.kill, 1)
        await asyncio.to_thread(racks.start, 2)
        async with asyncio.timeout(PATIENCE), Client(racks.bootstrap[1:]) as client:
            while await asyncio.to_thread(racks.leader, topic) != 2:
                with contextlib.suppress(IngestdError):  # whoever is asked may not have heard of the dead node yet
                    elect = elect_leaders([(topic, 0)], timeout_ms=10_000, unclean=True)
                    await (await client.any()).request(elect, 20.0)
                await asyncio.sleep(0.2)
        await asyncio.to_thread(produce, racks, topic, 9_000, 60)
        with pytest.raises(LogTruncated) as caught:
            await take(partitions[0], 1)
        assert (caught.value.offset, caught.value.diverged_at) == (150, 100)
        assert await take(partitions[1], 60) == list(range(9_000, 9_060))
        assert partitions[1].next_offset == 160


async def test_an_idle_reader_asks_twice_a_second(racks: KafkaCluster) -> None:
    topic = await asyncio.to_thread(racks.create_topic, "idle", replicas=[[1]])
    async with consumer(racks, "idle") as reader:
        begun = time.monotonic()
        await reader.consume_partition(topic, 0, Edge.earliest)
        await asyncio.to_thread(racks.wait_for_request, "idle", "Fetch", 12)
        counted = fetches(racks, "idle").total()
        seconds = time.monotonic() - begun
    # Waits of 10, 20, … 320 ms, then of 500. Whatever stands still meanwhile makes them fewer, never more.
    assert counted <= 7 + 2 * seconds


async def test_a_topic_that_was_made_again_is_told_or_read_from_its_start(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    await asyncio.to_thread(produce, kafka, name, 0, 20)
    async with consumer(kafka) as told, consumer(kafka, recreation=Recreation.earliest) as again:
        partitions = [await one.consume_partition(name, 0, Edge.earliest) for one in (told, again)]
        for partition in partitions:
            assert await take(partition, 20) == list(range(20))
        await asyncio.to_thread(kafka.delete_topic, name)
        await asyncio.to_thread(topic, name)
        # As many as before: by its offsets alone nobody could tell.
        await asyncio.to_thread(produce, kafka, name, 500, 40)
        with pytest.raises(TopicRecreated, match=f"{name}-0 at offset 20"):
            await take(partitions[0], 1)
        assert await take(partitions[1], 40) == list(range(500, 540))
        assert partitions[1].next_offset == 40


async def test_a_topic_that_was_deleted_is_told_to_its_reader(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic()
    async with consumer(kafka, metadata_timeout=5.0) as reader:
        partition = await reader.consume_partition(name, 0, Edge.earliest)
        await asyncio.to_thread(kafka.delete_topic, name)
        with pytest.raises(KafkaError, match=f"{name}-0"):
            await take(partition, 1)


async def test_releases_without_fetches_by_topic_id_give_no_record_of_a_topic_made_again(
    kafka_of_release: KafkaCluster,
) -> None:
    """3.9 fetches by id, 2.8 has ids in its metadata alone, 0.10 has none: there only offsets may be out of range."""
    cluster = kafka_of_release

    def create_again() -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                cluster.create_topic(name)
            except KafkaException as error:  # 2.8 answers before the topic is gone
                if error.args[0].code() != error.args[0].TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    name = await asyncio.to_thread(cluster.create_topic)
    await asyncio.to_thread(produce, cluster, name, 0, 20)
    async with consumer(cluster) as reader:
        partition = await reader.consume_partition(name, 0, Edge.earliest)
        assert await take(partition, 20) == list(range(20))
        await asyncio.to_thread(cluster.delete_topic, name)
        await asyncio.to_thread(create_again)
        await asyncio.to_thread(produce, cluster, name, 500, 10)
        with pytest.raises(TopicRecreated if cluster.release != "0.10" else KafkaError) as caught:
            await take(partition, 1)
        assert f"{name}-0" in str(caught.value)
