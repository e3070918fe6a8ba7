"""Kafka's own tools on the embedded broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from embedded.process import BrokerProcess


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_console_consumer_reads_what_the_performance_producer_wrote(
    embedded: BrokerProcess, new_topic: str, java_tool: Callable[..., str], tmp_path: Path, codec: str
) -> None:
    values = [f"payload {number} {'y' * (number % 100)}" for number in range(50)]
    payloads = tmp_path / "payloads"
    payloads.write_text("\n".join(values))
    java_tool(
        "TopicCommand", "--bootstrap-server", embedded.servers, "--create", "--topic", new_topic, "--partitions", "1"
    )
    said = java_tool(
        "ProducerPerformance", "--topic", new_topic, "--num-records", "20000", "--throughput", "-1",
        "--payload-file", str(payloads), "--bootstrap-server", embedded.servers,
        "--command-property", f"compression.type={codec}", "--command-property", "acks=all",
    )  # fmt: skip
    assert "20000 records sent" in said
    lines = java_tool(
        "consumer.ConsoleConsumer", "--bootstrap-server", embedded.servers, "--topic", new_topic, "--partition", "0",
        "--offset", "earliest", "--max-messages", "20000", "--timeout-ms", "30000",
    ).splitlines()  # fmt: skip
    assert len(lines) == 20000
    assert set(lines) == set(values)


def test_the_topic_tools_see_what_is_there(
    embedded: BrokerProcess, new_topic: str, java_tool: Callable[..., str]
) -> None:
    server = ("--bootstrap-server", embedded.servers)
    java_tool(
        "TopicCommand", *server, "--create", "--topic", new_topic, "--partitions", "3", "--config", "retention.ms=5000"
    )
    assert new_topic in java_tool("TopicCommand", *server, "--list").split()
    described = java_tool("TopicCommand", *server, "--describe", "--topic", new_topic)
    assert "PartitionCount: 3" in described
    assert "retention.ms=5000" in described
    java_tool("TopicCommand", *server, "--alter", "--topic", new_topic, "--partitions", "4")
    ends = java_tool("GetOffsetShell", *server, "--topic", new_topic)
    assert ends.split() == [f"{new_topic}:{partition}:0" for partition in range(4)]
    java_tool("TopicCommand", *server, "--delete", "--topic", new_topic)
    assert new_topic not in java_tool("TopicCommand", *server, "--list").split()


def test_configurations_are_changed_and_shown(
    embedded: BrokerProcess, new_topic: str, java_tool: Callable[..., str]
) -> None:
    server = ("--bootstrap-server", embedded.servers)
    java_tool("TopicCommand", *server, "--create", "--topic", new_topic, "--partitions", "1")
    of_topic = ("kafka.admin.ConfigCommand", *server, "--entity-type", "topics", "--entity-name", new_topic)
    java_tool(*of_topic, "--alter", "--add-config", "retention.ms=9000,cleanup.policy=[compact,delete]")
    described = java_tool(*of_topic, "--describe")
    assert "retention.ms=9000" in described
    assert "cleanup.policy=compact,delete" in described
    java_tool(*of_topic, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in java_tool(*of_topic, "--describe")
    everything = java_tool(*of_topic, "--describe", "--all")
    assert "max.compaction.lag.ms=9223372036854775807" in everything
    with pytest.raises(RuntimeError, match=r"segment\.ms = 'soon': expected an integer of at least 1"):
        java_tool(*of_topic, "--alter", "--add-config", "segment.ms=soon")
    of_broker = (of_topic[0], *server, "--entity-type", "brokers", "--entity-name", "1")
    assert "num.partitions=2" in java_tool(*of_broker, "--describe", "--all")
    with pytest.raises(RuntimeError, match="change with a restart only"):
        java_tool(*of_broker, "--alter", "--add-config", "log.retention.ms=1")
    assert "ingestd=INFO" in java_tool(
        of_topic[0], *server, "--entity-type", "broker-loggers", "--entity-name", "1", "--describe"
    )


def test_logs_are_shown_shortened_and_not_moved(
    embedded: BrokerProcess, new_topic: str, java_tool: Callable[..., str], tmp_path: Path
) -> None:
    server = ("--bootstrap-server", embedded.servers)
    java_tool("TopicCommand", *server, "--create", "--topic", new_topic, "--partitions", "2")
    java_tool("ConsoleProducer", *server, "--topic", new_topic, stdin=b"a\nb\nc\n")
    dirs = java_tool("LogDirsCommand", *server, "--describe", "--topic-list", new_topic).splitlines()[-1]
    (of_broker,) = json.loads(dirs)["brokers"]
    (directory,) = of_broker["logDirs"]
    assert directory["logDir"] == str(embedded.data)
    sizes = {one["partition"]: one["size"] for one in directory["partitions"]}
    assert sizes.keys() == {f"{new_topic}-0", f"{new_topic}-1"}
    assert sum(sizes.values()) > 60
    partition = next(number for number in (0, 1) if sizes[f"{new_topic}-{number}"])
    to_delete = tmp_path / "delete.json"
    asked = {"topic": new_topic, "partition": partition, "offset": 1}
    to_delete.write_text(json.dumps({"version": 1, "partitions": [asked]}))
    assert "low_watermark: 1" in java_tool("DeleteRecordsCommand", *server, "--offset-json-file", str(to_delete))
    earliest = java_tool("GetOffsetShell", *server, "--topic", new_topic, "--time", "earliest")
    assert f"{new_topic}:{partition}:1" in earliest.split()
    moves = tmp_path / "moves.json"
    moves.write_text(json.dumps({"version": 1, "partitions": [{"topic": new_topic, "partition": 0, "replicas": [1]}]}))
    reassign = ("reassign.ReassignPartitionsCommand", *server, "--reassignment-json-file", str(moves))
    assert "Successfully started partition reassignment" in java_tool(*reassign, "--execute")
    assert f"Reassignment of partition {new_topic}-0 is completed." in java_tool(*reassign, "--verify")
    assert "No partition reassignments found." in java_tool(reassign[0], *server, "--list")
    election = ("LeaderElectionCommand", *server, "--election-type", "preferred", "--topic", new_topic)
    assert "Valid replica already elected" in java_tool(*election, "--partition", "0")
    with pytest.raises(RuntimeError, match="this broker has no access control"):
        java_tool("org.apache.kafka.tools.AclCommand", *server, "--list")
