"""Streaming queries on real Kafka: each micro-batch is compared with what librdkafka produced."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from conftest import Servers
    from harness.cluster import KafkaCluster
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.timeout(300)


def send(cluster: KafkaCluster | Servers, topic: str, values: Iterable[int], partition: int = 0) -> None:
    sender = Producer({"bootstrap.servers": cluster.servers, "enable.idempotence": True, "log_level": 2})
    for value in values:
        sender.produce(topic, b"%d" % value, partition=partition)
    assert sender.flush(60) == 0


class Query:
    """A query on one checkpoint. `batches` has the values of each micro-batch, and again if it runs again."""

    def __init__(self, spark: SparkSession, cluster: KafkaCluster | Servers, checkpoint: Path, **options: str) -> None:
        self.batches: list[tuple[int, list[int]]] = []
        self.fail_at: int | None = None
        stream = spark.readStream.format("ingestd").option("kafka.bootstrap.servers", cluster.servers)
        self._writer = (
            stream.options(**options)
            .load()
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(checkpoint))
        )

    def _take(self, rows: DataFrame, number: int) -> None:
        if number == self.fail_at:
            raise RuntimeError("as the test wants it")
        self.batches.append((number, sorted(int(row.value) for row in rows.select("value").collect())))

    def start(self) -> StreamingQuery:
        return self._writer.trigger(processingTime="0 seconds").start()

    def finish(self) -> list[list[int]]:
        """Read what is there now; the values of each micro-batch."""
        self.batches.clear()
        query = self._writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return [values for _, values in self.batches]


def test_a_stream_goes_on_from_its_checkpoint_in_batches_of_the_most_with_new_partitions(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic()
    send(kafka, name, range(100))
    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}
    query = Query(spark, kafka, tmp_path, **options)
    assert query.finish() == [list(range(60)), list(range(60, 100))]
    kafka.admin.create_partitions([NewPartitions(name, 2)])[name].result(timeout=60)
    send(kafka, name, range(100, 120))
    send(kafka, name, range(120, 130), partition=1)
    assert query.finish() == [list(range(100, 130))]
    assert query.finish() == []


def test_a_running_stream_gets_what_comes_and_tells_how_far_the_logs_are(
    spark: SparkSession, either: Servers, tmp_path: Path
) -> None:
    name = either.create_topic(partitions=2)
    send(either, name, [-1])
    query = Query(spark, either, tmp_path, subscribe=name)
    running = query.start()
    try:
        running.processAllAvailable()
        for number in range(3):
            send(either, name, [number], partition=number % 2)
            running.processAllAvailable()
        progress = [one for one in running.recentProgress if one["numInputRows"]]
        (source,) = progress[-1]["sources"]
    finally:
        running.stop()
    assert [value for _, values in query.batches for value in values] == [0, 1, 2]
    assert json.loads(source["endOffset"])["offsets"] == {name: {"0": 3, "1": 1}}
    assert json.loads(source["latestOffset"])["offsets"] == {name: {"0": 3, "1": 1}}


def test_a_thousand_small_partitions_share_tasks(spark: SparkSession, either: Servers, tmp_path: Path) -> None:
    name = either.create_topic(partitions=1_000)
    sender = Producer({"bootstrap.servers": either.servers, "log_level": 2, "enable.idempotence": True})
    for number in range(5_000):
        sender.produce(name, b"%d" % number, partition=number % 1_000)
    assert sender.flush(60) == 0
    frame = spark.read.format("ingestd").option("kafka.bootstrap.servers", either.servers).option("subscribe", name)
    rows = frame.load()
    assert rows.rdd.getNumPartitions() == 32
    found = sorted((row.partition, row.offset, int(row.value)) for row in rows.collect())
    assert found == [(number, offset, 1_000 * offset + number) for number in range(1_000) for offset in range(5)]
    query = Query(spark, either, tmp_path, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="2000")
    assert query.finish() == [list(range(2_000)), list(range(2_000, 4_000)), list(range(4_000, 5_000))]
    assert query.finish() == []


def test_latest_means_the_same_when_the_first_batch_runs_again(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic()
    send(kafka, name, range(5))
    query = Query(spark, kafka, tmp_path, subscribe=name)
    query.fail_at = 0
    with pytest.raises(Exception, match="as the test wants it"):
        query.finish()
    send(kafka, name, range(5, 9))
    query.fail_at = None
    assert query.finish() == [[], list(range(5, 9))]


def test_what_retention_took_is_data_loss_unless_that_is_accepted(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic()
    send(kafka, name, range(5))
    queries = [
        Query(spark, kafka, tmp_path / fail, subscribe=name, startingOffsets="earliest", failOnDataLoss=fail)
        for fail in ("true", "false")
    ]
    assert [query.finish() for query in queries] == [[list(range(5))]] * 2
    send(kafka, name, range(5, 10))
    kafka.delete_records(name, {0: 8})
    with pytest.raises(Exception, match=rf"offsets 5 to 10 of {name}-0 were deleted"):
        queries[0].finish()
    assert queries[1].finish() == [[8, 9]]


def test_a_topic_that_was_made_again_is_data_loss_unless_that_is_accepted(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    name = kafka.create_topic()
    send(kafka, name, range(5))
    queries = [
        Query(spark, kafka, tmp_path / fail, subscribe=name, startingOffsets="earliest", failOnDataLoss=fail)
        for fail in ("true", "false")
    ]
    assert [query.finish() for query in queries] == [[list(range(5))]] * 2
    kafka.delete_topic(name)
    kafka.create_topic(name)
    send(kafka, name, range(100, 120))
    with pytest.raises(Exception, match=f"topic {name} was deleted and made again"):
        queries[0].finish()
    assert queries[1].finish() == [list(range(100, 120))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t", "endingOffsets": "latest"}, "option endingOffsets is for batch queries"),
        ({"subscribe": "no-such-topic"}, "UNKNOWN_TOPIC_OR_PARTITION.*no-such-topic"),
    ],
)
def test_what_is_wrong_with_a_stream_is_named(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        Query(spark, kafka, tmp_path, **options).finish()
