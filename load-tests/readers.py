"""Programs that read a whole topic, each in the way that is its best: `readers.py WAY SERVERS TOPIC`.

Every way touches each value (its length is summed up), as a program that does something with it would, and prints how
many records and bytes of values it saw. Imports are within each way, since start-up is part of what is measured.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ingestd.consumer.partition_consumer import PartitionConsumer

BATCH = 5_000
"""Records of one call, for those that hand out lists."""


async def over_partitions(
    servers: str, topic: str, read: Callable[[PartitionConsumer], Awaitable[tuple[int, int]]]
) -> tuple[int, int]:
    """Read every partition to its present end with one task each."""
    from ingestd.client.client import Client  # noqa: PLC0415
    from ingestd.consumer.consumer import Consumer  # noqa: PLC0415
    from ingestd.consumer.settings import Edge  # noqa: PLC0415

    async with Client(servers.split(",")) as client, Consumer(client) as consumer:
        opened = [
            await consumer.consume_partition(topic, number, Edge.earliest, Edge.latest)
            for number in await consumer.partitions(topic)
        ]
        read_all = await asyncio.gather(*(read(one) for one in opened))
    return sum(records for records, _ in read_all), sum(size for _, size in read_all)


def run(main: Any) -> Any:
    """As the `ingestd` command does: on uvloop."""
    import uvloop  # noqa: PLC0415

    return uvloop.run(main)


def ingestd_records(servers: str, topic: str) -> tuple[int, int]:
    """`async for record in partition_consumer`."""

    async def read(partition: PartitionConsumer) -> tuple[int, int]:
        records = size = 0
        async for record in partition:
            records += 1
            size += len(record.value or b"")
        return records, size

    return run(over_partitions(servers, topic, read))


def ingestd_chunks(servers: str, topic: str) -> tuple[int, int]:
    """`async for records in partition_consumer.chunks()`."""

    async def read(partition: PartitionConsumer) -> tuple[int, int]:
        records = size = 0
        async for chunk in partition.chunks():
            for record in chunk:
                records += 1
                size += len(record.value or b"")
        return records, size

    return run(over_partitions(servers, topic, read))


def ingestd_columns(servers: str, topic: str) -> tuple[int, int]:
    """`async for columns in partition_consumer.columns()`."""

    async def read(partition: PartitionConsumer) -> tuple[int, int]:
        records = size = 0
        async for columns in partition.columns():
            records += columns.count
            size += len(memoryview(columns.values.data))
        return records, size

    return run(over_partitions(servers, topic, read))


def confluent(servers: str, topic: str) -> tuple[int, int]:
    """confluent-kafka-python: `consume` of many messages at a time."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition  # noqa: PLC0415

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "load-test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    found = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    unread = set(found)
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in found])
    records = size = 0
    while unread:
        for message in consumer.consume(BATCH, timeout=1.0):
            if message.error() is None:
                records += 1
                size += len(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name for it
                unread.discard(message.partition())
    consumer.close()
    return records, size


def aiokafka(servers: str, topic: str) -> tuple[int, int]:
    """aiokafka: `getmany`, on uvloop."""
    from aiokafka import AIOKafkaConsumer  # noqa: PLC0415

    async def read() -> tuple[int, int]:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
        await consumer.start()
        ends = await consumer.end_offsets(consumer.assignment())
        left = sum(ends.values())
        records = size = 0
        while left > 0:
            for messages in (await consumer.getmany(timeout_ms=1000)).values():
                left -= len(messages)
                records += len(messages)
                size += sum(len(message.value) for message in messages)
        await consumer.stop()
        return records, size

    return run(read())


WAYS = {
    way.__name__.replace("_", "-"): way
    for way in (ingestd_records, ingestd_chunks, ingestd_columns, confluent, aiokafka)
}


def main() -> int:
    """Read and say how much it was."""
    way, servers, topic = sys.argv[1:]
    print(*WAYS[way](servers, topic))
    return 0


if __name__ == "__main__":
    sys.exit(main())
