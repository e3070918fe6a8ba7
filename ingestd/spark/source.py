"""The PySpark data source `ingestd`: topics as rows with the columns of Spark's Kafka connector, but without it.

Spark starts a process to learn the columns, one to plan, and others for tasks. Each imports this module, and then only
what it needs: all of it takes half a second.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ingestd.errors import ConfigurationError, IngestdError
from ingestd.spark.executors import packed, sent_source, slow_executors
from ingestd.spark.planning import Ranges, tasks
from ingestd.spark.read_options import (
    BatchOptions,
    ReadOptions,
    Rows,
    StreamOptions,
    batch_options,
    read_options,
    stream_options,
)
from ingestd.spark.schemas import spark_batch_schema, spark_schema
from ingestd.spark.stream import NOWHERE, StreamEnd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from ingestd.spark.commits import Commits
    from ingestd.spark.executors import Slow
    from ingestd.spark.planner import Planner
    from ingestd.spark.stream import StreamPlan
    from ingestd.spark.write_options import WriteOptions
    from ingestd.spark.writing import Written

__all__ = [
    "BatchReader",
    "BatchWriter",
    "IngestdDataSource",
    "StreamReader",
    "StreamWriter",
    "register",
    "spark_batch_schema",
    "spark_schema",
]


_log = logging.getLogger(__name__)

OptionsT = TypeVar("OptionsT")

_IDLE: Final = 0.05
"""Seconds before Spark may look for news again where there was none. By itself it looks every 10 ms."""


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("ingestd")` known to a session."""
    spark.dataSource.register(sent_source(slow_executors(spark)))


def _own_schema(options: ReadOptions) -> StructType:
    if options.rows is Rows.batches:
        return spark_batch_schema(include_position=options.include_position)
    return spark_schema(include_headers=options.include_headers, include_position=options.include_position)


class IngestdDataSource(DataSource):
    """`format("ingestd")`; options as in `ingestd.spark.read_options`."""

    slow: Slow | None = None
    """Executors whose ingestd is not compiled are told there."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "ingestd"

    def schema(self) -> StructType:
        """The columns that `rows`, `includeHeaders` and `includePosition` ask for. Raises `ConfigurationError`."""
        return _own_schema(read_options(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        """The reader of a batch query. Raises `ConfigurationError`, also for a schema that is not the source's own."""
        options = batch_options(self.options)
        _require_own_schema(schema, options)
        return BatchReader(options, self.slow)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """The reader of a streaming query. Raises what `reader` raises."""
        options = stream_options(self.options)
        _require_own_schema(schema, options)
        return StreamReader(options, self.slow)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's argument
        """The writer of a batch query. Raises `ConfigurationError`, also for columns that can not be written."""
        from ingestd.spark.rows import check_rows
        from ingestd.spark.write_options import Guarantee, write_options

        if overwrite:
            raise ConfigurationError(
                'ingestd sink: mode overwrite: a topic is not overwritten; expected mode("append")'
            )
        options = write_options(self.options)
        if options.guarantee is Guarantee.exactly_once:
            raise ConfigurationError("ingestd sink: delivery = exactly-once is for streaming queries")
        check_rows(schema, options.rows, topic=options.topic, position=False)
        return BatchWriter(options, self.slow)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802, FBT001, ARG002
        """The writer of one micro-batch. Raises what `writer` raises."""
        from ingestd.spark.rows import check_rows
        from ingestd.spark.write_options import Guarantee, write_options

        options = write_options(self.options)
        exactly_once = options.guarantee is Guarantee.exactly_once
        check_rows(schema, options.rows, topic=options.topic, position=exactly_once)
        return StreamWriter(options, self.slow)


def _require_own_schema(schema: StructType, options: ReadOptions) -> None:
    if schema != _own_schema(options):
        raise ConfigurationError(
            f"ingestd source: the schema is fixed; expected none to be given, got {schema.simpleString()}"
        )


class _Sent(Generic[OptionsT]):
    """Made by the driver, and again in each task. Pickles as its options."""

    def __init__(self, options: OptionsT, slow: Slow | None = None) -> None:
        self._options = options
        self._slow = slow

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(self._slow, type(self), self._options)


