"""The Prometheus adapter tells what a producer, a consumer and a group did, and forgets what is read no more."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from ingestd import AsyncProducer, Client, Consumer, ConsumerGroup, Edge, GroupSettings
from ingestd.consumer.group.settings import NoOffset
from ingestd.prometheus import ConsumerMetrics, GroupMetrics, ProducerMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster

COUNT = 300


async def test_what_was_done_is_counted_by_topic(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name, group_id = topic(partitions=1), f"group-{uuid.uuid4()}"
    registry = CollectorRegistry()
    consumer_metrics = ConsumerMetrics(registry)

    def value(metric: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"ingestd_{metric}", labels)

    async with Client(kafka.bootstrap) as client:
        async with AsyncProducer(client, events=ProducerMetrics(registry)) as producer:
            for number in range(COUNT):
                producer.send(name, b"%d" % number)
            await producer.flush(30)
        assert value("producer_acknowledged_records_total", topic=name) == COUNT
        batches = value("producer_acknowledged_batches_total", topic=name)
        assert batches == value("producer_acknowledgement_seconds_count")

        async with Consumer(client, events=consumer_metrics) as consumer:
            reading = await consumer.consume_partition(name, 0, Edge.earliest, Edge.latest)
            assert sum([len(records) async for records in reading.chunks()]) == COUNT
            assert value("consumer_fetched_bytes_total", topic=name) == value(
                "producer_acknowledged_bytes_total", topic=name
            )
            assert value("consumer_placements_total", topic=name, **{"from": "leader"}) == 1
        assert value("consumer_lag_records", topic=name, partition="0") is None

        group = ConsumerGroup(
            client,
            group_id,
            GroupSettings(no_offset=NoOffset.earliest),
            events=GroupMetrics(registry),
            consumer_events=consumer_metrics,
        )
        left = COUNT
        async with group, group.subscribe([name]) as records:
            async for _ in records:
                left -= 1
                if not left:
                    break
            assert value("group_assigned_partitions", group=group_id) == 1
            assert value("consumer_lag_records", topic=name, partition="0") is not None
    assert value("group_assigned_partitions", group=group_id) == 0
    assert value("group_rebalance_seconds_count", group=group_id) == 1
    assert value("group_join_attempts_total", group=group_id) >= 1
    assert value("group_committed_partitions_total", group=group_id) >= 1
    assert value("consumer_lag_records", topic=name, partition="0") is None
