"""The client against real Apache Kafka: versions, roles, administration, and nodes that die, freeze and come back."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from harness.news import partitions_of_new

from ingestd.client.admin import (
    EARLIEST,
    LATEST,
    ClusterAdmin,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from ingestd.client.client import Client, CoordinatorKind
from ingestd.client.settings import ClientSettings
from ingestd.errors import ConnectionLost, ErrorCode, KafkaError
from ingestd.records.batch import patch_producer, split_batches
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import decode_records
from ingestd.wire import fetch, produce
from ingestd.wire.apis import Api
from ingestd.wire.connection import ConnectionSettings
from ingestd.wire.requests import OffsetAt

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster

    from ingestd.wire.connection import Connection

PATIENT = 30.0


def batch_of(*values: bytes, timestamp_ms: int | None = None) -> memoryview:
    builder = BatchBuilder(1 << 20)
    for value in values:
        builder.append(None, value, (), timestamp_ms or time.time_ns() // 1_000_000)
    batch = memoryview(builder.build(Compression(Codec.none)))
    patch_producer(batch, -1, -1, -1)
    return batch


async def put(
    connection: Connection, version: int, topic: str, topic_id: Any, batch: memoryview
) -> produce.ProduceAnswer:
    body = produce.produce_request(version, -1, 10_000, None, [(topic, topic_id, [(0, batch)])])
    return produce.read_produce_answer(version, await connection.send(Api.produce, version, body, timeout=PATIENT))


async def test_every_version_of_produce_and_fetch_that_the_broker_speaks_carries_records(
    kafka: KafkaCluster, topic: Callable[..., str], read_back: Callable[..., dict[int, list[bytes]]]
) -> None:
    name = topic()
    async with Client(kafka.bootstrap) as client:
        connection = await (await client.leader(name, 0, PATIENT)).connection(PATIENT)
        topic_id = client.metadata.snapshot.topics[name].topic_id
        newest = connection.versions.pick(Api.produce, produce.LOWEST, 13)
        sent = []
        for version in range(produce.FIRST_WITH_BATCHES, newest + 1):  # it claims older ones too, for librdkafka's sake
            sent.append(b"produced in version %d" % version)
            (answer,) = (await put(connection, version, name, topic_id, batch_of(sent[-1]))).partitions
            assert (answer.error, answer.base_offset) == (ErrorCode.none, len(sent) - 1)
        lowest = connection.versions.ranges[Api.fetch][0]
        for version in range(lowest, connection.versions.pick(Api.fetch, lowest, fetch.HIGHEST) + 1):
            body = fetch.fetch_request(
                version, [(name, topic_id, [fetch.FetchPartition(0, 0)])], max_wait_ms=1000, session_epoch=-1
            )
            given = await connection.send(Api.fetch, version, body, timeout=PATIENT)
            (partition,) = fetch.read_fetch_response(version, given).partitions
            assert (partition.error, partition.high_watermark) == (ErrorCode.none, len(sent))
            records = itertools.chain.from_iterable(map(decode_records, split_batches(partition.records)))
            assert [bytes(record.value or b"") for record in records] == sent
    assert read_back(name) == {0: sent}


async def test_a_fetch_session_answers_only_what_is_new(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(partitions=2)
    async with Client(kafka.bootstrap) as client:
        connection = await (await client.leader(name, 0, PATIENT)).connection(PATIENT)
        topic_id = client.metadata.snapshot.topics[name].topic_id
        version = connection.versions.pick(Api.fetch, fetch.FIRST_WITH_TOPIC_ID, fetch.HIGHEST)

        async def ask(*partitions: fetch.FetchPartition, **session: int) -> fetch.FetchAnswer:
            topics = [(name, topic_id, partitions)] if partitions else []
            body = fetch.fetch_request(version, topics, max_wait_ms=100, **session)
            return fetch.read_fetch_response(version, await connection.send(Api.fetch, version, body, timeout=PATIENT))

        full = await ask(fetch.FetchPartition(0, 0), fetch.FetchPartition(1, 0), session_epoch=0)
        assert full.session_id != 0
        assert len(full.partitions) == 2
        unchanged = await ask(session_id=full.session_id, session_epoch=1)
        assert unchanged.error is ErrorCode.none
        assert not any(partition.records for partition in unchanged.partitions)
        await put(connection, 12, name, topic_id, batch_of(b"new"))
        (news,) = (await ask(session_id=full.session_id, session_epoch=2)).partitions
        assert (news.partition, len(news.records) > 0) == (0, True)


async def test_produce_without_acknowledgement_is_done_when_sent(
    kafka: KafkaCluster, topic: Callable[..., str], read_back: Callable[..., dict[int, list[bytes]]]
) -> None:
    name = topic()
    async with Client(kafka.bootstrap) as client:
        connection = await (await client.leader(name, 0, PATIENT)).connection(PATIENT)
        body = produce.produce_request(9, 0, 10_000, None, [(name, None, [(0, batch_of(b"unasked"))])])
        assert len(await connection.send(Api.produce, 9, body, timeout=PATIENT, expect_answer=False)) == 0
        (answer,) = (await put(connection, 9, name, None, batch_of(b"asked"))).partitions
        assert answer.base_offset == 1
    assert read_back(name) == {0: [b"unasked", b"asked"]}


async def test_an_answer_beyond_the_limit_ends_the_connection_and_the_next_one_works(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    settings = ClientSettings(connection=ConnectionSettings(answer_limit=20_000))
    async with Client(kafka.bootstrap, settings) as client:
        broker = await client.leader(name, 0, PATIENT)
        connection = await broker.connection(PATIENT)
        await put(connection, 9, name, None, batch_of(b"x" * 50_000))
        body = fetch.fetch_request(12, [(name, None, [fetch.FetchPartition(0, 0)])], max_wait_ms=1000)
        with pytest.raises(ConnectionLost, match="the limit is 20000"):
            await connection.send(Api.fetch, 12, body, timeout=PATIENT)
        assert await broker.connection(PATIENT) is not connection


async def test_roles_and_partitions_are_answered_by_one_node(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(partitions=3)
    async with Client(kafka.bootstrap) as client:
        assert (await client.any()).node.id < 0
        assert await client.partitions(name, PATIENT) == [0, 1, 2]
        assert await client.writable_partitions(name) == [0, 1, 2]
        assert await client.replicas(name, 1) == await client.in_sync_replicas(name, 1) == [1]
        assert await client.offline_replicas(name, 1) == []
        assert (await client.any()).node.id == 1
        assert (await client.controller(PATIENT)).node.id == 1
        assert (await client.leader(name, 2, PATIENT)) is client.broker(1)
        for kind in CoordinatorKind:
            coordinator = await client.coordinator(f"key-{uuid4()}", kind, PATIENT)
            assert coordinator.node.id == 1
            assert coordinator is not client.broker(1)
        with pytest.raises(KafkaError) as caught:
            await client.partitions("no such topic", PATIENT)
        assert caught.value.code in {ErrorCode.invalid_topic_exception, ErrorCode.unknown_topic_or_partition}


async def test_admin_creates_describes_grows_and_deletes_topics_with_an_error_for_each(kafka: KafkaCluster) -> None:
    mine, other = f"admin-{uuid4()}", f"admin-{uuid4()}"
    async with Client(kafka.bootstrap) as client:
        admin = ClusterAdmin(client)
        dry = await admin.create_topics([NewTopic(mine, 2, 1)], validate_only=True)
        assert [outcome.error for outcome in dry] == [None]
        assert mine not in await admin.list_topics()

        asked = [
            NewTopic(mine, 2, 1, {"retention.ms": "123456"}),
            NewTopic(other, assignments=[[1], [1], [1]]),
            NewTopic("bad name", 1, 1),
            NewTopic("too-many-replicas", 1, 99),
        ]
        created = {outcome.topic: outcome for outcome in await admin.create_topics(asked)}
        assert created[mine].error is None
        assert (created[mine].partitions, created[mine].topic_id is not None) == (2, True)
        errors = {name: outcome.error.code for name, outcome in created.items() if outcome.error is not None}
        assert errors == {
            "bad name": ErrorCode.invalid_topic_exception,
            "too-many-replicas": ErrorCode.invalid_replication_factor,
        }
        (again,) = await admin.create_topics([NewTopic(mine, 1, 1)])
        assert again.error is not None
        assert again.error.code is ErrorCode.topic_already_exists

        assert await partitions_of_new(client, other) == [0, 1, 2]
        grown = await admin.create_partitions([NewPartitions(mine, 5), NewPartitions(other, 1)])
        assert {outcome.topic: outcome.error and outcome.error.code for outcome in grown} == {
            mine: None,
            other: ErrorCode.invalid_partitions,
        }
        async with asyncio.timeout(PATIENT):  # the brokers hear of it a moment after the controller has done it
            while await partitions_of_new(client, mine) != [0, 1, 2, 3, 4]:
                await client.metadata.refresh([mine], PATIENT)
        assert {mine, other} <= set(await admin.list_topics())
        described = await admin.describe_topics([mine, "missing"])
        assert len(described[mine].partitions) == 5
        assert described["missing"].error is ErrorCode.unknown_topic_or_partition

        topic_configs, broker_configs = await admin.describe_configs(
            [ConfigResource(ResourceType.topic, mine), ConfigResource(ResourceType.broker, "1")],
            keys=["retention.ms", "log.retention.hours", "cleanup.policy"],
        )
        assert topic_configs.entries["retention.ms"].value == "123456"
        assert not topic_configs.entries["retention.ms"].is_default
        assert topic_configs.entries["cleanup.policy"].is_default
        assert "log.retention.hours" in broker_configs.entries

        deleted = await admin.delete_topics([mine, other, "missing"])
        assert {outcome.topic: outcome.error and outcome.error.code for outcome in deleted} == {
            mine: None,
            other: None,
            "missing": ErrorCode.unknown_topic_or_partition,
        }
        async with asyncio.timeout(PATIENT):
            while {mine, other} & set(await admin.list_topics()):
                await asyncio.sleep(0.02)


async def test_offsets_are_listed_by_end_and_by_time(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(partitions=2)
    now = time.time_ns() // 1_000_000
    async with Client(kafka.bootstrap) as client:
        connection = await (await client.leader(name, 0, PATIENT)).connection(PATIENT)
        for age in (60_000, 30_000, 0):
            await put(connection, 9, name, None, batch_of(b"a", b"b", timestamp_ms=now - age))
        listed = await ClusterAdmin(client).list_offsets(
            [
                OffsetAt(name, 0, EARLIEST),
                OffsetAt(name, 0, LATEST),
                OffsetAt(name, 0, now - 30_000),
                OffsetAt(name, 0, now + 60_000),
                OffsetAt(name, 1, LATEST),
                OffsetAt(name, 7, LATEST),
                OffsetAt("missing", 0, LATEST),
            ],
            timeout=PATIENT,
        )
    assert [item.offset for item in listed[:5]] == [0, 6, 2, -1, 0]
    assert listed[2].timestamp_ms == now - 30_000
    assert [item.error is not None for item in listed] == [False] * 5 + [True] * 2


async def test_the_cluster_describes_itself(kafka3: KafkaCluster) -> None:
    async with Client(kafka3.bootstrap) as client:
        described = await ClusterAdmin(client).describe_cluster()
        assert [node.id for node in described.nodes] == [1, 2, 3]
        assert described.controller_id in {1, 2, 3}
        assert described.cluster_id


async def test_a_storm_of_wishes_costs_the_cluster_a_handful_of_requests(
    kafka_cluster: Callable[..., KafkaCluster],
) -> None:
    cluster = kafka_cluster(log_requests=True)
    name = cluster.create_topic()
    settings = ClientSettings(connection=ConnectionSettings(client_id="storm"), metadata_minimum_interval=0.2)
    async with Client(cluster.bootstrap, settings) as client:
        await client.metadata.refresh([name], PATIENT)
        ends = time.monotonic() + 1.0
        while time.monotonic() < ends:
            client.metadata.wanted([name], "not leader")
            await asyncio.sleep(0)
    await asyncio.to_thread(cluster.wait_for_request, "storm", "Metadata", 2)
    assert cluster.requests_by_client()["storm"]["Metadata"] <= 8


@pytest.mark.timeout(300)
async def test_when_the_leader_is_killed_another_replica_is_found(kafka3: KafkaCluster) -> None:
    name = kafka3.create_topic(partitions=1, replicas=3)
    async with Client(kafka3.bootstrap) as client:
        first = await client.leader(name, 0, PATIENT)
        connection = await first.connection(PATIENT)
        assert sorted(await client.in_sync_replicas(name, 0)) == [1, 2, 3]
        before = client.metadata.snapshot.partition(name, 0)
        await asyncio.to_thread(kafka3.kill, first.node.id)
        with pytest.raises(ConnectionLost):
            await put(connection, 9, name, None, batch_of(b"lost"))

        async def moved() -> Any:
            while True:
                found = (await client.metadata.refresh([name], PATIENT)).partition(name, 0)
                if found is not None and found.leader not in {-1, first.node.id}:
                    return found
                await asyncio.sleep(0.05)

        after = await asyncio.wait_for(moved(), PATIENT)
        assert before is not None
        assert after.leader_epoch > before.leader_epoch
        second = await client.leader(name, 0, PATIENT)
        assert second.node.id == after.leader
        # The controller's news of its leadership reaches the new leader itself a little later than it reaches metadata.
        error = ErrorCode.not_leader_or_follower
        deadline = time.monotonic() + PATIENT
        while error is ErrorCode.not_leader_or_follower and time.monotonic() < deadline:
            given = await put(await second.connection(PATIENT), 9, name, None, batch_of(b"kept"))
            error = given.partitions[0].error
        assert error is ErrorCode.none
        assert first.node.id not in await client.in_sync_replicas(name, 0)
        assert await client.offline_replicas(name, 0) == [first.node.id]

        # Back again it is a follower: it refuses, and names the leader and where that is (KIP-951).
        await asyncio.to_thread(kafka3.start, first.node.id)
        await client.metadata.refresh([name], PATIENT)
        follower = client.broker(first.node.id, "produce")
        answer = await put(await follower.connection(PATIENT), 12, name, None, batch_of(b"refused"))
        (refused,) = answer.partitions
        present = client.metadata.snapshot.partition(name, 0)
        assert present is not None
        assert refused.error is ErrorCode.not_leader_or_follower
        assert (refused.leader_id, refused.leader_epoch) == (present.leader, present.leader_epoch)
        assert [node.id for node in answer.nodes] == [present.leader]
    assert kafka3.read_back(name)[0][0] == b"kept"


async def test_a_client_finds_its_way_back_after_every_node_was_down(
    kafka_cluster: Callable[..., KafkaCluster],
) -> None:
    cluster = kafka_cluster()
    name = cluster.create_topic()
    async with Client(cluster.bootstrap) as client:
        broker = await client.leader(name, 0, PATIENT)
        await put(await broker.connection(PATIENT), 9, name, None, batch_of(b"before"))
        await asyncio.to_thread(cluster.kill, 1)
        began = time.monotonic()
        with pytest.raises(ConnectionLost):
            await (await client.leader(name, 0, PATIENT)).connection(PATIENT)
        assert time.monotonic() - began < PATIENT / 2
        refreshing = asyncio.create_task(client.metadata.refresh([name], 60))
        await asyncio.to_thread(cluster.start, 1)
        await refreshing
        broker = await client.leader(name, 0, PATIENT)
        await put(await broker.connection(PATIENT), 9, name, None, batch_of(b"after"))
        await asyncio.to_thread(cluster.kill, 1)
        began = time.monotonic()
        await client.close()
        assert time.monotonic() - began < PATIENT / 2