class BatchReader(_Sent[BatchOptions], DataSourceReader):
    """Plans on the driver, reads in Spark's Python workers. Pickles."""

    def partitions(self) -> Sequence[InputPartition]:
        """What each task reads. Raises what `planning.plan` raises."""
        from ingestd.spark.planning import plan

        with _planner(self._options) as planner:
            return tasks(self._options, plan(self._options, planner))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow record batches. Raises what `reading.read_ranges` raises."""
        return _read(self._options, partition)


class StreamReader(_Sent[StreamOptions], DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in one process beside the driver, reads in Spark's Python workers. Pickles."""

    def __init__(self, options: StreamOptions, slow: Slow | None = None) -> None:
        super().__init__(options, slow)
        self._planner: Planner | None = None
        self._plan: StreamPlan | None = None
        self._commits: Commits | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """See `stream.NOWHERE`."""
        return NOWHERE

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options say of the least and the most of a micro-batch. See `latestOffset`."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.waits:
            return ReadMinRows(self._options.min_offsets or 1)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, in as many micro-batches as the limits make of it."""
        self._planned().stop_at_present()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends; `start` itself while there is nothing to read.

        A limit of Spark's own, which takes everything, stands for itself; any other is the one of the options. Raises
        what `StreamPlan.next_end` raises.
        """
        before, plan = _end(start), self._planned()
        end = plan.next_end(before, limited=not isinstance(limit, ReadAllAvailable))
        if self._commits is not None and before is not None and plan.latest is not None:
            # Spark asks for a next end only when it has logged that the batch before is done. Its own `commit` comes
            # later, when there is something new, and so never for the last batch.
            self._commits.done(
                {key: offset for key, offset in before.offsets_now(plan.ids).items() if key in plan.latest}
            )
        if end is None:
            time.sleep(_IDLE)
            return start
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The ends of the logs at the last look, for the query's progress."""
        latest = None if self._plan is None else self._plan.latest
        return None if latest is None else StreamEnd(latest).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What each task of a micro-batch reads."""
        upto = _end(end)
        return [] if upto is None else tasks(self._options, self._planned().ranges(_end(start), upto))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow record batches. Raises what `reading.read_ranges` raises."""
        return _read(self._options, partition)

    def stop(self) -> None:
        """Close what planning needs."""
        if self._planner is not None:
            self._planner.close()
            self._planner = self._plan = self._commits = None

    def _planned(self) -> StreamPlan:
        if self._plan is None:
            from ingestd.spark.commits import Commits
            from ingestd.spark.stream import StreamPlan

            self._planner = _planner(self._options)
            self._plan = StreamPlan(self._options, self._planner)
            if self._options.commit_to is not None:
                self._commits = Commits(self._options.commit_to, self._planner)
        return self._plan


class BatchWriter(_Sent[Any], DataSourceArrowWriter):
    """Writes rows at least once. Pickles."""

    _options: WriteOptions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task. They are acknowledged when this returns."""
        from ingestd.spark.writing import write_rows

        return write_rows(self._options, iterator)


class StreamWriter(_Sent[Any], DataSourceStreamArrowWriter):
    """Writes the rows of one micro-batch. Pickles."""

    _options: WriteOptions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task. They are acknowledged when this returns."""
        from ingestd.spark.transactions import write_once
        from ingestd.spark.write_options import Guarantee
        from ingestd.spark.writing import write_rows

        if self._options.guarantee is Guarantee.exactly_once:
            return write_once(self._options, iterator)
        return write_rows(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Commit what the tasks left open. Raises what `transactions.end_all` raises."""
        from ingestd.spark.transactions import end_all

        end_all(self._options, messages, commit=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Abort what the tasks left open, for readers that wait for its end. What fails is ended by the next run."""
        from ingestd.spark.transactions import end_all

        try:
            end_all(self._options, messages, commit=False)
        except IngestdError as error:
            _log.warning("ingestd sink: a transaction was left open: %s", error)


def _end(offset: dict[str, Any]) -> StreamEnd | None:
    return None if offset == NOWHERE else StreamEnd.from_json(offset)


def _planner(options: ReadOptions) -> Planner:
    from ingestd.spark.planner import Planner

    return Planner(options.cluster, options.consumer)


def _read(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    from ingestd.spark.reading import read_ranges

    if isinstance(partition, Ranges):  # not Spark's own placeholder where the plan has no range
        yield from read_ranges(options, partition.ranges)
