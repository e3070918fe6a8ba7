"""Consumer groups of clients written elsewhere on the embedded broker: mixed members, Kafka's tools, and a kill -9."""

from __future__ import annotations

import json
import random
import re
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from harness.group_members import (
    AioMember,
    JavaMember,
    LibrdkafkaMember,
    Member,
    OurMember,
    Place,
    PlainMember,
    settled,
)
from harness.java_programs import JavaProgram, java_program

from ingestd.client.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from embedded.process import BrokerProcess

SECONDS = 30


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    """`tests/interop/java/Members.java`: one JVM for all members."""
    with java_program("Members", tmp_path_factory.mktemp("java")) as running:
        yield running


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_members_of_five_clients_come_and_go_and_share_all_partitions(
    embedded: BrokerProcess, java: JavaProgram, assignor: str
) -> None:
    topic = f"mixed-{assignor}"
    admin = AdminClient({"bootstrap.servers": embedded.servers})
    admin.create_topics([NewTopic(topic, 7, 1)])[topic].result(SECONDS)
    place = Place(embedded.servers, topic, {topic: 7}, assignor)
    rng = random.Random(assignor)
    async with Client([embedded.servers]) as client:
        others: list[Member] = [LibrdkafkaMember(place), JavaMember(place, java), PlainMember(place)]
        if assignor == "range":
            others.append(AioMember(place))
        rng.shuffle(others)
        members = [OurMember(place, client), *others]
        for number, one in enumerate(members):
            await one.join()
            await settled(place, members[: number + 1])
        while members:
            await members.pop(rng.randrange(len(members))).leave()
            if members:
                await settled(place, members)


class Members:
    """Consumers of librdkafka in one group, which note the offsets that they got by partition."""

    def __init__(self, servers: str, group: str, topic: str, count: int) -> None:
        self.topic = topic
        self.got: dict[int, list[int]] = {}
        self.consumers = [
            Consumer(
                {
                    "bootstrap.servers": servers,
                    "group.id": group,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "session.timeout.ms": 10_000,
                    "heartbeat.interval.ms": 500,
                    "log_level": 0,
                }
            )
            for _ in range(count)
        ]
        for consumer in self.consumers:
            consumer.subscribe([topic])

    def read(self, records: int) -> None:
        """Until they have so many, with a commit of each as it comes."""
        end = time.monotonic() + SECONDS
        while sum(map(len, self.got.values())) < records:
            assert time.monotonic() < end, {partition: len(offsets) for partition, offsets in self.got.items()}
            for consumer in self.consumers:
                message = consumer.poll(0.02)
                if message is not None and message.error() is None:
                    self.got.setdefault(message.partition(), []).append(message.offset())
                    consumer.commit(message, asynchronous=True)
        self._have_committed()

    def _have_committed(self) -> None:
        """Until the group has what each read last. A commit that is waited for, in C, has no deadline."""
        end = time.monotonic() + SECONDS
        wanted = [TopicPartition(self.topic, partition) for partition in sorted(self.got)]
        last = [self.got[partition][-1] + 1 for partition in sorted(self.got)]
        while [one.offset for one in self.consumers[0].committed(wanted, SECONDS)] != last:
            assert time.monotonic() < end, last
            for consumer in self.consumers:
                consumer.poll(0.02)

    def shared(self) -> None:
        """Until each has a partition."""
        end = time.monotonic() + SECONDS
        while not all(consumer.assignment() for consumer in self.consumers):
            assert time.monotonic() < end
            for consumer in self.consumers:
                consumer.poll(0.02)


