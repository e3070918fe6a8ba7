"""MirrorMaker 2 from a real Kafka into the embedded broker, and out of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from harness.mirror_maker import mirror_maker
from harness.mirrors import produce, records

if TYPE_CHECKING:
    from pathlib import Path

    from embedded.cluster import EmbeddedCluster
    from harness.cluster import KafkaCluster

SECONDS = 90
EACH_SECOND = ("emit.checkpoints.interval", "sync.group.offsets.interval", "refresh.groups.interval")
WITH_GROUPS = {
    "emit.checkpoints.enabled": "true",
    "sync.group.offsets.enabled": "true",
    "offset.lag.max": "0",
    **{f"{name}.seconds": "1" for name in EACH_SECOND},
}


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def copied(servers: str, topic: str, partitions: int, count: int) -> list[list[object]]:
    """The records of each partition, once there are so many."""
    end = time.monotonic() + SECONDS
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    found: list[list[object]] = []
    while sum(map(len, found)) < count:
        assert time.monotonic() < end, f"{sum(map(len, found))} of {count} records"
        if topic in admin.list_topics(timeout=SECONDS).topics:
            found = [records(servers, topic, partition) for partition in range(partitions)]
        time.sleep(0.1)
    return found


def committed(servers: str, group: str, partitions: int) -> dict[tuple[str, int], int]:
    """The offsets of a group by topic and partition, once there are so many."""
    end = time.monotonic() + SECONDS
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    asked = ConsumerGroupTopicPartitions(group)
    while True:
        found = admin.list_consumer_group_offsets([asked])[group].result(SECONDS).topic_partitions or []
        if len(found) >= partitions:
            return {(one.topic, one.partition): one.offset for one in found}
        assert time.monotonic() < end, found
        time.sleep(0.2)


@pytest.mark.parametrize("direction", ["into", "out of"])
def test_records_configurations_and_offsets_are_copied(
    kafka: KafkaCluster, embedded_cluster: EmbeddedCluster, new_topic: str, tmp_path: Path, direction: str
) -> None:
    """Stopped in the middle, it goes on from the offsets that it stored on the target.

    A group's offset on the target is at or before the group's at the source: MirrorMaker 2 knows few pairs of offsets.
    """
    clusters = (kafka, embedded_cluster) if direction == "into" else (embedded_cluster, kafka)
    source, target = (cluster.servers for cluster in clusters)
    admin = AdminClient({"bootstrap.servers": source, "log_level": 0})
    config = {"cleanup.policy": "compact,delete", "segment.ms": "86400000"}
    admin.create_topics([NewTopic(new_topic, 2, 1, config=config)])[new_topic].result(SECONDS)
    produce(source, new_topic, numbers(0, 1000), partitions=2)
    consumed = [TopicPartition(new_topic, partition, 600) for partition in range(2)]
    reader = Consumer({"bootstrap.servers": source, "group.id": new_topic, "log_level": 0})

    with mirror_maker(*clusters, new_topic, tmp_path / "first", **WITH_GROUPS):
        copied(target, f"east.{new_topic}", 2, 1000)
    produce(source, new_topic, numbers(1000, 2000), partitions=2)
    reader.commit(offsets=consumed, asynchronous=False)
    with mirror_maker(*clusters, new_topic, tmp_path / "second", **WITH_GROUPS):
        found = copied(target, f"east.{new_topic}", 2, 2000)
        translated = committed(target, new_topic, 2)
    assert translated.keys() == {(f"east.{new_topic}", partition) for partition in range(2)}
    assert all(0 < offset <= 600 for offset in translated.values())
    assert found == [records(source, new_topic, partition) for partition in range(2)]

    resource = ConfigResource(ConfigResource.Type.TOPIC, f"east.{new_topic}")
    other = AdminClient({"bootstrap.servers": target, "log_level": 0})
    described = other.describe_configs([resource])[resource].result(SECONDS)
    assert {name: described[name].value for name in config} == config
