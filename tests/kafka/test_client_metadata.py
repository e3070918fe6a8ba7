"""Metadata and roles against real Apache Kafka, over time: topics made anew or idle, addresses that do not answer."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from harness.news import partitions_of_new

from ingestd.client.admin import ClusterAdmin, NewTopic
from ingestd.client.client import Client, CoordinatorKind
from ingestd.client.settings import ClientSettings
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.group.consumer_group import ConsumerGroup
from ingestd.consumer.group.handler import ConsumerGroupHandler
from ingestd.consumer.group.settings import GroupSettings, NoOffset
from ingestd.consumer.settings import Edge
from ingestd.errors import IngestdError
from ingestd.producer.producer import AsyncProducer
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from harness.cluster import KafkaCluster

    from ingestd.client.admin import GroupDescription
    from ingestd.consumer.group.claim import Claim
    from ingestd.consumer.group.consumer_group_session import ConsumerGroupSession

PATIENT = 30.0


async def deliver(producer: AsyncProducer, topic: str, value: bytes) -> None:
    """Send one record and wait until it is acknowledged."""
    delivered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    producer.send(topic, value, partition=0, done=delivered.set_result)
    await Deadline.after(PATIENT).wait_for(delivered, "delivery")
    assert delivered.result().error is None


async def until(holds: Callable[[], bool]) -> None:
    deadline = Deadline.after(PATIENT)
    while not holds():
        assert not deadline.expired
        await asyncio.sleep(0.02)


async def test_a_topic_made_anew_is_noticed_and_producers_go_on(
    kafka: KafkaCluster, read_back: Callable[..., dict[int, list[bytes]]]
) -> None:
    name = f"anew-{uuid4()}"
    async with Client(kafka.bootstrap) as client, AsyncProducer(client) as producer:
        admin = ClusterAdmin(client)
        (first,) = await admin.create_topics([NewTopic(name, 1, 1)])
        await partitions_of_new(client, name)
        await deliver(producer, name, b"into the first")
        assert client.metadata.snapshot.topics[name].topic_id == first.topic_id
        (deleted,) = await admin.delete_topics([name])
        assert deleted.error is None
        second = await made_again(admin, name)
        assert second != first.topic_id
        async with Client(kafka.bootstrap) as other:  # the node must have heard of it; our own client must not
            await until_known(other, name, second)
        await deliver(producer, name, b"into the second")
        await deliver(producer, name, b"and on")
        snapshot = await client.metadata.refresh([name], PATIENT)
        assert snapshot.topics[name].topic_id == second
        assert snapshot.topics[name].partitions[0].leader_epoch == 0
    assert read_back(name) == {0: [b"into the second", b"and on"]}


async def until_known(client: Client, topic: str, topic_id: Any) -> None:
    deadline = Deadline.after(PATIENT)
    while (known := (await client.metadata.refresh([topic], PATIENT)).topics.get(topic)) is None or (
        known.topic_id != topic_id
    ):
        assert not deadline.expired
        await asyncio.sleep(0.02)


async def made_again(admin: ClusterAdmin, name: str) -> Any:
    """Create a topic whose deletion may still be under way; its id."""
    deadline = Deadline.after(PATIENT)
    while True:
        (created,) = await admin.create_topics([NewTopic(name, 1, 1)])
        if created.error is None:
            return created.topic_id
        assert not deadline.expired
        await asyncio.sleep(0.05)


async def test_a_topic_that_is_idle_is_not_refreshed_any_more_and_can_be_used_again(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name, other = topic(), topic()
    settings = ClientSettings(metadata_max_age=0.1, metadata_idle=0.3)
    async with Client(kafka.bootstrap, settings) as client, AsyncProducer(client) as producer:
        await deliver(producer, name, b"one")
        await deliver(producer, other, b"one")
        beats = asyncio.create_task(keep_sending(producer, other))
        await until(lambda: client.metadata.snapshot.topics.keys() == {other})
        beats.cancel()
        await deliver(producer, name, b"two")
        await until(lambda: other not in client.metadata.snapshot.topics)


async def keep_sending(producer: AsyncProducer, topic: str) -> None:
    while True:
        await deliver(producer, topic, b"beat")


async def test_metadata_beyond_a_receive_buffer_is_read_whole(kafka: KafkaCluster) -> None:
    name = f"wide-{uuid4()}"
    async with Client(kafka.bootstrap) as client:
        admin = ClusterAdmin(client)
        (created,) = await admin.create_topics([NewTopic(name, 600, 1)])
        assert created.error is None
        assert await partitions_of_new(client, name) == list(range(600))
        (described,) = (await admin.describe_topics([name])).values()
        assert len(described.partitions) == 600
        await admin.delete_topics([name])


async def test_every_address_of_a_bootstrap_name_is_tried(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(kafka.bootstrap[0].rpartition(":")[2])
    with socket.create_server(("127.0.0.3", port)):  # takes connections, and says nothing
        original = asyncio.BaseEventLoop.getaddrinfo

        async def resolved(self: Any, host: str, port: int, **options: Any) -> Any:
            if host != "kafka.example":
                return await original(self, host, port, **options)
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
                for address in ("127.0.0.2", "127.0.0.3", "127.0.0.1")
            ]

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolved)
        settings = ClientSettings(metadata_request_timeout=2.0, connect_timeout=2.0)
        async with Client([f"kafka.example:{port}"], settings) as client:
            snapshot = await client.metadata.refresh((), PATIENT)
            assert set(snapshot.nodes) == {1}


async def test_a_frozen_node_holds_a_refresh_up_for_a_moment_only(kafka3: KafkaCluster) -> None:
    name = kafka3.create_topic(partitions=1, replicas=3)
    async with Client(kafka3.bootstrap, ClientSettings(metadata_request_timeout=60.0)) as client:
        await client.metadata.refresh([name], PATIENT)
        asked = next(client._brokers.candidates())
        await asked.connection(PATIENT)
        await asyncio.to_thread(kafka3.freeze, asked.node.id)
        await client.metadata.refresh([name], PATIENT)  # well before the request's own time is over


async def test_coordinators_of_both_kinds_are_found_together_and_remembered(kafka3: KafkaCluster) -> None:
    keys = [f"key-{uuid4()}" for _ in range(20)]
    async with Client(kafka3.bootstrap) as client:
        for kind in CoordinatorKind:
            found = await client.coordinators(keys, kind, PATIENT)
            assert not any(isinstance(broker, IngestdError) for broker in found.values())
            assert await client.coordinators(keys, kind, PATIENT) == found


async def test_the_status_is_json_and_says_how_things_are(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(partitions=3)
    async with Client(kafka.bootstrap) as client, AsyncProducer(client) as producer:
        await deliver(producer, name, b"x")
        await client.coordinator("g", CoordinatorKind.group, PATIENT)
        status = json.loads(json.dumps(client.status().as_dict()))
    assert not client.status().sections  # who has closed says nothing any more
    assert status["sections"]["producer"]["outstanding"] == 0
    assert any(broker["connected"] and broker["node_id"] == 1 for broker in status["brokers"])
    features = [broker["features"] for broker in status["brokers"] if broker["connected"]]
    assert all(known["metadata.version"] > 0 for known in features)
    assert status["metadata"]["leaders"] == {"1": 3}
    assert status["metadata"]["errors"] == {}
    assert status["coordinators"] == {"group g": 1}


async def test_producers_consumers_groups_and_administration_share_one_client(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name, group = topic(partitions=2), f"group-{uuid4()}"
    async with Client(kafka.bootstrap) as client:
        admin = ClusterAdmin(client)

        class Handler(ConsumerGroupHandler):
            async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:
                async for record in claim:
                    values.append(record.value)
                    described.extend(await admin.describe_groups([group]))
                    return  # which ends the session

        values: list[bytes | None] = []
        described: list[GroupDescription] = []
        async with (
            AsyncProducer(client) as producer,
            AsyncProducer(client) as other,
            Consumer(client) as consumer,
            ConsumerGroup(client, group, GroupSettings(no_offset=NoOffset.earliest)) as member,
        ):
            await deliver(producer, name, b"first")
            await deliver(other, name, b"second")
            partition = await consumer.consume_partition(name, 0, Edge.earliest, Edge.latest)
            assert [record.value async for record in partition] == [b"first", b"second"]
            await Deadline.after(PATIENT).wait_for(member.consume([name], Handler()), "the group's session")
        assert values == [b"first"]
        (seen,) = described
        assert {partition for one in seen.members for partition in one.assignment} == {(name, 0), (name, 1)}
        told = [broker.purpose for broker in client.status().brokers if broker.node_id >= 0]
        assert len(told) == len(set(told))  # one node: one connection for each purpose, whoever uses it
