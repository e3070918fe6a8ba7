"""A daemon with its embedded broker: killed at random moments, it is restarted, recovered, and has every line once."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from typing import TYPE_CHECKING

import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from embedded.process import BrokerProcess
from harness import reading
from harness.daemon import ConfiguredDaemon, Daemon
from harness.mirrors import produce, records
from harness.written import LogWriter, Written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.trial import Trial

KILLS = 3


def broker_of(daemon: Daemon) -> psutil.Process:
    """The broker among the daemon's children, once there is one."""
    found: list[psutil.Process] = []

    def there() -> bool:
        for child in psutil.Process(daemon.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended since
                if "ingestd.broker" in child.cmdline():
                    found.append(child)
        return bool(found)

    daemon.until(there, "there is a broker", 60)
    (broker,) = found
    return broker


def embed(daemon: Daemon) -> None:
    """Rewrite the daemon's configuration: its cluster is an embedded one."""
    lines = daemon.file.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("bootstrap"))
    lines[at] = "embedded = true\npartitions = 2"
    daemon.file.write_text("\n".join(lines))


def read_back(state: Path, directory: Path, topic: str) -> dict[int, list[bytes]]:
    """What the stopped daemon's broker holds."""
    (directory / "data").symlink_to(state / "broker" / "target")
    with BrokerProcess(directory) as broker:
        return reading.read_back(broker.servers, topic)


def test_a_broker_killed_at_random_moments_loses_and_doubles_nothing(tmp_path: Path) -> None:
    seed = time.time_ns()
    moments = random.Random(seed)
    print(f"moments by seed {seed}")
    logs = tmp_path / "logs"
    logs.mkdir()
    written = Written()
    settings = {"workers": 2, "drain_timeout": 20}
    with Daemon(
        tmp_path / "daemon", servers=["127.0.0.1:1"], topic="lines", paths=[f"{logs}/*.log"], daemon=settings
    ) as daemon:
        embed(daemon)
        daemon.start_ready()
        with LogWriter(logs / "access.log", written, rate=10_000_000):
            for _ in range(KILLS):
                time.sleep(moments.uniform(0.3, 1.5))
                broker = broker_of(daemon)
                broker.send_signal(signal.SIGKILL)
                broker.wait(30)
                acknowledged = daemon.acknowledged()
                daemon.until(lambda before=acknowledged: daemon.acknowledged() > before, "it goes on", 60)
        size = (logs / "access.log").stat().st_size
        daemon.until(lambda: daemon.acknowledged() == size, "everything is acknowledged", 60)
        assert daemon.stop() == 0
    written.compare(read_back(tmp_path / "daemon" / "state", tmp_path, "lines")).check(duplicates=False)


def test_a_killed_daemon_leaves_no_broker_behind_and_its_successor_has_every_line(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    written = Written()
    with Daemon(
        tmp_path / "daemon",
        servers=["127.0.0.1:1"],
        topic="lines",
        paths=[f"{logs}/*.log"],
        daemon={"workers": 1},
        partition="file",  # what is sent again may take another partition else, where its order says nothing
    ) as daemon:
        embed(daemon)
        daemon.start_ready()
        with LogWriter(logs / "access.log", written):
            daemon.until(lambda: daemon.acknowledged() > 0, "lines arrive", 60)
            broker = broker_of(daemon)
            daemon.kill()
            broker.wait(60)
            daemon.start_ready()
            address = (tmp_path / "daemon" / "state" / "clusters" / "target.address").read_text().strip()
            assert address in json.dumps(daemon.status()["clusters"])
        assert daemon.stop() == 0
        daemon.start("--once")
        assert daemon.wait(90) == 0
        assert not (tmp_path / "daemon" / "state" / "clusters" / "target.address").exists()
    written.compare(read_back(tmp_path / "daemon" / "state", tmp_path, "lines")).check(duplicates=True)


def test_a_topic_that_is_deleted_while_a_tail_runs_is_named_until_it_is_there_again(
    embedded: BrokerProcess, logs: Path, trial: Callable[..., Trial]
) -> None:
    made_by_hand = {"bootstrap": [embedded.servers], "create_topics": False}
    there = trial("*.log", tables={"clusters.target": made_by_hand})
    daemon, admin = there.daemon, AdminClient({"bootstrap.servers": embedded.servers})
    path = logs / "access.log"
    path.write_bytes(b"before\n")
    there.start()
    daemon.until(lambda: there.arrived() == 1, "the first line arrives", 30)
    admin.delete_topics([there.topic])[there.topic].result(30)
    with path.open("ab") as file:
        file.write(b"while it was gone\n")
    missing = f"tail logs: topic {there.topic} is missing"
    daemon.until(lambda: missing in daemon.not_ready(), "/readyz names tail and topic", 30)
    assert missing in daemon.status()["clusters"][0]["error"]
    (said,) = there.events("topics can not be used")
    assert missing in said["reason"]
    admin.create_topics([NewTopic(there.topic, 1, 1)])[there.topic].result(30)
    daemon.until(lambda: there.arrived() == 1, "what waited arrives", 60)
    daemon.until(lambda: bool(there.events("topics can be used")), "the log says so", 30)
    assert not daemon.not_ready()
    there.stop()


def test_a_mirror_into_the_embedded_broker_goes_on_from_its_positions_there(
    embedded: BrokerProcess, new_topic: str, tmp_path: Path
) -> None:
    """Its positions are offsets of a group on the target, whose broker is killed."""
    values = [b"%d" % number for number in range(200)]
    mirror = {"source": "east", "target": "west", "topics": [new_topic], "naming": "identity", "refresh_interval": 0.5}
    tables = {
        "clusters.east": {"bootstrap": [embedded.servers]},
        "clusters.west": {"embedded": True},
        "mirrors.m": mirror,
    }
    with ConfiguredDaemon(tmp_path / "daemon", tables, daemon={"workers": 1}) as daemon:
        address = tmp_path / "daemon" / "state" / "clusters" / "west.address"

        def copied() -> list[list[bytes]]:
            target = address.read_text().strip()
            return [[record[1] for record in records(target, new_topic, partition)] for partition in (0, 1)]

        daemon.start_ready()
        produce(embedded.servers, new_topic, values[:100], partitions=2)
        daemon.until(lambda: sum(map(len, copied())) == 100, "100 records are copied", 60)
        broker_of(daemon).kill()
        produce(embedded.servers, new_topic, values[100:], partitions=2)
        daemon.until(lambda: sum(map(len, copied())) == 200, "200 records are copied", 60)
        assert copied() == [values[::2], values[1::2]]
        reader = Consumer({"bootstrap.servers": address.read_text().strip(), "group.id": "ingestd-mirror-m"})
        wanted = [TopicPartition(new_topic, partition) for partition in (0, 1)]
        daemon.until(lambda: [one.offset for one in reader.committed(wanted, 10)] == [100, 100], "positions", 20)
        reader.close()
        assert daemon.stop() == 0
