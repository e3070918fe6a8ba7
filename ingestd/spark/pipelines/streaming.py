"""Streaming: a pipeline that goes on from its checkpoint, micro-batch after micro-batch, until it is stopped."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from ingestd.errors import ConfigurationError
from ingestd.logs import get_logger
from ingestd.spark.commits import Commits
from ingestd.spark.pipelines.checkpoint import begun_batch, claim, has_begun, has_begun_here, last_end
from ingestd.spark.pipelines.dead_letters import dead_letters
from ingestd.spark.pipelines.failures import PipelineFailed, failing
from ingestd.spark.pipelines.jdbc import JdbcSink, prepare_driver
from ingestd.spark.pipelines.metrics import PipelineMetrics, served
from ingestd.spark.pipelines.narrow import require_narrow
from ingestd.spark.pipelines.parquet import ParquetSink
from ingestd.spark.pipelines.progress import Watch
from ingestd.spark.pipelines.refusals import without_refused
from ingestd.spark.pipelines.results import require_columns
from ingestd.spark.pipelines.session import own_session
from ingestd.spark.pipelines.source import stream_source
from ingestd.spark.pipelines.steps import apply_steps
from ingestd.spark.pipelines.stopping import Stop
from ingestd.spark.pipelines.worth import Worth
from ingestd.spark.planner import Planner
from ingestd.spark.planning import subscribed
from ingestd.spark.read_options import stream_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from ingestd.daemon.pipelines import PipelineSettings, PipelineSink
    from ingestd.spark.pipelines.dead_letters import DeadLetters
    from ingestd.spark.pipelines.progress import BatchProgress

__all__ = ["StreamResult", "run_stream", "stream_rows"]

_log = get_logger(__name__)
PATIENCE: Final = 30.0
"""Seconds that a query may take to end, unless the configuration says how many (`daemon.drain_timeout`)."""
_LOOK: Final = 1
"""Seconds between two looks at whether the query shall stop, or there is a file's worth to write."""


@dataclass(frozen=True, slots=True)
class StreamResult:
    """What one run of a stream did."""

    name: str
    batches: int
    """Micro-batches that had rows."""
    rows: int
    """Rows that were read."""
    seconds: float
    """From before the session's start to the end of the query."""
    dead_letters: int | None = None
    """Letters of its micro-batches; None if the pipeline has no topic for them."""
    late_rows: int = 0
    """Rows that came too late, at least: see `BatchProgress.late_rows`."""


def run_stream(
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    *,
    once: bool = False,
    start: str | None = None,
    modules: Path | None = None,
    session: SparkSession | None = None,
    stopped: Callable[[], bool] = lambda: False,
    patience: float = PATIENCE,
    progress: Callable[[BatchProgress], None] = lambda _: None,
) -> StreamResult:
    """Run a pipeline with a checkpoint until it is stopped or fails.

    clusters: options of the data source that reach each cluster, by its name. once: end when what is there now is
    taken. start: where a new checkpoint begins, see `source.starting`. modules, session: as for `batch.run`. stopped:
    asked once a second. patience: seconds that the query may take to end then. progress: called once for each
    micro-batch. Raises `PipelineFailed`, also if it was stopped before it had taken all that it was to take.
    """
    begun = time.monotonic()
    metrics = PipelineMetrics()

    def take(told: BatchProgress) -> None:
        worth.read(told.batch, told.rows)
        metrics.take(told)
        progress(told)

    with failing(pipeline):
        _require_new(pipeline, start, has_begun_here)
    with (
        failing(pipeline),
        served(metrics, pipeline.http),
        TemporaryDirectory(prefix="ingestd-") as directory,
        own_session(pipeline, session) as spark,
    ):
        file = Path(directory, "least")
        worth = Worth(pipeline.sink.file_bytes, file)
        waiting = {}
        if pipeline.delay is not None and not once:
            milliseconds = round(pipeline.delay * 1_000)
            waiting = {"minOffsetsFile": str(file), "maxTriggerDelay": f"{milliseconds}ms"}
        letters = dead_letters(pipeline, clusters, spark)
        rows = _checked(pipeline, clusters, spark, letters, modules, start, waiting)
        stop = Stop(pipeline, spark, patience, own=session is None)
        query = _started(pipeline, clusters, rows, worth, stop, once=once)
        _log.info("pipeline runs", pipeline=pipeline.name, checkpoint=pipeline.checkpoint)
        watch = Watch(pipeline.name, query, take, letters)
        try:
            while not query.awaitTermination(_LOOK) and not stopped():
                watch.look()
        finally:
            running = stop.end(query)
            watch.look()
            _commit(pipeline, clusters, spark)
        if running:
            _say_given_up(pipeline, spark)
        if running and _has_end(pipeline, once=once):
            raise PipelineFailed(
                f"pipeline {pipeline.name}: stopped before it had taken all that was there at its start"
            )
    sent = None if letters is None else watch.dead_letters
    seconds = time.monotonic() - begun
    return StreamResult(pipeline.name, watch.batches, watch.rows, seconds, sent, watch.late_rows)


def _say_given_up(pipeline: PipelineSettings, spark: SparkSession) -> None:
    assert pipeline.checkpoint is not None, "the pipeline is a stream"
    batch = begun_batch(spark, pipeline.checkpoint)
    if batch is not None:
        _log.info("micro-batch given up", pipeline=pipeline.name, batch=batch, then="the next run takes its rows again")


