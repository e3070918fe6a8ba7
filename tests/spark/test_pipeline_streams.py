"""Streams of pipelines: they go on where they were, write each row once, and say what they can not do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from harness.programs import ingestd
from structlog.testing import capture_logs

from ingestd.cli.configured import load_configuration
from ingestd.daemon.pipelines import (
    ParseStep,
    PipelineSettings,
    PipelineSink,
    PipelineSource,
    PipelineStep,
    WindowStep,
)
from ingestd.spark.pipelines import delta, parquet, sized
from ingestd.spark.pipelines.checking import check, plan
from ingestd.spark.pipelines.failures import PipelineFailed
from ingestd.spark.pipelines.files import Directory
from ingestd.spark.pipelines.streaming import run_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from conftest import Servers
    from harness.cluster import KafkaCluster
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("unchanged")]

NUMBERS = "SELECT CAST(CAST(value AS STRING) AS BIGINT) AS number FROM source"


def send(servers: str, topic: str, numbers: Iterable[int]) -> None:
    sender = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 2})
    for number in numbers:
        sender.produce(topic, b"%d" % number, partition=number % 2)
        sender.poll(0)
    assert sender.flush(60) == 0


def committed(servers: str, topic: str) -> list[int]:
    """The numbers of all committed records of a topic with one partition."""
    reader = Consumer(
        {"bootstrap.servers": servers, "group.id": "nobody", "enable.partition.eof": True, "log_level": 2}
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    while True:
        for message in reader.consume(1_000, 0.5):
            if message.error() is not None:
                reader.close()
                return sorted(found)
            found.append(int(message.value()))


def group_offsets(servers: str, group: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {one.partition: one.offset for one in found.result(60).topic_partitions}


def numbers(path: Path, form: str = "parquet") -> list[int]:
    table = DeltaTable(path).to_pyarrow_table() if form == "delta" else pq.read_table(path)
    return sorted(table["number"].to_pylist())


def files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*.parquet") if "_ingestd" not in str(file))


def stream(topic: str, path: Path, sink: PipelineSink | None = None, **more: Any) -> PipelineSettings:
    return PipelineSettings(
        "p",
        PipelineSource("local", (topic,), more.pop("group", None), more.pop("start", "earliest")),
        sink or PipelineSink(path=str(path / "out")),
        checkpoint=str(path / "checkpoint"),
        **{"sql": NUMBERS, **more},
    )


def test_a_stream_goes_on_from_its_checkpoint_and_its_group_knows(
    spark: SparkSession, here: Servers, tmp_path: Path
) -> None:
    topic, group = here.create_topic(partitions=2), f"g-{uuid.uuid4().hex[:8]}"
    send(here.servers, topic, range(100))
    pipeline = stream(topic, tmp_path, group=group)
    planned = plan(pipeline, here.clusters, session=spark)
    assert [(each.partition, each.start, each.end) for each in planned.ranges] == [(0, 0, 50), (1, 0, 50)]
    assert "CAST" in planned.query.upper()
    result = run_stream(pipeline, here.clusters, once=True, session=spark)
    assert (result.rows, result.batches) == (100, 1)
    assert len(files(tmp_path / "out")) == 1, "two tasks wrote, and their rows fit into one file"
    assert group_offsets(here.servers, group) == {0: 50, 1: 50}
    send(here.servers, topic, range(100, 103))
    planned = plan(pipeline, here.clusters, session=spark)
    assert [(each.partition, each.start, each.end) for each in planned.ranges] == [(0, 50, 52), (1, 50, 51)]
    assert run_stream(pipeline, here.clusters, once=True, session=spark).rows == 3
    assert numbers(tmp_path / "out") == list(range(103))
    assert group_offsets(here.servers, group) == {0: 52, 1: 51}
    with pytest.raises(PipelineFailed, match="a stream has begun there and goes on where it was; expected a new one"):
        run_stream(pipeline, here.clusters, start="earliest", session=spark)


def test_a_checkpoint_of_another_pipeline_or_sink_is_refused(
    spark: SparkSession, here: Servers, tmp_path: Path
) -> None:
    """It ended well with "0 records read". One of an older version says nothing of whose it is, and is taken over."""
    topic, note = here.create_topic(partitions=2), tmp_path / "checkpoint" / "ingestd.json"
    send(here.servers, topic, range(10))
    mine = stream(topic, tmp_path)
    run_stream(mine, here.clusters, once=True, session=spark)
    assert json.loads(note.read_text()) == {"pipeline": "p", "sink": str(tmp_path / "out")}
    other = PipelineSink(path=str(tmp_path / "other"))
    for theirs in (replace(mine, name="q"), replace(mine, sink=other)):
        with pytest.raises(PipelineFailed) as caught:
            run_stream(theirs, here.clusters, once=True, session=spark)
        assert f"checkpoint {mine.checkpoint}: it is of {note.read_text()}, and this is {{" in str(caught.value)
    note.unlink()
    send(here.servers, topic, range(10, 12))
    assert run_stream(replace(mine, sink=other), here.clusters, once=True, session=spark).rows == 2
    with pytest.raises(PipelineFailed, match="expected a checkpoint of its own"):
        run_stream(mine, here.clusters, once=True, session=spark)


def test_a_group_gets_no_offsets_of_a_topic_that_was_deleted_and_made_again(
    spark: SparkSession, here: Servers, tmp_path: Path
) -> None:
    """Who began there would miss records of the new topic. The cluster itself has forgotten those of the old one."""
    topic, group = here.create_topic(partitions=2), f"g-{uuid.uuid4().hex[:8]}"
    send(here.servers, topic, range(10))
    pipeline = stream(topic, tmp_path, group=group)
    run_stream(pipeline, here.clusters, once=True, session=spark)
    assert group_offsets(here.servers, group) == {0: 5, 1: 5}
    admin = AdminClient({"bootstrap.servers": here.servers, "log_level": 2})
    admin.delete_topics([topic])[topic].result(60)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)
    send(here.servers, topic, range(100, 130))
    assert group_offsets(here.servers, group) == {}
    with pytest.raises(PipelineFailed, match=f"topic {topic} was deleted and made again.*needs a new --checkpoint"):
        run_stream(pipeline, here.clusters, once=True, session=spark)
    assert group_offsets(here.servers, group) == {}
    run_stream(replace(pipeline, checkpoint=str(tmp_path / "new")), here.clusters, once=True, session=spark)
    assert numbers(tmp_path / "out") == [*range(10), *range(100, 130)]


def test_a_stream_that_is_stopped_between_two_triggers_leaves_no_lag(
    spark: SparkSession, here: Servers, tmp_path: Path
) -> None:
    topic, group = here.create_topic(partitions=2), f"g-{uuid.uuid4().hex[:8]}"
    send(here.servers, topic, range(10))
    pipeline = stream(topic, tmp_path, group=group, trigger=3_600.0)
    written = threading.Event()

    def stopped() -> bool:
        # The micro-batch is done when Spark has logged it, which is after its files are there.
        if (tmp_path / "checkpoint" / "commits" / "0").exists():
            written.set()
        return written.is_set()

    assert run_stream(pipeline, here.clusters, session=spark, stopped=stopped).rows == 10
    assert group_offsets(here.servers, group) == {0: 5, 1: 5}
    assert numbers(tmp_path / "out") == list(range(10))


def test_files_have_the_size_that_was_asked_for(spark: SparkSession, here: Servers, tmp_path: Path) -> None:
    topic = here.create_topic(partitions=2)
    sender = Producer({"bootstrap.servers": here.servers, "log_level": 2})
    for number in range(40):
        sender.produce(topic, os.urandom(100_000), key=b"a" if number < 30 else b"b/", partition=number % 2)
    assert sender.flush(60) == 0
    sink = PipelineSink(path=str(tmp_path / "out"), file_bytes=1_048_576, partition_by=("key",))
    pipeline = stream(topic, tmp_path, sink, sql="SELECT CAST(key AS STRING) AS key, value, offset FROM source")
    run_stream(pipeline, here.clusters, once=True, session=spark)
    found = [file.parent.name for file in files(tmp_path / "out")]
    assert found == ["key=a"] * 3 + ["key=b%2F"], "3.0 MB and 1.0 MB, in files of 1,048,576 bytes"
    assert pq.read_table(tmp_path / "out").num_rows == 40


def test_a_stream_into_files_waits_for_a_files_worth_of_bytes(
    spark: SparkSession, here: Servers, tmp_path: Path
) -> None:
    """The first micro-batch tells how many bytes a row takes. Few rows then wait, and are written with many."""
    topic = here.create_topic()
    sender = Producer({"bootstrap.servers": here.servers, "log_level": 2})

    def send_random(count: int) -> None:
        for _ in range(count):
            sender.produce(topic, os.urandom(50_000))
        assert sender.flush(60) == 0

    send_random(10)
    sink = PipelineSink(path=str(tmp_path / "out"), file_bytes=1_048_576)
    pipeline = stream(topic, tmp_path, sink, sql=None, max_trigger_delay=3_600.0)
    looks = 0

    def stopped() -> bool:
        nonlocal looks
        done = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
        looks += done == 1
        if looks == 1:
            send_random(5)
        if looks == 6:
            send_random(25)
        return done == 2

    assert run_stream(pipeline, here.clusters, session=spark, stopped=stopped).batches == 2
    assert looks >= 6, "five rows waited"
    found = sorted(pq.read_metadata(file).num_rows for file in files(tmp_path / "out"))
    assert found[0] == 10
    assert sum(found) == 40


def test_a_replay_begins_at_an_offset_or_at_a_time_on_a_new_checkpoint(
    spark: SparkSession, here: Servers, tmp_path: Path
) -> None:
    topic = here.create_topic()
    sender = Producer({"bootstrap.servers": here.servers, "log_level": 2})
    for number in range(10):
        sender.produce(topic, b"%d" % number, timestamp=1_767_225_600_000 + number * 1_000)
    assert sender.flush(60) == 0
    for start, first in (
        ("2026-01-01T00:00:07+00:00", 7),
        (f'{{"{topic}": {{"0": 4}}}}', 4),
        ("earliest", 0),
    ):
        path = tmp_path / str(first)
        run_stream(stream(topic, path), here.clusters, once=True, start=start, session=spark)
        assert numbers(path / "out") == list(range(first, 10))


def test_a_topic_gets_each_row_once(spark: SparkSession, kafka: KafkaCluster, topic: Any, tmp_path: Path) -> None:
    source, target, group = topic(partitions=2), topic(), f"g-{uuid.uuid4().hex[:8]}"
    sink = PipelineSink("topic", topic=target, delivery="exactly-once")
    parse = PipelineStep(parse=ParseStep("json", "n BIGINT"))
    sql = "SELECT CAST(n AS STRING) AS value, position FROM source WHERE n % 10 = 0"
    pipeline = stream(source, tmp_path, sink, group=group, steps=(parse,), sql=sql)
    clusters = {"local": {"kafka.bootstrap.servers": kafka.servers}}
    assert check(pipeline, clusters, session=spark).columns == (
        ("value", "string"),
        ("position", "struct<topic:string,partition:int,offset:bigint>"),
    )
    for first, last in ((0, 100), (100, 200)):
        sender = Producer({"bootstrap.servers": kafka.servers, "log_level": 2})
        for number in range(first, last):
            sender.produce(source, b'{"n": %d}' % number, partition=number % 2)
        assert sender.flush(60) == 0
        run_stream(pipeline, clusters, once=True, session=spark)
    assert committed(kafka.servers, target) == list(range(0, 200, 10))
    assert group_offsets(kafka.servers, group) == {0: 96}, "the next one after each partition's last row"


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT value, position FROM source ORDER BY offset", "Sort"),
        ("SELECT /*+ REPARTITION(3) */ value, position FROM source", "Repartition"),
        ("SELECT DISTINCT value, position FROM source", "Distinct"),
        ("SELECT a.value, a.position FROM source a, range(2) b", "Join, Range"),
        ("SELECT value FROM source", "there is no column position"),
    ],
)
def test_what_can_not_be_exactly_once_is_refused_by_the_plan(
    spark: SparkSession, here: Servers, tmp_path: Path, sql: str, reason: str
) -> None:
    sink = PipelineSink("topic", topic="t", delivery="exactly-once")
    with pytest.raises(PipelineFailed, match=reason):
        check(stream("t", tmp_path, sink, sql=sql), here.clusters, session=spark)


def test_what_a_stream_can_not_do_is_said_before_it_runs(spark: SparkSession, here: Servers, tmp_path: Path) -> None:
    counting = stream("t", tmp_path, sql="SELECT topic, count(*) AS n FROM source GROUP BY 1")
    with pytest.raises(PipelineFailed, match=r"without watermark.* a step window counts by time"):
        check(counting, here.clusters, session=spark)
    minutes = PipelineStep(window=WindowStep("timestamp", "1 minute", {"n": "count(*)"}))
    assert check(stream("t", tmp_path, steps=(minutes,), sql=None), here.clusters, session=spark).columns == (
        ("window_start", "timestamp"),
        ("window_end", "timestamp"),
        ("n", "bigint"),
    )


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_a_micro_batch_that_spark_runs_again_is_written_once(
    spark: SparkSession, here: Servers, tmp_path: Path, form: Any
) -> None:
    """The driver died when all was written, before Spark had logged that. The windows are as if nothing had been."""
    topic, out = here.create_topic(partitions=2), tmp_path / "the [1] {a} out"  # to Spark's readers a glob
    sink = PipelineSink(form, str(out), partition_by=("odd",))
    pipeline = stream(topic, tmp_path, sink, sql=f"SELECT number, number % 2 = 1 AS odd FROM ({NUMBERS})")
    for first in (0, 100):
        send(here.servers, topic, range(first, first + 100))
        run_stream(pipeline, here.clusters, once=True, session=spark)
        last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink()
        run_stream(pipeline, here.clusters, once=True, session=spark)
        assert last.exists(), "it ran again"
        assert numbers(out, form) == list(range(first + 100))


def test_a_delta_table_with_other_columns_is_refused(spark: SparkSession, here: Servers, tmp_path: Path) -> None:
    topic, sink = here.create_topic(partitions=2), PipelineSink("delta", str(tmp_path / "out"))
    send(here.servers, topic, range(10))
    run_stream(stream(topic, tmp_path, sink), here.clusters, once=True, session=spark)
    other = stream(topic, tmp_path / "other", sink, sql="SELECT offset AS number, topic FROM source")
    with pytest.raises(PipelineFailed, match=r"it has number .*long.*, and the pipeline writes number .*, topic"):
        run_stream(other, here.clusters, once=True, session=spark)


POINTS = {
    "before the names": lambda path: path.endswith(".names"),
    "amid the files": lambda path: path.endswith("-1.parquet"),
    "before all is said to be done": lambda path: path.endswith(".done"),
}
"""Files before which the driver is killed: before it writes them, or moves them to their places."""
LAST = "before Spark knows"


def drive(point: str, form: Any, flag: str, servers: str, topic: str, path: str) -> None:
    """A driver of its own, in a process group of its own. At the point, while the flag is there, it is killed."""
    kind: Any = delta.DeltaSink if form == "delta" else parquet.ParquetSink
    moved, noted, wrote, called = Directory.move, Directory.note, Directory.write, kind.__call__

    def kill(here: bool) -> None:
        if here and Path(flag).exists():
            Path(flag).unlink()
            os.killpg(0, signal.SIGKILL)

    def move(self: Directory, source: str, target: str) -> None:
        kill(point != LAST and POINTS[point](target))
        moved(self, source, target)

    def note(self: Directory, path: str, text: str) -> bool:
        kill(point != LAST and POINTS[point](path))
        return noted(self, path, text)

    def write(self: Directory, path: str, text: str) -> None:
        kill(point != LAST and POINTS[point](path))
        wrote(self, path, text)

    def call(self: Any, rows: Any, batch: int) -> None:
        called(self, rows, batch)
        kill(point == LAST)

    Directory.move, Directory.note, Directory.write = move, note, write  # type: ignore[method-assign]
    kind.__call__ = call
    sink = PipelineSink(form, f"{path}/out", partition_by=("odd",))
    sql = f"SELECT number, number % 2 AS odd FROM ({NUMBERS})"
    pipeline = stream(topic, Path(path), sink, sql=sql, master="local[2]")
    run_stream(pipeline, {"local": {"kafka.bootstrap.servers": servers}}, once=True)


@pytest.mark.parametrize(
    ("point", "form"),
    [
        pytest.param("before the names", "parquet", marks=pytest.mark.long),
        ("amid the files", "parquet"),
        pytest.param("before all is said to be done", "parquet", marks=pytest.mark.long),
        pytest.param(LAST, "parquet", marks=pytest.mark.long),
        pytest.param("amid the files", "delta", marks=pytest.mark.long),
        pytest.param(LAST, "delta", marks=pytest.mark.long),
    ],
)
def test_every_row_is_in_the_files_once_although_the_driver_is_killed(
    here: Servers, tmp_path: Path, point: str, form: str
) -> None:
    topic, flag = here.create_topic(partitions=2), tmp_path / "kill"
    flag.touch()
    program = f"import sys, {Path(__file__).stem} as tests; tests.drive(*sys.argv[1:])"
    command = [sys.executable, "-c", program, point, form, str(flag), here.servers, topic, str(tmp_path)]
    for first, last, code in ((0, 1_000, -signal.SIGKILL), (1_000, 1_100, 0)):
        send(here.servers, topic, range(first, last))
        driver = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": ":".join([str(Path(__file__).parent), *filter(None, sys.path)])},
            start_new_session=True,
            timeout=280,
            check=False,
        )
        assert driver.returncode == code
        assert not flag.exists()
    assert numbers(tmp_path / "out", form) == list(range(1_100))
    assert not list((tmp_path / "out").rglob("*.names"))


class _Rival:
    """The sink of another driver, which runs a micro-batch once while the first one is at a point in it."""

    def __init__(self, point: str, sink: Any, rows: Any, batch: int) -> None:
        self.point, self.sink, self.rows, self.batch = point, sink, rows, batch
        self.ran = False

    def run(self, path: str) -> None:
        if not self.ran and self.point in path:
            self.ran = True
            self.sink(self.rows, self.batch)


@pytest.mark.parametrize("point", ["/written", ".names", "-0.parquet", ".done"])
@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_two_drivers_that_run_one_micro_batch_write_it_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any, point: str
) -> None:
    """One was taken for dead, and woke: the other one has staged, noted, moved and finished in between."""
    query = uuid.uuid4()
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", str(query))
    kind: Any = delta.DeltaSink if form == "delta" else parquet.ParquetSink
    setting = PipelineSink(form, str(tmp_path / "out"), partition_by=("odd",))
    rows = spark.sql("SELECT id AS number, id % 2 AS odd FROM range(10)")
    for batch in range(2):
        rival = _Rival(point, kind(setting), rows, batch)
        for name in ("move", "note", "write", "files"):
            whole = getattr(Directory, name)

            def hindered(self: Directory, *paths: str, whole: Any = whole, rival: _Rival = rival) -> Any:
                rival.run(paths[-1] if whole.__name__ == "move" else paths[0])
                return whole(self, *paths)

            monkeypatch.setattr(Directory, name, hindered)
        # That the second one is refused, in words, is as good as that it writes nothing.
        with contextlib.suppress(sized.OlderRun):
            kind(setting)(rows, batch)
        monkeypatch.undo()
        assert rival.ran or (form, point) in {("delta", ".names"), ("delta", ".done")}
        kind(setting)(rows, batch)
        assert numbers(tmp_path / "out", form) == sorted([*range(10)] * (batch + 1)), point
    with pytest.raises(sized.OlderRun, match=r"has micro-batch 1 of this query, and this is 0; expected that no other"):
        kind(setting)(rows, 0)
    ours = tmp_path / "out" / "_ingestd" / str(query)
    left = sorted(each.name for each in ours.glob("[0-9a-f]*")) if ours.exists() else []
    assert left == (["1.done"] if form == "parquet" else [])
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]


def _held(rows: DataFrame, flags: Path, *, wait: str, say: str, then: str) -> DataFrame:
    """The rows. The second task waits for a glob, makes a flag, and waits for another glob before it has any."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        end = time.monotonic() + 60
        for batch in batches:
            if batch["number"][0].as_py() > 0:
                for glob in (wait, then):
                    while not any(flags.glob(glob)):
                        if time.monotonic() > end:
                            raise TimeoutError(glob)
                        time.sleep(0.02)
                    (flags / say).touch()
            yield batch

    return rows.mapInArrow(hold, "number BIGINT")


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_rows_that_another_driver_has_cleared_are_not_left_out(spark: SparkSession, tmp_path: Path, form: Any) -> None:
    """A driver was taken for dead between two tasks of a micro-batch. The next one clears its stage, and it wakes.

    Spark then commits the files of the tasks that were not done yet, and says nothing of the others.
    """
    kind: Any = delta.DeltaSink if form == "delta" else parquet.ParquetSink
    setting, query = PipelineSink(form, str(tmp_path / "out")), str(uuid.uuid4())
    rows = spark.range(0, 10, 1, 2).withColumnRenamed("id", "number")
    task = "out/_ingestd/*/*/written/_temporary/0/task_*_m_000000*"

    def run(held: DataFrame) -> None:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", query)  # of this thread
        kind(setting)(held, 0)

    with ThreadPoolExecutor() as threads:
        frozen = threads.submit(run, _held(rows, tmp_path, wait=task, say="amid", then="cleared"))
        while not (tmp_path / "amid").exists() and not frozen.done():
            time.sleep(0.02)
        next_one = threads.submit(run, _held(rows, tmp_path, wait="amid", say="cleared", then="ended"))
        with pytest.raises(sized.OlderRun, match="another run of this query has begun and deleted what this one was"):
            frozen.result(120)
        (tmp_path / "ended").touch()
        next_one.result(120)
    assert numbers(tmp_path / "out", form) == list(range(10))


