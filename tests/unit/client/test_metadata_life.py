"""Metadata over time: silent brokers, topics that nobody uses any more, new leaders on nodes nobody knew."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingestd.client.client import Client
from ingestd.client.metadata import Node
from ingestd.client.pushed import PushedMetadata
from ingestd.errors import DeadlineExceeded


async def refreshed(client: Client) -> None:
    """Wait for the next replacement of the snapshot by a periodic refresh."""
    changed = asyncio.Event()
    stop = client.metadata.listen(lambda _: changed.set(), tuple)
    await asyncio.wait_for(changed.wait(), 5)
    stop()


async def test_a_silent_broker_holds_a_refresh_up_for_the_hedge_only(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings(metadata_hedge=0.02, metadata_request_timeout=60)) as client:
        await client.metadata.refresh(["t"], 5)
        cluster.hanging = {"one:1", "two:2"}
        snapshot = await client.metadata.refresh(["t"], 5)
        assert snapshot.topics["t"].partitions
        cluster.hanging = {"one:1", "two:2", "three:3"}
        task = asyncio.create_task(client.metadata.refresh(["t"], 60))
        while len({address for address, _ in cluster.metadata_requests()}) < 3:
            await asyncio.sleep(0.01)
        task.cancel()
    assert all(connection.in_flight == 0 for connection in cluster.connections)


async def test_a_silent_broker_is_not_given_up_before_its_time(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings(metadata_hedge=0.001)) as client:
        cluster.gate = asyncio.Event()
        asking = asyncio.create_task(client.metadata.refresh(["t"], 5))
        while not cluster.asked:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)  # several hedges long; there is nobody else to ask
        cluster.gate.set()
        assert (await asking).topics["t"].partitions
    assert len(cluster.metadata_requests()) == 1


async def test_an_only_broker_that_is_silent_is_asked_in_every_round_and_named_as_the_reason(
    cluster: Any, settings: Any
) -> None:
    cluster.hanging = {"one:1"}
    async with Client(["one:1"], settings(metadata_hedge=0.02, metadata_request_timeout=1)) as client:
        for seconds in (1.5, 2.5, 3.5):
            with pytest.raises(DeadlineExceeded, match="one:1: not answered within 1 s"):
                await client.metadata.refresh(["t"], seconds)
        assert len(cluster.metadata_requests()) == len(cluster.connects) > 5


async def test_a_topic_that_nobody_uses_is_forgotten_when_it_is_idle(cluster: Any, settings: Any) -> None:
    cluster.topics["u"] = {0: (1, 0)}
    async with Client(["one:1"], settings(metadata_max_age=0.02, metadata_idle=0.05)) as client:
        used = ["t"]
        stop = client.metadata.listen(lambda _: None, lambda: used)
        await client.metadata.refresh(["t", "u"], 5)
        while "u" in client.metadata.snapshot.topics:
            await refreshed(client)
        await refreshed(client)
        assert cluster.metadata_requests()[-1][1] == ["t"]
        assert client.metadata.snapshot.topics["t"].partitions
        stop()
        while client.metadata.snapshot.topics:
            await refreshed(client)
        assert await client.partitions("u", 5) == [0]  # asked for again, it is there again


async def test_a_topic_that_was_forgotten_while_its_answer_was_under_way_is_forgotten_again(
    cluster: Any, settings: Any
) -> None:
    cluster.topics["u"] = {0: (1, 0)}
    async with Client(["one:1"], settings(metadata_max_age=0.05, metadata_idle=0.02)) as client:
        await client.metadata.refresh(["u"], 5)
        cluster.gate = asyncio.Event()
        under_way = asyncio.create_task(client.metadata.refresh(None, 5))
        while "u" in client.metadata.snapshot.topics:
            await refreshed(client)
        cluster.gate.set()
        assert "u" in (await under_way).topics
        async with asyncio.timeout(5):
            while "u" in client.metadata.snapshot.topics:
                await refreshed(client)
        await refreshed(client)
        assert cluster.metadata_requests()[-1][1] == []


async def test_a_listener_that_does_not_say_what_it_uses_keeps_everything(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings(metadata_max_age=0.01, metadata_idle=0.0)) as client:
        client.metadata.listen(lambda _: None)
        await client.metadata.refresh(["t"], 5)
        for _ in range(5):
            await refreshed(client)
        assert "t" in client.metadata.snapshot.topics


async def test_a_leader_on_a_node_nobody_knew_is_reached_at_the_address_the_answer_gave(
    cluster: Any, settings: Any
) -> None:
    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh(["t"], 5)
        before = len(cluster.metadata_requests())
        client.metadata.hint("t", 0, 9, 6, Node(9, "nine", 9))
        leader = await client.leader("t", 0, 5)
        assert (leader.node.id, leader.node.host) == (9, "nine")
        assert len(cluster.metadata_requests()) == before


async def test_a_topic_made_anew_has_another_id_and_its_epochs_start_over(cluster: Any, settings: Any) -> None:
    from uuid import UUID

    cluster.ranges[3] = (0, 12)
    cluster.topic_ids["t"] = UUID(int=1)
    async with Client(["one:1"], settings()) as client:
        first = await client.metadata.refresh(["t"], 5)
        assert first.topics["t"].topic_id == UUID(int=1)
        cluster.topic_ids["t"] = UUID(int=2)
        cluster.topics["t"] = {0: (2, 0)}
        again = await client.metadata.refresh(["t"], 5)
        assert again.topics["t"].topic_id == UUID(int=2)
        assert (again.topics["t"].partitions[0].leader, again.topics["t"].partitions[0].leader_epoch) == (2, 0)


async def test_a_worker_applies_the_address_of_a_new_leader_and_passes_the_hint_on() -> None:
    from ingestd.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata

    passed: list[tuple[Any, ...]] = []
    source = PushedMetadata(lambda *_: None, lambda *hint: passed.append(hint))
    topic = TopicMetadata("t", None, (PartitionMetadata(0, 1, 5, (1,), (1,)),))
    source.push(ClusterMetadata(nodes={1: Node(1, "one", 1)}, topics={"t": topic}, version=1))
    source.hint("t", 0, 9, 6, Node(9, "nine", 9))
    assert source.snapshot.leader("t", 0) == Node(9, "nine", 9)
    assert passed == [("t", 0, 9, 6)]


async def test_a_preferred_leader_is_the_first_replica(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        assert (await client.preferred_leader("t", 2, 5)).node.id == 1
        assert (await client.leader("t", 2, 5)).node.id == 3


async def test_all_leaders_of_an_answer_cost_one_replacement(cluster: Any, settings: Any) -> None:
    from ingestd.client.metadata import NewLeader

    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh(["t"], 5)
        heard: list[int] = []
        client.metadata.listen(lambda now: heard.append(now.version))
        client.metadata.hints([NewLeader("t", number, 2, 6) for number in range(3)])
        assert len(heard) == 1
        assert {client.metadata.snapshot.leader("t", number).id for number in range(3)} == {2}  # type: ignore[union-attr]
        client.metadata.hints([NewLeader("t", 0, 1, 5)])
        assert len(heard) == 1
