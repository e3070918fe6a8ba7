"""Administration against each release of the test matrix: what it has works, what it has not is said."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING
from uuid import uuid4

import confluent_kafka
import pytest

from ingestd.client.admin import (
    EARLIEST,
    AclFilter,
    ClusterAdmin,
    ConfigChange,
    ConfigResource,
    NewTopic,
    OffsetAt,
    QuotaComponent,
    QuotaMatch,
    ResourceType,
)
from ingestd.client.client import Client
from ingestd.client.metadata import TopicPartition
from ingestd.errors import ErrorCode, KafkaError, UnsupportedVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from harness.cluster import KafkaCluster

PATIENT = 30.0


@pytest.fixture
async def admin(kafka_of_release: KafkaCluster) -> AsyncIterator[ClusterAdmin]:
    async with Client(kafka_of_release.bootstrap) as client:
        yield ClusterAdmin(client)


async def test_groups_and_their_offsets(kafka_of_release: KafkaCluster, admin: ClusterAdmin) -> None:
    release, group = kafka_of_release.release, f"group-{uuid4()}"
    topic = kafka_of_release.create_topic(partitions=2)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka_of_release.servers, "group.id": group, "client.id": "reader",
         "enable.auto.commit": False} | ({"broker.version.fallback": "0.10.2"} if release == "0.10" else {})
    )  # fmt: skip
    consumer.subscribe([topic])
    deadline = time.monotonic() + PATIENT
    while not consumer.assignment():
        await asyncio.to_thread(consumer.poll, 0.1)
        assert time.monotonic() < deadline
    described, missing = await admin.describe_groups([group, f"missing-{uuid4()}"])
    assert (described.type, described.state, described.protocol_type) == ("classic", "Stable", "consumer")
    (member,) = described.members
    assert (member.client_id, member.subscription) == ("reader", (topic,))
    assert set(member.assignment) == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    assert isinstance(missing.error, KafkaError)
    assert missing.error.code is ErrorCode.group_id_not_found
    assert group in {one.group_id for one in (await admin.list_groups()).items}
    if release == "0.10":
        with pytest.raises(UnsupportedVersion, match="list_groups"):
            await admin.list_groups(states=["Stable"])
    else:
        assert group in {one.group_id for one in (await admin.list_groups(states=["Stable"])).items}
    await asyncio.to_thread(consumer.close)

    outcomes = await admin.alter_group_offsets(group, {(topic, 0): 3, (topic, 1): 4})
    assert [outcome.error for outcome in outcomes] == [None, None]
    (offsets,) = await admin.list_group_offsets({group: None})
    assert {partition.partition: one.offset for partition, one in offsets.offsets.items()} == {0: 3, 1: 4}
    if release == "0.10":
        with pytest.raises(UnsupportedVersion, match="delete_groups"):
            await admin.delete_groups([group])
        return
    (deleted,) = await admin.delete_groups([group])
    assert deleted.error is None


async def test_configurations_logs_and_the_cluster(kafka_of_release: KafkaCluster, admin: ClusterAdmin) -> None:
    described = await admin.describe_cluster()
    assert [node.id for node in described.nodes] == [1]
    assert described.controller_id == 1
    assert described.cluster_id
    if kafka_of_release.release == "0.10":
        with pytest.raises(UnsupportedVersion, match="describe_configs: this broker does not have it"):
            await admin.describe_configs([ConfigResource(ResourceType.broker, "1")])
        return
    topic = kafka_of_release.create_topic()
    resource = ConfigResource(ResourceType.topic, topic)
    (altered,) = await admin.incremental_alter_configs({resource: [ConfigChange("retention.ms", "4711")]})
    assert altered.error is None
    deadline = time.monotonic() + PATIENT
    while True:
        (configs,) = await admin.describe_configs([resource], keys=["retention.ms"])
        if configs.entries["retention.ms"].value == "4711":
            break
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    (of_node,) = await admin.describe_log_dirs(partitions=[(topic, 0)])
    assert [(one.topic, one.partition) for one in of_node.log_dirs[0].replicas] == [(topic, 0)]
    (cut,) = await admin.delete_records({(topic, 0): -1})
    (first,) = await admin.list_offsets([OffsetAt(topic, 0, EARLIEST)])
    assert (cut.error, cut.first_offset) == (None, first.offset)
    (elected,) = await admin.elect_leaders([(topic, 0)])
    assert isinstance(elected.error, KafkaError)
    assert elected.error.code is ErrorCode.election_not_needed
    (moved,) = await admin.alter_partition_reassignments({(topic, 0): [1]})
    assert moved.error is None
    nobody = QuotaComponent("user", QuotaMatch.exact, f"nobody-{uuid4()}")
    assert await admin.describe_client_quotas([nobody]) == []


async def test_what_a_release_does_not_have_is_said_by_name(
    kafka_of_release: KafkaCluster, admin: ClusterAdmin
) -> None:
    if kafka_of_release.release in ("2.8", "0.10"):
        with pytest.raises(UnsupportedVersion, match="describe_quorum"):
            await admin.describe_quorum()
        with pytest.raises(UnsupportedVersion, match="list_transactions"):
            await admin.list_transactions()
    if kafka_of_release.release == "2.8":
        with pytest.raises(KafkaError) as refused:
            await admin.describe_acls(AclFilter())
        assert refused.value.code is ErrorCode.security_disabled
    if kafka_of_release.release != "current":
        with pytest.raises(UnsupportedVersion, match="list_config_resources"):
            await admin.list_config_resources([ResourceType.topic])
    if kafka_of_release.release == "0.10":
        with pytest.raises(UnsupportedVersion, match="create_topics"):
            await admin.create_topics([NewTopic("t", 1, 1)])
