"""The data source on real Kafka and on the embedded broker: every row is compared with what librdkafka produced."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as sql

from ingestd.spark import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Servers
    from harness.cluster import KafkaCluster
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

EPOCH_MS = 1_750_000_000_000
FOR_EVER = {"retention_ms": "-1"}
"""For topics with old timestamps: retention would take their records while a test runs."""


def producer(cluster: KafkaCluster | Servers, **settings: Any) -> Producer:
    # Idempotent: a retried batch must not be overtaken, or offsets would not be in the order of producing.
    fixed = {"bootstrap.servers": cluster.servers, "enable.idempotence": True, "log_level": 2, "linger.ms": 5}
    return Producer({**fixed, **settings})


def read(spark: SparkSession, cluster: KafkaCluster | Servers, **options: str) -> DataFrame:
    return spark.read.format("ingestd").option("kafka.bootstrap.servers", cluster.servers).options(**options).load()


def moment(timestamp_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)


def as_tuple(row: Any) -> tuple[Any, ...]:
    """A row as plain values; Spark gives timestamps in local time without a zone."""
    fields = list(row)
    fields[0] = None if row.key is None else bytes(row.key)
    fields[1] = None if row.value is None else bytes(row.value)
    fields[5] = row.timestamp.astimezone(UTC)
    if "headers" in row:
        fields[7] = (
            None if row.headers is None else [(h.key, None if h.value is None else bytes(h.value)) for h in row.headers]
        )
    return tuple(fields)


# More than one Arrow batch for each partition where there are 25,000.
@pytest.mark.parametrize(
    ("codec", "count"), [("none", 3_000), ("gzip", 3_000), ("snappy", 3_000), ("lz4", 25_000), ("zstd", 3_000)]
)
def test_every_row_is_what_was_produced(spark: SparkSession, either: Servers, codec: str, count: int) -> None:
    name = either.create_topic(partitions=2, **FOR_EVER)
    expected = []
    sender = producer(either, **{"compression.type": codec, "batch.num.messages": 700})
    offsets = [0, 0]
    for number in range(count):
        partition = number % 2
        key = None if number % 3 == 0 else b"key %d" % number
        value = None if number % 11 == 0 else b"value %d " % number * (number % 5)
        headers = [("a", b"%d" % number), ("a", None), ("ünï", b"")] if number % 4 == 0 else []
        stamp = EPOCH_MS + number
        sender.produce(name, value, key, partition, timestamp=stamp, headers=headers)
        sender.poll(0)
        expected.append((key, value, name, partition, offsets[partition], moment(stamp), 0, headers or None))
        offsets[partition] += 1
    assert sender.flush(60) == 0
    frame = read(spark, either, subscribe=name, includeHeaders="true")
    found = sorted(map(as_tuple, frame.collect()), key=lambda row: (row[3], row[4]))
    assert found == sorted(expected, key=lambda row: (row[3], row[4]))


def test_rows_that_cut_record_batches_are_exact(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    sender = producer(kafka, **{"compression.type": "zstd"})
    for number in range(10_000):
        sender.produce(name, b"%d" % number, partition=number % 2)
    assert sender.flush(60) == 0
    starts, ends = f'{{"{name}": {{"0": 123, "1": -2}}}}', f'{{"{name}": {{"0": 4567, "1": -1}}}}'
    frame = read(spark, kafka, subscribe=name, startingOffsets=starts, endingOffsets=ends, maxRecordsPerPartition="777")
    found = sorted((row.partition, row.offset, bytes(row.value)) for row in frame.collect())
    assert found == [
        *((0, offset, b"%d" % (2 * offset)) for offset in range(123, 4567)),
        *((1, offset, b"%d" % (2 * offset + 1)) for offset in range(5_000)),
    ]


def test_control_records_are_no_rows_and_aborted_ones_only_where_asked_for(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    sender = producer(kafka, **{"transactional.id": name})
    sender.init_transactions(60)
    for number, end in enumerate([sender.commit_transaction, sender.abort_transaction] * 2):
        sender.begin_transaction()
        for index in range(100):
            sender.produce(name, b"%d/%d" % (number, index), partition=0)
        assert sender.flush(60) == 0
        end(60)

    def values(isolation: str, **options: str) -> list[tuple[int, bytes]]:
        frame = read(spark, kafka, subscribe=name, **{"kafka.isolation.level": isolation}, **options)
        return sorted((row.offset, bytes(row.value)) for row in frame.collect())

    everything = [(number * 101 + index, b"%d/%d" % (number, index)) for number in range(4) for index in range(100)]
    committed = [(offset, value) for offset, value in everything if value[:1] in b"02"]
    assert values("read_uncommitted") == everything
    assert values("read_committed") == committed
    assert values("read_committed", minPartitions="7") == committed


def test_log_append_time_is_told_as_such(spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(message_timestamp_type="LogAppendTime")
    before = datetime.now(UTC) - timedelta(seconds=1)
    sender = producer(kafka)
    sender.produce(name, b"x", partition=0, timestamp=EPOCH_MS)
    assert sender.flush(60) == 0
    (row,) = map(as_tuple, read(spark, kafka, subscribe=name).collect())
    assert row[6] == 1
    assert before < row[5] < datetime.now(UTC) + timedelta(seconds=1)


def test_a_timestamp_range_reads_the_records_between(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(**FOR_EVER)
    sender = producer(kafka)
    for number in range(100):
        sender.produce(name, b"%d" % number, partition=0, timestamp=EPOCH_MS + 1_000 * number)
    assert sender.flush(60) == 0
    frame = read(
        spark,
        kafka,
        subscribePattern=name[:-2] + "..",
        startingTimestamp=str(EPOCH_MS + 9_500),
        endingTimestamp=str(EPOCH_MS + 20_000),
    )
    assert [row.offset for row in frame.orderBy("offset").collect()] == list(range(10, 20))


def test_an_empty_topic_has_no_rows(spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    assert read(spark, kafka, subscribe=topic(partitions=3)).collect() == []


def test_a_limit_ends_the_read_early(spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic()
    sender = producer(kafka)
    for number in range(30_000):
        sender.produce(name, b"%d" % number * 30, partition=0)
        sender.poll(0)
    assert sender.flush(60) == 0
    assert len(read(spark, kafka, subscribe=name).limit(5).collect()) == 5


def test_sql_over_the_source_needs_no_python_for_each_row(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=3)
    sender = producer(kafka)
    for number in range(9_000):
        sender.produce(name, b"%d" % (number % 10), partition=number % 3)
    assert sender.flush(60) == 0
    frame = read(spark, kafka, subscribe=name).groupBy(sql.col("value").cast("string").alias("v")).count()
    assert {row.v: row["count"] for row in frame.collect()} == {str(digit): 900 for digit in range(10)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t", "max.poll.records": "1"}, "unknown option max.poll.records"),
        ({}, "none of assign, subscribe, subscribePattern is given; expected one"),
        ({"subscribe": "no-such-topic"}, "UNKNOWN_TOPIC_OR_PARTITION.*no-such-topic"),
    ],
)
def test_what_is_wrong_is_named(
    spark: SparkSession, kafka: KafkaCluster, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        read(spark, kafka, **options).collect()


def test_offsets_that_are_not_in_the_log_are_data_loss_unless_that_is_accepted(
    spark: SparkSession, kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    sender = producer(kafka)
    sender.produce(name, b"x", partition=0)
    assert sender.flush(60) == 0
    ends = f'{{"{name}": {{"0": 50}}}}'
    with pytest.raises(Exception, match=f"endingOffsets asks for offset 50 of {name}-0, whose log has 0 to 1"):
        read(spark, kafka, subscribe=name, endingOffsets=ends).collect()
    frame = read(spark, kafka, subscribe=name, endingOffsets=ends, failOnDataLoss="false")
    assert [bytes(row.value) for row in frame.collect()] == [b"x"]


def test_the_source_is_known_to_a_session_once_registered(spark: SparkSession) -> None:
    register(spark)  # twice is no error
    assert spark.read.format("ingestd") is not None
