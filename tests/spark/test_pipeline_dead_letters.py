"""Dead letters: what a pipeline can not type is in a topic, with the reason and the place, and the rest goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from ingestd.daemon.pipelines import ParseStep, PipelineSettings, PipelineSink, PipelineSource, PipelineStep
from ingestd.spark.pipelines.batch import run
from ingestd.spark.pipelines.streaming import run_stream

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from conftest import Servers
    from pyspark.sql import SparkSession

    from ingestd.spark.pipelines.progress import BatchProgress

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("unchanged")]


def letters(cluster: Servers, topic: str) -> list[Message]:
    reader = Consumer({"bootstrap.servers": cluster.servers, "group.id": "nobody", "enable.partition.eof": True})
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    while True:
        for message in reader.consume(1_000, 0.5):
            if message.error() is not None:
                reader.close()
                return found
            found.append(message)


@pytest.mark.parametrize("stream", [False, True])
def test_rows_that_the_topic_would_refuse_are_in_another_one(
    spark: SparkSession, either: Servers, tmp_path: Path, stream: bool
) -> None:
    source, dead = either.create_topic(), either.create_topic()
    target = either.create_topic(max_message_bytes="2000", cleanup_policy="compact")
    sender = Producer({"bootstrap.servers": either.servers, "log_level": 2})
    sender.produce(source, b"good", b"0")
    sender.produce(source, b"x" * 2_000, b"0")
    sender.produce(source, b"x" * 1_890, b"0")
    sender.produce(source, b"y", b"0", headers=[("h", b"x" * 2_000)])
    sender.produce(source, b"no such partition", b"9")
    sender.produce(source, b"no key")
    assert sender.flush(60) == 0
    pipeline = PipelineSettings(
        "p",
        PipelineSource("local", (source,)),
        PipelineSink("topic", topic=target),
        sql="SELECT key, value, headers, CAST(CAST(key AS STRING) AS INT) AS partition FROM source",
        dead_letters=dead,
        checkpoint=str(tmp_path / "checkpoint") if stream else None,
    )
    if stream:
        streamed = run_stream(pipeline, either.clusters, once=True, session=spark)
        assert (streamed.rows, streamed.dead_letters) == (6, 4)
    else:
        done = run(pipeline, either.clusters, session=spark)
        assert (done.rows, done.dead_letters) == (2, 4)
    assert [one.value() for one in letters(either, target)] == [b"good", b"x" * 1_890]
    found = [(one.value()[:20], dict(one.headers())["ingestd.reason"]) for one in letters(either, dead)]
    assert found == [
        (b"x" * 20, b"2101 bytes; expected 2000 at most"),
        (b"y", b"2113 bytes; expected 2000 at most"),
        (b"no such partition", b"partition 9; expected 0 to 0"),
        (b"no key", b"its key is null, and the topic is compacted"),
    ]
    assert {dict(one.headers())["ingestd.step"] for one in letters(either, dead)} == {b"sink"}


@pytest.mark.parametrize("stream", [False, True])
def test_rows_that_can_not_be_typed_are_in_a_topic_with_reason_and_place(
    spark: SparkSession, here: Servers, tmp_path: Path, stream: bool
) -> None:
    topic, dead = here.create_topic(), here.create_topic()
    sender = Producer({"bootstrap.servers": here.servers, "log_level": 2})
    sender.produce(topic, b'{"n": 1}', b"k0")
    sender.produce(topic, b"\xff\x00", b"k1", headers=[("host", b"a"), ("none", None)])
    sender.produce(topic, b'{"n": 2}', b"k2")
    sender.produce(topic, b'{"n": "x"}')
    sender.produce(topic, None, b"k4")
    assert sender.flush(60) == 0
    pipeline = PipelineSettings(
        "p",
        PipelineSource("local", (topic,)),
        PipelineSink(path=str(tmp_path / "out")),
        (PipelineStep(sql="SELECT * FROM source"), PipelineStep(parse=ParseStep("json", "n INT, value STRING"))),
        "SELECT sum(n) AS n FROM source" if not stream else "SELECT n FROM source",
        dead_letters=dead,
        checkpoint=str(tmp_path / "checkpoint") if stream else None,
    )
    if stream:
        assert run_stream(pipeline, here.clusters, once=True, session=spark).dead_letters == 3
    else:
        assert run(pipeline, here.clusters, session=spark).dead_letters == 3
    assert sum(pq.read_table(tmp_path / "out")["n"].to_pylist()) == 3
    place = {"ingestd.pipeline": b"p", "ingestd.step": b"steps[1] (parse)", "ingestd.topic": topic.encode()}
    place |= {"ingestd.partition": b"0"}
    unreadable, untyped = b"it is null, or no UTF-8", b"n = x; expected int"
    assert [(one.key(), one.value(), dict(one.headers())) for one in letters(here, dead)] == [
        (
            b"k1",
            b"\xff\x00",
            {**place, "host": b"a", "none": None, "ingestd.reason": unreadable, "ingestd.offset": b"1"},
        ),
        (None, b'{"n": "x"}', {**place, "ingestd.reason": untyped, "ingestd.offset": b"3"}),
        (b"k4", None, {**place, "ingestd.reason": unreadable, "ingestd.offset": b"4"}),
    ]


UNTYPED = (b"x", b"1", b"2", b"3", b"y", b"z")
PARSE = PipelineStep(parse=ParseStep("csv", "n INT"))


def test_letters_are_counted_with_the_micro_batch_that_sent_them(
    spark: SparkSession, here: Servers, tmp_path: Path
) -> None:
    """One look may see several micro-batches."""
    topic, dead = filled(here, UNTYPED), here.create_topic()
    pipeline = PipelineSettings(
        "p",
        PipelineSource("local", (topic,), max_offsets=2),
        PipelineSink(path=str(tmp_path / "out")),
        (PARSE,),
        dead_letters=dead,
        checkpoint=str(tmp_path / "checkpoint"),
    )
    told: list[BatchProgress] = []
    result = run_stream(pipeline, here.clusters, once=True, session=spark, progress=told.append)
    assert [(each.rows, each.dead_letters) for each in told if each.rows] == [(2, 1), (2, 0), (2, 2)]
    assert (result.rows, result.dead_letters) == (6, 3)
    again = run_stream(pipeline, here.clusters, once=True, session=spark)
    assert (again.rows, again.dead_letters) == (0, 0)


def test_letters_of_a_query_that_reads_its_rows_twice_count_as_often_as_they_are_in_the_topic(
    spark: SparkSession, here: Servers, tmp_path: Path
) -> None:
    topic, dead = filled(here, UNTYPED), here.create_topic()
    pipeline = PipelineSettings(
        "p",
        PipelineSource("local", (topic,)),
        PipelineSink(path=str(tmp_path / "out")),
        (PARSE,),
        "SELECT n FROM source UNION ALL SELECT n + 10 FROM source",
        dead_letters=dead,
    )
    result = run(pipeline, here.clusters, session=spark)
    assert (result.rows, result.dead_letters) == (6, 6)
    assert len(letters(here, dead)) == 6


def filled(cluster: Servers, values: Sequence[bytes]) -> str:
    topic = cluster.create_topic()
    sender = Producer({"bootstrap.servers": cluster.servers, "log_level": 2})
    for value in values:
        sender.produce(topic, value)
    assert sender.flush(60) == 0
    return topic
