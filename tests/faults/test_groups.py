"""Consumer groups while brokers die and hang: every record is handled, and every close ends in time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from harness.members import Team, produce

from ingestd.client.client import Client, CoordinatorKind
from ingestd.consumer.group.settings import GroupProtocol

if TYPE_CHECKING:
    from harness.cluster import KafkaCluster


async def coordinator_of(kafka: KafkaCluster, group_id: str) -> int:
    async with Client(kafka.bootstrap) as client:
        return (await client.coordinator(group_id, CoordinatorKind.group)).node.id


@pytest.mark.parametrize(
    "settings",
    [{"assignors": ("cooperative-sticky",)}, {"protocol": GroupProtocol.consumer}],
    ids=["cooperative", "kip848"],
)
async def test_a_group_goes_on_when_its_coordinator_is_killed(kafka3: KafkaCluster, settings: dict[str, Any]) -> None:
    name = await asyncio.to_thread(kafka3.create_topic, partitions=6)
    async with Team(kafka3.servers, name, [name], session_timeout=6.0, **settings) as team:
        team.join()
        team.join()
        await team.settled(name, 6)
        producing = asyncio.create_task(asyncio.to_thread(produce, kafka3.servers, name, 3_000, 6))
        await team.until(lambda: len(team.handled) > 100, "it has begun")
        await asyncio.to_thread(kafka3.kill, await coordinator_of(kafka3, name))
        await producing
        await asyncio.to_thread(produce, kafka3.servers, name, 3_000, 6, first=3_000)
        await team.handled_all(6_000)
        await team.settled(name, 6)
        lost = [told for member in team.members for told in member.told if told[0] == "lost"]
    if not lost:  # as long as nobody was taken for dead, nothing is handled twice
        assert set(team.handled.values()) == {1}
    async with Team(kafka3.servers, name, [name], session_timeout=6.0, **settings) as again:
        again.join()
        await asyncio.to_thread(produce, kafka3.servers, name, 6, 6, first=6_000)
        await again.handled_all(6)
    assert set(again.handled.values()) == {1}
    assert len(again.handled) == 6  # all that was handled before is committed


async def test_a_group_goes_on_when_its_coordinator_hangs(kafka3: KafkaCluster) -> None:
    name = await asyncio.to_thread(kafka3.create_topic, partitions=6)
    async with Team(kafka3.servers, name, [name], session_timeout=6.0, request_timeout=3.0) as team:
        team.join()
        team.join()
        await team.settled(name, 6)
        await asyncio.to_thread(produce, kafka3.servers, name, 600, 6)
        await team.handled_all(600)
        frozen = await coordinator_of(kafka3, name)
        kafka3.freeze(frozen)
        await asyncio.to_thread(produce, kafka3.servers, name, 600, 6, first=600)
        await team.handled_all(1_200)
        async with asyncio.timeout(60):
            while await coordinator_of(kafka3, name) == frozen:
                await asyncio.sleep(0.1)
        await team.settled(name, 6)
        for member in team.members:
            assert member.group.session is not None
            await member.group.session.commit()


async def test_closing_ends_in_time_when_every_broker_hangs(kafka3: KafkaCluster) -> None:
    name = await asyncio.to_thread(kafka3.create_topic, partitions=6)
    await asyncio.to_thread(produce, kafka3.servers, name, 600, 6)
    member = (team := Team(kafka3.servers, name, [name])).join()
    await team.handled_all(600)
    for node_id in kafka3.nodes:
        kafka3.freeze(node_id)
    started = time.monotonic()
    await member.close(2.0)
    assert time.monotonic() - started < 15.0  # far less than a request's timeout
    assert member.told[-1] == ("cleanup", [])


async def test_joining_and_closing_without_any_broker_ends_in_time() -> None:
    team = Team("127.0.0.1:1", "nobody", ["t"])
    member = team.join()
    await asyncio.sleep(0.3)
    started = time.monotonic()
    await member.close(1.0)
    assert time.monotonic() - started < 15.0
    assert member.told == []
