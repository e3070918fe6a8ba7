"""When a producer sends what it collects, as the log of a real broker shows it: batch by batch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ingestd.client.client import Client
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import Edge
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster

    from ingestd.producer.delivery import Delivery

NEVER = 600.0


async def records_of_batches(
    kafka: KafkaCluster, topic: str, values: list[bytes], acknowledged: int, **settings: Any
) -> list[int]:
    """Send without flushing, until so many are acknowledged; the number of records in each batch of the log."""
    ends: list[Delivery] = []
    enough = asyncio.Event()

    def done(end: Delivery) -> None:
        ends.append(end)
        if len(ends) == acknowledged:
            enough.set()

    async with (
        Client(kafka.bootstrap) as client,
        AsyncProducer(client, ProducerSettings(**settings)) as producer,
        Consumer(client) as consumer,
    ):
        await client.metadata.refresh([topic], 30.0)
        for value in values:
            producer.send(topic, value, partition=0, done=done)
        async with asyncio.timeout(30):
            await enough.wait()
        assert [end.error for end in ends] == [None] * acknowledged
        reading = await consumer.consume_partition(topic, 0, Edge.earliest, Edge.latest)
        return [batch.header.records async for batch in reading.batches()]


async def test_a_batch_goes_when_it_has_so_many_records(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    sent = await records_of_batches(kafka, topic(), [b"x"] * 55, 50, batch_records=10, linger=NEVER)
    assert sent == [10] * 5


async def test_a_batch_goes_when_it_has_so_many_bytes(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    # A record of 100 bytes takes 107, the header 61: nine fit.
    sent = await records_of_batches(kafka, topic(), [bytes(100)] * 28, 27, batch_bytes=1061, linger=NEVER)
    assert sent == [9] * 3


async def test_a_batch_goes_when_its_first_record_is_old_enough(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    assert await records_of_batches(kafka, topic(), [b"x"] * 7, 7, linger=0.05) == [7]


async def test_without_linger_what_is_sent_in_one_turn_of_the_loop_goes_together(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    assert await records_of_batches(kafka, topic(), [b"x"] * 7, 7, linger=0.0) == [7]
