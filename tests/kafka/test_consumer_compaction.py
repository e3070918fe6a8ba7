"""A compacted topic read up to its end, although most records, and whole batches, are gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from ingestd.client.client import Client
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import Edge

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster


@pytest.mark.timeout(180)
async def test_what_compaction_leaves_is_read_to_the_end_with_its_offsets(
    kafka_cluster: Callable[..., KafkaCluster],
) -> None:
    cluster = kafka_cluster(settings={"log.cleaner.backoff.ms": "100"})
    name = cluster.create_topic(
        cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.01", delete_retention_ms="0"
    )
    producer = Producer({"bootstrap.servers": cluster.servers, "enable.idempotence": True, "log_level": 2})
    end = 0

    def produce(count: int) -> None:
        nonlocal end
        for _ in range(count):
            producer.produce(name, b"%d" % end, key=b"%d" % (end % 7), partition=0)
            end += 1
        assert producer.flush(30) == 0

    async def offsets(start: int) -> list[int]:
        async with Client(cluster.bootstrap) as client, Consumer(client) as consumer:
            partition = await consumer.consume_partition(name, 0, start, Edge.latest)
            records = [record async for record in partition]
            assert all(int(record.value or b"") == record.offset for record in records)
            assert partition.next_offset == end
            return [record.offset for record in records]

    for _ in range(5):
        await asyncio.to_thread(produce, 200)
    async with asyncio.timeout(120):
        while len(found := await offsets(0)) >= 400:
            await asyncio.to_thread(produce, 1)  # the segment before is closed by an append, and can be cleaned
            await asyncio.sleep(0.3)
    assert found == sorted(set(found))
    assert {offset % 7 for offset in found} == set(range(7))
    # From within a gap, the next record that there is comes first.
    gap = next(offset for offset in range(end) if offset not in found)
    later = await offsets(gap)
    assert later[0] > gap
    assert set(later) <= set(found)  # compaction may have gone on
