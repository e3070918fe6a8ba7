"""The harness itself: a test that leans on a killed node must know that it was killed, and that it came back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster


def produce(servers: str, topic: str, values: list[bytes], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 2})
    for value in values:
        producer.produce(topic, value, partition=partition)
    # Where the controller is frozen as well it takes ten seconds and more until somebody else leads.
    assert producer.flush(90) == 0


def test_what_is_produced_is_read_back_by_partition_in_order(
    kafka: KafkaCluster, topic: Callable[..., str], read_back: Callable[..., dict[int, list[bytes]]]
) -> None:
    name = topic(partitions=2)
    values = [b"%d" % number for number in range(1000)]
    produce(kafka.servers, name, values, partition=1)
    assert read_back(name) == {0: [], 1: values}
    assert kafka.end_offsets(name) == {0: 0, 1: 1000}


def test_a_topic_gets_the_configuration_asked_for(kafka: KafkaCluster, java_tool: Callable[..., str]) -> None:
    name = kafka.create_topic(max_message_bytes="4321")
    described = java_tool("TopicCommand", "--bootstrap-server", kafka.servers, "--describe", "--topic", name)
    assert "max.message.bytes=4321" in described


@pytest.mark.timeout(300)
def test_a_killed_leader_is_followed_by_another_and_comes_back_in_sync(kafka3: KafkaCluster) -> None:
    name = kafka3.create_topic()
    first = kafka3.leader(name)
    produce(kafka3.servers, name, [b"before"])
    kafka3.kill(first)
    assert not kafka3.node_of(first).running
    produce(kafka3.servers, name, [b"after"])
    assert kafka3.leader(name) != first
    kafka3.start(first)
    kafka3.wait_in_sync(name)
    assert kafka3.read_back(name) == {0: [b"before", b"after"]}


@pytest.mark.timeout(300)
def test_a_frozen_leader_loses_its_partitions_and_takes_part_again_when_thawed(kafka3: KafkaCluster) -> None:
    name = kafka3.create_topic()
    frozen = kafka3.leader(name)
    kafka3.freeze(frozen)
    produce(kafka3.servers, name, [b"while frozen"])
    kafka3.thaw(frozen)
    kafka3.wait_in_sync(name)
    assert kafka3.read_back(name) == {0: [b"while frozen"]}


def test_the_request_log_names_every_client_and_what_it_asked(kafka_cluster: Callable[..., KafkaCluster]) -> None:
    cluster = kafka_cluster(log_requests=True)
    name = cluster.create_topic()
    producer = Producer({"bootstrap.servers": cluster.servers, "client.id": "someone", "log_level": 2})
    producer.produce(name, b"x")
    assert producer.flush(30) == 0
    for api in ("Produce", "Metadata"):
        cluster.wait_for_request("someone", api)
    assert cluster.requests_by_client()["someone"]["Produce"] == 1
