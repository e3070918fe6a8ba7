"""The consumer on real Kafka whose nodes are killed, stopped and brought back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from ingestd.client.client import Client
from ingestd.client.settings import ClientSettings
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import ConsumerSettings, Edge

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster

SETTINGS = ConsumerSettings(request_timeout=5.0)


def produce(servers: str, topic: str, first: int, count: int, partition: int = 0) -> None:
    producer = Producer(
        {"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "log_level": 2, "linger.ms": 1}
    )
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(90) == 0


async def read_until(consumer: Consumer, topic: str, partition: int, count: int) -> list[int]:
    reading = await consumer.consume_partition(topic, partition, Edge.earliest)
    found: list[int] = []
    async for record in reading:
        found.append(int(record.value or b"-1"))
        if len(found) == count:
            break
    reading.close()
    return found


@pytest.mark.timeout(300)
async def test_reading_follows_a_killed_leader_to_the_next_and_loses_nothing(kafka3: KafkaCluster) -> None:
    name = kafka3.create_topic(partitions=3)
    for partition in range(3):
        produce(kafka3.servers, name, 0, 500, partition)
    async with Client(kafka3.bootstrap) as client, Consumer(client, SETTINGS) as consumer:
        reading = [asyncio.create_task(read_until(consumer, name, partition, 1_000)) for partition in range(3)]
        victim = kafka3.leader(name, 0)
        while len(consumer._choice._placed) < 3 or any(
            one.position < 500 for one in consumer._choice.consumers.values()
        ):
            await asyncio.sleep(0.05)
        await asyncio.to_thread(kafka3.kill, victim)
        for partition in range(3):
            await asyncio.to_thread(produce, kafka3.servers, name, 500, 500, partition)
        async with asyncio.timeout(90):
            found = await asyncio.gather(*reading)
    assert found == [list(range(1_000))] * 3


@pytest.mark.timeout(300)
async def test_reading_goes_on_after_the_only_broker_restarts(kafka_cluster: Callable[..., KafkaCluster]) -> None:
    cluster = kafka_cluster()
    name = cluster.create_topic()
    produce(cluster.servers, name, 0, 100)
    async with Client(cluster.bootstrap) as client, Consumer(client, SETTINGS) as consumer:
        reading = asyncio.create_task(read_until(consumer, name, 0, 200))
        while not any(one.position == 100 for one in consumer._choice.consumers.values()):
            await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster.kill, 1)
        await asyncio.to_thread(cluster.start, 1)
        await asyncio.to_thread(produce, cluster.servers, name, 100, 100)
        async with asyncio.timeout(60):
            assert await reading == list(range(200))


async def test_closing_ends_soon_although_every_broker_is_down(kafka_cluster: Callable[..., KafkaCluster]) -> None:
    cluster = kafka_cluster()
    name = cluster.create_topic()
    async with Client(cluster.bootstrap) as client:
        consumer = Consumer(client, ConsumerSettings(request_timeout=120.0))
        reading = asyncio.create_task(read_until(consumer, name, 0, 1))
        while not consumer._choice._placed:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster.kill, 1)
        async with asyncio.timeout(30):
            await consumer.close()
            assert await reading == []


@pytest.mark.timeout(300)
async def test_reading_leaves_a_frozen_leader_before_its_requests_time_out(kafka3: KafkaCluster) -> None:
    name = kafka3.create_topic()
    produce(kafka3.servers, name, 0, 50)
    settings = ConsumerSettings(request_timeout=250.0)
    # Metadata may be asked of the frozen node first.
    in_a_hurry = ClientSettings(request_timeout=5.0, connect_timeout=5.0)
    async with Client(kafka3.bootstrap, in_a_hurry) as client, Consumer(client, settings) as consumer:
        reading = asyncio.create_task(read_until(consumer, name, 0, 100))
        while not any(one.position == 50 for one in consumer._choice.consumers.values()):
            await asyncio.sleep(0.05)
        await asyncio.to_thread(kafka3.freeze, kafka3.leader(name))
        await asyncio.to_thread(produce, kafka3.servers, name, 50, 50)
        async with asyncio.timeout(60):
            assert await reading == list(range(100))
