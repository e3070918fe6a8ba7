"""KIP-848 groups of clients written elsewhere on the embedded broker: mixed members, Kafka's tools, and a kill -9."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaException,
    Producer,
    TopicPartition,
)
from embedded.cluster import QUICK_GROUPS, EmbeddedCluster
from harness.group_members import GoMember, JavaMember, LibrdkafkaMember, Member, OurMember, Place, settled
from harness.java_programs import JavaProgram, java_program

from ingestd.client.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from embedded.process import BrokerProcess
    from harness.go_peers import GoPeer

SECONDS = 30


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    """`tests/interop/java/Members.java`: one JVM for all members."""
    with java_program("Members", tmp_path_factory.mktemp("java")) as running:
        yield running


async def test_members_of_three_clients_come_and_go_and_share_all_partitions(
    embedded_cluster: EmbeddedCluster, java: JavaProgram
) -> None:
    topics = {embedded_cluster.create_topic(partitions=count): count for count in (7, 4)}
    place = Place(embedded_cluster.servers, next(iter(topics)), topics, "consumer")
    rng = random.Random(848)
    async with Client(embedded_cluster.bootstrap) as client:
        kinds = [lambda: OurMember(place, client), lambda: LibrdkafkaMember(place), lambda: JavaMember(place, java)]
        members: list[Member] = []
        for make in [*kinds, *kinds]:
            members.append(make())
            await members[-1].join()
            await settled(place, members, most_apart=1)
        while members:
            await members.pop(rng.randrange(len(members))).leave()
            if members:
                await settled(place, members)


@pytest.mark.peers
async def test_members_of_franz_go_and_ours_share_all_partitions(
    embedded_cluster: EmbeddedCluster, go_peers: dict[str, GoPeer]
) -> None:
    topics = {embedded_cluster.create_topic(partitions=5): 5}
    place = Place(embedded_cluster.servers, next(iter(topics)), topics, "consumer")
    async with Client(embedded_cluster.bootstrap) as client:
        members = [GoMember(place, go_peers["franz"]), OurMember(place, client), GoMember(place, go_peers["franz"])]
        for number, one in enumerate(members):
            await one.join()
            await settled(place, members[: number + 1])
        while members:
            await members.pop(0).leave()
            if members:
                await settled(place, members)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_a_group_moves_to_the_new_protocol_and_back_member_by_member(
    embedded_cluster: EmbeddedCluster, java: JavaProgram, assignor: str
) -> None:
    topics = {embedded_cluster.create_topic(partitions=count): count for count in (7, 4)}
    classic = Place(embedded_cluster.servers, next(iter(topics)), topics, assignor)
    upgraded = replace(classic, assignor="consumer")
    admin = embedded_cluster.admin

    def kind() -> ConsumerGroupType:
        return admin.describe_consumer_groups([classic.group])[classic.group].result(SECONDS).type

    async with Client(embedded_cluster.bootstrap) as client:
        old: list[Member] = [OurMember(classic, client), JavaMember(classic, java), LibrdkafkaMember(classic)]
        new: list[Member] = [JavaMember(upgraded, java), LibrdkafkaMember(upgraded), OurMember(upgraded, client)]
        members: list[Member] = []
        for one in old:
            members.append(one)
            await one.join()
            await settled(classic, members)
        assert await asyncio.to_thread(kind) is ConsumerGroupType.CLASSIC
        for comes, goes in zip(new, old, strict=True):
            members.append(comes)
            await comes.join()
            await settled(classic, members)
            assert await asyncio.to_thread(kind) is ConsumerGroupType.CONSUMER
            members.remove(goes)
            await goes.leave()
            await settled(classic, members)
        back: list[Member] = [LibrdkafkaMember(classic), OurMember(classic, client)]
        for one in back:
            members.append(one)
            await one.join()
            await settled(classic, members)
        for one in new:
            members.remove(one)
            await one.leave()
            await settled(classic, members)
        assert await asyncio.to_thread(kind) is ConsumerGroupType.CLASSIC
        for one in back:
            await one.leave()


class Members:
    """Consumers of librdkafka in one group of KIP-848, which note the offsets that they got by partition."""

    def __init__(self, servers: str, group: str, topic: str, count: int, **settings: Any) -> None:
        self.topic = topic
        self.got: dict[int, list[int]] = {}
        self.consumers = [
            Consumer(
                {
                    "bootstrap.servers": servers,
                    "group.id": group,
                    "group.protocol": "consumer",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "topic.metadata.refresh.interval.ms": 500,
                    "log_level": 0,
                    **settings,
                }
            )
            for _ in range(count)
        ]
        for consumer in self.consumers:
            consumer.subscribe([topic])

    def read(self, records: int) -> None:
        """Until they have so many, with a commit of each as it comes."""
        self._until(lambda: sum(map(len, self.got.values())) >= records)
        wanted = [TopicPartition(self.topic, partition) for partition in sorted(self.got)]
        last = [self.got[partition][-1] + 1 for partition in sorted(self.got)]
        self._until(lambda: [one.offset for one in self.consumers[0].committed(wanted, SECONDS)] == last)

    def shared(self) -> None:
        """Until each has a partition."""
        self._until(lambda: all(consumer.assignment() for consumer in self.consumers))

    def _until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < end, {partition: len(offsets) for partition, offsets in self.got.items()}
            for consumer in self.consumers:
                message = consumer.poll(0.02)
                if message is not None and message.error() is None:
                    self.got.setdefault(message.partition(), []).append(message.offset())
                    consumer.commit(message, asynchronous=True)

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()


@pytest.fixture
def written(broker_process: Callable[..., BrokerProcess]) -> tuple[BrokerProcess, Callable[[int], None]]:
    """A broker of this test's own with the topic "t" of two partitions, and `write(records)`."""
    broker = broker_process("--default-partitions", "2", *QUICK_GROUPS)
    producer = Producer({"bootstrap.servers": broker.servers, "log_level": 0})

    def write(records: int) -> None:
        for number in range(records):
            producer.produce("t", b"%d" % number, partition=number % 2)
        assert producer.flush(SECONDS) == 0

    return broker, write


