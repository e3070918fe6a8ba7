"""Pipelines: `[pipelines.NAME]`, topics through SQL to files, run as one batch query on Spark."""

from __future__ import annotations

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
from ingestd.spark.source import register

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    """Run a pipeline once over what its topics hold now; committed records only.

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
    except (PySparkException, Py4JError) as error:
        raise PipelineFailed(f"pipeline {pipeline.name}: {_reason(error)}") from error
    return PipelineResult(pipeline.name, rows, pipeline.sink.path, time.monotonic() - begun)


def _run(pipeline: PipelineSettings, bootstrap: Sequence[str], spark: SparkSession) -> int | None:
    register(spark)
    source = (
        spark.read.format("ingestd")
        .option("kafka.bootstrap.servers", ",".join(bootstrap))
        .option("subscribe", ",".join(pipeline.source.topics))
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
        .load()
    )
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
