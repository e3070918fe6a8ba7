"""Read all partitions of a topic to their present end: `python consumer.py BOOTSTRAP TOPIC`."""

import asyncio
import sys

from ingestd import Client, Consumer


async def read(consumer: Consumer, topic: str, partition: int) -> int:
    """Count a partition's records, in chunks: nothing is awaited for each of them."""
    reading = await consumer.consume_partition(topic, partition, "earliest", "latest")
    count = 0
    async for records in reading.chunks():
        count += len(records)
        last = records[-1]
        print(f"{last.topic}-{last.partition} offset {last.offset}: {last.value!r}, {reading.lag} behind it")
    return count


async def main(bootstrap: str, topic: str) -> None:
    """Read the partitions concurrently."""
    async with Client([bootstrap]) as client, Consumer(client) as consumer:
        partitions = await consumer.partitions(topic)
        counts = await asyncio.gather(*(read(consumer, topic, partition) for partition in partitions))
    print(f"{sum(counts)} records in {len(partitions)} partitions")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
