"""Consumer groups on real Kafka and on the embedded broker: librdkafka commits, and reads what is committed."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ingestd.daemon.pipelines import PipelineSettings, PipelineSink, PipelineSource
from ingestd.spark.pipelines.batch import run
from ingestd.spark.pipelines.failures import PipelineFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from conftest import Servers
    from harness.cluster import KafkaCluster
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


def send(cluster: KafkaCluster | Servers, topic: str, values: Iterable[int]) -> None:
    """Each value goes to the partition of its last bit."""
    sender = Producer({"bootstrap.servers": cluster.servers, "enable.idempotence": True, "log_level": 2})
    for value in values:
        sender.produce(topic, b"%d" % value, partition=value % 2)
    assert sender.flush(60) == 0


def offsets(cluster: KafkaCluster | Servers, group: str) -> dict[int, int]:
    """What the group has committed, by partition."""
    admin = AdminClient({"bootstrap.servers": cluster.servers, "log_level": 2})
    (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {one.partition: one.offset for one in found.result(60).topic_partitions}


def commit(cluster: Servers, group: str, topic: str, committed: dict[int, int]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.servers, "log_level": 2})
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in committed.items()]
    failed = True
    while failed:  # the first commit of all finds a coordinator that is still loading
        (done,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)]).values()
        failed = any(one.error is not None for one in done.result(60).topic_partitions)


@pytest.fixture
def group() -> str:
    return f"spark-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def filled(either: Servers) -> str:
    """A topic with 0 to 99: the even numbers are in partition 0."""
    name = either.create_topic(partitions=2)
    send(either, name, range(100))
    return name


class Query:
    """A stream on one checkpoint that ends when it has read what is there."""

    def __init__(self, spark: SparkSession, cluster: Servers, checkpoint: Path, **options: str) -> None:
        self.values: list[int] = []
        self.fails = False
        stream = spark.readStream.format("ingestd").option("kafka.bootstrap.servers", cluster.servers)
        rows = stream.options(**options).option("kafka.group.id", options.get("commitTo", "")).load()
        self._writer = rows.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))

    def _take(self, rows: DataFrame, number: int) -> None:
        if self.fails:
            raise RuntimeError("as the test wants it")
        self.values += [int(row.value) for row in rows.select("value").collect()]

    def finish(self) -> list[int]:
        """The values that were not read before."""
        self.values = []
        query = self._writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return sorted(self.values)


def test_a_batch_query_starts_where_the_group_has_committed(
    spark: SparkSession, either: Servers, filled: str, group: str
) -> None:
    def values(**more: str) -> list[int]:
        reader = spark.read.format("ingestd").option("kafka.bootstrap.servers", either.servers)
        reader = reader.options(subscribe=filled, startingOffsets="group", **more).option("kafka.group.id", group)
        return sorted(int(row.value) for row in reader.load().select("value").collect())

    commit(either, group, filled, {0: 48})
    with pytest.raises(Exception, match=f"group {group} has no committed offset of {filled}-1"):
        values()
    assert values(startingOffsetsByGroupStrategy="latest") == [96, 98]
    commit(either, group, filled, {1: 49})
    assert values() == [96, 98, 99]


def test_a_stream_goes_on_from_a_group_and_commits_all_that_it_has_finished(
    spark: SparkSession, either: Servers, filled: str, group: str, tmp_path: Path
) -> None:
    commit(either, group, filled, {0: 40, 1: 50})
    query = Query(spark, either, tmp_path, subscribe=filled, startingOffsets="group", commitTo=group)
    query.fails = True
    with pytest.raises(Exception, match="as the test wants it"):
        query.finish()
    assert offsets(either, group) == {0: 40, 1: 50}
    query.fails = False
    assert query.finish() == list(range(80, 100, 2))
    assert offsets(either, group) == {0: 50, 1: 50}
    send(either, filled, range(100, 103))
    commit(either, group, filled, {0: 0})  # the checkpoint has the truth
    assert query.finish() == [100, 101, 102]
    assert offsets(either, group) == {0: 52, 1: 51}


@pytest.fixture
def member(either: Servers, filled: str, group: str) -> Iterator[None]:
    """A consumer in the group, which has committed 10 of each partition."""
    commit(either, group, filled, {0: 10, 1: 10})
    consumer = Consumer({"bootstrap.servers": either.servers, "group.id": group, "enable.auto.commit": False})
    consumer.subscribe([filled])
    while not consumer.assignment():
        consumer.poll(0.1)
    yield
    consumer.close()


@pytest.mark.usefixtures("member")
def test_a_group_that_has_members_is_left_alone(
    spark: SparkSession, either: Servers, filled: str, group: str, tmp_path: Path
) -> None:
    query = Query(spark, either, tmp_path, subscribe=filled, startingOffsets="group", commitTo=group)
    assert query.finish() == list(range(20, 100))
    with pytest.raises(PipelineFailed, match=f"offsets of group {group} were not committed, because the group has"):
        pipeline(spark, either, filled, group, tmp_path / "out")
    assert offsets(either, group) == {0: 10, 1: 10}


def pipeline(spark: SparkSession, cluster: Servers, topic: str, group: str, path: Path) -> int | None:
    settings = PipelineSettings(
        "p", PipelineSource("local", (topic,), group), PipelineSink(path=str(path), mode="append")
    )
    return run(settings, cluster.clusters, session=spark).rows


def test_each_run_of_a_pipeline_takes_what_is_new_to_its_group(
    spark: SparkSession, either: Servers, filled: str, group: str, tmp_path: Path
) -> None:
    assert pipeline(spark, either, filled, group, tmp_path) == 100
    assert offsets(either, group) == {0: 50, 1: 50}
    send(either, filled, range(100, 103))
    assert pipeline(spark, either, filled, group, tmp_path) == 3
    assert offsets(either, group) == {0: 52, 1: 51}


def test_kafkas_own_tool_shows_no_lag_of_a_running_stream_that_has_read_all(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str], group: str, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    send(kafka, name, range(30))
    rows = spark.readStream.format("ingestd").option("kafka.bootstrap.servers", kafka.servers)
    rows = rows.options(subscribe=name, startingOffsets="earliest", commitTo=group).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        deadline = time.monotonic() + 30
        while offsets(kafka, group) != {0: 15, 1: 15}:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        shown = kafka.tool(tool, "--bootstrap-server", kafka.servers, "--describe", "--group", group)
    finally:
        query.stop()
    lags = [line.split()[2:6] for line in shown.splitlines() if name in line]
    assert sorted(lags) == [["0", "15", "15", "0"], ["1", "15", "15", "0"]]
