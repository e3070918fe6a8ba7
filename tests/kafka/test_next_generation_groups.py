"""KIP-848 groups on real Kafka: members come, go, die and come back; topics grow and appear; coordinators die.

What one node can do is asked of the embedded broker too.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import NewPartitions
from harness.jars import kafka_jars as fetch_jars
from harness.members import Team, produce
from harness.releases import POMS

from ingestd.client.admin import ClusterAdmin, MemberToRemove
from ingestd.client.client import Client
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.consumer_group import ConsumerGroup
from ingestd.consumer.group.handler import ConsumerGroupHandler
from ingestd.consumer.group.membership import EndReason
from ingestd.consumer.group.next_generation import NextGenerationMembership
from ingestd.consumer.group.settings import GroupProtocol, GroupSettings, NoOffset
from ingestd.errors import ErrorCode, KafkaError, UnsupportedVersion
from ingestd.producer.producer import AsyncProducer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence

    from embedded.cluster import EmbeddedCluster
    from harness.cluster import KafkaCluster

    from ingestd.consumer.group.claim import Claim
    from ingestd.consumer.group.consumer_group_session import ConsumerGroupSession

SECONDS = 60


class Owner:
    """Has what it was given; remembers what was taken, and how."""

    def __init__(self) -> None:
        self.has: frozenset[TopicPartition] = frozenset()
        self.revoked_so_far: list[TopicPartition] = []
        self.lost_so_far: list[TopicPartition] = []
        self._changed = asyncio.Event()

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.has |= set(partitions)
        self._changed.set()

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.revoked_so_far += partitions
        self.has -= set(partitions)
        self._changed.set()

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.lost_so_far += partitions
        self.has -= set(partitions)
        self._changed.set()

    async def until(self, *, count: int) -> frozenset[TopicPartition]:
        """Wait until it has so many partitions."""
        async with asyncio.timeout(SECONDS):
            while len(self.has) != count:
                self._changed.clear()
                await self._changed.wait()
        return self.has


@pytest.fixture(scope="module", params=["kafka", "embedded_cluster"])
def kafka(request: pytest.FixtureRequest) -> KafkaCluster | EmbeddedCluster:
    """Kafka, then the embedded broker."""
    return request.getfixturevalue(request.param)


@pytest.fixture
async def client(kafka: KafkaCluster) -> AsyncIterator[Client]:
    async with Client(kafka.bootstrap) as opened:
        yield opened


@pytest.fixture
async def join(client: Client) -> AsyncIterator[Callable[..., tuple[NextGenerationMembership, Owner]]]:
    """`join("group", topics, …)`: a membership that has started, and the owner of its partitions."""
    memberships = []

    def start(
        group: str, topics: Collection[str] | re.Pattern[str], **settings: Any
    ) -> tuple[NextGenerationMembership, Owner]:
        owner = Owner()
        membership = NextGenerationMembership(
            client, group, GroupSettings(protocol=GroupProtocol.consumer, **settings), owner
        )
        memberships.append(membership)
        membership.start(topics)
        return membership, owner

    yield start
    for membership in memberships:
        await membership.close(30)


async def test_members_share_hand_over_and_take_back(
    topic: Callable[..., str], join: Callable[..., tuple[NextGenerationMembership, Owner]]
) -> None:
    name = topic(partitions=6)
    first, one = join(name, [name])
    await one.until(count=6)
    second, two = join(name, [name], remote_assignor="range")
    await two.until(count=3)
    assert await one.until(count=3) == first.assignment
    assert not one.has & two.has
    assert one.lost_so_far == []
    await second.close(30)
    assert sorted(two.revoked_so_far) == sorted(set(two.revoked_so_far))
    await one.until(count=6)


async def test_a_member_that_is_heard_of_no_more_is_replaced_after_the_session_timeout(
    topic: Callable[..., str], join: Callable[..., tuple[NextGenerationMembership, Owner]]
) -> None:
    name = topic(partitions=4)
    first, one = join(name, [name])
    await one.until(count=4)
    _, two = join(name, [name])
    await two.until(count=2)
    await first.close(30, leave=False)  # as if it was killed: the coordinator hears nothing
    await two.until(count=4)


async def test_partitions_that_are_added_are_shared(
    kafka: KafkaCluster, topic: Callable[..., str], join: Callable[..., tuple[NextGenerationMembership, Owner]]
) -> None:
    name = topic(partitions=2)
    _, one = join(name, [name])
    await one.until(count=2)
    kafka.admin.create_partitions([NewPartitions(name, 5)])[name].result(60)
    assert await one.until(count=5) == {TopicPartition(name, number) for number in range(5)}
    assert one.revoked_so_far == []


async def test_a_topic_that_begins_to_match_the_pattern_is_read(
    kafka: KafkaCluster, topic: Callable[..., str], join: Callable[..., tuple[NextGenerationMembership, Owner]]
) -> None:
    name = topic(partitions=1)
    membership, one = join(name, re.compile(f"{name.upper()}(-.*)?", re.IGNORECASE))
    await one.until(count=1)
    kafka.create_topic(f"{name}-new", partitions=2)
    await one.until(count=3)
    membership.subscribe([f"{name}-new"])
    await one.until(count=2)


async def test_a_pattern_that_is_none_ends_the_session_with_what_the_coordinator_says(
    topic: Callable[..., str], join: Callable[..., tuple[NextGenerationMembership, Owner]]
) -> None:
    # Python knows look-ahead, RE2 does not.
    membership, _ = join(topic(), re.compile("t(?=x)"))
    async with asyncio.timeout(SECONDS):
        end = await membership.wait_ended()
    assert end.reason is EndReason.failed
    assert isinstance(end.error, KafkaError)
    assert end.error.code is ErrorCode.invalid_regular_expression
    assert "(?=x)" in str(end.error)


async def test_a_static_member_that_restarts_gets_the_same_and_disturbs_nobody(
    topic: Callable[..., str], join: Callable[..., tuple[NextGenerationMembership, Owner]]
) -> None:
    name = topic(partitions=4)
    first, one = join(name, [name], group_instance_id="one")
    await one.until(count=4)
    _, two = join(name, [name], group_instance_id="two")
    await two.until(count=2)
    had = await one.until(count=2)
    await first.close(30, leave=False)
    again, one = join(name, [name], group_instance_id="one")
    assert await one.until(count=2) == had
    assert two.revoked_so_far == two.lost_so_far == []
    await again.close(30, leave=True)
    await two.until(count=4)


async def test_a_second_member_of_the_same_instance_waits_for_the_first_to_be_gone(
    topic: Callable[..., str], join: Callable[..., tuple[NextGenerationMembership, Owner]]
) -> None:
    name = topic(partitions=2)
    first, one = join(name, [name], group_instance_id="one")
    await one.until(count=2)
    _, two = join(name, [name], group_instance_id="one")
    await asyncio.sleep(0.5)  # several of its heartbeats are refused
    assert not two.has
    await first.close(30)
    await two.until(count=2)


async def test_commits_survive_and_go_with_the_member_epoch(
    topic: Callable[..., str], join: Callable[..., tuple[NextGenerationMembership, Owner]]
) -> None:
    name = topic(partitions=2)
    first, one = join(name, [name])
    await one.until(count=2)
    offsets = {TopicPartition(name, number): OffsetAndMetadata(number + 1, metadata="m") for number in range(2)}
    await first.commit(offsets)
    second, two = join(name, [name])
    await two.until(count=1)
    assert await second.committed(list(offsets)) == offsets
    assert first.member.generation > 0
    await first.close(30)
    await two.until(count=2)


class Reader(ConsumerGroupHandler):
    """Counts what it reads, and marks it."""

    def __init__(self, read: Counter[bytes], done: asyncio.Event, enough: int) -> None:
        self.read = read
        self.done = done
        self.enough = enough
        self.own = 0

    async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:
        async for record in claim:
            self.read[record.value or b""] += 1
            self.own += 1
            claim.mark(record)
            if len(self.read) >= self.enough:
                self.done.set()


@pytest.mark.parametrize("protocol", GroupProtocol)
async def test_a_handler_cannot_tell_the_protocols_apart(
    kafka: KafkaCluster, topic: Callable[..., str], protocol: GroupProtocol
) -> None:
    name = topic(partitions=4)
    settings = GroupSettings(
        protocol=protocol, assignors=("cooperative-sticky",), no_offset=NoOffset.earliest, heartbeat_interval=0.2
    )
    read: Counter[bytes] = Counter()
    done = asyncio.Event()
    async with Client(kafka.bootstrap) as client, AsyncProducer(client) as producer:
        values = [b"%d" % number for number in range(400)]
        first = Reader(read, done, len(values))
        second = Reader(read, done, len(values))
        async with ConsumerGroup(client, name, settings) as one, ConsumerGroup(client, name, settings) as two:
            running = [asyncio.create_task(one.consume([name], first))]
            for value in values[:200]:
                producer.send(name, value)
            await producer.flush(30)
            async with asyncio.timeout(SECONDS):
                while len(read) < 200 and not running[0].done():
                    await asyncio.sleep(0.02)
                running.append(asyncio.create_task(two.consume([name], second)))
                while (two.session is None or len(two.session.claims) < 2) and not running[1].done():
                    await asyncio.sleep(0.02)
                for number, value in enumerate(values[200:]):
                    producer.send(name, value, partition=number % 4)
                await producer.flush(30)
                await done.wait()
        ends = await asyncio.gather(*running)
    assert set(read) == set(values)
    assert set(read.values()) == {1}  # what was handed over was committed first
    assert second.own == 100
    assert [end.reason for end in ends] == [EndReason.closed] * 2


async def test_the_group_outlives_its_coordinator_and_nobody_loses_a_partition(kafka3: KafkaCluster) -> None:
    name = kafka3.create_topic(partitions=4)
    async with Client(kafka3.bootstrap) as client:
        settings = GroupSettings(protocol=GroupProtocol.consumer, request_timeout=3.0)
        one, two = Owner(), Owner()
        first = NextGenerationMembership(client, name, settings, one)
        second = NextGenerationMembership(client, name, settings, two)
        first.start([name])
        await one.until(count=4)
        second.start([name])
        await two.until(count=2)
        await one.until(count=2)
        await first.commit({key: OffsetAndMetadata(3) for key in one.has})
        # In a thread: while librdkafka finds a node that was down before, the members go on with their heartbeats.
        described = await asyncio.to_thread(kafka3.admin.describe_consumer_groups([name])[name].result, 60)
        await asyncio.to_thread(kafka3.kill, described.coordinator.id)
        await first.commit({key: OffsetAndMetadata(5) for key in one.has}, timeout=SECONDS)
        assert set((await second.committed(list(one.has), timeout=SECONDS)).values()) == {OffsetAndMetadata(5)}
        assert (len(one.has), len(two.has)) == (2, 2)
        assert one.lost_so_far == two.lost_so_far == []
        await first.close(30)
        await two.until(count=4)
        await second.close(30)


async def test_the_first_version_of_the_protocol_is_spoken_and_knows_no_patterns(
    kafka_cluster: Callable[..., KafkaCluster],
) -> None:
    # Kafka 3.9 has it for those who switch it on.
    cluster = kafka_cluster(
        jars=fetch_jars(POMS / "3.9.xml"), settings={"group.coordinator.rebalance.protocols": "classic,consumer"}
    )
    name = cluster.create_topic(partitions=4)
    settings = GroupSettings(protocol=GroupProtocol.consumer)
    async with Client(cluster.bootstrap) as client:
        owners = [Owner(), Owner()]
        memberships = [NextGenerationMembership(client, name, settings, owner) for owner in owners]
        for membership in memberships:
            membership.start([name])
        for owner in owners:
            await owner.until(count=2)
        await memberships[0].close(30)
        await owners[1].until(count=4)
        await memberships[1].commit({TopicPartition(name, 0): OffsetAndMetadata(7)})
        await memberships[1].close(30)
        by_pattern = NextGenerationMembership(client, name, settings, Owner())
        by_pattern.start(re.compile(name))
        end = await by_pattern.wait_ended()
        assert isinstance(end.error, UnsupportedVersion)


async def test_a_member_that_an_administrator_takes_out_loses_its_partitions_and_joins_again(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = await asyncio.to_thread(topic, partitions=4)
    async with Team(kafka.servers, name, [name], protocol=GroupProtocol.consumer) as team:
        dynamic, static = team.join(), team.join(group_instance_id="static")
        await team.settled(name, 4)
        assert dynamic.group.session is not None
        gone = [MemberToRemove(dynamic.group.session.member_id), MemberToRemove(group_instance_id="static")]
        for one in gone:
            (removed,) = await ClusterAdmin(dynamic.client).remove_group_members(name, [one])
            assert removed.error is None
        (unknown,) = await ClusterAdmin(dynamic.client).remove_group_members(name, [MemberToRemove("nobody")])
        assert isinstance(unknown.error, KafkaError)
        assert unknown.error.code is ErrorCode.unknown_member_id
        for member in (dynamic, static):
            await team.until(lambda member=member: "lost" in [what for what, _ in member.told], "it is told")
        await team.settled(name, 4)
        await asyncio.to_thread(produce, kafka.servers, name, 400, 4)
        await team.handled_all(400)
