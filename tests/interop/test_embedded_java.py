"""Kafka's own tools on the embedded broker."""

from __future__ import annotations

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
