"""How the embedded broker's group coordinator starts, as clients of librdkafka see it: loading, expiry, assignors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from embedded.cluster import QUICK_GROUPS, EmbeddedCluster
from embedded.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

SECONDS = 30


def consumer(broker: BrokerProcess, group: str, **settings: object) -> Consumer:
    return Consumer({"bootstrap.servers": broker.servers, "group.id": group, "log_level": 0, **settings})


def commit(cluster: EmbeddedCluster, group: str, offsets: Iterable[tuple[str, int, int]]) -> None:
    """Store (topic, partition, offset) for a group without members."""
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(*one) for one in offsets])
    cluster.admin.alter_consumer_group_offsets([asked])[group].result(SECONDS)


def groups(broker: BrokerProcess) -> set[str]:
    admin = EmbeddedCluster(broker).admin  # its calls end with it
    return {one.group_id for one in admin.list_consumer_groups().result(SECONDS).valid}


def until_groups(broker: BrokerProcess, expected: set[str]) -> None:
    end = time.monotonic() + SECONDS
    while (found := groups(broker)) != expected:
        assert time.monotonic() < end, found
        time.sleep(0.05)


def test_a_group_is_loading_after_a_start_and_then_has_what_was_committed_last(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    """150,000 offsets are read back: some seconds. Whoever asks meanwhile is never told that there is no offset."""
    partitions, commits, group = 500, 300, "late"
    broker = broker_process()
    cluster = EmbeddedCluster(broker)
    cluster.create_topic("t", partitions=partitions)
    for number in range(1, commits + 1):
        commit(cluster, group, [("t", partition, number * 1000 + partition) for partition in range(partitions)])
    # It knows the coordinator already, and so asks it at once.
    asking = consumer(broker, group, **{"client.id": "asking", "reconnect.backoff.max.ms": 100})
    wanted = [TopicPartition("t", partition) for partition in range(partitions)]
    asking.committed(wanted, SECONDS)
    broker.kill()
    before = len(broker.requests())
    broker.start()
    committed = asking.committed(wanted, SECONDS)
    asking.close()
    assert [one.offset for one in committed] == [commits * 1000 + partition for partition in range(partitions)]
    told = [
        request["error"]
        for request in broker.requests()[before:]
        if (request["api"], request["client_id"]) == ("offset_fetch", "asking")
    ]
    assert set(told[:-1]) == {"coordinator_load_in_progress"}
    assert told[-1] == "none"


def test_offsets_expire_unless_the_broker_was_started_to_keep_them(tmp_path: Path) -> None:
    often = ("--offsets-retention-check-interval", "0.05")
    for_ever, briefly = ("--offsets-retention", "0", *often), ("--offsets-retention", "0.3", *often)
    directories = [tmp_path / "keeping", tmp_path / "forgetting"]
    for directory in directories:
        directory.mkdir()
    with BrokerProcess(directories[0], *for_ever) as keeping, BrokerProcess(directories[1], *briefly) as forgetting:
        for broker, group in ((keeping, "kept"), (forgetting, "gone")):
            cluster = EmbeddedCluster(broker)
            cluster.create_topic("t")
            commit(cluster, group, [("t", 0, 7)])
        until_groups(forgetting, set())
        assert groups(keeping) == {"kept"}
        (committed,) = consumer(keeping, "kept").committed([TopicPartition("t", 0)], SECONDS)
        assert committed.offset == 7
        assert keeping.stop() == 0
    with BrokerProcess(directories[0], *briefly) as started_again:
        until_groups(started_again, set())


def shares(broker: BrokerProcess, members: Sequence[Consumer], partitions: int) -> list[int]:
    """How many partitions each member has, once all are assigned."""
    end = time.monotonic() + SECONDS
    while sum(found := [len(one.assignment()) for one in members]) < partitions or not all(found):
        assert time.monotonic() < end, found
        for one in members:
            one.poll(0.05)
    return sorted(found)


@pytest.mark.parametrize(
    ("options", "told", "expected"),
    [((), "uniform,range", [3, 3]), (("range", "uniform"), "range,uniform", [2, 4]), (("range",), "range", [2, 4])],
)
def test_members_that_choose_no_assignor_get_the_first_that_the_broker_has(
    broker_process: Callable[..., BrokerProcess],
    java_tool: Callable[..., str],
    options: Sequence[str],
    told: str,
    expected: list[int],
) -> None:
    broker = broker_process(*QUICK_GROUPS, *(word for name in options for word in ("--consumer-assignor", name)))
    described = java_tool(
        "kafka.admin.ConfigCommand", "--bootstrap-server", broker.servers, "--describe", "--all",
        "--entity-type", "brokers", "--entity-name", "1",
    )  # fmt: skip
    assert f" group.consumer.assignors={told} " in described
    for topic in ("a", "b"):
        EmbeddedCluster(broker).create_topic(topic, partitions=3)
    members = [consumer(broker, "g", **{"group.protocol": "consumer"}) for _ in range(2)]
    for one in members:
        one.subscribe(["a", "b"])
    assert shares(broker, members, 6) == expected
    for one in members:
        one.close()


def test_a_member_that_chooses_an_assignor_which_the_broker_was_not_given_is_refused(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    broker = broker_process(*QUICK_GROUPS, "--consumer-assignor", "range")
    EmbeddedCluster(broker).create_topic("t")
    member = consumer(broker, "g", **{"group.protocol": "consumer", "group.remote.assignor": "uniform"})
    member.subscribe(["t"])
    message = member.poll(SECONDS)
    assert message is not None
    assert message.error() is not None
    assert "The assignor or its version range is not supported" in message.error().str()
    (refused,) = [request for request in broker.requests() if request["api"] == "consumer_group_heartbeat"]
    assert refused["error"] == "unsupported_assignor"
    member.close()
