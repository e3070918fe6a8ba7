"""Metadata answers to values, in every version; and what it costs for a large cluster."""

from __future__ import annotations

import datetime as dt
import time
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest

from ingestd.client.answers import merge, read_metadata
from ingestd.client.metadata import ClusterMetadata, Node, PartitionMetadata
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
    known = ClusterMetadata()
    spent = []
    for _ in range(5):
        began = time.process_time()
        known = merge(known, read_metadata(decode_entity(schema, memoryview(body))))
        spent.append(time.process_time() - began)
    assert sum(len(topic.partitions) for topic in known.topics.values()) == 10_000
    assert min(spent) < CPU_LIMIT