def test_a_group_goes_on_after_a_kill_of_the_broker_and_no_offset_goes_back(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    broker = broker_process("--default-partitions", "2")
    producer = Producer({"bootstrap.servers": broker.servers, "log_level": 0})

    def write(records: int) -> None:
        for number in range(records):
            producer.produce("t", b"%d" % number, partition=number % 2)
        assert producer.flush(SECONDS) == 0

    write(20)
    members = Members(broker.servers, "g", "t", 2)
    members.shared()
    members.read(20)
    broker.kill()
    broker.start()
    committed = members.consumers[0].committed([TopicPartition("t", 0), TopicPartition("t", 1)], SECONDS)
    assert [one.offset for one in committed] == [10, 10]
    write(20)
    members.read(40)
    for consumer in members.consumers:
        consumer.close()
    assert members.got == {0: list(range(20)), 1: list(range(20))}
    joins = [request for request in broker.requests() if request["api"] == "join_group"]
    assert len(joins) <= 8, "a kill costs no rebalance"


def test_kafkas_tools_read_groups_and_their_log(
    broker_process: Callable[..., BrokerProcess], java_tool: Callable[..., str]
) -> None:
    broker = broker_process("--default-partitions", "1")
    producer = Producer({"bootstrap.servers": broker.servers})
    for number in range(4):
        producer.produce("t", b"%d" % number)
    assert producer.flush(SECONDS) == 0
    members = Members(broker.servers, "group", "t", 1)
    members.read(4)
    members.consumers[0].close()
    server = ("--bootstrap-server", broker.servers)
    described = java_tool("consumer.group.ConsumerGroupCommand", *server, "--describe", "--group", "group")
    assert re.search(r"group +t +0 +4 +4 +0 ", described)
    (log,) = (path for path in broker.data.glob("__consumer_offsets-*/*.log") if path.stat().st_size)
    dumped = java_tool("DumpLogSegments", "--offsets-decoder", "--files", str(log))
    payloads = [json.loads(payload) for payload in re.findall(r"payload: (\{.*\})", dumped)]
    assert [one["data"]["offset"] for one in payloads if "offset" in one["data"]][-1] == 4
    groups = [one["data"] for one in payloads if "generation" in one["data"]]
    # As in Kafka, it is stored when the first asks to join it.
    assert [(len(one["members"]), one["protocol"]) for one in groups] == [(0, None), (1, "range"), (0, None)]


def test_librdkafka_administers_groups(embedded: BrokerProcess, new_topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": embedded.servers})
    admin.create_topics([NewTopic(new_topic, 1, 1)])[new_topic].result(SECONDS)
    written = [TopicPartition(new_topic, 0, 7)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(new_topic, written)])[new_topic].result(SECONDS)
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(new_topic)])[new_topic].result(SECONDS)
    assert [(one.partition, one.offset) for one in offsets.topic_partitions] == [(0, 7)]

    def listed(**filters: object) -> set[str]:
        return {group.group_id for group in admin.list_consumer_groups(**filters).result(SECONDS).valid}

    assert new_topic in listed(states={ConsumerGroupState.EMPTY}, types={ConsumerGroupType.CLASSIC})
    assert new_topic not in listed(states={ConsumerGroupState.STABLE})
    assert new_topic not in listed(types={ConsumerGroupType.CONSUMER})
    assert admin.describe_consumer_groups([new_topic])[new_topic].result(SECONDS).state.name == "EMPTY"
    assert admin.delete_consumer_groups([new_topic])[new_topic].result(SECONDS) is None
    assert new_topic not in listed()


@pytest.mark.parametrize(("group", "number"), [("polygenelubricants", 0), ("😀", 49), ("connect-cluster", 13)])
def test_a_group_is_stored_where_kafka_has_it(embedded: BrokerProcess, new_topic: str, group: str, number: int) -> None:
    """The hash of "polygenelubricants" is Java's smallest integer, whose `abs` counts as 0. The others: by Java."""
    admin = AdminClient({"bootstrap.servers": embedded.servers})
    admin.create_topics([NewTopic(new_topic, 1, 1)])[new_topic].result(SECONDS)
    written = [TopicPartition(new_topic, 0, 7)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, written)])[group].result(SECONDS)
    key = group.encode() + len(new_topic).to_bytes(2, "big") + new_topic.encode()
    having = [log.parent.name for log in embedded.data.glob("__consumer_offsets-*/*.log") if key in log.read_bytes()]
    assert having == [f"__consumer_offsets-{number}"]