def stream_rows(
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    spark: SparkSession,
    letters: DeadLetters | None,
    modules: Path | None = None,
    start: str | None = None,
    waiting: Mapping[str, str] | None = None,
) -> DataFrame:
    """What the sink would get. Nothing is read yet. Raises `ConfigurationError`, and Spark's errors.

    letters: where rows go that can not be typed. waiting: options of the source that say what a micro-batch waits for.
    """
    options = stream_source(pipeline, clusters[pipeline.source_cluster], start) | dict(waiting or {})
    source = spark.readStream.format("ingestd").options(**options).load()
    rows = apply_steps(source, pipeline.all_steps, modules, letters)
    if pipeline.sink.delivery == "exactly-once":
        require_narrow(rows)
    return rows


def _require_new(pipeline: PipelineSettings, start: str | None, has_begun: Callable[[str], bool]) -> None:
    """Refuse a start that the checkpoint would not heed. Raises `ConfigurationError`."""
    checkpoint = pipeline.checkpoint
    assert checkpoint is not None, "the pipeline is a stream"
    if start is not None and has_begun(checkpoint):
        raise ConfigurationError(
            f"checkpoint {checkpoint}: a stream has begun there and goes on where it was; expected a new one to begin "
            f"at {start}"
        )


def _checked(
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    spark: SparkSession,
    letters: DeadLetters | None,
    modules: Path | None,
    start: str | None,
    waiting: Mapping[str, str],
) -> DataFrame:
    """What the sink gets, if a stream can begin here."""
    _require_new(pipeline, start, lambda checkpoint: has_begun(spark, checkpoint))
    rows = stream_rows(pipeline, clusters, spark, letters, modules, start, waiting)
    require_columns(rows, pipeline.sink)
    rows = without_refused(rows, pipeline, clusters, letters)
    if pipeline.sink.format == "jdbc":
        prepare_driver(spark, pipeline.sink)
    claim(spark, pipeline)
    return rows


def _started(
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    rows: DataFrame,
    worth: Worth,
    stop: Stop,
    *,
    once: bool,
) -> StreamingQuery:
    checkpoint = pipeline.checkpoint
    assert checkpoint is not None, "the pipeline is a stream"
    writer = _to_sink(rows.writeStream, pipeline, clusters, worth, stop)
    writer = writer.queryName(pipeline.name).outputMode("append").option("checkpointLocation", checkpoint)
    if _has_end(pipeline, once=once):
        return writer.trigger(availableNow=True).start()
    seconds = pipeline.trigger
    assert not isinstance(seconds, str), "that one has an end"
    if seconds is None:
        seconds = _LOOK if pipeline.delay is not None else 0.0
    return writer.trigger(processingTime=f"{round(seconds * 1_000)} milliseconds").start()


def _has_end(pipeline: PipelineSettings, *, once: bool) -> bool:
    """Whether it ends by itself, when it has taken what was there at its start."""
    return once or pipeline.trigger == "available-now"


def _to_sink(
    writer: DataStreamWriter,
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    worth: Worth,
    stop: Stop,
) -> DataStreamWriter:
    sink = pipeline.sink
    if sink.format == "parquet":
        return writer.foreachBatch(stop.sink(ParquetSink(sink, worth.wrote)))
    if sink.format == "delta":
        return writer.foreachBatch(stop.sink(_delta(sink, worth)))
    if sink.format == "jdbc":
        return writer.foreachBatch(stop.sink(JdbcSink(sink)))
    if sink.format == "console":
        return writer.format("console")
    options = {**clusters[pipeline.sink_cluster], "delivery": sink.delivery}
    if sink.topic is not None:
        options["topic"] = sink.topic
    if sink.delivery == "exactly-once" and pipeline.source.group is not None:
        options["group"] = pipeline.source.group
    return writer.format("ingestd").options(**options)


def _delta(sink: PipelineSink, worth: Worth) -> Callable[[DataFrame, int], None]:
    try:
        from ingestd.spark.pipelines.delta import DeltaSink  # noqa: PLC0415 - an extra that may not be installed
    except ModuleNotFoundError as error:
        if error.name != "deltalake":
            raise
        raise ConfigurationError("sink.format = delta needs deltalake: pip install 'ingestd[spark,delta]'") from error
    return DeltaSink(sink, worth.wrote)


def _commit(pipeline: PipelineSettings, clusters: Mapping[str, Mapping[str, str]], spark: SparkSession) -> None:
    """Tell the group what the query has done. The source itself tells it at the next trigger, which does not come."""
    group = pipeline.source.group
    if group is None or pipeline.sink.delivery == "exactly-once":
        return
    assert pipeline.checkpoint is not None, "the pipeline is a stream"
    end = last_end(spark, pipeline.checkpoint)
    if end is None:
        return
    options = stream_options(stream_source(pipeline, clusters[pipeline.source_cluster]))
    with Planner(options.cluster, options.consumer) as planner:
        # The query may have ended because a topic was made again. The old one's offsets would skip records of the new.
        topics = options.subscription
        Commits(group, planner).done_of(lambda: end.offsets_now(subscribed(topics, planner).ids))
