"""Faults that a test asks for, and what librdkafka and our client make of them."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from embedded.batches import batch_of
from embedded.raw import RawClient, entity

from ingestd.broker.faults import FAILABLE
from ingestd.client.client import Client
from ingestd.errors import ErrorCode, IngestdError
from ingestd.producer.producer import AsyncProducer
from ingestd.testing import LocalKafka
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 30


@pytest.fixture
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with LocalKafka(tmp_path_factory.mktemp("three"), nodes=3, create_topics=False) as broker:
        broker.create_topic("orders")
        yield broker
        assert "Traceback" not in broker.log.read_text()


def values(broker: LocalKafka) -> list[bytes | None]:
    """All of `orders`, as librdkafka reads it."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("orders", 0, 0)])
    found: list[bytes | None] = []
    while True:
        message = consumer.poll(SECONDS)
        assert message is not None
        if message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF:
            break
        assert message.error() is None
        found.append(message.value())
    consumer.close()
    return found


def leader(broker: LocalKafka) -> int:
    with RawClient(broker.port) as client:
        return int(client.metadata("orders").topics[0].partitions[0].leader_id)


def on_the_leader(broker: LocalKafka) -> RawClient:
    with RawClient(broker.port) as client:
        ports = {node.node_id: node.port for node in client.metadata().brokers}
    return RawClient(ports[leader(broker)])


def test_requests_are_failed_as_often_as_told(three: LocalKafka) -> None:
    three.faults.fail("produce", "not_enough_replicas", times=2)
    with on_the_leader(three) as client:
        errors = [client.produce("orders", 0, batch_of([b"x"])).error for _ in range(3)]
    assert errors == [ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas, ErrorCode.none]
    assert values(three) == [b"x"]


def test_a_fault_of_one_node_is_not_for_the_others(three: LocalKafka) -> None:
    others = [node for node in (1, 2, 3) if node != leader(three)]
    for node in others:
        three.faults.fail("produce", "not_enough_replicas", node=node)
    with on_the_leader(three) as client:
        assert client.produce("orders", 0, batch_of([b"x"])).error is ErrorCode.none
    assert three.faults.waiting == 2
    three.faults.clear()
    assert three.faults.waiting == 0


def test_a_late_request_holds_back_those_behind_it(three: LocalKafka) -> None:
    """Also Produce, of which several are else in work at a time: the order of batches stays."""
    with on_the_leader(three) as client:
        three.faults.delay("produce", 0.3)
        begun = time.monotonic()
        for value in (b"first", b"second"):
            client.send_produce("orders", 0, batch_of([value]))
        offsets = [client.receive_produced().base_offset for _ in range(2)]
    assert time.monotonic() - begun >= 0.3
    assert offsets == [0, 1]
    assert values(three) == [b"first", b"second"]


@pytest.mark.parametrize(("how", "written"), [("cut", []), ("cut_answer", [b"x"])])
def test_a_connection_is_cut_before_or_behind_the_work(three: LocalKafka, how: str, written: list[bytes]) -> None:
    getattr(three.faults, how)("produce")
    with on_the_leader(three) as client:
        client.send_produce("orders", 0, batch_of([b"x"]))
        assert client.receive() is None
    assert values(three) == written


def test_a_node_that_refuses_ends_its_connections_and_takes_none(three: LocalKafka) -> None:
    node = leader(three)
    with on_the_leader(three) as before:
        three.faults.refuse(node)
        assert before.receive() is None
    with RawClient(three.port + node % 3) as another:
        another.metadata()
    with RawClient(three.port + node - 1) as refused, pytest.raises((ConnectionAbortedError, ConnectionError)):
        refused.metadata()
    three.faults.clear()
    with RawClient(three.port + node - 1) as again:
        again.metadata()


def test_coordinators_fail_too(three: LocalKafka) -> None:
    commit = entity(Api.heartbeat, 4, "HeartbeatRequest", group_id="g", generation_id=1, member_id="m")
    three.faults.fail("heartbeat", "coordinator_not_available")
    with RawClient(three.port) as client:
        client.ask(entity(Api.find_coordinator, 4, "FindCoordinatorRequest", key_type=0, coordinator_keys=("g",)))
        assert client.ask(commit).error_code is ErrorCode.coordinator_not_available
        assert client.ask(commit).error_code is not ErrorCode.coordinator_not_available


PLAN: list[tuple[str, dict[str, Any]]] = [
    ("fail", {"error": "not_leader_or_follower"}),
    ("cut", {}),
    ("cut_answer", {}),
    ("delay", {"seconds": 0.2}),
    ("cut_answer", {"times": 2}),
]


