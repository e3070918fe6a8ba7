"""Exactly once: queries that are killed at named points leave every row once, for readers of committed records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from ingestd.spark import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster

pytestmark = pytest.mark.timeout(300)


POINTS = [
    "amid the rows of a task",
    "after a task has written",
    "before Spark knows that the batch is committed",
]


def killed_source(point: str, flag: str, group: int = 0) -> type[Any]:
    """The data source `killed`, whose sink kills a process once, at `point`: while the file `flag` is there.

    The process is the one that it runs in, or those of the process group `group`.

    All is in this function, so that Spark's workers need no module of the tests.
    """
    import os
    import signal
    from pathlib import Path

    from ingestd.spark.source import IngestdDataSource, StreamWriter

    def kill(here: str) -> None:
        if here == point and Path(flag).exists():
            Path(flag).unlink()
            os.kill(-group or os.getpid(), signal.SIGKILL)

    class KilledWriter(StreamWriter):
        def write(self, iterator: Any) -> Any:
            def some() -> Any:
                for number, rows in enumerate(iterator):
                    if number:
                        kill("amid the rows of a task")
                    yield rows

            written = super().write(some())
            kill("after a task has written")
            return written

        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            kill("before Spark knows that the batch is committed")

    class KilledSource(IngestdDataSource):
        @classmethod
        def name(cls) -> str:
            return "killed"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return KilledWriter(super().streamWriter(schema, overwrite)._options)

    return KilledSource


def committed(cluster: KafkaCluster, topic: str) -> list[int]:
    """The values of all committed records."""
    reader = Consumer(
        {
            "bootstrap.servers": cluster.servers,
            "group.id": "nobody",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 2,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    while True:
        for message in reader.consume(1_000, 0.5):
            if message.error() is not None:
                reader.close()
                return sorted(found)
            found.append(int(message.value()))


def send(cluster: KafkaCluster, topic: str, values: range) -> None:
    sender = Producer({"bootstrap.servers": cluster.servers, "enable.idempotence": True, "log_level": 2})
    for number in values:
        sender.produce(topic, b"%d" % number, partition=number % 2)
        sender.poll(0)
    assert sender.flush(60) == 0


def copy(
    spark: SparkSession,
    cluster: KafkaCluster | Servers,
    topics: tuple[str, str],
    checkpoint: Path,
    sink: str,
    kind: str = "records",
) -> None:
    """Run a query over what is there."""
    source, target = topics
    columns = {"records": ("value", "position"), "batches": ("batch", "0 AS partition", "position")}[kind]
    rows = (
        spark.readStream.format("ingestd")
        .option("kafka.bootstrap.servers", cluster.servers)
        .options(subscribe=source, startingOffsets="earliest", includePosition="true", rows=kind)
        .load()
        .selectExpr(*columns)
    )
    writer = rows.writeStream.format(sink).option("kafka.bootstrap.servers", cluster.servers)
    writer = writer.options(topic=target, delivery="exactly-once", group=target, rows=kind)
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("point", "kind"), [*((point, "records") for point in POINTS), ("after a task has written", "batches")]
)
def test_every_row_is_there_once_although_a_process_is_killed(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path, point: str, kind: str
) -> None:
    topics, flag = (topic(partitions=2), topic()), tmp_path / "kill"
    spark.dataSource.register(killed_source(point, str(flag)))
    for first, last in ((0, 45_000), (45_000, 50_000)):
        send(kafka, topics[0], range(first, last))
        if first == 0:  # the first batch is the one whose start Spark does not keep
            flag.touch()
            with pytest.raises(StreamingQueryException):
                copy(spark, kafka, topics, tmp_path / "checkpoint", "killed", kind)
            assert not flag.exists()
        copy(spark, kafka, topics, tmp_path / "checkpoint", "killed", kind)
    assert committed(kafka, topics[1]) == list(range(50_000))
    asked = ConsumerGroupTopicPartitions(topics[1])
    (found,) = (one.result() for one in kafka.admin.list_consumer_group_offsets([asked]).values())
    assert sorted((one.topic, one.partition, one.offset) for one in found.topic_partitions) == [
        (topics[0], 0, 25_000),
        (topics[0], 1, 25_000),
    ]


def test_a_shuffle_before_the_sink_is_refused(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    topics = topic(partitions=2), topic()
    send(kafka, topics[0], range(100))
    rows = (
        spark.readStream.format("ingestd")
        .option("kafka.bootstrap.servers", kafka.servers)
        .options(subscribe=topics[0], startingOffsets="earliest", includePosition="true")
        .load()
    )
    writer = rows.select("value", "position").repartition(2).writeStream.format("ingestd")
    writer = writer.option("kafka.bootstrap.servers", kafka.servers)
    writer = writer.options(topic=topics[1], delivery="exactly-once", group=topics[1])
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"all rows of a source partition in one task"):
        query.awaitTermination(120)


@dataclass(frozen=True)
class Servers:
    """A cluster, for another process."""

    servers: str


def drive(point: str, flag: str, servers: str, source: str, target: str, checkpoint: str) -> None:
    """A driver of its own, in a process group of its own. It is killed with its JVM."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    session.dataSource.register(killed_source(point, flag, os.getpgid(0)))
    copy(session, Servers(servers), (source, target), Path(checkpoint), "killed")
    session.stop()


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_every_row_is_there_once_although_the_driver_is_killed(
    kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path, point: str
) -> None:
    topics, flag = (topic(partitions=2), topic()), tmp_path / "kill"
    flag.touch()
    program = f"import sys, {Path(__file__).stem} as tests; tests.drive(*sys.argv[1:])"
    command = [sys.executable, "-c", program, point, str(flag), kafka.servers, *topics, str(tmp_path / "checkpoint")]
    for first, last, code in ((0, 45_000, -signal.SIGKILL), (45_000, 50_000, 0)):
        send(kafka, topics[0], range(first, last))
        driver = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
            start_new_session=True,
            timeout=280,
            check=False,
        )
        assert driver.returncode == code
        assert not flag.exists()
    assert committed(kafka, topics[1]) == list(range(50_000))