def test_a_group_goes_on_after_a_kill_of_the_broker_and_no_offset_goes_back(
    written: tuple[BrokerProcess, Callable[[int], None]],
) -> None:
    broker, write = written
    write(20)
    members = Members(broker.servers, "g", "t", 2)
    members.shared()
    members.read(20)
    before = described(broker, "g")
    broker.kill()
    broker.start()
    committed = members.consumers[0].committed([TopicPartition("t", 0), TopicPartition("t", 1)], SECONDS)
    assert [one.offset for one in committed] == [10, 10]
    write(20)
    members.read(40)
    assert shares(described(broker, "g")) == shares(before), "a kill costs no rebalance"
    members.close()
    assert members.got == {0: list(range(20)), 1: list(range(20))}


def described(broker: BrokerProcess, group: str) -> Any:
    """The group, as a new admin client of librdkafka's has it."""
    admin = EmbeddedCluster(broker).admin  # its calls end with it
    return admin.describe_consumer_groups([group])[group].result(SECONDS)


def shares(described: Any) -> dict[str, list[TopicPartition]]:
    return {member.member_id: member.assignment.topic_partitions for member in described.members}


def test_kafkas_tools_read_groups_and_their_log(
    written: tuple[BrokerProcess, Callable[[int], None]], java_tool: Callable[..., str]
) -> None:
    broker, write = written
    write(4)
    members = Members(broker.servers, "group", "t", 1, **{"group.instance.id": "one", "client.id": "reader"})
    members.read(4)

    def tool(*options: str) -> str:
        return java_tool("consumer.group.ConsumerGroupCommand", "--bootstrap-server", broker.servers, *options)

    listed = tool("--list", "--type", "consumer", "--state", "stable")
    assert re.search(r"group +Consumer +Stable", listed)
    assert "group" not in tool("--list", "--type", "classic").split()
    described = tool("--describe", "--group", "group")
    assert re.search(r"group +t +0 +2 +2 +0 +\S+ +/127.0.0.1 +reader", described)
    state = tool("--describe", "--group", "group", "--state", "--verbose")
    assert re.search(r"group +127.0.0.1:\d+ +\(1\) +uniform +Stable +2 +2 +1", state)
    of_members = tool("--describe", "--group", "group", "--members", "--verbose")
    assert re.search(r"group +\S+ +one +/127.0.0.1 +reader +2 +2 +t:0,1 +2 +t:0,1", of_members)
    assert "is not empty" in tool("--delete", "--group", "group")
    members.close()
    (log,) = (path for path in broker.data.glob("__consumer_offsets-*/*.log") if path.stat().st_size)
    dumped = java_tool("DumpLogSegments", "--offsets-decoder", "--files", str(log))
    records = [
        (json.loads(key)["type"], json.loads(value)["data"])
        for key, value in re.findall(r"key: (\{.*\}) payload: (\{.*\})", dumped)
    ]
    newest = dict(records)
    assert newest["3"]["epoch"] == 2
    assert newest["5"]["instanceId"] == "one"
    assert newest["5"]["subscribedTopicNames"] == ["t"]
    assert newest["6"]["assignmentEpoch"] == 2
    (target,) = newest["7"]["topicPartitions"]
    assert target["partitions"] == [0, 1]
    held = [data for kind, data in records if kind == "8"]
    assert [(one["memberEpoch"], one["state"]) for one in held] == [(2, 0), (-2, 0)]
    (assigned,) = held[0]["assignedPartitions"]
    assert (assigned["partitions"], assigned["assignmentEpochs"]) == ([0, 1], [2, 2])


def test_librdkafka_administers_groups(embedded_cluster: EmbeddedCluster) -> None:
    admin = embedded_cluster.admin
    topic = embedded_cluster.create_topic(partitions=2)

    def listed(**filters: object) -> set[str]:
        return {group.group_id for group in admin.list_consumer_groups(**filters).result(SECONDS).valid}

    members = Members(embedded_cluster.servers, topic, topic, 2)
    members.shared()
    assert topic in listed(types={ConsumerGroupType.CONSUMER}, states={ConsumerGroupState.STABLE})
    assert topic not in listed(types={ConsumerGroupType.CLASSIC})
    described = admin.describe_consumer_groups([topic])[topic].result(SECONDS)
    assert (described.state, described.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    assert described.partition_assignor == "uniform"
    assert sorted(len(partitions) for partitions in shares(described).values()) == [1, 1]
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([topic])[topic].result(SECONDS)
    members.close()
    assert topic in listed(states={ConsumerGroupState.EMPTY})
    assert admin.delete_consumer_groups([topic])[topic].result(SECONDS) is None
    assert topic not in listed()
