"""`--nodes`: one broker that poses as several. Judged by librdkafka, by our client, and by bare frames."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic
from embedded.batches import batch_of
from embedded.process import BrokerProcess
from embedded.raw import RawClient, entity

from ingestd.broker.coordinator.placement import coordinating_partition
from ingestd.broker.settings import BrokerSettings
from ingestd.client.admin import ClusterAdmin
from ingestd.client.client import Client
from ingestd.consumer.consumer import Consumer as OurConsumer
from ingestd.consumer.settings import Edge
from ingestd.errors import ConfigurationError, ErrorCode
from ingestd.producer.producer import AsyncProducer
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 30
NODES = [1, 2, 3]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("three"), "--nodes", "3", "--default-partitions", "6") as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(three: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": three.servers})


def created(admin: AdminClient, name: str, partitions: int = 6, replication: int = 3) -> str:
    admin.create_topics([NewTopic(name, partitions, replication)])[name].result(SECONDS)
    return name


def ports(three: BrokerProcess) -> dict[int, int]:
    with RawClient(three.port) as client:
        return {broker.node_id: broker.port for broker in client.metadata().brokers}


def partition_of(three: BrokerProcess, topic: str, number: int = 0) -> Any:
    with RawClient(three.port) as client:
        (found,) = client.metadata(topic).topics
        return next(one for one in found.partitions if one.partition_index == number)


def moved(three: BrokerProcess, topic: str, number: int, leader: int) -> None:
    """By Kafka's own requests: the leader becomes the preferred one, then it is elected."""
    replicas = (leader, *(node for node in NODES if node != leader))
    partition = entity(
        Api.alter_partition_reassignments, 0, "ReassignablePartition", partition_index=number, replicas=replicas
    )
    topics = (entity(Api.alter_partition_reassignments, 0, "ReassignableTopic", name=topic, partitions=(partition,)),)
    elected = entity(Api.elect_leaders, 2, "TopicPartitions", topic=topic, partitions=(number,))
    with RawClient(three.port) as client:
        client.ask(entity(Api.alter_partition_reassignments, 0, "AlterPartitionReassignmentsRequest", topics=topics))
        client.ask(entity(Api.elect_leaders, 2, "ElectLeadersRequest", election_type=0, topic_partitions=(elected,)))


def test_every_node_names_all_nodes_and_the_same_leaders(
    three: BrokerProcess, admin: AdminClient, new_topic: str
) -> None:
    created(admin, new_topic)
    seen = []
    for port in ports(three).values():
        with RawClient(port) as client:
            found = client.metadata(new_topic)
        brokers = {broker.node_id: (broker.host, broker.port) for broker in found.brokers}
        leaders = [(one.partition_index, one.leader_id) for one in found.topics[0].partitions]
        seen.append((brokers, found.controller_id, leaders))
    assert seen[0] == seen[1] == seen[2]
    brokers, controller, leaders = seen[0]
    assert (list(brokers), controller) == (NODES, 1)
    assert len(set(brokers.values())) == 3
    assert sorted(leader for _, leader in leaders) == [1, 1, 2, 2, 3, 3]


def test_clients_are_told_the_address_that_is_advertised(tmp_path: Path) -> None:
    options = ("--nodes", "3", "--advertise", "broker.example:9100")
    with BrokerProcess(tmp_path, *options) as broker, RawClient(broker.port) as client:
        told = {one.node_id: (one.host, one.port) for one in client.metadata().brokers}
    assert told == {number: ("broker.example", 9099 + number) for number in NODES}


@pytest.mark.parametrize("replication", NODES)
def test_replication_factors_up_to_the_nodes_are_taken_and_all_replicas_are_in_sync(
    admin: AdminClient, new_topic: str, replication: int
) -> None:
    created(admin, new_topic, replication=replication)
    described = admin.describe_topics(TopicCollection([new_topic]))[new_topic].result(SECONDS)
    for partition in described.partitions:
        replicas = [node.id for node in partition.replicas]
        assert len(set(replicas)) == replication
        assert [node.id for node in partition.isr] == replicas
        assert partition.leader.id == replicas[0]


def test_a_replication_factor_beyond_the_nodes_is_refused(admin: AdminClient, new_topic: str) -> None:
    with pytest.raises(KafkaException, match="replication factor 4: there are 3 nodes"):
        created(admin, new_topic, replication=4)


def test_replicas_are_assigned_as_told(three: BrokerProcess, admin: AdminClient, new_topic: str) -> None:
    topic = NewTopic(new_topic, 2, replica_assignment=[[3, 1], [2, 3]])
    admin.create_topics([topic])[new_topic].result(SECONDS)
    more = NewPartitions(new_topic, 3, [[1, 2]])
    admin.create_partitions([more])[new_topic].result(SECONDS)
    assert [partition_of(three, new_topic, number).replica_nodes for number in range(3)] == [(3, 1), (2, 3), (1, 2)]
    for wrong in ([[4]], [[1, 1]]):
        with pytest.raises(KafkaException, match=r"expected some of \[1, 2, 3\], each once"):
            admin.create_topics([NewTopic(f"{new_topic}-w", 1, replica_assignment=wrong)])[f"{new_topic}-w"].result()


