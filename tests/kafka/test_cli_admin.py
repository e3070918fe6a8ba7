"""`ingestd groups` and `ingestd topics` on real Kafka, next to Java's tools."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import confluent_kafka
import pytest

from ingestd.cli.configured import ClusterAccess
from ingestd.cli.groups import ResetKind, ResetTo, apply_resets, group_lag, plan_resets
from ingestd.cli.main import main
from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster

PATIENT = 30.0


def fill(kafka: KafkaCluster, topic: str, partition: int, count: int, *, timestamp: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.servers})
    for number in range(count):
        producer.produce(topic, b"x", partition=partition, timestamp=timestamp + number if timestamp else 0)
    assert producer.flush(PATIENT) == 0


def read(kafka: KafkaCluster, group: str, topic: str, count: int) -> Any:
    """A member that has read and committed so many records."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka.servers, "group.id": group, "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe([topic])
    deadline = time.monotonic() + PATIENT
    while count:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            count -= 1
            consumer.commit(message, asynchronous=False)
        assert time.monotonic() < deadline
    return consumer


async def test_lag_is_what_javas_tool_says_and_offsets_are_reset_when_nobody_reads(
    kafka: KafkaCluster, topic: Callable[..., str], java_tool: Callable[..., str]
) -> None:
    name, group = topic(partitions=2), f"group-{uuid4()}"
    access = ClusterAccess(tuple(kafka.bootstrap))
    await asyncio.to_thread(fill, kafka, name, 0, 10)
    consumer = await asyncio.to_thread(read, kafka, group, name, 4)
    lags = await group_lag(access, [group])
    assert [(one.partition, one.committed, one.end, one.lag) for one in lags] == [(0, 4, 10, 6), (1, None, 0, None)]
    assert {one.client_id for one in lags} == {"rdkafka"}
    told = await asyncio.to_thread(
        java_tool, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "--bootstrap-server", kafka.servers, "--describe", "--group", group,
    )  # fmt: skip
    rows = [line.split() for line in told.splitlines() if line.startswith(group)]
    known = {int(row[2]): row[3:7] for row in rows}
    for one in lags:
        assert known[one.partition][:3] == [
            "-" if value is None else str(value) for value in (one.committed, one.end, one.lag)
        ]
        assert known[one.partition][3] == one.member_id

    to_earliest = await plan_resets(access, group, ResetTo(ResetKind.earliest))
    assert [(one.partition, one.before, one.after) for one in to_earliest] == [(0, 4, 0)]
    with pytest.raises(IngestdError, match="is Stable"):
        await apply_resets(access, group, to_earliest)
    await asyncio.to_thread(consumer.close)
    assert await apply_resets(access, group, to_earliest) == to_earliest
    assert [one.committed for one in await group_lag(access, [group])] == [0]

    by_five = await plan_resets(access, group, ResetTo(ResetKind.shift, 5))
    assert [(one.partition, one.before, one.after, one.error) for one in by_five] == [(0, 0, 5, None)]
    everywhere = await plan_resets(access, group, ResetTo(ResetKind.latest), {name: None})
    assert [(one.partition, one.after) for one in everywhere] == [(0, 10), (1, 0)]
    assert [one.error for one in await apply_resets(access, group, everywhere)] == [None, None]
    assert [one.lag for one in await group_lag(access, [group])] == [0, 0]


