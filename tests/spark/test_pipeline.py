"""Pipelines on real Kafka and on the embedded broker: the files that they write are read back with pyarrow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from ingestd.daemon.pipelines import PipelineSettings, PipelineSink, PipelineSource
from ingestd.spark.pipelines.batch import run
from ingestd.spark.pipelines.checking import plan
from ingestd.spark.pipelines.failures import PipelineFailed
from ingestd.spark.pipelines.files import Directory
from ingestd.spark.pipelines.replacing import replace as replace_files
from ingestd.spark.pipelines.streaming import run_stream

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Servers
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("unchanged")]


@pytest.fixture
def filled(either: Servers) -> str:
    """A topic with 1,000 records in 2 partitions."""
    name = either.create_topic(partitions=2)
    sender = Producer({"bootstrap.servers": either.servers, "enable.idempotence": True, "log_level": 2})
    for number in range(1_000):
        sender.produce(name, b"GET /page/%d" % number, partition=number % 2, headers=[("host", b"a")])
    assert sender.flush(60) == 0
    return name


def settings(
    topic: str,
    path: Path,
    sql: str = "SELECT * FROM source",
    mode: str = "errorifexists",
    partition_by: tuple[str, ...] = (),
) -> PipelineSettings:
    return PipelineSettings(
        name="access",
        source=PipelineSource("local", (topic,)),
        sink=PipelineSink(path=str(path), mode=mode, partition_by=partition_by),
        sql=sql,
    )


def test_a_pipeline_writes_what_its_query_selects(
    spark: SparkSession, either: Servers, filled: str, tmp_path: Path
) -> None:
    query = "SELECT partition, offset, CAST(value AS STRING) AS line FROM source WHERE offset < 100"
    result = run(settings(filled, tmp_path / "out", query), either.clusters, session=spark)
    assert (result.name, result.rows) == ("access", 200)
    rows = pq.read_table(tmp_path / "out").sort_by([("offset", "ascending"), ("partition", "ascending")]).to_pylist()
    assert [(row["partition"], row["offset"], row["line"]) for row in rows] == [
        (number % 2, number // 2, f"GET /page/{number}") for number in range(200)
    ]


def test_without_a_query_every_column_is_written(
    spark: SparkSession, either: Servers, filled: str, tmp_path: Path
) -> None:
    assert run(settings(filled, tmp_path / "out"), either.clusters, session=spark).rows == 1_000
    table = pq.read_table(tmp_path / "out")
    assert table.column_names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert set(table["topic"].to_pylist()) == {filled}
    assert table["headers"][0].as_py() == [{"key": "host", "value": b"a"}]


def test_the_sinks_mode_decides_about_what_is_there(
    spark: SparkSession, either: Servers, filled: str, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    run(settings(filled, path), either.clusters, session=spark)
    with pytest.raises(PipelineFailed, match=r"pipeline access: .*already exists"):
        run(settings(filled, path), either.clusters, session=spark)
    assert run(settings(filled, path, mode="ignore"), either.clusters, session=spark).rows is None
    run(settings(filled, path, mode="append"), either.clusters, session=spark)
    assert pq.read_table(path).num_rows == 2_000
    run(settings(filled, path, mode="overwrite"), either.clusters, session=spark)
    assert pq.read_table(path).num_rows == 1_000


@pytest.mark.parametrize("mode", ["overwrite", "errorifexists"])
def test_a_run_that_can_not_read_its_topic_leaves_the_sink_as_it_is(
    spark: SparkSession, either: Servers, filled: str, tmp_path: Path, mode: str
) -> None:
    path = tmp_path / "out"
    if mode == "overwrite":
        run(settings(filled, path), either.clusters, session=spark)
    there = sorted(tmp_path.rglob("*"))
    with pytest.raises(PipelineFailed, match="no-such-topic"):
        run(settings("no-such-topic", path, mode=mode), either.clusters, session=spark)
    assert sorted(tmp_path.rglob("*")) == there


@pytest.mark.parametrize("partition_by", [(), ("half",)])
def test_files_are_replaced_once_the_new_ones_are_written(
    spark: SparkSession, either: Servers, filled: str, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    path = tmp_path / "out"
    query = "SELECT offset, offset % 2 AS half, {} AS one FROM source"

    def write(query: str) -> None:
        run(settings(filled, path, query, "overwrite", partition_by), either.clusters, session=spark)

    write(query.format(1))
    there = sorted(tmp_path.rglob("*"))
    with pytest.raises(PipelineFailed, match="a bad row"):
        write(query.format("IF(offset = 300, raise_error('a bad row'), 2)"))
    assert [each for each in sorted(tmp_path.rglob("*")) if each.name != "_ingestd"] == there
    write(query.format(3))
    table = pq.read_table(path)
    assert (table.num_rows, set(table["one"].to_pylist())) == (1_000, {3})
    assert (path / "_SUCCESS").exists()
    assert not (path / "_ingestd").exists()
    assert not set(tmp_path.rglob("*.parquet")) & set(there)


def test_new_files_stay_where_they_are_if_another_program_takes_their_place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, delete = tmp_path / "out", Directory.delete
    rows = spark.sql("SELECT id, id % 2 AS half FROM range(4)")
    replace_files(rows, str(path), ("half",))

    def delete_and_write(directory: Directory, name: str) -> None:
        delete(directory, name)
        if name == "half=1":
            (path / name).mkdir()

    monkeypatch.setattr(Directory, "delete", delete_and_write)
    with pytest.raises(FileExistsError, match="half=1 was written by another program meanwhile"):
        replace_files(rows, str(path), ("half",))
    (kept,) = path.glob("_ingestd/*/half=1")
    assert sorted(pq.read_table(kept)["id"].to_pylist()) == [1, 3]


def test_a_wrong_query_or_topic_is_told_in_one_line(
    spark: SparkSession, either: Servers, filled: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineFailed, match=r"^pipeline access: sql: .*nonsense") as caught:
        run(settings(filled, tmp_path / "out", "SELECT nonsense FROM source"), either.clusters, session=spark)
    assert "\n" not in str(caught.value)
    once = settings("no-such-topic", tmp_path / "out")
    stream = replace(once, checkpoint=str(tmp_path / "checkpoint"))
    group = replace(once, source=replace(once.source, group="nobody"))
    for work, pipeline in ((run, once), (run, group), (run_stream, stream), (plan, once), (plan, stream)):
        with pytest.raises(PipelineFailed) as caught:
            work(pipeline, either.clusters, session=spark)
        assert str(caught.value) == (
            "pipeline access: source.topics: there is no topic no-such-topic on cluster local; make it with: "
            "ingestd topics create no-such-topic -c FILE --cluster local"
        )
