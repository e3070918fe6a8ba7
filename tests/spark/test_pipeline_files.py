"""Files as the source of a pipeline: exactly their lines, through SQL and into a topic."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections import Counter
from typing import TYPE_CHECKING

import lz4.frame
import pyarrow.parquet as pq
import pytest
import zstandard
from confluent_kafka import Consumer, TopicPartition

from ingestd.daemon.pipelines import ParseStep, PipelineSettings, PipelineSink, PipelineSource, PipelineStep
from ingestd.spark.pipelines.batch import run
from ingestd.spark.pipelines.checking import check, plan
from ingestd.spark.pipelines.failures import PipelineFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from conftest import Servers
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("unchanged")]

TEXT = b"first\r\nsecond\n\n\xff\xfe no UTF-8\n%b\nthe last one has no newline"
LINES = [b"first\r", b"second", b"", b"\xff\xfe no UTF-8", b"%b", b"the last one has no newline"]
CODECS = {
    "app.log": bytes,
    "app.log.1": bytes,
    "app[0].log.2.gz": lambda text: gzip.compress(text[:9]) + gzip.compress(text[9:]),
    "app.log.3.bz2": bz2.compress,
    "app.log.4.zst": zstandard.compress,
}
"""What a log and its rotations are called, and how they are written."""


def rotations(directory: Path, lines: Mapping[str, bytes] | None = None) -> str:
    """A log and its rotations, each with its name in its fifth line. Returns a glob of them."""
    directory.mkdir()
    for name, compressed in CODECS.items():
        (directory / name).write_bytes(compressed((lines or {}).get(name, TEXT % name.encode())))
    return f"{directory}/app*log*"


def records(servers: str, topic: str, partitions: int) -> list[list[bytes]]:
    """The values of each partition, in order."""
    reader = Consumer({"bootstrap.servers": servers, "group.id": "nobody", "enable.partition.eof": True})
    reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[list[bytes]] = [[] for _ in range(partitions)]
    ends = 0
    while ends < partitions:
        for one in reader.consume(1_000, 0.5):
            if one.error() is not None:
                ends += 1
            else:
                found[one.partition()].append(one.value())
    reader.close()
    return found


def test_sql_gets_each_line_of_a_log_and_of_its_rotations(spark: SparkSession, tmp_path: Path) -> None:
    glob = rotations(tmp_path / "logs")
    pipeline = PipelineSettings(
        "p", PipelineSource(files=(glob, f"{tmp_path}/logs/app.log")), PipelineSink(path=f"{tmp_path}/out")
    )
    columns = (("value", "binary"), ("file", "string"))
    checked = check(pipeline, {}, session=spark)
    assert checked.columns == columns
    assert [(file.local_path, file.size) for file in checked.files] == [
        (f"{tmp_path}/logs/{name}", (tmp_path / "logs" / name).stat().st_size) for name in sorted(CODECS)
    ]
    planned = plan(pipeline, {}, session=spark)
    assert (planned.ranges, planned.files) == ((), checked.files)
    assert run(pipeline, {}, session=spark).rows == 6 * len(CODECS)
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert Counter(row["value"] for row in rows) == Counter(
        {line: len(CODECS) for line in LINES if line != b"%b"} | {name.encode(): 1 for name in CODECS}
    )
    named = {row["value"].decode(): row["file"] for row in rows if row["value"].startswith(b"app")}
    assert {name: file.rpartition("/")[2].replace("%5B", "[").replace("%5D", "]") for name, file in named.items()} == {
        name: name for name in CODECS
    }


def test_a_large_file_is_read_by_several_tasks_and_each_line_comes_once(spark: SparkSession, tmp_path: Path) -> None:
    lines = [b"%d %s" % (number, b"x" * (number % 300)) for number in range(100_000)]
    (tmp_path / "large.log").write_bytes(b"\n".join(lines))
    sql = "SELECT CAST(split(CAST(value AS STRING), ' ')[0] AS INT) AS number, length(value) AS bytes FROM source"
    pipeline = PipelineSettings(
        "p", PipelineSource(files=(f"{tmp_path}/large.log",)), PipelineSink(path=f"{tmp_path}/out"), sql=sql
    )
    assert run(pipeline, {}, session=spark).rows == 100_000
    assert len(list((tmp_path / "out").glob("*.parquet"))) > 1
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["number"], row["bytes"]) for row in rows) == [
        (number, len(line)) for number, line in enumerate(lines)
    ]


def test_a_topic_gets_the_lines_of_each_file_in_their_order(
    spark: SparkSession, either: Servers, tmp_path: Path
) -> None:
    topic = either.create_topic(partitions=2)
    logs = tmp_path / "logs"
    long = b"".join(b"long %d %s\n" % (number, b"y" * (number % 5_000)) for number in range(4_000))
    glob = rotations(logs, {"app.log": long, "app.log.1": b""})
    (logs / "app.log.5.xz").write_bytes(lzma.compress(TEXT))
    (logs / "app.log.6.lz4").write_bytes(lz4.frame.compress(TEXT))
    sink = PipelineSink("topic", cluster="local", topic=topic)
    pipeline = PipelineSettings("p", PipelineSource(files=(glob,)), sink)
    assert run(pipeline, either.clusters, session=spark).rows == 4_000 + 5 * 6
    found = records(either.servers, topic, 2)
    rest = [line for values in found for line in values if not line.startswith(b"long ")]
    names = [name.encode() for name in CODECS if name not in ("app.log", "app.log.1")]
    assert Counter(rest) == Counter({line: 5 for line in LINES if line != b"%b"} | dict.fromkeys(names, 1) | {b"%b": 2})
    for values in found:
        numbers = [int(line.split()[1]) for line in values if line.startswith(b"long ")]
        assert numbers
        assert numbers == sorted(numbers)
    assert Counter(line for values in found for line in values if line.startswith(b"long ")) == Counter(
        long.removesuffix(b"\n").split(b"\n")
    )


def test_lines_through_steps_to_a_topic_and_those_that_can_not_be_typed(
    spark: SparkSession, here: Servers, tmp_path: Path
) -> None:
    topic, dead = here.create_topic(), here.create_topic()
    (tmp_path / "numbers.log").write_bytes(b'{"n": 1}\n{"n": "x"}\n{"n": 2}\n')
    pipeline = PipelineSettings(
        "p",
        PipelineSource("local", files=(f"{tmp_path}/numbers.log",)),
        PipelineSink("topic", topic=topic),
        (PipelineStep(parse=ParseStep("json", "n INT")),),
        "SELECT CAST(n * 10 AS STRING) AS value FROM source",
        dead_letters=dead,
    )
    assert run(pipeline, here.clusters, session=spark).rows == 2
    assert sorted(records(here.servers, topic, 1)[0]) == [b"10", b"20"]
    assert records(here.servers, dead, 1) == [[b'{"n": "x"}']]


def test_what_can_not_be_read_whole_is_refused_by_name(spark: SparkSession, here: Servers, tmp_path: Path) -> None:
    def failure(name: str, sink: PipelineSink) -> str:
        pipeline = PipelineSettings("p", PipelineSource("local", files=(f"{tmp_path}/{name}",)), sink)
        with pytest.raises(PipelineFailed) as caught:
            run(pipeline, here.clusters, session=spark)
        return str(caught.value)

    parquet, topic = PipelineSink(path=f"{tmp_path}/out"), PipelineSink("topic", topic=here.create_topic())
    for name in ("a.xz", "a.lz4", "_a.log", "cut.log.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"a\n" * 1_000)[:-9])
    (tmp_path / "long.log").write_bytes(b"short\n" + b"x" * 3_000_000)
    assert "there is no such file; of a directory, expected DIR/*" in failure("", parquet)
    assert "expected text, .gz, .bz2 or .zst" in failure("a.xz", parquet)
    assert "expected text, .gz, .bz2 or .zst" in failure("a.lz4", parquet)
    assert "Spark reads no file whose name begins with _ or ." in failure("_a.log", parquet)
    assert "cut.log.gz" in failure("cut.log.gz", topic)
    assert "long.log: the line at byte 6 of its text has more than 1048576 bytes" in failure("long.log", topic)
    assert failure("cut.log.gz", parquet)
    assert not list((tmp_path / "out").glob("*.parquet"))
