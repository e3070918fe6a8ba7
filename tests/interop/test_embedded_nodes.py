"""Clients and tools written elsewhere on a broker that poses as three: they see a cluster, and follow what moves."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from embedded.process import BrokerProcess
from embedded.raw import RawClient, entity
from embedded.transactional import JavaProducer, LibrdkafkaProducer
from harness.java_programs import java_program
from harness.reading import read_back

from ingestd.broker.coordinator.placement import coordinating_partition
from ingestd.testing import LocalKafka
from ingestd.testing.faults import BrokerFaults
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.java_programs import JavaProgram

SECONDS = 30
NODES = (1, 2, 3)
QUICK = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10, "linger.ms": 0}
OF_COORDINATORS = ("add_partitions_to_txn", "add_offsets_to_txn", "txn_offset_commit", "end_txn")
OF_A_TRANSACTION = ("produce", *OF_COORDINATORS)
COMING = ("coordinator_load_in_progress", "coordinator_not_available", "not_coordinator")


def test_javas_tools_move_a_leader_and_go_on(java_tool: Callable[..., str], tmp_path: Path) -> None:
    with LocalKafka(tmp_path, nodes=3) as broker:
        server = ("--bootstrap-server", broker.bootstrap)
        topics = ("TopicCommand", *server, "--topic", "orders")
        java_tool(*topics, "--create", "--partitions", "3", "--replication-factor", "3")
        before = dict(re.findall(r"Partition: (\d)\s+Leader: (\d)", java_tool(*topics, "--describe")))
        assert sorted(before.values()) == ["1", "2", "3"]
        to = int(before["0"]) % 3 + 1
        replicas = [to, *(node for node in (1, 2, 3) if node != to)]
        plan = tmp_path / "plan.json"
        plan.write_text(
            json.dumps({"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": replicas}]})
        )
        java_tool("reassign.ReassignPartitionsCommand", *server, "--reassignment-json-file", str(plan), "--execute")
        elected = ("--election-type", "preferred", "--topic", "orders", "--partition", "0")
        assert "completed" in java_tool("LeaderElectionCommand", *server, *elected)
        after = java_tool(*topics, "--describe")
        text = ",".join(map(str, replicas))
        assert re.search(rf"Partition: 0\s+Leader: {to}\s+Replicas: {text}\s+Isr: {text}", after)
        java_tool(
            "ProducerPerformance", "--topic", "orders", "--num-records", "3000", "--throughput", "-1", "--record-size",
            "100", *server,
        )  # fmt: skip
        lines = java_tool(
            "consumer.ConsoleConsumer", *server, "--topic", "orders", "--group", "readers", "--from-beginning",
            "--max-messages", "3000", "--timeout-ms", "30000",
        ).splitlines()  # fmt: skip
        assert len(lines) == 3000
        groups = java_tool("consumer.group.ConsumerGroupCommand", *server, "--list").split()
        assert groups == ["readers"]


class Placed:
    """A transactional id, a group of the same name, and a topic, on a broker of three nodes."""

    def __init__(self, broker: BrokerProcess, name: str, rng: random.Random) -> None:
        self.faults = BrokerFaults(broker.data)
        self._rng = rng
        home = coordinating_partition(name, 50)
        self._homes = [("__transaction_state", home), ("__consumer_offsets", home), (name, 0), (name, 1)]
        with RawClient(broker.port) as client:
            for kind in (0, 1):  # the internal topics come with it
                client.ask(entity(Api.find_coordinator, 2, "FindCoordinatorRequest", key=name, key_type=kind))
        admin = AdminClient({"bootstrap.servers": broker.servers, "log_level": 0})
        admin.create_topics([NewTopic(name, 2, 3)])[name].result(SECONDS)
        # Nothing that a transaction needs is where its coordinator is.
        for place, node in zip(self._homes, (1, 2, 3, 2), strict=True):
            self.faults.move_leader(*place, node)

    def move(self) -> None:
        """Give one of them to another node, or to the same one."""
        self.faults.move_leader(*self._rng.choice(self._homes), self._rng.choice(NODES))

    def disturb(self) -> None:
        """Perhaps move one of them, or lose the next answer to a request of a transaction, or let the next one fail."""
        if self._rng.random() < 0.6:
            self.move()
        if self._rng.random() < 0.3:
            self.faults.cut_answer(self._rng.choice(OF_A_TRANSACTION))
        if self._rng.random() < 0.2:
            self.faults.fail(self._rng.choice(OF_COORDINATORS), self._rng.choice(COMING))


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    """One JVM for all producers."""
    with java_program("Transactions", tmp_path_factory.mktemp("java")) as running:
        yield running


@pytest.fixture(scope="module", params=[("0", "os"), ("2", "always")], ids="-".join)
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Three nodes, with the oldest `transaction.version` without fsync, and with the newest and fsync."""
    version, flush = request.param
    options = ("--nodes", "3", "--control", "127.0.0.1:0", "--no-auto-create-topics", "--flush", flush)
    with BrokerProcess(tmp_path_factory.mktemp("three"), *options, "--transaction-version", version) as broker:
        yield broker


def committed_offset(broker: BrokerProcess, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": group, "log_level": 0})
    try:
        return int(consumer.committed([TopicPartition(group, 0)], SECONDS)[0].offset)
    finally:
        consumer.close()


@pytest.mark.parametrize("client", ["librdkafka", "java"])
def test_a_transaction_is_whole_wherever_its_coordinators_and_leaders_are_and_whenever_they_move(
    three: BrokerProcess, new_topic: str, java: JavaProgram, client: str
) -> None:
    """Between the steps of a transaction, what the next step asks moves to another node, and answers are lost."""
    rng = random.Random(client)
    name = f"moving-{client}"
    placed = Placed(three, name, rng)
    if client == "java":
        producer: LibrdkafkaProducer | JavaProducer = JavaProducer(java, three.servers, name, **QUICK)
    else:
        producer = LibrdkafkaProducer(three.servers, name)
    expected: list[list[bytes]] = [[], []]
    offset = -1001
    for number in range(1, 19):
        sent: list[list[bytes]] = [[], []]
        producer.begin()
        for step in range(rng.randrange(1, 5)):
            placed.disturb()
            partition = rng.randrange(2)
            sent[partition].append(b"%d-%d" % (number, step))
            producer.send(name, partition, sent[partition][-1].decode())
        placed.disturb()
        if with_offset := rng.random() < 0.6:
            producer.add_offset(name, name, number)
            placed.disturb()
        if rng.random() < 0.3:
            producer.abort()
            continue
        producer.commit()
        expected = [[*before, *more] for before, more in zip(expected, sent, strict=True)]
        offset = number if with_offset else offset
    placed.faults.clear()
    read = read_back(three.servers, name, isolation="read_committed")
    assert [read[partition] for partition in range(2)] == expected
    assert committed_offset(three, name) == offset
    met = {(one["api"], one["error"]) for one in three.requests()}
    assert met >= {("end_txn", "not_coordinator"), ("txn_offset_commit", "not_coordinator")}
    assert ("produce", "not_leader_or_follower") in met
