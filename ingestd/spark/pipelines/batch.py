"""Batch: a pipeline run once over what its topics hold now, or over what is new since its group's last commit."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as sql

from ingestd.spark.commits import why_not_committed
from ingestd.spark.pipelines.failures import PipelineFailed, failing
from ingestd.spark.pipelines.session import own_session
from ingestd.spark.pipelines.source import batch_source
from ingestd.spark.pipelines.steps import apply_steps
from ingestd.spark.planner import Planner
from ingestd.spark.planning import bounds, nested
from ingestd.spark.read_options import batch_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ingestd.client.metadata import TopicPartition
    from ingestd.daemon.pipelines import PipelineSettings

__all__ = ["PipelineResult", "run"]


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


def run(
    pipeline: PipelineSettings,
    bootstrap: Sequence[str],
    *,
    modules: Path | None = None,
    session: SparkSession | None = None,
) -> PipelineResult:
    """Run a pipeline once over what its topics hold now, or what is new since its group's last commit.

    Committed records only. The group's offsets are committed once the rows are written.

    bootstrap: addresses of the source cluster (from `Configuration.bootstrap`). modules: a directory with modules of
    Python that steps name. session: the pipeline has a session of its own beside this one; without it Spark is started
    on the pipeline's master, and stopped at the end. Raises `PipelineFailed`.
    """
    begun = time.monotonic()
    with failing(pipeline.name), own_session(pipeline, session) as spark:
        rows = _run(pipeline, bootstrap, modules, spark)
    return PipelineResult(pipeline.name, rows, pipeline.sink.path, time.monotonic() - begun)


def _run(pipeline: PipelineSettings, bootstrap: Sequence[str], modules: Path | None, spark: SparkSession) -> int | None:
    options = batch_source(pipeline.source, bootstrap)
    if pipeline.source.group is None:
        return _written(pipeline, options, modules, spark)
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
        rows = _written(pipeline, options, modules, spark)
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


def _written(
    pipeline: PipelineSettings, options: dict[str, str], modules: Path | None, spark: SparkSession
) -> int | None:
    """Run the query; how many rows it wrote."""
    source = spark.read.format("ingestd").options(**options).load()
    written = Observation(f"rows written by {pipeline.name}")
    result = apply_steps(source, pipeline.all_steps, modules).observe(written, sql.count(sql.lit(1)).alias("rows"))
    result.write.format(pipeline.sink.format).mode(pipeline.sink.mode).save(pipeline.sink.path)
    # Nothing is observed, for ever, where `ignore` finds the path taken.
    return None if pipeline.sink.mode == "ignore" else int(written.get["rows"])
