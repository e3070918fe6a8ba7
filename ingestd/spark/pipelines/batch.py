"""Batch: a pipeline run once: over files, over what its topics hold now, or over what is new for its group."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as sql

from ingestd.spark.commits import why_not_committed
from ingestd.spark.pipelines.dead_letters import dead_letters
from ingestd.spark.pipelines.failures import PipelineFailed, failing
from ingestd.spark.pipelines.jdbc import prepare_driver, write_table
from ingestd.spark.pipelines.line_files import send_files
from ingestd.spark.pipelines.refusals import without_refused
from ingestd.spark.pipelines.replacing import replace
from ingestd.spark.pipelines.results import require_columns
from ingestd.spark.pipelines.session import own_session
from ingestd.spark.pipelines.source import batch_source
from ingestd.spark.pipelines.steps import apply_steps
from ingestd.spark.pipelines.text_files import find_files, line_rows
from ingestd.spark.planner import Planner
from ingestd.spark.planning import bounds, nested
from ingestd.spark.read_options import batch_options
from ingestd.spark.write_options import write_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from ingestd.client.metadata import TopicPartition
    from ingestd.daemon.pipelines import PipelineSettings
    from ingestd.spark.read_options import BatchOptions

__all__ = ["PipelineResult", "run"]


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """What one run of a pipeline did."""

    name: str
    rows: int | None
    """Rows written; None where the sink's mode is `ignore`, which does not tell whether it wrote."""
    path: str
    """Where they are, in words if it is no path."""
    seconds: float
    """From before the session's start to the end of the write."""
    dead_letters: int | None = None
    """Letters sent; None if the pipeline has no topic for them."""


@dataclass(frozen=True, slots=True)
class _Written:
    rows: int | None
    dead_letters: int | None = None


def run(
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    *,
    start: str | None = None,
    modules: Path | None = None,
    session: SparkSession | None = None,
) -> PipelineResult:
    """Run a pipeline without a checkpoint over files, over what its topics hold now, or what is new for its group.

    Committed records only. The group's offsets are committed once the rows are written.

    clusters: options of the data source that reach each cluster, by its name. start: where to begin, whatever the
    settings and the group say, see `source.starting`. modules: a directory with modules of Python that steps name.
    session: the pipeline has a session of its own beside this one; without it Spark is started
    on the pipeline's master, and stopped at the end. Raises `PipelineFailed`.
    """
    begun = time.monotonic()
    with failing(pipeline), own_session(pipeline, session) as spark:
        done = _run(pipeline, clusters, modules, spark, start)
    return PipelineResult(pipeline.name, done.rows, pipeline.sink.place, time.monotonic() - begun, done.dead_letters)


def _run(
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    modules: Path | None,
    spark: SparkSession,
    start: str | None,
) -> _Written:
    if pipeline.source.files:
        return _files_written(pipeline, clusters, modules, spark)
    options = batch_source(pipeline, clusters[pipeline.source_cluster], start)
    parsed = batch_options(options)
    if pipeline.source.group is None:
        return _topics_written(pipeline, clusters, options, modules, spark, lambda: _require_topics(parsed))
    with Planner(parsed.cluster, parsed.consumer) as planner:
        starts, ends = bounds(parsed, planner)
        # This also shows, before anything is written, whether the group can be committed at all.
        _commit(pipeline, planner, starts)
        given = ("subscribe", "kafka.group.id", "startingOffsetsByGroupStrategy", "startingTimestamp")
        fixed = {name: value for name, value in options.items() if name not in given}
        # A partition that comes now is for the next run.
        fixed["assign"] = json.dumps({topic: list(map(int, each)) for topic, each in nested(ends).items()})
        fixed["startingOffsets"], fixed["endingOffsets"] = json.dumps(nested(starts)), json.dumps(nested(ends))
        done = _topics_written(pipeline, clusters, fixed, modules, spark)
        try:
            _commit(pipeline, planner, ends)
        except PipelineFailed as error:
            raise PipelineFailed(f"{error}. The rows are written, and the next run reads them again") from error
    return done


def _require_topics(options: BatchOptions) -> None:
    """Raise what planning the query would. Spark plans it when it has made, or emptied, the sink's directory."""
    with Planner(options.cluster, options.consumer) as planner:
        bounds(options, planner)


def _commit(pipeline: PipelineSettings, planner: Planner, offsets: Mapping[TopicPartition, int]) -> None:
    group = pipeline.source.group
    assert group is not None, "the pipeline has a group"
    for error in planner.commit(group, offsets).values():
        if error is not None:
            raise PipelineFailed(f"pipeline {pipeline.name}: {why_not_committed(group, error)}") from error


def _topics_written(
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    options: Mapping[str, str],
    modules: Path | None,
    spark: SparkSession,
    look: Callable[[], None] | None = None,
) -> _Written:
    return _written(pipeline, clusters, spark.read.format("ingestd").options(**options).load(), modules, look)


def _files_written(
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    modules: Path | None,
    spark: SparkSession,
) -> _Written:
    files, sink = find_files(spark, pipeline.source.files), pipeline.sink
    plain = sink.format == "topic" and sink.topic is not None and not pipeline.all_steps
    if plain and pipeline.dead_letters is None and all(file.local_path is not None for file in files):
        options = write_options({**clusters[pipeline.sink_cluster], "topic": str(sink.topic)})
        return _Written(send_files(spark, files, options))
    return _written(pipeline, clusters, line_rows(spark, files), modules)


def _written(
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    source: DataFrame,
    modules: Path | None,
    look: Callable[[], None] | None = None,
) -> _Written:
    """Run the query. `look` is called when the steps are good, before the sink is touched."""
    written = Observation(f"rows written by {pipeline.name}")
    letters = dead_letters(pipeline, clusters, source.sparkSession)
    rows = apply_steps(source, pipeline.all_steps, modules, letters)
    require_columns(rows, pipeline.sink)
    if look is not None:
        look()
    taken = without_refused(rows, pipeline, clusters, letters)
    result = taken.observe(written, sql.count(sql.lit(1)).alias("rows"))
    sink = pipeline.sink
    if sink.format == "console":
        result.show(truncate=False)
    elif sink.format == "topic":
        into = clusters[pipeline.sink_cluster]
        named = {} if sink.topic is None else {"topic": sink.topic}
        result.write.format("ingestd").mode("append").options(**into, **named).save()
    elif sink.format == "jdbc":
        prepare_driver(source.sparkSession, sink)
        write_table(result, sink, sink.mode)
    elif sink.mode == "overwrite":
        replace(result, str(sink.path), sink.partition_by)
    else:
        result.write.partitionBy(*sink.partition_by).mode(sink.mode).parquet(str(sink.path))
    # Nothing is observed, for ever, where `ignore` finds the path taken.
    count = None if sink.mode == "ignore" else int(written.get["rows"])
    return _Written(count, None if letters is None else letters.count())
