"""Kafka's own tools on a broker that poses as three: they see a cluster, move replicas, and elect leaders."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from ingestd.testing import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_javas_tools_move_a_leader_and_go_on(java_tool: Callable[..., str], tmp_path: Path) -> None:
    with LocalKafka(tmp_path, nodes=3) as broker:
        server = ("--bootstrap-server", broker.bootstrap)
        topics = ("TopicCommand", *server, "--topic", "orders")
        java_tool(*topics, "--create", "--partitions", "3", "--replication-factor", "3")
        before = dict(re.findall(r"Partition: (\d)\s+Leader: (\d)", java_tool(*topics, "--describe")))
        assert sorted(before.values()) == ["1", "2", "3"]
        to = int(before["0"]) % 3 + 1
        replicas = [to, *(node for node in (1, 2, 3) if node != to)]
        plan = tmp_path / "plan.json"
        plan.write_text(
            json.dumps({"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": replicas}]})
        )
        java_tool("reassign.ReassignPartitionsCommand", *server, "--reassignment-json-file", str(plan), "--execute")
        elected = ("--election-type", "preferred", "--topic", "orders", "--partition", "0")
        assert "completed" in java_tool("LeaderElectionCommand", *server, *elected)
        after = java_tool(*topics, "--describe")
        text = ",".join(map(str, replicas))
        assert re.search(rf"Partition: 0\s+Leader: {to}\s+Replicas: {text}\s+Isr: {text}", after)
        java_tool(
            "ProducerPerformance", "--topic", "orders", "--num-records", "3000", "--throughput", "-1", "--record-size",
            "100", *server,
        )  # fmt: skip
        lines = java_tool(
            "consumer.ConsoleConsumer", *server, "--topic", "orders", "--group", "readers", "--from-beginning",
            "--max-messages", "3000", "--timeout-ms", "30000",
        ).splitlines()  # fmt: skip
        assert len(lines) == 3000
        groups = java_tool("consumer.group.ConsumerGroupCommand", *server, "--list").split()
        assert groups == ["readers"]
