"""Workers of the daemon on Spark: what one engine left half-way, the other one finishes, and nothing is missing."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from harness.daemon import ConfiguredDaemon, Daemon
from harness.mirrors import messages, produce
from harness.programs import ingestd
from harness.standalone import Standalone

from ingestd.cli.configured import load_configuration
from ingestd.daemon.supervisor import run
from ingestd.spark.workers.engine import SparkEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import KafkaCluster
    from pyspark.sql import SparkSession

    from ingestd.daemon.summary import Summary

pytestmark = pytest.mark.timeout(300)

PARTITIONS = 3
RECORDS = 12_000
VALUES = [b"%06d" % number + b"x" * 500 for number in range(RECORDS)]
SOME = 1_000_000
"""Bytes that are copied before the kill: a sixth."""


def on_spark(spark: SparkSession, daemon: ConfiguredDaemon) -> Summary:
    """Take all to its present end, with workers in Spark's Python processes."""
    configuration, engine = load_configuration(daemon.file), SparkEngine(spark)
    return run(replace(configuration, daemon=engine.settings(configuration.daemon)), once=True, hire=engine)


def half_way(daemon: ConfiguredDaemon) -> None:
    """Run it, and kill it when it has copied some. With an end: it is in no group, where it would stay a while."""
    daemon.start("--once")
    daemon.until(lambda: daemon.acknowledged() >= SOME, "some of it is acknowledged", 90)
    daemon.kill()


def stored_bytes(state: Path) -> int:
    """The sum of all positions in a state directory."""
    if not (state / "positions.sqlite").exists():
        return 0
    with contextlib.closing(sqlite3.connect(state / "positions.sqlite")) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if "position" not in tables:
            return 0
        (total,) = database.execute("SELECT coalesce(sum(position), 0) FROM position").fetchone()
        return int(total)


def require_all(servers: str, topic: str, partitions: int, *, most_twice: int, ordered: bool = True) -> None:
    """Every value is there; where they come from one source, in order but for what came twice."""
    found: Counter[bytes] = Counter()
    for partition in range(partitions):
        values = [message.value() or b"" for message in messages(servers, topic, partition)]
        first = list(dict.fromkeys(values))
        assert first == sorted(first) or not ordered
        found.update(values)
    assert found.keys() == set(VALUES)
    assert found.total() - RECORDS <= most_twice


@pytest.fixture
def copied(kafka: KafkaCluster, topic: Callable[..., str]) -> str:
    """A topic with all values, in small batches."""
    name = topic(partitions=PARTITIONS)
    produce(kafka.servers, name, VALUES, partitions=PARTITIONS, **{"batch.num.messages": 20, "linger.ms": 1})
    return name


