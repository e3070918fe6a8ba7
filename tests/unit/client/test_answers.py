"""Metadata answers to values, in every version; and what it costs for a large cluster."""

from __future__ import annotations

import datetime as dt
import time
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest

from ingestd.client.answers import keep_newer_leaders, merge, read_metadata, with_leaders
from ingestd.client.metadata import ClusterMetadata, NewLeader, Node, PartitionMetadata, TopicMetadata
from ingestd.errors import ErrorCode
from ingestd.wire.codec import decode_entity, encode_entity

TOPIC_ID = UUID(int=77)
CPU_LIMIT = 0.1
"""Seconds for a refresh of 10,000 partitions, all of it: bytes to entities to values to the merged snapshot."""


def response(version: int, topics: int = 1, partitions: int = 2) -> tuple[Any, bytes]:
    module = import_module(f"kio.schema.metadata.v{version}.response")
    rows = []
    for number in reversed(range(partitions)):
        fields: dict[str, Any] = {
            "error_code": ErrorCode.none,
            "partition_index": number,
            "leader_id": 1,
            "replica_nodes": (1, 2),
            "isr_nodes": (1,),
        }
        if version >= 5:
            fields["offline_replicas"] = (2,)
        if version >= 7:
            fields["leader_epoch"] = 9
        rows.append(module.MetadataResponsePartition(**fields))
    topic: dict[str, Any] = {"error_code": ErrorCode.none, "is_internal": True, "partitions": tuple(rows)}
    if version >= 10:
        topic["topic_id"] = TOPIC_ID
    answer: dict[str, Any] = {
        "brokers": (module.MetadataResponseBroker(node_id=1, host="h", port=9, rack="r"),),
        "controller_id": 1,
        "topics": tuple(module.MetadataResponseTopic(name=f"t{number}", **topic) for number in range(topics)),
    }
    if version >= 2:
        answer["cluster_id"] = "c"
    if version >= 3:
        answer["throttle_time"] = dt.timedelta(0)
    if version >= 13:
        answer["error_code"] = ErrorCode.none
    entity = module.MetadataResponse(**answer)
    return type(entity), encode_entity(entity)


@pytest.mark.parametrize("version", range(1, 14))
def test_an_answer_in_each_version_means_the_same_as_far_as_it_goes(version: int) -> None:
    schema, body = response(version)
    metadata = read_metadata(decode_entity(schema, memoryview(body)))
    assert metadata.nodes == {1: Node(1, "h", 9, "r")}
    assert (metadata.cluster_id, metadata.controller_id) == ("c" if version >= 2 else None, 1)
    topic = metadata.topics["t0"]
    assert (topic.internal, topic.topic_id) == (True, TOPIC_ID if version >= 10 else None)
    epoch, offline = (9 if version >= 9 else -1), ((2,) if version >= 5 else ())
    assert topic.partitions == tuple(PartitionMetadata(number, 1, epoch, (1, 2), (1,), offline) for number in (0, 1))


def test_ten_thousand_partitions_are_refreshed_within_the_limit() -> None:
    schema, body = response(12, topics=100, partitions=100)
    received = memoryview(bytearray(body))  # as a connection receives a large answer: into memory of its own
    known = ClusterMetadata()
    spent = []
    for _ in range(5):
        began = time.process_time()
        known = merge(known, read_metadata(decode_entity(schema, received)))
        spent.append(time.process_time() - began)
    assert sum(len(topic.partitions) for topic in known.topics.values()) == 10_000
    assert min(spent) < CPU_LIMIT


def metadata_of(*topics: TopicMetadata, nodes: tuple[int, ...] = (1, 2)) -> ClusterMetadata:
    return ClusterMetadata("c", 1, {n: Node(n, "h", n) for n in nodes}, {topic.name: topic for topic in topics})


def topic_of(name: str, *epochs: int, topic_id: UUID | None = TOPIC_ID, leader: int = 1) -> TopicMetadata:
    partitions = tuple(PartitionMetadata(number, leader, epoch, (1, 2), (1,)) for number, epoch in enumerate(epochs))
    return TopicMetadata(name, topic_id, partitions)


def test_what_has_not_changed_stays_the_same_object() -> None:
    known = merge(ClusterMetadata(), metadata_of(topic_of("a", 1), topic_of("b", 1)))
    same = merge(known, metadata_of(topic_of("a", 1)))
    assert (same.topics is known.topics, same.nodes is known.nodes) == (True, True)
    assert same.version > known.version
    other = merge(known, metadata_of(topic_of("a", 2), topic_of("b", 1), nodes=(1, 2, 3)))
    assert other.topics["a"] is not known.topics["a"]
    assert other.topics["b"] is known.topics["b"]
    assert set(other.nodes) == {1, 2, 3}
    pushed = keep_newer_leaders(other, metadata_of(topic_of("a", 2), topic_of("b", 1), nodes=(1, 2, 3)))
    assert (pushed.topics is other.topics, pushed.nodes is other.nodes) == (True, True)
    assert set(keep_newer_leaders(other, metadata_of(topic_of("b", 1))).topics) == {"b"}


def test_an_older_epoch_keeps_the_leader_unless_the_topic_is_another_of_the_same_name() -> None:
    known = metadata_of(topic_of("a", 7, leader=2))
    assert merge(known, metadata_of(topic_of("a", 6))).topics["a"].partitions[0].leader == 2
    again = merge(known, metadata_of(topic_of("a", 0, topic_id=UUID(int=78))))
    assert (again.topics["a"].partitions[0].leader, again.topics["a"].topic_id) == (1, UUID(int=78))


def test_a_broker_without_topic_ids_undoes_no_newer_leader() -> None:
    known = metadata_of(topic_of("a", 7, leader=2))
    assert merge(known, metadata_of(topic_of("a", 6, topic_id=None))).topics["a"].partitions[0].leader == 2


def test_a_new_leader_on_a_node_not_known_yet_needs_its_address() -> None:
    known = metadata_of(topic_of("a", 7))
    assert with_leaders(known, [NewLeader("a", 0, 9, 8)]) is None
    moved = with_leaders(known, [NewLeader("a", 0, 9, 8, Node(9, "nine", 9))])
    assert moved is not None
    assert moved.leader("a", 0) == Node(9, "nine", 9)
    kept = with_leaders(known, [NewLeader("a", 0, 2, 8, Node(2, "elsewhere", 2))])
    assert kept is not None
    assert kept.nodes is known.nodes


def test_leaders_of_one_answer_are_taken_together_and_older_ones_left_out() -> None:
    known = metadata_of(topic_of("a", 7, 7, 7), topic_of("b", 1))
    news = [
        NewLeader("a", 0, 2, 8),
        NewLeader("a", 1, 2, 7),
        NewLeader("a", 2, -1, 9),
        NewLeader("a", 5, 2, 9),
        NewLeader("b", 0, 2, 3),
        NewLeader("c", 0, 2, 3),
    ]
    moved = with_leaders(known, news)
    assert moved is not None
    assert [partition.leader for partition in moved.topics["a"].partitions] == [2, 1, 1]
    assert moved.topics["b"].partitions[0].leader_epoch == 3
    assert moved.version == known.version + 1