def test_the_replication_factor_outlives_the_broker(tmp_path: Path, new_topic: str) -> None:
    with BrokerProcess(tmp_path, "--nodes", "3") as broker:
        created(AdminClient({"bootstrap.servers": broker.servers}), new_topic, replication=2)
        before = partition_of(broker, new_topic)
        broker.stop()
        broker.start()
        assert partition_of(broker, new_topic) == before
        assert len(before.replica_nodes) == 2


def test_only_the_leader_takes_and_gives_records(three: BrokerProcess, admin: AdminClient, new_topic: str) -> None:
    created(admin, new_topic)
    leader = partition_of(three, new_topic).leader_id
    refused = ErrorCode.not_leader_or_follower
    for node, port in ports(three).items():
        partition = entity(Api.list_offsets, 5, "ListOffsetsPartition", partition_index=0, timestamp=-1)
        topics = (entity(Api.list_offsets, 5, "ListOffsetsTopic", name=new_topic, partitions=(partition,)),)
        listing = entity(Api.list_offsets, 5, "ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=topics)
        with RawClient(port) as client:
            produced = client.produce(new_topic, 0, batch_of([b"x"])).error
            listed = client.ask(listing).topics[0].partitions[0].error_code
        expected = ErrorCode.none if node == leader else refused
        assert (node, produced, listed) == (node, expected, expected)


def test_a_moved_leader_has_a_new_epoch_and_readers_who_wait_are_told(
    three: BrokerProcess, admin: AdminClient, new_topic: str
) -> None:
    created(admin, new_topic)
    before = partition_of(three, new_topic)
    to = next(node for node in NODES if node != before.leader_id)
    wanted = entity(Api.fetch, 4, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = (entity(Api.fetch, 4, "FetchTopic", topic=new_topic, partitions=(wanted,)),)
    fetch = entity(
        Api.fetch, 4, "FetchRequest", replica_id=-1, max_wait=timedelta(seconds=SECONDS), min_bytes=1,
        max_bytes=1 << 20, isolation_level=0, topics=topics,
    )  # fmt: skip
    answers = []
    with RawClient(ports(three)[before.leader_id]) as client:
        waiting = threading.Thread(target=lambda: answers.append(client.ask(fetch)))
        waiting.start()
        begun = time.monotonic()
        moved(three, new_topic, 0, to)
        waiting.join()
    assert time.monotonic() - begun < SECONDS / 2
    assert answers[0].responses[0].partitions[0].error_code is ErrorCode.not_leader_or_follower
    after = partition_of(three, new_topic)
    assert (after.leader_id, after.replica_nodes[0]) == (to, to)
    assert after.leader_epoch > before.leader_epoch


def test_librdkafka_follows_leaders_that_move_under_it(
    three: BrokerProcess, admin: AdminClient, new_topic: str
) -> None:
    """Every record is there once and in order, though each partition is led by each node in turn."""
    created(admin, new_topic, partitions=2)
    producer = Producer({"bootstrap.servers": three.servers, "enable.idempotence": True, "linger.ms": 1})
    for number in range(3000):
        producer.produce(new_topic, b"%d" % number, partition=number % 2)
        if number % 500 == 0:
            producer.poll(0)
            for partition in range(2):
                moved(three, new_topic, partition, NODES[(number // 500 + partition) % 3])
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({"bootstrap.servers": three.servers, "group.id": new_topic, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(new_topic, partition, 0) for partition in range(2)])
    read: dict[int, list[int]] = {0: [], 1: []}
    end = time.monotonic() + SECONDS
    turn = 0
    while sum(map(len, read.values())) < 3000 and time.monotonic() < end:
        for message in consumer.consume(300, 1):
            assert message.error() is None
            read[message.partition()].append(int(message.value()))
        moved(three, new_topic, turn % 2, NODES[turn % 3])
        turn += 1
    consumer.close()
    assert read == {0: list(range(0, 3000, 2)), 1: list(range(1, 3000, 2))}


async def test_our_client_follows_leaders_that_move_under_it(
    three: BrokerProcess, admin: AdminClient, new_topic: str
) -> None:
    created(admin, new_topic, partitions=1)
    async with Client([three.servers]) as client, AsyncProducer(client) as producer:
        for number in range(300):
            producer.send(new_topic, b"%d" % number)
            if number % 50 == 0:
                await producer.flush(SECONDS)
                moved(three, new_topic, 0, NODES[number // 50 % 3])
        await producer.flush(SECONDS)
        async with OurConsumer(client) as consumer:
            partition = await consumer.consume_partition(new_topic, 0, Edge.earliest, Edge.latest)
            assert [record.value async for record in partition] == [b"%d" % number for number in range(300)]


def test_groups_are_spread_over_the_nodes_and_work(three: BrokerProcess, admin: AdminClient, new_topic: str) -> None:
    created(admin, new_topic)
    request = entity(
        Api.find_coordinator, 4, "FindCoordinatorRequest", key_type=0,
        coordinator_keys=tuple(f"group-{number}" for number in range(30)),
    )  # fmt: skip
    with RawClient(three.port) as client:
        named = {one.node_id for one in client.ask(request).coordinators}
    assert named == set(NODES)
    producer = Producer({"bootstrap.servers": three.servers})
    for number in range(60):
        producer.produce(new_topic, b"x", partition=number % 6)
    assert producer.flush(SECONDS) == 0
    for number in range(3):
        settings = {"bootstrap.servers": three.servers, "group.id": f"group-{number}", "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        consumer.subscribe([new_topic])
        end = time.monotonic() + SECONDS
        count = 0
        while count < 60 and time.monotonic() < end:
            count += len(consumer.consume(60 - count, 1))
        consumer.commit(asynchronous=False)
        consumer.close()
        assert count == 60


def coordinator(three: BrokerProcess, key: str, kind: int) -> int:
    request = entity(Api.find_coordinator, 4, "FindCoordinatorRequest", key_type=kind, coordinator_keys=(key,))
    with RawClient(three.port) as client:
        return int(client.ask(request).coordinators[0].node_id)


def test_a_group_follows_its_coordinator_and_is_listed_once(
    three: BrokerProcess, admin: AdminClient, new_topic: str
) -> None:
    created(admin, new_topic, partitions=1)
    producer = Producer({"bootstrap.servers": three.servers})
    for number in range(30):
        producer.produce(new_topic, b"%d" % number)
    assert producer.flush(SECONDS) == 0
    home = coordinating_partition(new_topic, 50)
    settings = {"bootstrap.servers": three.servers, "group.id": new_topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([new_topic])
    read = []
    for turn in range(3):
        moved(three, "__consumer_offsets", home, NODES[turn])
        assert coordinator(three, new_topic, 0) == NODES[turn]
        read += [int(message.value()) for message in consumer.consume(10, SECONDS)]
        consumer.commit(asynchronous=False)
    (committed,) = consumer.committed([TopicPartition(new_topic, 0)], SECONDS)
    consumer.close()
    assert (read, committed.offset) == (list(range(30)), 30)
    listed = [one.group_id for one in admin.list_consumer_groups().result(SECONDS).valid]
    assert listed.count(new_topic) == 1
    apis = {(one["api"], one["error"]) for one in three.requests()}
    assert ("offset_commit", "not_coordinator") in apis


def test_a_transaction_goes_on_at_its_new_coordinator(three: BrokerProcess, admin: AdminClient, new_topic: str) -> None:
    created(admin, new_topic, partitions=1)
    producer = Producer({"bootstrap.servers": three.servers, "transactional.id": new_topic})
    producer.init_transactions(SECONDS)
    home = coordinating_partition(new_topic, 50)
    for turn in range(3):
        producer.begin_transaction()
        producer.produce(new_topic, b"%d" % turn)
        moved(three, "__transaction_state", home, NODES[turn])
        assert coordinator(three, new_topic, 1) == NODES[turn]
        producer.commit_transaction(SECONDS)
    consumer = Consumer({"bootstrap.servers": three.servers, "group.id": "x", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(new_topic, 0, 0)])
    assert [message.value() for message in consumer.consume(3, SECONDS)] == [b"0", b"1", b"2"]
    consumer.close()


def test_the_producers_of_a_partition_are_told_by_every_node_that_has_it(
    three: BrokerProcess, admin: AdminClient, new_topic: str
) -> None:
    admin.create_topics([NewTopic(new_topic, 1, replica_assignment=[[2, 3]])])[new_topic].result(SECONDS)
    producer = Producer({"bootstrap.servers": three.servers, "enable.idempotence": True})
    producer.produce(new_topic, b"x")
    assert producer.flush(SECONDS) == 0
    topics = (entity(Api.describe_producers, 0, "TopicRequest", name=new_topic, partition_indexes=(0,)),)
    told = {}
    for node, port in ports(three).items():
        with RawClient(port) as client:
            answer = client.ask(entity(Api.describe_producers, 0, "DescribeProducersRequest", topics=topics))
        (partition,) = answer.topics[0].partitions
        told[node] = partition.error_code, len(partition.active_producers)
    assert told == {1: (ErrorCode.not_leader_or_follower, 0), 2: (ErrorCode.none, 1), 3: (ErrorCode.none, 1)}


async def test_administration_by_our_client(three: BrokerProcess, new_topic: str) -> None:
    async with Client([three.servers]) as client:
        described = await ClusterAdmin(client).describe_cluster()
    assert sorted(node.id for node in described.nodes) == NODES


def test_the_brokers_configuration_says_how_many(admin: AdminClient) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "2")
    found = admin.describe_configs([resource])[resource].result(SECONDS)
    assert found["default.replication.factor"].value == "3"


def test_a_number_of_nodes_that_can_not_be_is_refused(tmp_path: Path) -> None:
    for wrong in (0, 101):
        with pytest.raises(ConfigurationError, match="is not 1 to 100"):
            BrokerSettings(tmp_path, nodes=wrong)
    with pytest.raises(ConfigurationError, match="3 ports from 65534 on are not all TCP ports"):
        BrokerSettings(tmp_path, port=65534, nodes=3)