def test_a_mirror_that_was_killed_on_spark_is_finished_here(
    kafka: KafkaCluster, copied: str, mirror: Callable[..., ConfiguredDaemon]
) -> None:
    """On Spark: another daemon can not have the state, and a worker that is killed has a successor. Then the driver."""
    daemon = mirror(source=kafka, target=kafka, topics=[copied], bandwidth=1_000_000, daemon={"workers": 2})
    daemon.start("--engine", "spark", "--master", "local[2]", "--once")
    daemon.until(lambda: daemon.acknowledged() >= SOME // 2, "some of it is acknowledged", 90)
    other = subprocess.run([*ingestd(), "run", daemon.file], capture_output=True, text=True, timeout=60, check=False)
    assert other.returncode == 2
    assert "is in use by another ingestd" in other.stderr
    before = daemon.worker_pids()
    killed = daemon.kill_worker()
    daemon.until(lambda: len(set(daemon.worker_pids()) - {killed}) == 2, "the worker has a successor", 60)
    assert killed in before
    daemon.until(lambda: daemon.acknowledged() >= 2 * SOME, "more of it is acknowledged", 60)
    daemon.kill()
    assert sum(len(messages(kafka.servers, f"east.{copied}", number)) for number in range(PARTITIONS)) < RECORDS
    daemon.start("--once")
    assert daemon.wait(60) == 0, daemon.log.read_text()
    require_all(kafka.servers, f"east.{copied}", PARTITIONS, most_twice=RECORDS // 2)


def test_a_mirror_that_was_killed_here_is_finished_on_spark(
    spark: SparkSession, kafka: KafkaCluster, copied: str, mirror: Callable[..., ConfiguredDaemon]
) -> None:
    daemon = mirror(source=kafka, target=kafka, topics=[copied], bandwidth=2_000_000, daemon={"workers": 2})
    half_way(daemon)
    summary = on_spark(spark, daemon)
    assert summary.complete, summary
    assert 0 < summary.routes[0].records < RECORDS, "positions of the other engine count"
    require_all(kafka.servers, f"east.{copied}", PARTITIONS, most_twice=RECORDS // 2)


def test_a_tail_that_was_killed_here_is_finished_on_spark(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    """Killed amid each file: the rest of them is written after that."""
    name, logs = topic(), tmp_path / "logs"
    logs.mkdir()
    texts = {logs / f"{number}.log": b"\n".join(VALUES[number::4]) + b"\n" for number in range(4)}
    cut = len(texts[logs / "0.log"]) // 2
    for path, text in texts.items():
        path.write_bytes(text[:cut])
    keys: dict[str, Any] = {"servers": kafka.bootstrap, "topic": name, "paths": [f"{logs}/*.log"]}
    with Daemon(tmp_path / "daemon", **keys, daemon={"workers": 2}) as daemon:
        daemon.start()
        daemon.until(lambda: stored_bytes(tmp_path / "daemon" / "state") >= SOME, "some of it is stored", 60)
        daemon.kill()
        for path, text in texts.items():
            with path.open("ab") as log:
                log.write(text[cut:])
        summary = on_spark(spark, daemon)
    assert summary.complete, summary
    assert 0 < summary.routes[0].records < RECORDS, "positions of the other engine count"
    require_all(kafka.servers, name, 1, most_twice=RECORDS // 2, ordered=False)


def test_a_worker_that_can_not_start_says_why(
    spark: SparkSession, kafka: KafkaCluster, copied: str, mirror: Callable[..., ConfiguredDaemon],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise OSError("no way to the driver")

    monkeypatch.setattr("ingestd.spark.workers.engine.SentWorker", lambda _: fail)
    with pytest.raises(Exception, match="a worker can not start on Spark: OSError: no way to the driver"):
        on_spark(spark, mirror(source=kafka, target=kafka, topics=[copied]))


def test_an_interpreter_without_ingestd_is_named(
    kafka: KafkaCluster, copied: str, mirror: Callable[..., ConfiguredDaemon], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In the current directory, which Spark's interpreters look into, there may be a checkout. Then others lack."""
    monkeypatch.delenv("SPARK_HOME")  # the directory of tests, which has no PySpark for interpreters without it
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], timeout=60, check=True)
    daemon = mirror(source=kafka, target=kafka, topics=[copied], daemon={"workers": 1})
    python = f"{tmp_path}/bare/bin/python"
    daemon.start("--engine", "spark", "--master", "local[1]", "--conf", f"spark.pyspark.python={python}", "--once")
    assert daemon.wait(120) == 1
    said = daemon.log.read_text().splitlines()[-1]
    lacks = (
        r"has no (ingestd|\w+, which ingestd needs); expected PYSPARK_PYTHON to name an interpreter that has ingestd"
    )
    assert re.match(rf"ingestd: a worker can not start on Spark: {re.escape(python)} on \S+ {lacks}", said), said


def test_a_daemon_whose_spark_ends_ends_too_and_says_so(
    kafka: KafkaCluster, copied: str, mirror: Callable[..., ConfiguredDaemon]
) -> None:
    """It went on without workers, and tried for ever to have some of a JVM that was gone."""
    daemon = mirror(source=kafka, target=kafka, topics=[copied], bandwidth=100_000, daemon={"workers": 1})
    daemon.start("--engine", "spark", "--master", "local[1]")
    daemon.until(lambda: daemon.acknowledged() > 0, "some of it is acknowledged", 90)
    (jvm,) = [child for child in psutil.Process(daemon.pid).children() if child.name() == "java"]
    jvm.kill()
    assert daemon.wait(60) == 1
    assert daemon.log.read_text().splitlines()[-1].startswith("ingestd: Spark has ended")


@pytest.mark.long
def test_an_executor_that_is_killed_has_a_successor(
    kafka: KafkaCluster, copied: str, mirror: Callable[..., ConfiguredDaemon], tmp_path: Path
) -> None:
    """On a standalone cluster, whose workers are joined by nothing but TCP."""
    daemon = mirror(source=kafka, target=kafka, topics=[copied], bandwidth=600_000, daemon={"workers": 2})
    with Standalone(tmp_path / "cluster") as cluster:
        cluster.add_worker()
        cluster.add_worker()
        settings = {
            "spark.pyspark.python": sys.executable,
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
        }
        given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        daemon.start("--engine", "spark", "--master", cluster.url, *given, "--once")
        daemon.until(lambda: daemon.acknowledged() >= SOME // 2, "some of it is acknowledged", 120)
        cluster.kill_executor()
        assert daemon.wait(200) == 0, daemon.log.read_text()
    assert '"event":"worker died"' in daemon.log.read_text()
    require_all(kafka.servers, f"east.{copied}", PARTITIONS, most_twice=RECORDS // 2)
