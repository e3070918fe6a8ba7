"""The sink on real Kafka and on the embedded broker: librdkafka reads back what Spark wrote."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import functions as sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Servers
    from harness.cluster import KafkaCluster
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


def write(frame: DataFrame, cluster: KafkaCluster | Servers, **options: str) -> None:
    writer = frame.write.format("ingestd").mode("append").option("kafka.bootstrap.servers", cluster.servers)
    writer.options(**options).save()


def records(cluster: KafkaCluster | Servers, topic: str, partitions: int = 1) -> list[Any]:
    """All committed records of a topic, by partition and offset."""
    reader = Consumer(
        {"bootstrap.servers": cluster.servers, "group.id": "nobody", "enable.partition.eof": True, "log_level": 2}
    )
    reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found, ends = [], 0
    while ends < partitions:
        for message in reader.consume(1_000, 0.5):
            if message.error() is not None:
                ends += 1
            else:
                found.append(message)
    reader.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def test_every_row_is_a_record(spark: SparkSession, either: Servers) -> None:
    name = either.create_topic(partitions=3, retention_ms="-1")
    schema = (
        "value string, key binary, partition int, timestamp timestamp, headers array<struct<key:string,value:binary>>"
    )
    at = datetime(2025, 1, 1, tzinfo=UTC)
    rows = [
        ("one", b"k", 2, at, [("h", b"1"), ("h", None)]),
        (None, None, 0, at, None),
        ("", b"", 0, at, []),
        ("two", b"k", 2, at, [("ü", b"")]),
    ]
    write(spark.createDataFrame(rows, schema).coalesce(1), either, topic=name, **{"kafka.compression.type": "lz4"})
    found = [
        (m.value() and m.value().decode(), m.key(), m.partition(), m.timestamp()[1], m.headers())
        for m in records(either, name, 3)
    ]
    stamp = int(at.timestamp() * 1000)
    assert found == [
        (None, None, 0, stamp, None),
        (b"", b"", 0, stamp, None),
        ("one", b"k", 2, stamp, [("h", b"1"), ("h", None)]),
        ("two", b"k", 2, stamp, [("ü", b"")]),
    ]


def test_keys_go_where_javas_producer_sends_them_and_rows_to_the_topics_that_they_name(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    names = [topic(partitions=3), topic(partitions=3)]
    frame = spark.range(30_000, numPartitions=2).select(
        sql.col("id").cast("string").alias("key"),
        sql.col("id").cast("string").cast("binary").alias("value"),
        sql.when(sql.col("id") % 2 == 0, names[0]).otherwise(names[1]).alias("topic"),
    )
    write(frame, kafka)
    reference = topic(partitions=3)
    sender = Producer({"bootstrap.servers": kafka.servers, "partitioner": "murmur2", "log_level": 2})
    for number in range(0, 30_000, 2):
        sender.produce(reference, b"%d" % number, key=b"%d" % number)
        sender.poll(0)
    assert sender.flush(60) == 0
    found = {name: [(m.partition(), int(m.value())) for m in records(kafka, name, 3)] for name in [*names, reference]}
    assert sorted(found[names[0]]) == sorted(found[reference])
    assert sorted(value for _, value in found[names[1]]) == list(range(1, 30_000, 2))


def test_a_stream_copies_a_topic_at_least_once(spark: SparkSession, either: Servers, tmp_path: Path) -> None:
    source, target = either.create_topic(partitions=2), either.create_topic()
    sender = Producer({"bootstrap.servers": either.servers, "enable.idempotence": True, "log_level": 2})
    for number in range(5_000):
        sender.produce(source, b"%d" % number, partition=number % 2, headers=[("n", b"x")])
    assert sender.flush(60) == 0
    rows = (
        spark.readStream.format("ingestd")
        .option("kafka.bootstrap.servers", either.servers)
        .option("subscribe", source)
        .option("includeHeaders", "true")
        .option("startingOffsets", "earliest")
        .load()
        .drop("partition")
    )
    query = (
        rows.writeStream.format("ingestd")
        .option("kafka.bootstrap.servers", either.servers)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    found = records(either, target)
    assert sorted(int(message.value()) for message in found) == list(range(5_000))
    assert {tuple(message.headers()[0]) for message in found} == {("n", b"x")}


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("id AS key", {"topic": "t"}, "there is no column value; expected one"),
        ("'a' AS value", {}, "there is no column topic; expected one or the option topic"),
        ("id AS value", {"topic": "t"}, "column value is bigint; expected string or binary"),
        ("'a' AS value, CAST(NULL AS string) AS topic", {}, "a row has a null topic"),
        ("'a' AS value, 7 AS partition", {"topic": "t"}, "partition 7; expected 0 to 0"),
        ("'a' AS value", {"topic": "t", "kafka.acks": "2"}, "acks: '2'; expected"),
    ],
)
def test_what_can_not_be_written_is_named(
    spark: SparkSession,
    kafka: KafkaCluster,
    topic: Callable[..., str],
    columns: str,
    options: dict[str, str],
    message: str,
) -> None:
    if "topic" in options:
        options = options | {"topic": topic()}
    with pytest.raises(Exception, match=message):
        write(spark.range(3).selectExpr(*columns.split(", ")), kafka, **options)


def test_what_readme_shows_of_streams(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (shown,) = [each for each in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "ingestd.spark" in each]
    source, target = kafka.create_topic("readme-access"), kafka.create_topic("readme-errors")
    names = {
        "kafka-1:9092": kafka.servers,
        '"access"': repr(source),
        '"topic", "errors"': repr(("topic", target))[1:-1],
    }
    names |= {"/data/checkpoints/errors": f"{tmp_path}/checkpoint", "sink.option": "query = sink.option"}
    for name, here in {**names, ".awaitTermination()": ""}.items():
        assert name in shown
        shown = shown.replace(name, here)
    known: dict[str, Any] = {"spark": spark}
    exec(shown, known)
    query = known["query"]
    try:
        query.processAllAvailable()  # it begins at the end of the topic
        producer = Producer({"bootstrap.servers": kafka.servers})
        for line in (b"GET / 200 12", b"GET /a 500 12"):
            producer.produce(source, line, b"k")
        assert producer.flush(30) == 0
        query.processAllAvailable()
        assert [(each.key(), each.value()) for each in records(kafka, target)] == [(b"k", b"GET /a 500 12")]
    finally:
        query.stop()
