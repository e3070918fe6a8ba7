"""Who asks a broker what, by the broker's own request log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from harness.written import LogWriter, Written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import KafkaCluster
    from harness.daemon import Daemon
    from harness.written import Delivered

OF_THE_SUPERVISOR = {
    "Metadata",
    "FindCoordinator",
    "InitProducerId",
    "CreateTopics",
    "DescribeConfigs",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "OffsetCommit",
    "AddPartitionsToTxn",
    "EndTxn",
}


def test_metadata_and_coordinator_requests_of_a_running_daemon_come_from_the_supervisor_alone(
    kafka_cluster: Callable[..., KafkaCluster],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    cluster, written = kafka_cluster(log_requests=True), Written()
    name = cluster.create_topic(partitions=4)
    daemon = shipping(cluster, name, workers=2)
    daemon.start_ready()
    with LogWriter(logs / "one.log", written, seed=1), LogWriter(logs / "two.log", written, seed=2):
        time.sleep(1.0)
        killed = daemon.kill_worker()
        daemon.until(lambda: killed not in (now := daemon.worker_pids()) and len(now) == 2, "it is replaced", 60)
        time.sleep(1.0)
    all_there(cluster, name, written)
    assert daemon.stop() == 0
    asked = {client: apis for client, apis in cluster.requests_by_client().items() if client.startswith("ingestd")}
    supervisor = asked.pop("ingestd-supervisor")
    assert supervisor["Metadata"] >= 1
    assert supervisor["InitProducerId"] >= 2
    assert supervisor["Produce"] == 0
    assert sum(apis["Produce"] for apis in asked.values()) > 0
    for client, apis in asked.items():
        assert not OF_THE_SUPERVISOR & set(apis), f"{client} asked {dict(apis)}"
