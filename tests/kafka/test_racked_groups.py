"""Groups whose members and brokers are in racks (KIP-881, KIP-392): each member has and reads what is near."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from harness.group_members import JavaMember, LibrdkafkaMember, OurMember, Place, settled
from harness.group_members import Member as GroupMember
from harness.java_programs import JavaProgram, java_program
from harness.members import Member, Team, produce

from ingestd.client.admin import ClusterAdmin
from ingestd.client.client import Client
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.settings import GroupProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import KafkaCluster

RACKS = ("rack-1", "rack-2", "rack-3")
NEAR = [3, 1, 2, 2, 3, 1, 1, 3, 2, 1, 2, 3]
"""For each partition the node of its one replica: no order of members shares these by rack without looking."""


def near(topic: str, rack: str) -> set[TopicPartition]:
    """The partitions whose one replica is in this rack."""
    return {TopicPartition(topic, number) for number, node in enumerate(NEAR) if rack == f"rack-{node}"}


def read_from(member: Member) -> dict[int, int | None]:
    """For each partition that a member claims the node that it is fetched from."""
    partitions = member.client.status().sections["consumer"]["partitions"]
    return {key.partition: partitions[str(key)]["node"] for key in member.claims}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    with java_program("Members", tmp_path_factory.mktemp("java")) as running:
        yield running


@pytest.mark.parametrize("assignor", ["range", "sticky", "cooperative-sticky"])
async def test_every_member_has_the_partitions_of_its_rack_and_again_when_it_comes_back(
    racks: KafkaCluster, assignor: str
) -> None:
    name = await asyncio.to_thread(racks.create_topic, replicas=[[node] for node in NEAR])
    async with Team(racks.servers, name, [name], assignors=(assignor,)) as team:
        members = {rack: team.join(rack=rack) for rack in RACKS}

        async def until_near() -> None:
            await team.until(lambda: all(member.claims == near(name, rack) for rack, member in members.items()), "near")

        await until_near()
        await asyncio.to_thread(produce, racks.servers, name, 1_200, 12)
        await team.handled_all(1_200)
        await team.leave(members.pop("rack-2"))
        await team.settled(name, 12)
        assert all(member.claims >= near(name, rack) for rack, member in members.items())
        members["rack-2"] = team.join(rack="rack-2")
        await until_near()
        await asyncio.to_thread(produce, racks.servers, name, 1_200, 12, first=1_200)
        await team.handled_all(2_400)
    assert set(team.handled.values()) == {1}


async def test_replicas_that_move_to_another_rack_are_shared_anew_and_a_restarted_node_is_not(
    racks: KafkaCluster,
) -> None:
    name = await asyncio.to_thread(racks.create_topic, replicas=[[1, 3], [2, 3], [1, 3], [2, 3]])
    async with Team(racks.servers, name, [name], assignors=("range",)) as team:
        first, second = team.join(rack="rack-1"), team.join(rack="rack-2")

        def have(ours: set[int], theirs: set[int]) -> bool:
            wanted = [{TopicPartition(name, number) for number in numbers} for numbers in (ours, theirs)]
            return [first.claims, second.claims] == wanted

        await team.until(lambda: have({0, 2}, {1, 3}), "everybody is near")
        generations = [len(member.ends) for member in team.members]
        await asyncio.to_thread(racks.kill, 3)
        async with asyncio.timeout(60):
            while any(3 in member.client.metadata.snapshot.nodes for member in team.members):
                await asyncio.gather(*(member.client.metadata.refresh([name], 30) for member in team.members))
                await asyncio.sleep(0.1)
        await asyncio.to_thread(racks.start, 3)
        await asyncio.to_thread(racks.wait_in_sync, name)
        for member in team.members:
            assert 3 in (await member.client.metadata.refresh([name], 30)).nodes
        assert [len(member.ends) for member in team.members] == generations
        moves = {(name, 0): [2, 3], (name, 1): [1, 3]}
        outcomes = await ClusterAdmin(first.client).alter_partition_reassignments(moves)
        assert [outcome.error for outcome in outcomes] == [None, None]
        await team.until(lambda: have({1, 2}, {0, 3}), "everybody is near again")


@pytest.mark.parametrize("protocol", list(GroupProtocol), ids=lambda protocol: protocol.name)
async def test_each_member_reads_from_the_replica_in_its_rack_and_from_the_leader_when_that_dies(
    racks: KafkaCluster, protocol: GroupProtocol
) -> None:
    # Each partition is led from the rack after the one that shall read it.
    replicas = [(node % 3 + 1, node) for node in NEAR]
    name = await asyncio.to_thread(racks.create_topic, replicas=replicas)
    async with Team(racks.servers, name, [name], protocol=protocol) as team:
        members = {rack: team.join(rack=rack) for rack in RACKS}
        await team.settled(name, 12)
        for first in range(0, 1_200, 120):
            await asyncio.to_thread(produce, racks.servers, name, 120, 12, first=first)
            await team.handled_all(first + 120)
        if protocol is GroupProtocol.consumer:
            (described,) = await ClusterAdmin(members["rack-1"].client).describe_groups([name])
            assert sorted(member.rack or "" for member in described.members) == list(RACKS)

        def read_near() -> bool:
            """A partition whose replica was late once is read from its leader for some seconds."""
            return all(
                source == (int(rack[-1]) if int(rack[-1]) in replicas[partition] else replicas[partition][0])
                for rack, member in members.items()
                for partition, source in read_from(member).items()
            )

        await team.until(read_near, "everybody reads from the replica in its rack")
        await asyncio.to_thread(racks.kill, 2)
        await asyncio.to_thread(produce, racks.servers, name, 1_200, 12, first=1_200)
        await team.handled_all(2_400)
        lost = [told for member in team.members for told in member.told if told[0] == "lost"]
    if not lost:
        assert set(team.handled.values()) == {1}


@pytest.mark.parametrize("other", ["java", "librdkafka"])
async def test_with_others_members_everybody_is_near_whoever_leads(
    racks: KafkaCluster, java: JavaProgram, other: str
) -> None:
    name = await asyncio.to_thread(racks.create_topic, replicas=[[node] for node in NEAR])
    place = Place(racks.servers, f"racked with {other}", {name: len(NEAR)}, "range")

    def member(kind: str, rack: str) -> GroupMember:
        if kind == "ours":
            return OurMember(place, client, rack=rack)
        return JavaMember(place, java, rack=rack) if kind == "java" else LibrdkafkaMember(place, rack=rack)

    async with Client(racks.bootstrap) as client:
        for first, second in [("ours", other), (other, "ours")]:
            OurMember.led = OurMember.followed = 0
            members = [member(first, "rack-3"), member(second, "rack-1"), member("ours", "rack-2")]
            for joining in members:
                await joining.join()
                await settled(place, members[: members.index(joining) + 1])
            assert await settled(place, members) == [near(name, one.rack) for one in members]
            for leaving in members:
                await leaving.leave()
            assert OurMember.led >= 1 if first == "ours" else OurMember.followed >= 1
