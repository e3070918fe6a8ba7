"""Checking: what a pipeline makes of its source, without reading it; and how Spark would run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.spark.pipelines.failures import failing
from ingestd.spark.pipelines.session import own_session
from ingestd.spark.pipelines.source import batch_source
from ingestd.spark.pipelines.steps import apply_steps
from ingestd.spark.planner import Planner
from ingestd.spark.planning import bounds
from ingestd.spark.read_options import batch_options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from ingestd.daemon.pipelines import PipelineSettings

__all__ = ["PipelinePlan", "PlannedRange", "check", "plan"]


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
    query: str
    """Spark's physical plan."""


def check(
    pipeline: PipelineSettings,
    bootstrap: Sequence[str],
    *,
    modules: Path | None = None,
    session: SparkSession | None = None,
) -> tuple[tuple[str, str], ...]:
    """The columns that the sink would get, each with its type. No broker is asked, and no data is read.

    The arguments are those of `batch.run`. Raises `PipelineFailed` for what can not run.
    """
    with failing(pipeline.name), own_session(pipeline, session) as spark:
        rows = _rows(pipeline, batch_source(pipeline.source, bootstrap), modules, spark)
        return tuple((field.name, field.dataType.simpleString()) for field in rows.schema.fields)


def plan(
    pipeline: PipelineSettings,
    bootstrap: Sequence[str],
    *,
    modules: Path | None = None,
    session: SparkSession | None = None,
) -> PipelinePlan:
    """How the pipeline would run, and what it would read now. The brokers are asked for offsets, not for records.

    The arguments are those of `batch.run`. Raises `PipelineFailed`.
    """
    with failing(pipeline.name), own_session(pipeline, session) as spark:
        options = batch_source(pipeline.source, bootstrap)
        rows = _rows(pipeline, options, modules, spark)
        query = str(rows._jdf.queryExecution().explainString(_mode(spark)))  # noqa: SLF001 - `explain` prints it
        return PipelinePlan(_ranges(pipeline, options), query)


def _mode(spark: SparkSession) -> object:
    return spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")  # type: ignore[union-attr]  # noqa: SLF001


def _rows(pipeline: PipelineSettings, options: dict[str, str], modules: Path | None, spark: SparkSession) -> DataFrame:
    return apply_steps(spark.read.format("ingestd").options(**options).load(), pipeline.all_steps, modules)


def _ranges(pipeline: PipelineSettings, options: dict[str, str]) -> tuple[PlannedRange, ...]:
    group = pipeline.source.group
    if group is not None:
        options = options | {
            "startingOffsets": "group",
            "kafka.group.id": group,
            "startingOffsetsByGroupStrategy": "earliest",
        }
    parsed = batch_options(options)
    with Planner(parsed.cluster, parsed.consumer) as planner:
        starts, ends = bounds(parsed, planner)
    return tuple(PlannedRange(*key, starts[key], ends[key]) for key in sorted(ends))
