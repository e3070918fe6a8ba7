"""Record batches as rows, on real Kafka and on the embedded broker: librdkafka reads what passed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ingestd.records.batch import read_header

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Servers
    from harness.cluster import KafkaCluster
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


def producer(cluster: KafkaCluster | Servers, **settings: Any) -> Producer:
    fixed = {"bootstrap.servers": cluster.servers, "enable.idempotence": True, "log_level": 2, "linger.ms": 5}
    return Producer({**fixed, **settings})


def records(cluster: KafkaCluster | Servers, topic: str, partitions: int) -> list[tuple[Any, ...]]:
    """All committed records of a topic, by partition and order."""
    settings = {"enable.partition.eof": True, "isolation.level": "read_committed", "log_level": 2}
    reader = Consumer({"bootstrap.servers": cluster.servers, "group.id": "nobody", **settings})
    reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(partitions)]
    ends = 0
    while ends < partitions:
        for one in reader.consume(1_000, 0.5):
            if one.error() is not None:
                ends += 1
            else:
                found[one.partition()].append(
                    (one.partition(), one.key(), one.value(), one.headers(), one.timestamp()[1])
                )
    reader.close()
    return [one for each in found for one in each]


def pass_through(
    spark: SparkSession, cluster: KafkaCluster | Servers, source: str, target: str, checkpoint: Path, **options: str
) -> None:
    rows = (
        spark.readStream.format("ingestd")
        .option("kafka.bootstrap.servers", cluster.servers)
        .options(subscribe=source, startingOffsets="earliest", rows="batches", **options)
        .load()
        .drop("topic")
    )
    writer = rows.writeStream.format("ingestd").option("kafka.bootstrap.servers", cluster.servers)
    writer = writer.options(topic=target, rows="batches", checkpointLocation=str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def test_a_topic_passes_whole_with_batches_cut_where_micro_batches_end(
    spark: SparkSession, either: Servers, tmp_path: Path
) -> None:
    source, target = (either.create_topic(partitions=2, retention_ms="-1") for _ in range(2))
    sender = producer(either, **{"compression.type": "lz4", "batch.num.messages": 700})
    for number in range(20_000):
        headers = [("n", b"%d" % number)] if number % 4 == 0 else []
        key = None if number % 3 == 0 else b"key %d" % number
        sender.produce(source, b"%d" % number, key, number % 2, timestamp=1_750_000_000_000 + number, headers=headers)
        sender.poll(0)
    assert sender.flush(60) == 0
    pass_through(spark, either, source, target, tmp_path, maxOffsetsPerTrigger="11111")
    assert records(either, target, 2) == records(either, source, 2)
    rows = spark.read.format("ingestd").option("kafka.bootstrap.servers", either.servers)
    found = rows.options(subscribe=target, rows="batches").load().collect()
    assert {read_header(bytes(row.batch)).codec.name for row in found} == {"lz4"}
    assert sum(row.recordCount for row in found) == 20_000
    for partition in range(2):
        ends = sorted((row.baseOffset, row.lastOffset + 1) for row in found if row.partition == partition)
        assert [end for _, end in ends] == [start for start, _ in ends[1:]] + [10_000]


def test_aborted_records_and_markers_do_not_pass(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    source, target = topic(message_timestamp_type="LogAppendTime"), topic()
    sender = producer(kafka, **{"transactional.id": source})
    sender.init_transactions(60)
    for number, end in enumerate([sender.commit_transaction, sender.abort_transaction] * 2):
        sender.begin_transaction()
        for index in range(100):
            sender.produce(source, b"%d/%d" % (number, index), partition=0)
        assert sender.flush(60) == 0
        end(60)
    pass_through(spark, kafka, source, target, tmp_path)
    assert records(kafka, target, 1) == records(kafka, source, 1)
    assert len(records(kafka, target, 1)) == 200
