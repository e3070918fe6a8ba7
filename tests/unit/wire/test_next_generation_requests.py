"""The heartbeat of KIP-848's members, in every version; kio's schemas are the oracle."""

from __future__ import annotations

import datetime as dt
from importlib import import_module
from uuid import UUID

import pytest

from ingestd.errors import ErrorCode, ProtocolError, UnsupportedVersion
from ingestd.wire.apis import Api
from ingestd.wire.codec import decode_entity, encode_entity
from ingestd.wire.requests.next_generation_groups import (
    GroupHeartbeat,
    consumer_group_heartbeat,
    read_group_heartbeat,
)
from ingestd.wire.versions import ApiVersions

TOPIC = UUID(int=7)
HEARTBEAT = Api.consumer_group_heartbeat


@pytest.mark.parametrize("version", [0, 1])
def test_everything_that_is_told_is_in_every_version(version: int) -> None:
    request = consumer_group_heartbeat(
        "g",
        member_id="m",
        member_epoch=3,
        group_instance_id="i",
        rack="r",
        rebalance_timeout_ms=5_000,
        topics={"b", "a"},
        assignor="uniform",
        owned={TOPIC: {2, 0}},
    )(ApiVersions({HEARTBEAT: (version, version)}))
    read = decode_entity(type(request), encode_entity(request))
    assert (read.__api_key__, read.__version__) == (HEARTBEAT, version)
    assert (read.group_id, read.member_id, read.member_epoch, read.instance_id, read.rack_id) == ("g", "m", 3, "i", "r")
    assert (read.subscribed_topic_names, read.server_assignor) == (("a", "b"), "uniform")
    assert read.rebalance_timeout == dt.timedelta(seconds=5)
    assert [(topic.topic_id, topic.partitions) for topic in read.topic_partitions] == [(TOPIC, (0, 2))]


def test_what_is_not_told_is_null() -> None:
    request = consumer_group_heartbeat("g", member_id="m", member_epoch=3)(ApiVersions({HEARTBEAT: (0, 1)}))
    read = decode_entity(type(request), encode_entity(request))
    assert read.topic_partitions is None
    assert read.subscribed_topic_names is None
    assert read.subscribed_topic_regex is None
    assert read.rebalance_timeout == dt.timedelta(milliseconds=-1)


def test_a_regular_expression_needs_a_version_that_has_it() -> None:
    build = consumer_group_heartbeat("g", member_id="m", member_epoch=0, topics=(), regex="t.*")
    assert build(ApiVersions({HEARTBEAT: (0, 99)})).subscribed_topic_regex == "t.*"  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedVersion, match="consumer_group_heartbeat"):
        build(ApiVersions({HEARTBEAT: (0, 0)}))


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("assignment", [None, {}, {TOPIC: (0, 2)}])
def test_no_assignment_and_an_empty_one_are_different_answers(
    version: int, assignment: dict[UUID, tuple[int, ...]] | None
) -> None:
    module = import_module(f"kio.schema.consumer_group_heartbeat.v{version}.response")
    answer = module.ConsumerGroupHeartbeatResponse(
        throttle_time=dt.timedelta(0),
        error_code=ErrorCode.fenced_member_epoch,
        error_message=None,
        member_id="m",
        member_epoch=4,
        heartbeat_interval=dt.timedelta(milliseconds=2_500),
        assignment=None
        if assignment is None
        else module.Assignment(
            topic_partitions=tuple(
                module.TopicPartitions(topic_id=topic, partitions=numbers) for topic, numbers in assignment.items()
            )
        ),
    )
    read = decode_entity(type(answer), encode_entity(answer))
    assert read_group_heartbeat(read) == GroupHeartbeat(ErrorCode.fenced_member_epoch, "", "m", 4, 2.5, assignment)


def test_an_assignment_whose_lengths_lie_is_a_protocol_error() -> None:
    module = import_module("kio.schema.consumer_group_heartbeat.v1.response")
    # throttle time, error, no message, member "m", epoch, interval, an assignment of 2^28 topics
    hostile = bytes.fromhex("00000000 0000 00 026d 00000004 000009c4 01 ffffffff0f")
    with pytest.raises(ProtocolError):
        decode_entity(module.ConsumerGroupHeartbeatResponse, hostile)
