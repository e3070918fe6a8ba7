"""Brokers that die, freeze and restart under a running daemon: every line arrives once and in order all the same.

The daemon lives through each of these, and its batches are numbered: so a broker's fault is no reason for a duplicate.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from harness.written import LogWriter, Written

from ingestd.client.admin import ClusterAdmin
from ingestd.client.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import KafkaCluster
    from harness.daemon import Daemon
    from harness.written import Delivered

pytestmark = pytest.mark.timeout(300)

SLOW = 100_000.0
"""Bytes a second; the files are far from their end for a minute."""


def test_a_leader_killed_during_a_run_loses_and_doubles_nothing(
    kafka3: KafkaCluster, logs: Path, shipping: Callable[..., Daemon], all_there: Callable[..., Delivered]
) -> None:
    name, written = kafka3.create_topic(partitions=3), Written()
    daemon = shipping(kafka3, name)
    daemon.start_ready()
    with LogWriter(logs / "access.log", written):
        time.sleep(1.0)
        leader = kafka3.leader(name, 0)
        kafka3.kill(leader)
        time.sleep(4.0)
        kafka3.start(leader)
        time.sleep(1.0)
    all_there(kafka3, name, written).check(duplicates=False)
    assert daemon.stop() == 0


def test_a_frozen_leader_holds_a_run_up_and_loses_nothing(
    kafka3: KafkaCluster, logs: Path, shipping: Callable[..., Daemon], all_there: Callable[..., Delivered]
) -> None:
    name, written = kafka3.create_topic(partitions=3), Written()
    daemon = shipping(kafka3, name)
    daemon.start_ready()
    with LogWriter(logs / "access.log", written):
        time.sleep(1.0)
        leader = kafka3.leader(name, 0)
        kafka3.freeze(leader)
        time.sleep(5.0)
        kafka3.thaw(leader)
        time.sleep(1.0)
    all_there(kafka3, name, written, timeout=90).check(duplicates=False)
    assert daemon.stop() == 0


def test_nodes_restarted_one_after_another_are_not_noticed_in_the_topic(
    kafka3: KafkaCluster, logs: Path, shipping: Callable[..., Daemon], all_there: Callable[..., Delivered]
) -> None:
    name, written = kafka3.create_topic(partitions=3), Written()
    daemon = shipping(kafka3, name)
    daemon.start_ready()
    with LogWriter(logs / "access.log", written, rate=500_000):
        for node_id in (1, 2, 3):
            kafka3.stop(node_id)
            kafka3.start(node_id)
            kafka3.wait_in_sync(name)
    all_there(kafka3, name, written).check(duplicates=False)
    assert daemon.stop() == 0


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_run_goes_on_when_its_only_broker_comes_back(
    kafka_cluster: Callable[..., KafkaCluster],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
    end: str,
) -> None:
    cluster, written = kafka_cluster(), Written()
    name = cluster.create_topic(partitions=2)
    daemon = shipping(cluster, name)
    daemon.start_ready()
    with LogWriter(logs / "access.log", written):
        time.sleep(1.0)
        (cluster.stop if end == "stop" else cluster.kill)(1)
        time.sleep(2.0)
        cluster.start(1)
        time.sleep(1.0)
    all_there(cluster, name, written).check(duplicates=False)
    assert daemon.stop() == 0


def test_a_daemon_without_any_broker_stops_within_its_deadline_and_loses_nothing(
    kafka_cluster: Callable[..., KafkaCluster],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    cluster, written = kafka_cluster(), Written()
    name = cluster.create_topic(partitions=1)
    daemon = shipping(cluster, name, partition="file")
    daemon.start_ready()
    with LogWriter(logs / "access.log", written):
        time.sleep(1.0)
        cluster.kill(1)
        time.sleep(1.0)
        began = time.monotonic()
        assert daemon.stop() == 0
        # `drain_timeout` is 10 s; the rest is the end of processes, on a machine that may stall.
        assert time.monotonic() - began < 25
        cluster.start(1)
        daemon.start_ready()
    # What was on its way when the broker died may have reached its log unacknowledged, and is sent again.
    all_there(cluster, name, written).check(duplicates=True)
    assert daemon.stop() == 0


def bytes_read(daemon: Daemon) -> int:
    """Bytes of files that were read since the start."""
    return sum(route["bytes_read"] for route in daemon.status()["routes"])


def test_without_any_broker_a_second_signal_ends_the_drain(
    kafka_cluster: Callable[..., KafkaCluster],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    cluster, written = kafka_cluster(), Written()
    name = cluster.create_topic(partitions=1)
    daemon = shipping(cluster, name, partition="file", daemon={"drain_timeout": 600})
    daemon.start_ready()
    with LogWriter(logs / "access.log", written):
        daemon.until(lambda: daemon.acknowledged() > 0, "lines are acknowledged", 60)
        cluster.kill(1)
        # What is written from now on is acknowledged by nobody. What is unread or on its way now may all have been.
        before = (logs / "access.log").stat().st_size
        daemon.until(lambda: bytes_read(daemon) > before, "there is something to drain", 60)
    os.kill(daemon.pid, signal.SIGTERM)
    daemon.until(lambda: "draining" in daemon.log.read_text(), "the daemon drains", 60)
    assert daemon.stop() == 0
    cluster.start(1)
    cluster.wait_in_sync(name)
    daemon.start("--once")
    assert daemon.wait(90) == 0
    all_there(cluster, name, written).check(duplicates=True)


def allow(cluster: KafkaCluster, rate: float | None) -> None:
    """How many bytes a second the cluster takes of each client."""

    async def change() -> None:
        async with Client(cluster.bootstrap) as client:
            quotas = {(("client-id", None),): {"producer_byte_rate": rate}}
            assert [outcome.error for outcome in await ClusterAdmin(client).alter_client_quotas(quotas)] == [None]

    asyncio.run(change())


def test_a_run_with_an_end_gives_up_on_a_broker_that_stays_away_and_the_next_goes_on(
    kafka_cluster: Callable[..., KafkaCluster],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    cluster, written = kafka_cluster(), Written()
    allow(cluster, SLOW)  # what knows of the topic below knows of this
    name = cluster.create_topic(partitions=1)
    with LogWriter(logs / "access.log", written, rate=15_000_000):
        time.sleep(1.0)
    patience = {"once_patience": 6, "drain_timeout": 1}
    daemon = shipping(cluster, name, partition="file", daemon=patience, compression="none")
    daemon.start_ready("--once")
    daemon.until(lambda: daemon.acknowledged() > 0, "it is in its middle", 60)
    cluster.kill(1)
    assert daemon.wait(60) == 1
    assert "gave up: nothing was acknowledged for 6 s" in daemon.log.read_text()
    cluster.start(1)
    cluster.wait_in_sync(name)
    allow(cluster, None)
    daemon.start("--once")
    assert daemon.wait(90) == 0
    all_there(cluster, name, written).check(duplicates=True)


def test_a_cluster_that_goes_away_while_nothing_is_written_is_said_once_and_so_is_its_return(
    kafka_cluster: Callable[..., KafkaCluster], shipping: Callable[..., Daemon]
) -> None:
    cluster = kafka_cluster()
    daemon = shipping(cluster, cluster.create_topic(partitions=1))
    daemon.start_ready()
    cluster.kill(1)
    gone = 'ingestd_cluster_reachable{cluster="target"} 0.0'
    daemon.until(lambda: gone in daemon.metrics(), "the cluster is known to be gone", 60)
    daemon.until(lambda: daemon.page("/readyz") is None, "the daemon is not ready", 60)
    cluster.start(1)
    daemon.until(lambda: gone not in daemon.metrics(), "the cluster is known to be back", 60)
    daemon.until(lambda: daemon.page("/readyz") is not None, "the daemon is ready", 60)
    assert daemon.stop() == 0
    log = daemon.log.read_text()
    assert log.count('"cluster does not answer"') == log.count('"cluster answers again"') == 1
    assert "Connection refused" in log


def test_a_daemon_that_starts_before_its_broker_waits_for_it(
    kafka_cluster: Callable[..., KafkaCluster],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    cluster, written = kafka_cluster(), Written()
    name = cluster.create_topic(partitions=1)
    cluster.stop(1)
    daemon = shipping(cluster, name)
    with LogWriter(logs / "access.log", written):
        daemon.start()
        time.sleep(2.0)
        assert daemon.running
        cluster.start(1)
    all_there(cluster, name, written).check(duplicates=False)
    assert daemon.stop() == 0
