"""Administration when roles move: who is asked again, who is not, and what becomes of each item."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from ingestd.client.admin import (
    EARLIEST,
    LATEST,
    ClusterAdmin,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from ingestd.client.client import Client
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.requests import OffsetAt

NO_TIME = dt.timedelta(0)


def created(module: Any, request: Any, error: ErrorCode) -> Any:
    return module.CreateTopicsResponse(
        throttle_time=NO_TIME,
        topics=tuple(
            module.CreatableTopicResult(
                name=topic.name, topic_id=None, error_code=error, error_message="said so", configs=None
            )
            for topic in request.topics
        ),
    )


async def test_a_controller_that_has_moved_is_found_by_a_refresh(cluster: Any, settings: Any) -> None:
    asked: list[int] = []

    def create(module: Any, node: int, request: Any) -> Any:
        asked.append(node)
        cluster.controller = 3
        return created(module, request, ErrorCode.none if node == 3 else ErrorCode.not_controller)

    cluster.scripts["CreateTopicsRequest"] = create
    async with Client(["one:1"], settings()) as client:
        (outcome,) = await ClusterAdmin(client).create_topics([NewTopic("n", 1, 1)], timeout=5)
    assert (asked, outcome.error) == ([1, 3], None)


async def test_a_refusal_of_one_topic_is_its_own_and_is_not_tried_again(cluster: Any, settings: Any) -> None:
    asked: list[int] = []

    def create(module: Any, node: int, request: Any) -> Any:
        asked.append(node)
        return created(module, request, ErrorCode.policy_violation)

    cluster.scripts["CreateTopicsRequest"] = create
    async with Client(["one:1"], settings()) as client:
        outcomes = await ClusterAdmin(client).create_topics([NewTopic("n", 1, 1), NewTopic("m", 1, 1)], timeout=5)
    assert [str(outcome.error) for outcome in outcomes] == [
        "POLICY_VIOLATION (44): n: said so",
        "POLICY_VIOLATION (44): m: said so",
    ]
    assert asked == [1]


async def test_a_controller_that_is_down_is_an_error_at_the_deadline(cluster: Any, settings: Any) -> None:
    async with Client(["two:2"], settings()) as client:
        await client.metadata.refresh((), 5)
        cluster.down = {"one:1"}
        with pytest.raises(ConnectionError, match="refused"):
            await ClusterAdmin(client).create_topics([NewTopic("n", 1, 1)], timeout=0.05)


def offsets(module: Any, request: Any, answer: Any) -> Any:
    return module.ListOffsetsResponse(
        throttle_time=NO_TIME,
        topics=tuple(
            module.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    module.ListOffsetsPartitionResponse(
                        partition_index=partition.partition_index,
                        timestamp=-1,
                        leader_epoch=5,
                        **answer(partition.partition_index, partition.timestamp),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


async def test_offsets_come_from_each_partitions_leader_in_the_order_asked(cluster: Any, settings: Any) -> None:
    asked: list[int] = []

    def answer(module: Any, node: int, request: Any) -> Any:
        asked.append(node)
        numbers = [partition.partition_index for topic in request.topics for partition in topic.partitions]
        assert len(set(numbers)) == len(numbers)
        return offsets(
            module,
            request,
            lambda number, time: {"error_code": ErrorCode.none, "offset": 1000 * node + 100 * number + time},
        )

    cluster.scripts["ListOffsetsRequest"] = answer
    async with Client(["one:1"], settings()) as client:
        listed = await ClusterAdmin(client).list_offsets(
            [
                OffsetAt("t", 2, LATEST),
                OffsetAt("t", 0, EARLIEST),
                OffsetAt("t", 0, LATEST),
                OffsetAt("t", 1, 50),
                OffsetAt("nix", 0, LATEST),
            ],
            timeout=5,
        )
    assert [item.offset for item in listed] == [3199, 998, 999, 2150, -1]
    assert listed[4].error is not None
    assert sorted(asked) == [1, 1, 2, 3]


async def test_a_partition_whose_leader_moved_is_asked_again_at_the_new_one(cluster: Any, settings: Any) -> None:
    asked: list[tuple[int, int]] = []

    def answer(module: Any, node: int, request: Any) -> Any:
        asked.extend((node, part.partition_index) for topic in request.topics for part in topic.partitions)
        cluster.topics["t"][0] = (3, 6)
        moved = node == 1
        return offsets(
            module,
            request,
            lambda *_: {
                "error_code": ErrorCode.not_leader_or_follower if moved else ErrorCode.none,
                "offset": -1 if moved else 42,
            },
        )

    cluster.scripts["ListOffsetsRequest"] = answer
    async with Client(["one:1"], settings()) as client:
        listed = await ClusterAdmin(client).list_offsets(
            [OffsetAt("t", 0, LATEST), OffsetAt("t", 1, LATEST)], timeout=5
        )
    assert [(item.offset, item.error) for item in listed] == [(42, None), (42, None)]
    assert asked == [(1, 0), (2, 1), (3, 0)]


async def test_a_partition_left_out_of_an_answer_is_an_error_of_its_own(cluster: Any, settings: Any) -> None:
    cluster.scripts["ListOffsetsRequest"] = lambda module, _, request: module.ListOffsetsResponse(
        throttle_time=NO_TIME, topics=()
    )
    async with Client(["one:1"], settings()) as client:
        (listed,) = await ClusterAdmin(client).list_offsets([OffsetAt("t", 0, LATEST)], timeout=5)
    assert isinstance(listed.error, KafkaError)


async def test_a_brokers_configuration_comes_from_itself_and_a_topics_from_any(cluster: Any, settings: Any) -> None:
    asked: dict[int, list[str]] = {}

    def describe(module: Any, node: int, request: Any) -> Any:
        asked.setdefault(node, []).extend(resource.resource_name for resource in request.resources)
        return module.DescribeConfigsResponse(
            throttle_time=NO_TIME,
            results=tuple(
                module.DescribeConfigsResult(
                    error_code=ErrorCode.none,
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=(),
                )
                for resource in request.resources
            ),
        )

    cluster.scripts["DescribeConfigsRequest"] = describe
    async with Client(["one:1"], settings()) as client:
        described = await ClusterAdmin(client).describe_configs(
            [
                ConfigResource(ResourceType.topic, "t"),
                ConfigResource(ResourceType.broker, "2"),
                ConfigResource(ResourceType.broker, "3"),
            ],
            timeout=5,
        )
    assert {item.resource.name for item in described} == {"t", "2", "3"}
    assert "2" in asked[2]
    assert "3" in asked[3]
