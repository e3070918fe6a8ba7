"""Checking: what a pipeline makes of its source, without reading it; and how Spark would run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.spark.pipelines.checkpoint import last_end
from ingestd.spark.pipelines.dead_letters import dead_letters
from ingestd.spark.pipelines.failures import failing
from ingestd.spark.pipelines.jdbc import prepare_driver
from ingestd.spark.pipelines.results import require_columns
from ingestd.spark.pipelines.session import own_session
from ingestd.spark.pipelines.source import batch_source, stream_source
from ingestd.spark.pipelines.steps import apply_steps
from ingestd.spark.pipelines.streaming import stream_rows
from ingestd.spark.pipelines.text_files import find_files, line_rows
from ingestd.spark.planner import Planner
from ingestd.spark.planning import bounds
from ingestd.spark.read_options import Rows, batch_options, stream_options
from ingestd.spark.rows import check_rows
from ingestd.spark.stream import StreamPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from ingestd.daemon.pipelines import PipelineSettings
    from ingestd.spark.pipelines.text_files import TextFile

__all__ = ["PipelineCheck", "PipelinePlan", "PlannedRange", "check", "plan"]


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """What of one partition would be read now."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """How a pipeline would run now."""

    ranges: tuple[PlannedRange, ...]
    files: tuple[TextFile, ...]
    query: str
    """Spark's plan: the physical one, or a stream's logical one."""


@dataclass(frozen=True, slots=True)
class PipelineCheck:
    """What a pipeline makes of its source."""

    columns: tuple[tuple[str, str], ...]
    """The columns that the sink would get, each with its type."""
    files: tuple[TextFile, ...]
    """The files that are its source now."""


def check(
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    *,
    modules: Path | None = None,
    session: SparkSession | None = None,
) -> PipelineCheck:
    """The columns that the sink would get, each with its type, and the files. No broker is asked, and no data is read.

    The arguments are those of `batch.run`. Raises `PipelineFailed` for what can not run.
    """
    with failing(pipeline), own_session(pipeline, session) as spark:
        files = find_files(spark, pipeline.source.files)
        rows = _rows(pipeline, clusters, modules, spark, files)
        require_columns(rows, pipeline.sink)
        if rows.isStreaming:
            _require_append(rows)
        if pipeline.sink.format == "topic":
            once = pipeline.sink.delivery == "exactly-once"
            check_rows(rows.schema, Rows.records, topic=pipeline.sink.topic, position=once)
        if pipeline.sink.format == "jdbc":
            prepare_driver(spark, pipeline.sink)
        columns = tuple((field.name, field.dataType.simpleString()) for field in rows.schema.fields)
        return PipelineCheck(columns, files)


def plan(
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    *,
    modules: Path | None = None,
    session: SparkSession | None = None,
) -> PipelinePlan:
    """How the pipeline would run, and what it would read now. The brokers are asked for offsets, not for records.

    The arguments are those of `batch.run`. Raises `PipelineFailed`.
    """
    with failing(pipeline), own_session(pipeline, session) as spark:
        files = find_files(spark, pipeline.source.files)
        rows = _rows(pipeline, clusters, modules, spark, files)
        query = _explained(rows)
        if files:
            return PipelinePlan((), files, query)
        cluster = clusters[pipeline.source_cluster]
        ranges = _next(pipeline, cluster, spark) if rows.isStreaming else _present(pipeline, cluster)
        return PipelinePlan(ranges, (), query)


def _explained(rows: DataFrame) -> str:
    """What `explain` prints of a batch query. A stream's plan is made anew for each micro-batch from the one here."""
    execution = rows._jdf.queryExecution()  # noqa: SLF001 - Spark has no other way, here and below
    if rows.isStreaming:
        optimizer = rows.sparkSession._jsparkSession.sessionState().optimizer()  # noqa: SLF001
        return str(optimizer.execute(execution.analyzed()).treeString())
    modes = rows.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode  # type: ignore[union-attr]  # noqa: SLF001
    return str(execution.explainString(modes.fromString("formatted")))


def _rows(
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    modules: Path | None,
    spark: SparkSession,
    files: Sequence[TextFile],
) -> DataFrame:
    letters = dead_letters(pipeline, clusters, spark)
    if pipeline.is_stream:
        return stream_rows(pipeline, clusters, spark, letters, modules)
    if files:
        source = line_rows(spark, files)
    else:
        options = batch_source(pipeline, clusters[pipeline.source_cluster])
        source = spark.read.format("ingestd").options(**options).load()
    return apply_steps(source, pipeline.all_steps, modules, letters)


def _require_append(rows: DataFrame) -> None:
    """What Spark itself checks when a query starts: that it can write rows that never change later."""
    jvm = rows.sparkSession._jvm  # noqa: SLF001 - Spark has no other way
    append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()  # type: ignore[union-attr]
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker  # type: ignore[union-attr]
    checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), append)  # noqa: SLF001


def _present(pipeline: PipelineSettings, cluster: Mapping[str, str]) -> tuple[PlannedRange, ...]:
    options = batch_options(batch_source(pipeline, cluster))
    with Planner(options.cluster, options.consumer) as planner:
        starts, ends = bounds(options, planner)
    return tuple(PlannedRange(*key, starts[key], ends[key]) for key in sorted(ends))


def _next(pipeline: PipelineSettings, cluster: Mapping[str, str], spark: SparkSession) -> tuple[PlannedRange, ...]:
    """What the next micro-batch of a stream would read."""
    assert pipeline.checkpoint is not None, "the pipeline is a stream"
    options = stream_options(stream_source(pipeline, cluster))
    before = last_end(spark, pipeline.checkpoint)
    with Planner(options.cluster, options.consumer) as planner:
        end = StreamPlan(options, planner).next_end(before, limited=True)
    ranges = [] if end is None else end.ranges_since(before)
    return tuple(PlannedRange(each.topic, each.partition, each.start, each.end) for each in ranges)