def test_what_readme_shows_of_pipelines(spark: SparkSession, here: Servers, tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (shown,) = [each for each in re.findall(r"```toml\n(.*?)```", readme, re.DOTALL) if "[pipelines." in each]
    topic = here.create_topic()
    for name, instead in {"kafka-1:9092": here.servers, '"orders"': f'"{topic}"', "/data/": f"{tmp_path}/"}.items():
        assert name in shown
        shown = shown.replace(name, instead)
    file = tmp_path / "ingestd.toml"
    file.write_text(shown)
    sender = Producer({"bootstrap.servers": here.servers, "log_level": 2})
    for number in range(10):
        day = f"2026-01-0{1 + number % 2}T00:00:00Z"
        sender.produce(topic, b'{"id": "%d", "price": %d.5, "time": "%s"}' % (number, number - 5, day.encode()))
    assert sender.flush(60) == 0
    pipeline = load_configuration(file).pipelines["orders"]
    run_stream(pipeline, {"main": here.clusters["local"]}, once=True, session=spark)
    rows = pq.read_table(tmp_path / "orders").to_pylist()
    assert sorted((row["id"], row["price"], str(row["day"])) for row in rows) == [
        (str(number), number - 4.5, f"2026-01-0{1 + number % 2}") for number in range(5, 10)
    ]


def test_the_command_runs_a_stream_until_it_is_told_to_end(here: Servers, tmp_path: Path) -> None:
    topic, group = here.create_topic(partitions=2), f"g-{uuid.uuid4().hex[:8]}"
    send(here.servers, topic, range(10))
    file = tmp_path / "ingestd.toml"
    file.write_text(
        f'[clusters.main]\nbootstrap = ["{here.servers}"]\n[pipelines.p]\nsql = "{NUMBERS}"\n'
        f'source = {{ cluster = "main", topics = ["{topic}"], group = "{group}" }}\n'
        f'sink = {{ path = "{tmp_path}/out" }}\ncheckpoint = "{tmp_path}/checkpoint"\ntrigger = 3600.0\n'
    )
    command = [*ingestd(), "pipeline", "run", str(file), "p", "--from", "3", "--master", "local[2]"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        said = next(line for line in running.stderr if "micro-batch done" in line)
        running.send_signal(signal.SIGTERM)
        out, _ = running.communicate(timeout=60)
    assert json.loads(said)["rows"] == 4
    assert json.loads(said)["lag"] == {topic: 0}
    assert out.startswith("p: 4 records read in 1 micro-batch, ")
    assert running.returncode == 0
    assert numbers(tmp_path / "out") == [6, 7, 8, 9]
    assert group_offsets(here.servers, group) == {0: 5, 1: 5}


SLOW = """
import time
from pathlib import Path

def _each(batches):
    begun = Path(__file__).with_name("begun")
    slow = not begun.exists()
    begun.touch()
    for batch in batches:
        if slow:
            time.sleep(600)
        yield batch

def slow_once(rows):
    return rows.mapInArrow(_each, rows.schema)
"""
"""A step whose first task takes for ever, and says that it has begun."""


@pytest.mark.parametrize(
    ("number", "form", "once"),
    [
        (signal.SIGINT, "parquet", False),
        (signal.SIGTERM, "topic", False),
        pytest.param(signal.SIGTERM, "delta", True, marks=pytest.mark.long),
    ],
)
def test_a_signal_amid_a_micro_batch_gives_it_up_in_few_lines_and_the_next_run_has_its_rows(
    here: Servers, tmp_path: Path, number: signal.Signals, form: str, once: bool
) -> None:
    """Spark's log had a thousand lines: traces of what it had interrupted itself, and a stack that had overflown."""
    topic, target = here.create_topic(), here.create_topic()
    send(here.servers, topic, [0])
    Path(tmp_path, "slowness.py").write_text(SLOW)
    sink = f'cluster = "main", topic = "{target}"' if form == "topic" else f'path = "{tmp_path}/out"'
    sql = "SELECT CAST(number AS STRING) AS value FROM source" if form == "topic" else "SELECT * FROM source"
    file = tmp_path / "ingestd.toml"
    file.write_text(
        f'[clusters.main]\nbootstrap = ["{here.servers}"]\n[pipelines.p]\nsql = "{sql}"\nmaster = "local[2]"\n'
        f'steps = [{{ sql = "{NUMBERS}" }}, {{ python = "slowness:slow_once" }}]\n'
        f'source = {{ cluster = "main", topics = ["{topic}"] }}\n'
        f'sink = {{ format = "{form}", {sink} }}\ncheckpoint = "{tmp_path}/checkpoint"\n'
    )
    command = [*ingestd(), "pipeline", "run", str(file), "p"]
    options = ["--once"] if once else []
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stderr is not None
        assert next(line for line in running.stderr if "pipeline runs" in line)
        while not (tmp_path / "begun").exists():
            assert running.poll() is None
            time.sleep(0.1)
        os.killpg(running.pid, number) if number is signal.SIGINT else running.send_signal(number)
        out, said = running.communicate(timeout=60)
    *events, last = said.splitlines()
    if once:
        assert last == "ingestd: pipeline p: stopped before it had taken all that was there at its start"
        assert out == ""
    else:
        events.append(last)
        assert out.startswith("p: 0 records read in 0 micro-batches, ")
    assert [(each["event"], each["level"]) for each in map(json.loads, events)] == [
        ("signal", "info"),
        ("micro-batch given up", "info"),
    ]
    assert json.loads(events[0])["signal"] == number.name
    assert running.returncode == int(once)
    again = subprocess.run([*command, "--once"], capture_output=True, text=True, timeout=240, check=False)
    assert again.stdout.startswith("p: 1 record read in 1 micro-batch, "), again.stderr
    done = next(line for line in again.stderr.splitlines() if "micro-batch done" in line)
    assert "lag" not in json.loads(done), "nobody has asked for the end of the topic"
    assert (committed(here.servers, target) if form == "topic" else numbers(tmp_path / "out", form)) == [0]


def test_ctrl_c_amid_a_run_without_a_checkpoint_ends_it_without_traces(here: Servers, tmp_path: Path) -> None:
    topic = here.create_topic()
    send(here.servers, topic, [0])
    Path(tmp_path, "slowness.py").write_text(SLOW)
    file = tmp_path / "ingestd.toml"
    file.write_text(
        f'[clusters.main]\nbootstrap = ["{here.servers}"]\n[pipelines.p]\nmaster = "local[2]"\n'
        f'steps = [{{ python = "slowness:slow_once" }}]\nsource = {{ cluster = "main", topics = ["{topic}"] }}\n'
        f'sink = {{ path = "{tmp_path}/out" }}\n'
    )
    command = [*ingestd(), "pipeline", "run", str(file), "p"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        while not (tmp_path / "begun").exists():
            assert running.poll() is None
            time.sleep(0.1)
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    # What Spark says when it starts is before that.
    assert said.splitlines()[-1] == 'Setting Spark log level to "ERROR".'
    assert "Traceback" not in said


def test_a_sink_that_does_not_end_is_waited_for_by_a_deadline(
    spark: SparkSession, here: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = here.create_topic()
    send(here.servers, topic, [0])
    begun, ended = threading.Event(), threading.Event()

    def write(*_: object) -> None:
        begun.set()
        assert ended.wait(240)

    monkeypatch.setattr(parquet.ParquetSink, "__call__", write)
    with capture_logs() as said:
        try:
            result = run_stream(
                stream(topic, tmp_path), here.clusters, session=spark, stopped=begun.is_set, patience=0.5
            )
        finally:
            ended.set()
    assert result.batches == 0
    assert [each for each in said if each["event"].startswith("micro-batch")] == [
        {"event": "micro-batch does not end", "pipeline": "p", "seconds": 0.5, "log_level": "warning"},
        {
            "event": "micro-batch given up",
            "pipeline": "p",
            "batch": 0,
            "then": "the next run takes its rows again",
            "log_level": "info",
        },
    ]


@pytest.mark.parametrize("kind", ["batch", "stream into a topic", "stream into files"])
def test_the_command_says_in_one_line_why_a_query_failed(here: Servers, tmp_path: Path, kind: str) -> None:
    """Spark's log had it before that, three times, in 150 lines of Java."""
    topic = here.create_topic()
    send(here.servers, topic, [0])
    file = tmp_path / "ingestd.toml"
    into_topic = f'format = "topic", cluster = "main", topic = "{here.create_topic()}"'
    sink = into_topic if "topic" in kind else f'path = "{tmp_path}/out"'
    file.write_text(
        f'[clusters.main]\nbootstrap = ["{here.servers}"]\n[pipelines.p]\n'
        f"sql = \"SELECT CAST(raise_error('not that one') AS STRING) AS value FROM source\"\n"
        f'source = {{ cluster = "main", topics = ["{topic}"] }}\nsink = {{ {sink} }}\n'
        + ("" if kind == "batch" else f'checkpoint = "{tmp_path}/checkpoint"\n')
    )
    run = subprocess.run(
        [*ingestd(), "pipeline", "run", str(file), "p"], capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 1
    assert run.stderr.endswith("ingestd: pipeline p: not that one\n")
    assert " ERROR " not in run.stderr
    assert '"level":"error"' not in run.stderr
    assert "\tat " not in run.stderr