async def test_a_reset_to_a_time_goes_to_the_first_record_from_then_on(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name, group = topic(partitions=2), f"group-{uuid4()}"
    access = ClusterAccess(tuple(kafka.bootstrap))
    now = int(time.time() * 1000)
    await asyncio.to_thread(fill, kafka, name, 0, 10, timestamp=now)
    planned = await plan_resets(access, group, ResetTo(ResetKind.time, now + 3), {name: None})
    assert [(one.partition, one.before, one.after) for one in planned] == [(0, None, 3), (1, None, 0)]
    late = await plan_resets(access, group, ResetTo(ResetKind.time, now + 60_000), {name: [0]})
    assert [one.after for one in late] == [10]


def test_a_new_group_is_made_by_its_first_offsets_listed_described_and_deleted(
    kafka: KafkaCluster, topic: Callable[..., str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    name, group = topic(partitions=2), f"group-{uuid4()}"

    def ingestd(*arguments: str, code: int = 0) -> Any:
        assert main([*arguments, "-b", kafka.servers]) == code
        written = capfdbinary.readouterr().out
        return json.loads(written) if written else None

    reset = ("groups", "reset-offsets", group, "-t", f"{name}:1", "--to-offset", "0")
    (planned,) = ingestd(*reset)
    assert (planned["before"], planned["after"], planned["error"]) == (None, 0, None)
    assert group not in {one["group_id"] for one in ingestd("groups", "list")}
    ingestd(*reset, "--execute")
    (listed,) = [one for one in ingestd("groups", "list", "--state", "Empty") if one["group_id"] == group]
    assert (listed["state"], listed["type"]) == ("Empty", "classic")
    (described,) = ingestd("groups", "describe", group)
    assert (described["state"], described["members"]) == ("Empty", [])
    (lag,) = ingestd("groups", "lag", group)
    assert (lag["topic"], lag["partition"], lag["lag"]) == (name, 1, 0)
    ingestd("groups", "delete", group)
    ingestd("groups", "describe", group, code=1)


def test_topics_are_changed_and_grown(
    kafka: KafkaCluster, topic: Callable[..., str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    name = topic()
    assert main(["topics", "alter", name, "--config-entry", "retention.ms=4711", "-b", kafka.servers]) == 0
    assert main(["topics", "add-partitions", name, "3", "-b", kafka.servers]) == 0
    deadline = time.monotonic() + PATIENT
    while True:
        assert main(["topics", "describe", name, "-b", kafka.servers]) == 0
        (described,) = json.loads(capfdbinary.readouterr().out)
        if described["configs"] == {"retention.ms": "4711"} and len(described["partitions"]) == 3:
            break
        assert time.monotonic() < deadline
    assert main(["topics", "alter", name, "--default", "retention.ms", "-b", kafka.servers]) == 0
    assert main(["topics", "alter", name, "-b", kafka.servers]) == 2
    assert main(["topics", "add-partitions", name, "2", "-b", kafka.servers]) == 1
    assert b"INVALID_PARTITIONS" in capfdbinary.readouterr().err


def test_records_are_deleted_and_the_disk_is_told_as_javas_tools_do(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    java_tool: Callable[..., str],
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    name = topic(partitions=2)

    def ingestd(*arguments: str, code: int = 0) -> Any:
        assert main(["topics", *arguments, "-b", kafka.servers]) == code
        return json.loads(capfdbinary.readouterr().out)

    now = int(time.time() * 1000)
    fill(kafka, name, 0, 10, timestamp=now)
    fill(kafka, name, 1, 5, timestamp=now)
    one, other = ingestd("delete-records", name, "--before", f"@{now + 4}")
    assert (one["first_offset"], other["first_offset"]) == (4, 4)
    one, other = ingestd("delete-records", name, "--before", "6", code=1)
    assert (one["first_offset"], one["error"], other["first_offset"]) == (6, None, None)
    assert "OFFSET_OUT_OF_RANGE" in other["error"]
    assert [one["first_offset"] for one in ingestd("delete-records", f"{name}:0", "--before", "end")] == [10]
    assert [one["offset"] for one in ingestd("offsets", name, "--at", "beginning")] == [10, 4]

    told = java_tool(
        "org.apache.kafka.tools.LogDirsCommand", "--bootstrap-server", kafka.servers, "--describe", "--topic-list", name
    )
    (line,) = [line for line in told.splitlines() if line.startswith("{")]
    theirs = {
        (one["partition"], broker["broker"], place["logDir"], one["size"], one["offsetLag"], one["isFuture"])
        for broker in json.loads(line)["brokers"]
        for place in broker["logDirs"]
        for one in place["partitions"]
    }
    ours = ingestd("disk-use", name)
    assert {
        (f"{name}-{one['partition']}", *(one[key] for key in ("broker", "directory", "size", "offset_lag", "future")))
        for one in ours
    } == theirs
    (total,) = [one for one in ingestd("disk-use", "--by-topic") if one["topic"] == name]
    assert total == {"topic": name, "replicas": len(ours), "size": sum(one["size"] for one in ours)}