def test_librdkafka_writes_everything_once_through_all_of_them(three: LocalKafka) -> None:
    """It is what idempotence is for: of what was done without an answer, nobody else would know."""
    producer = Producer({"bootstrap.servers": three.bootstrap, "enable.idempotence": True, "retry.backoff.ms": 10})
    for number in range(len(PLAN) * 20):
        if number % 20 == 0:
            how, told = PLAN[number // 20]
            getattr(three.faults, how)("produce", **told)
            three.faults.move_leader("orders", 0, number // 20 % 3 + 1)
        producer.produce("orders", b"%d" % number)
        producer.flush(SECONDS if number % 20 == 19 else 0)
    assert producer.flush(SECONDS) == 0
    assert three.faults.waiting == 0
    assert values(three) == [b"%d" % number for number in range(len(PLAN) * 20)]


async def test_our_client_writes_everything_once_through_all_of_them(three: LocalKafka) -> None:
    async with Client([three.bootstrap]) as client, AsyncProducer(client) as producer:
        for turn, (how, told) in enumerate(PLAN):
            getattr(three.faults, how)("produce", **told)
            for number in range(20):
                producer.send("orders", b"%d" % (turn * 20 + number))
            await producer.flush(SECONDS)
    assert three.faults.waiting == 0
    assert values(three) == [b"%d" % number for number in range(len(PLAN) * 20)]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"move": "absent", "partition": 0, "node": 1}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"move": "orders", "partition": 0, "node": 9}, "node 9 is not one of"),
        ({"fail": "metadata", "error": "invalid_request"}, "metadata can not be failed"),
        ({"fail": "produce"}, "'error'"),
        ({"fail": "produce", "error": "nonsense"}, "nonsense"),
        ({"cut": "nonsense"}, "nonsense"),
        ({"cut": "produce", "times": 0}, "times: 0; expected 1"),
        ({"refuse": 9}, "node 9 is not one of [1, 2, 3]"),
        ({"cut": "produce", "node": 9}, "node 9 is not one of [1, 2, 3]"),
        ({"fail": "prodce", "error": "unknown_server_error"}, "did you mean 'produce'?"),
        ({"fail": "produce", "error": "NOT_LEADER_OR_FOLOWER"}, "did you mean 'not_leader_or_follower'?"),
        ({"fail": "produce", "error": "none"}, "no error of Kafka is 'none'"),
        ({"foo": 1}, "expected one of move, fail, delay, cut, cut_answer, refuse, clear, waiting"),
        ({"fial": "produce", "error": "unknown_server_error"}, "did you mean 'fail'?"),
        ({"cut": "produce", "delay": "fetch"}, "delay and cut together"),
        (
            {"cut": "produce", "time": 3},
            "'time' is no key beside 'cut'; expected cut, times, node; did you mean 'times'?",
        ),
        ({"cut": "produce", "seconds": 3}, "'seconds' is no key beside 'cut'"),
        ({"cut": "produce", "times": "3"}, "times: '3'; expected 1"),
        ({"cut": 0}, "cut: 0; expected a request's name"),
        ({"delay": "fetch"}, "'seconds' is missing beside 'delay'"),
        ({"delay": "fetch", "seconds": -1}, "seconds: -1; expected seconds, 0 to"),
        ({"move": "orders", "node": 1}, "'partition' is missing beside 'move'"),
        ({"move": "orders", "partition": -1, "node": 1}, "partition: -1; expected a partition"),
        ({"clear": False}, "clear: False; expected true"),
        ({}, "not understood"),
        ([], "not understood"),
        ("x" * 100, "not understood"),
    ],
)
def test_what_can_not_be_is_refused(three: LocalKafka, asked: Any, said: str) -> None:
    host, _, port = (three.log.parent / "data" / "control.address").read_text().strip().rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS) as connection, connection.makefile("rwb") as lines:
        for _ in range(2):
            lines.write(json.dumps(asked).encode() + b"\n")
            lines.flush()
            assert said in json.loads(lines.readline())["error"]
    assert three.faults.waiting == 0
    with pytest.raises(IngestdError, match=r"can not be failed.*; what can be: .*produce"):
        three.faults.fail("api_versions", "invalid_request")
    with pytest.raises(IngestdError, match="did you mean 'produce'"):
        three.faults.fail("prodce", "unknown_server_error")


def test_a_line_without_an_end_ends_its_connection(three: LocalKafka) -> None:
    host, _, port = (three.log.parent / "data" / "control.address").read_text().strip().rpartition(":")
    reset = contextlib.suppress(ConnectionError)  # before all is sent, that is how it ends
    with reset, socket.create_connection((host, int(port)), SECONDS) as connection:
        connection.sendall(b"x" * (1 << 20))
        assert connection.recv(1) == b""
    assert three.faults.waiting == 0


@pytest.mark.parametrize("api", sorted(FAILABLE), ids=lambda api: api.name)
def test_what_can_be_failed_asks_whether_it_shall_fail(api: Api) -> None:
    """Each of their handlers gets its partition or its group from the context, which is where faults are."""
    from importlib import import_module
    from pathlib import Path

    source = Path(str(import_module(f"ingestd.broker.api.{api.name}").__file__)).read_text()
    asks = ("led", "replica", "group_partition", "members_partition", "transaction_partition", "transaction_partitions")
    assert any(f"context.{each}(" in source for each in asks)


def test_the_control_endpoint_is_for_this_machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    from ingestd.broker.server import BrokerServer
    from ingestd.broker.settings import BrokerSettings
    from ingestd.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match="is reached by other machines"):
        BrokerServer(BrokerSettings(tmp_path_factory.mktemp("x"), control=("0.0.0.0", 0)))
