"""Cluster admin against each release of the test matrix."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from harness.news import partitions_of_new

from ingestd.client.admin import ClusterAdmin, ConfigResource, ResourceType
from ingestd.client.client import Client
from ingestd.errors import ErrorCode, UnsupportedVersion
from ingestd.wire.requests import NewPartitions, NewTopic

if TYPE_CHECKING:
    from harness.cluster import KafkaCluster


async def test_topics_are_created_described_grown_and_deleted(kafka_of_release: KafkaCluster) -> None:
    topic = f"admin-{time.time_ns()}"
    async with Client(kafka_of_release.bootstrap) as client:
        admin = ClusterAdmin(client)
        if kafka_of_release.release == "0.10":
            with pytest.raises(UnsupportedVersion, match="create_topics: this broker speaks versions 0 to 1"):
                await admin.create_topics([NewTopic(topic, 2, 1)])
            assert (await admin.describe_topics([topic]))[topic].error is ErrorCode.unknown_topic_or_partition
            return
        (created,) = await admin.create_topics([NewTopic(topic, 2, 1, {"retention.ms": "123456"})])
        assert created.error is None
        assert await partitions_of_new(client, topic) == [0, 1]
        (grown,) = await admin.create_partitions([NewPartitions(topic, 3)])
        assert grown.error is None
        async with asyncio.timeout(30.0):  # the broker hears of it a moment after the controller has done it
            while await client.partitions(topic) != [0, 1, 2]:
                await client.metadata.refresh([topic], 30.0)
        (configs,) = await admin.describe_configs([ConfigResource(ResourceType.topic, topic)], keys=["retention.ms"])
        assert configs.entries["retention.ms"].value == "123456"
        (deleted,) = await admin.delete_topics([topic])
        assert deleted.error is None
