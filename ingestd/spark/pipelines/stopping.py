"""Stopping: a query that is told to end gives its micro-batch up, within a deadline, and without Spark's traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from ingestd.logs import get_logger
from ingestd.spark.pipelines.session import LOG_LEVEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ingestd.daemon.pipelines import PipelineSettings

__all__ = ["Stop"]

_log = get_logger(__name__)
_TIMEOUT: Final = "spark.sql.streaming.stopTimeout"
_INTERRUPTED: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling it: java.lang.InterruptedException"
"""By this text Spark knows that a sink in Python was interrupted, and that the query has not failed."""


class _Interrupted(Exception):
    """A sink in Python was interrupted, because the query ends."""


class Stop:
    """How one query of a pipeline ends.

    Invariant: nothing that Spark says of what it gives up reaches the log, if Spark is the pipeline's own.
    """

    def __init__(self, pipeline: PipelineSettings, spark: SparkSession, patience: float, *, own: bool) -> None:
        """Before the query starts. `patience`: seconds that it may take to end. `own`: whether Spark is its own."""
        self._pipeline = pipeline
        self._spark = spark
        self._patience = patience
        self._quiet = own and LOG_LEVEL not in pipeline.spark
        self._ending = False
        spark.conf.set(_TIMEOUT, f"{round(patience * 1_000)}ms")

    def sink(self, write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """A function for `foreachBatch` that does what `write` does.

        Spark searches the trace of one that it has interrupted with a regular expression, whose stack overflows on the
        trace of Java in it. So it gets a short one.
        """

        def write_or_end(rows: DataFrame, batch: int) -> None:
            try:
                write(rows, batch)
            except (PySparkException, Py4JError):
                if not self._ending:
                    raise
                raise _Interrupted(_INTERRUPTED) from None

        return write_or_end

    def end(self, query: StreamingQuery) -> bool:
        """End the query. Returns whether it was running. A micro-batch that was under way is given up."""
        running = bool(query.isActive)
        self._ending = True
        if running and self._quiet:
            self._spark.sparkContext.setLogLevel("OFF")
        try:
            query.stop()
        except (PySparkException, Py4JError) as error:
            if _TIMEOUT not in str(error):
                raise
            _log.warning("micro-batch does not end", pipeline=self._pipeline.name, seconds=self._patience)
        return running
