"""Pipelines: `[pipelines.NAME]`, topics through SQL to files, run as one batch query on Spark."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as sql

from ingestd.errors import IngestdError
from ingestd.spark.commits import why_not_committed
from ingestd.spark.planner import Planner
from ingestd.spark.planning import bounds, nested
from ingestd.spark.read_options import batch_options
from ingestd.spark.source import register

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ingestd.client.metadata import TopicPartition
    from ingestd.daemon.configuration import PipelineSettings

__all__ = ["VIEW", "PipelineFailed", "PipelineResult", "run"]

VIEW: Final = "source"
"""The view that a pipeline's SQL reads; its columns are those of Spark's Kafka connector, headers included."""

_OUR_ERROR: Final = re.compile(r"^\s*ingestd\.[\w.]+: (?P<message>.+)$", re.MULTILINE)
"""The last line of a Python traceback that Spark brings along from its workers."""


class PipelineFailed(IngestdError):
    """Spark refused or gave up the pipeline's query; the message names the pipeline and the reason."""


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """What one run of a pipeline did."""

    name: str
    rows: int | None
    """Rows written; None where the sink's mode is `ignore`, which does not tell whether it wrote."""
    path: str
    """Where they are."""
    seconds: float
    """From before the session's start to the end of the write."""


def run(pipeline: PipelineSettings, bootstrap: Sequence[str], *, session: SparkSession | None = None) -> PipelineResult:
    """Run a pipeline once over what its topics hold now, or what is new since its group's last commit.

    Committed records only. The group's offsets are committed once the rows are written.

    `bootstrap`: addresses of the source cluster (from `Configuration.bootstrap`). Without a `session` one is started on
    the pipeline's master, and stopped at the end. Raises `PipelineFailed`.
    """
    begun = time.monotonic()
    try:
        if session is not None:
            rows = _run(pipeline, bootstrap, session)
        else:
            with _own_session(pipeline) as spark:
                rows = _run(pipeline, bootstrap, spark)
    except PipelineFailed:
        raise
    except (IngestdError, PySparkException, Py4JError) as error:
        raise PipelineFailed(f"pipeline {pipeline.name}: {_reason(error)}") from error
    return PipelineResult(pipeline.name, rows, pipeline.sink.path, time.monotonic() - begun)


def _run(pipeline: PipelineSettings, bootstrap: Sequence[str], spark: SparkSession) -> int | None:
    options = {
        "kafka.bootstrap.servers": ",".join(bootstrap),
        "subscribe": ",".join(pipeline.source.topics),
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
    }
    if pipeline.source.group is None:
        return _written(pipeline, options, spark)
    of_group = {
        "startingOffsets": "group",
        "kafka.group.id": pipeline.source.group,
        "startingOffsetsByGroupStrategy": "earliest",
    }
    parsed = batch_options(options | of_group)
    with Planner(parsed.cluster, parsed.consumer) as planner:
        starts, ends = bounds(parsed, planner)
        # This also shows, before anything is written, whether the group can be committed at all.
        _commit(pipeline, planner, starts)
        del options["subscribe"]  # a partition that comes now is for the next run
        options["assign"] = json.dumps({topic: list(map(int, each)) for topic, each in nested(ends).items()})
        options["startingOffsets"], options["endingOffsets"] = json.dumps(nested(starts)), json.dumps(nested(ends))
        rows = _written(pipeline, options, spark)
        try:
            _commit(pipeline, planner, ends)
        except PipelineFailed as error:
            raise PipelineFailed(f"{error}. The rows are written, and the next run reads them again") from error
    return rows


def _commit(pipeline: PipelineSettings, planner: Planner, offsets: Mapping[TopicPartition, int]) -> None:
    group = pipeline.source.group
    assert group is not None, "the pipeline has a group"
    for error in planner.commit(group, offsets).values():
        if error is not None:
            raise PipelineFailed(f"pipeline {pipeline.name}: {why_not_committed(group, error)}") from error


def _written(pipeline: PipelineSettings, options: dict[str, str], spark: SparkSession) -> int | None:
    """Run the query; how many rows it wrote."""
    register(spark)
    source = spark.read.format("ingestd").options(**options).load()
    source.createOrReplaceTempView(VIEW)
    written = Observation(f"rows written by {pipeline.name}")
    result = spark.sql(pipeline.sql).observe(written, sql.count(sql.lit(1)).alias("rows"))
    result.write.format(pipeline.sink.format).mode(pipeline.sink.mode).save(pipeline.sink.path)
    # Nothing is observed, for ever, where `ignore` finds the path taken.
    return None if pipeline.sink.mode == "ignore" else int(written.get["rows"])


@contextmanager
def _own_session(pipeline: PipelineSettings) -> Iterator[SparkSession]:
    # Spark would take whatever `python3` it finds, which need not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(pipeline.master)
        .appName(f"ingestd pipeline {pipeline.name}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


def _reason(error: Exception) -> str:
    """Our own error where Spark's holds one, else the first line of Spark's."""
    text = str(error).strip()
    ours = _OUR_ERROR.findall(text)
    return ours[-1].strip() if ours else text.splitlines()[0] if text else type(error).__name__
