"""The roles of a cluster's brokers and the questions that metadata answers."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from ingestd.checks import parse_address
from ingestd.client.client import Client, CoordinatorKind
from ingestd.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from ingestd.client.pushed import PushedMetadata
from ingestd.errors import Closed, DeadlineExceeded, ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("address", "parsed"),
    [("kafka-1:9092", ("kafka-1", 9092)), ("[::1]:1", ("::1", 1)), ("10.0.0.1:65535", ("10.0.0.1", 65535))],
)
def test_bootstrap_addresses_are_host_and_port(address: str, parsed: tuple[str, int]) -> None:
    assert parse_address(address) == parsed


@pytest.mark.parametrize("address", ["", "host", "host:", ":9092", "host:0", "host:65536", "host:-1", "host:٣", "[]:1"])
async def test_a_wrong_bootstrap_address_is_named(address: str) -> None:
    with pytest.raises(ValueError, match=r'bootstrap: expected ("host:port"|a port)'):
        Client([address])


async def test_no_bootstrap_address_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Client([])


async def test_the_leader_is_found_by_refreshing_and_remembered(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        assert (await client.leader("t", 1, 5)).node.id == 2
        assert (await client.leader("t", 2, 5)).node.id == 3
    assert len(cluster.metadata_requests()) == 1


async def test_the_leader_is_waited_for_while_there_is_none(cluster: Any, settings: Any) -> None:
    cluster.errors["t"] = [ErrorCode.leader_not_available] * 12
    async with Client(["one:1"], settings(metadata_attempts=2)) as client:
        assert (await client.leader("t", 0, 5)).node.id == 1


@pytest.mark.parametrize(
    ("topic", "partition", "error"),
    [("nix", 0, ErrorCode.unknown_topic_or_partition), ("t", 99, ErrorCode.unknown_topic_or_partition)],
)
async def test_an_unknown_partition_is_an_error_before_the_deadline(
    cluster: Any, settings: Any, topic: str, partition: int, error: ErrorCode
) -> None:
    async with Client(["one:1"], settings()) as client:
        async with asyncio.timeout(5):
            with pytest.raises(KafkaError) as caught:
                await client.leader(topic, partition, 3600)
    assert caught.value.code is error


async def test_no_leader_until_the_deadline_is_an_error(cluster: Any, settings: Any) -> None:
    cluster.errors["t"] = [ErrorCode.leader_not_available] * 1000
    async with Client(["one:1"], settings()) as client:
        with pytest.raises(KafkaError) as caught:
            await client.leader("t", 0, 0.05)
    assert caught.value.code is ErrorCode.leader_not_available


async def test_a_forbidden_topic_is_an_error_at_once(cluster: Any, settings: Any) -> None:
    cluster.errors["t"] = [ErrorCode.topic_authorization_failed] * 2
    async with Client(["one:1"], settings()) as client:
        with pytest.raises(KafkaError) as caught:
            await client.leader("t", 0, 3600)
    assert caught.value.code is ErrorCode.topic_authorization_failed
    assert len(cluster.metadata_requests()) == 1


async def test_the_controller_is_refreshed_while_it_is_unknown(cluster: Any, settings: Any) -> None:
    cluster.controller = -1
    async with Client(["one:1"], settings()) as client:
        finding = asyncio.create_task(client.controller(5))
        while len(cluster.metadata_requests()) < 2:
            await asyncio.sleep(0.001)
        cluster.controller = 3
        assert (await finding).node.id == 3
        before = len(cluster.metadata_requests())
        assert (await client.controller(5)).node.id == 3
        assert len(cluster.metadata_requests()) == before


async def test_a_controller_that_nobody_names_is_an_error(cluster: Any, settings: Any) -> None:
    cluster.controller = -1
    async with Client(["one:1"], settings()) as client:
        with pytest.raises(KafkaError) as caught:
            await client.controller(0.03)
    assert caught.value.code is ErrorCode.not_controller


async def test_a_coordinator_is_looked_up_until_it_is_there_and_then_remembered(cluster: Any, settings: Any) -> None:
    cluster.coordinators = [ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress, 2, 3]
    async with Client(["one:1"], settings()) as client:
        first = await client.coordinator("group", CoordinatorKind.group, 5)
        assert await client.coordinator("group", CoordinatorKind.group, 5) is first
        assert first.node.id == 2
        client.forget_coordinator("group", CoordinatorKind.group)
        assert (await client.coordinator("group", CoordinatorKind.group, 5)).node.id == 3


async def test_a_coordinator_lookup_that_is_refused_is_an_error_at_once(cluster: Any, settings: Any) -> None:
    cluster.coordinators = [ErrorCode.group_authorization_failed]
    async with Client(["one:1"], settings()) as client:
        with pytest.raises(KafkaError) as caught:
            await client.coordinator("group", CoordinatorKind.group, 3600)
    assert caught.value.code is ErrorCode.group_authorization_failed


async def test_there_is_one_broker_object_for_each_node_and_purpose(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh(["t"], 5)
        assert client.broker(1, "produce") is client.broker(1, "produce")
        assert client.broker(1, "produce") is not client.broker(1, "fetch")
        with pytest.raises(KafkaError) as caught:
            client.broker(99)
    assert caught.value.code is ErrorCode.broker_not_available


async def test_a_client_that_knows_nothing_yet_says_so(settings: Any) -> None:
    async with Client([], settings(), metadata=Upward().source()) as client:
        with pytest.raises(KafkaError) as caught:
            await client.any()
    assert caught.value.code is ErrorCode.broker_not_available
    assert caught.value.retriable


async def test_administration_does_not_share_connections_with_metadata(cluster: Any, settings: Any) -> None:
    """Creating a topic may take the broker seconds, and it answers the requests of one connection in turn."""
    async with Client(["one:1"], settings()) as client:
        controller = await client.controller(5, purpose="administration")
        assert controller is not client.broker(controller.node.id)
        assert await client.any(purpose="administration") is not await client.any()


async def test_questions_about_partitions_are_answered_from_one_refresh_in_order(cluster: Any, settings: Any) -> None:
    cluster.topics["t"] = {2: (3, 0), 0: (1, 0), 1: (-1, 0)}
    async with Client(["one:1"], settings()) as client:
        assert await client.partitions("t", 5) == [0, 1, 2]
        assert await client.writable_partitions("t", 5) == [0, 2]
        assert await client.replicas("t", 1, 5) == [1, 2, 3]
        assert await client.in_sync_replicas("t", 1, 5) == [1, 2]
        assert await client.offline_replicas("t", 1, 5) == [3]
        with pytest.raises(KafkaError):
            await client.replicas("t", 3, 5)
    assert len(cluster.metadata_requests()) == 2  # the second for the partition that was missing


async def test_a_partition_that_an_answer_left_out_stands_there_without_a_leader(cluster: Any, settings: Any) -> None:
    cluster.topics["t"] = {0: (1, 0), 2: (3, 0)}
    async with Client(["one:1"], settings(metadata_attempts=1)) as client:
        assert await client.partitions("t", 5) == [0, 1, 2]
        assert await client.writable_partitions("t", 5) == [0, 2]


async def test_a_hint_brings_no_failed_node_back(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh(["t"], 5)
        for node_id in (2, 3):
            client._brokers.deregister(client.broker(node_id), "failed")
        client.metadata.hint("t", 0, 2, 6)
        assert client.metadata.snapshot.partition("t", 0).leader == 2
        nodes_and_first_seed = itertools.islice(client._brokers.candidates(), 2)
        assert [broker.node.id for broker in nodes_and_first_seed] == [1, -2]


async def test_a_node_that_is_gone_is_deregistered_and_one_that_moved_follows(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh(["t"], 5)
        gone, moved = client.broker(2, "produce"), client.broker(3, "produce")
        connections: list[Any] = [await gone.connection(1), await moved.connection(1)]
        cluster.nodes = {1: "one:1", 3: "three:4"}
        await client.metadata.refresh(["t"], 5)
        assert [connection.closed for connection in connections] == [True, True]
        assert client.broker(3, "produce") is moved
        assert moved.node.port == 4
        with pytest.raises(KafkaError):
            client.broker(2, "produce")


async def test_a_metadata_source_that_does_not_end_keeps_no_connection_open(cluster: Any, settings: Any) -> None:
    class Stuck(PushedMetadata):
        async def close(self) -> None:
            await asyncio.get_running_loop().create_future()

    source = Stuck(lambda _topics, _reason: None, lambda *_: None)
    client = Client(["one:1"], settings(), metadata=source)
    await (await client.any()).connection(5)
    with pytest.raises(DeadlineExceeded):
        await client.close(0.05)
    assert [connection.closed for connection in cluster.connections] == [True]


async def test_close_is_prompt_and_final(cluster: Any, settings: Any) -> None:
    client = Client(["one:1"], settings())
    broker = await client.leader("t", 0, 5)
    cluster.hanging = set(cluster.nodes.values())
    async with asyncio.timeout(1):
        await client.close()
        await client.close()
    with pytest.raises(Closed):
        await client.partitions("t", 1)
    with pytest.raises(Closed):
        client.broker(1, "another")
    with pytest.raises((Closed, ConnectionError)):
        await broker.connection(1)
    assert all(connection.closed for connection in cluster.connections)


def snapshot(version: int = 1, leader: int = 1, epoch: int = 0) -> ClusterMetadata:
    nodes = {number: Node(number, f"node-{number}", number) for number in (1, 2)}
    topics = {"t": TopicMetadata("t", None, (PartitionMetadata(0, leader, epoch, (1, 2), (1,)),))}
    return ClusterMetadata("cluster", 1, nodes, topics, version)


class Upward:
    """What a worker passes on to its supervisor."""

    def __init__(self) -> None:
        self.wanted: list[tuple[list[str], str]] = []
        self.hints: list[tuple[Any, ...]] = []

    def source(self, **more: Any) -> PushedMetadata:
        return PushedMetadata(
            lambda topics, reason: self.wanted.append((list(topics), reason)),
            lambda *hint: self.hints.append(hint),
            **more,
        )


async def test_pushed_metadata_serves_the_roles_without_a_request(cluster: Any, settings: Any) -> None:
    upward = Upward()
    source = upward.source()
    async with Client(["one:1"], settings(), metadata=source) as client:
        leader = asyncio.create_task(client.leader("t", 0, 5))
        await asyncio.sleep(0)
        source.push(snapshot())
        assert (await leader).node.host == "node-1"
        assert (await client.controller(5)).node.id == 1
    assert upward.wanted == [(["t"], "refresh")]
    assert cluster.asked == []


async def test_a_storm_of_wishes_is_passed_on_once_until_the_next_push() -> None:
    upward = Upward()
    source = upward.source(repeat=60.0)
    for _ in range(100):
        source.wanted(["t"], "not leader")
    source.wanted(["t", "u"], "missing")
    assert upward.wanted == [(["t"], "not leader"), (["u"], "missing")]
    source.push(snapshot())
    source.wanted(["t"], "not leader")
    assert upward.wanted[2:] == [(["t"], "not leader")]


async def test_refreshing_everything_pushed_wishes_for_every_topic_known() -> None:
    upward = Upward()
    source = upward.source()
    for version in (1, 2):
        waiting = asyncio.create_task(source.refresh(None, 5))
        await asyncio.sleep(0)
        source.push(snapshot(version=version))
        await waiting
    assert upward.wanted == [([], "refresh"), (["t"], "refresh")]


async def test_a_wish_is_repeated_when_no_push_comes() -> None:
    upward = Upward()
    source = upward.source(repeat=0.0)
    source.wanted(["t"], "a")
    source.wanted(["t"], "b")
    assert [reason for _, reason in upward.wanted] == ["a", "b"]


async def test_a_hint_counts_at_once_is_passed_on_and_outlives_an_older_push() -> None:
    upward = Upward()
    source = upward.source()
    source.push(snapshot(leader=1, epoch=4))
    source.hint("t", 0, 2, 5)
    source.hint("t", 0, 2, 5)
    assert source.snapshot.leader("t", 0) == Node(2, "node-2", 2)
    source.push(snapshot(version=9, leader=1, epoch=4))
    assert source.snapshot.leader("t", 0) == Node(2, "node-2", 2)
    source.push(snapshot(version=10, leader=1, epoch=6))
    assert source.snapshot.leader("t", 0) == Node(1, "node-1", 1)
    assert upward.hints == [("t", 0, 2, 5)]


async def test_closing_ends_those_who_wait_for_a_push() -> None:
    source = Upward().source()
    waiting = asyncio.create_task(source.refresh(["t"], 60))
    await asyncio.sleep(0)
    await source.close()
    with pytest.raises(Closed):
        await waiting
