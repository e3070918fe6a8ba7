"""Dead letters: rows that have a reason to be refused go to a topic, on the executors, and leave the query."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import functions as sql

from ingestd.spark.executors import packed, slow_executors
from ingestd.spark.schemas import HEADERS
from ingestd.spark.write_options import WriteOptions, write_options
from ingestd.spark.writing import write_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.accumulators import Accumulator
    from pyspark.sql import Column, DataFrame, SparkSession

    from ingestd.daemon.pipelines import PipelineSettings
    from ingestd.spark.executors import Slow

    Sent = Accumulator[Counter[int | None]]

__all__ = ["LETTER", "DeadLetters", "dead_letters"]

LETTER: Final = "__ingestd_letter"
"""The column of letters."""
_PLACE: Final = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where a pipeline's dead letters go. Pickles."""

    pipeline: str
    options: WriteOptions
    sent: Sent
    """How many letters were sent, by the number of the micro-batch; None: outside of a stream."""

    def letter(
        self, rows: DataFrame, reason: Column, value: str, step: str, place: Mapping[str, Column] | None = None
    ) -> Column:
        """The letter of a row.

        It is the column `value`, with the row's key and headers where it has them. More headers say the reason, the
        pipeline, the step, and where the row comes from. `place` says that, by default the row's own columns topic,
        partition and offset.
        """
        types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        said = {"reason": reason, "pipeline": sql.lit(self.pipeline), "step": sql.lit(step)}
        place = {name: sql.col(name) for name in _PLACE if name in types} if place is None else place
        said |= {name: column.cast("string") for name, column in place.items()}
        headers = sql.array(*(_header(name, text) for name, text in said.items())).cast(HEADERS)
        if types.get("headers") == HEADERS.simpleString():
            headers = sql.concat(sql.coalesce("headers", sql.array().cast(HEADERS)), headers)
        key = sql.col("key") if types.get("key") in ("string", "binary") else sql.lit(None)
        content = {"key": key.cast("binary"), "value": sql.col(_quoted(value)).cast("binary"), "headers": headers}
        return sql.struct(*(column.alias(name) for name, column in content.items()))

    def divert(self, rows: DataFrame) -> DataFrame:
        """Send letters, from the last column, to the topic. Rows without one stay, without that column.

        A task that runs again sends its letters again.
        """
        kept = rows.drop(LETTER).schema
        return rows.mapInArrow(_Diversion(self.options, self.sent, slow_executors(rows.sparkSession)), kept)

    def count(self, batch: int | None = None) -> int:
        """How many letters of a micro-batch that has ended were sent; or of a query that is no stream. Once: then 0.

        Those of tasks that failed, or were ended early by a LIMIT, are not among them.
        """
        return self.sent.value.pop(batch, 0)


def dead_letters(
    pipeline: PipelineSettings, clusters: Mapping[str, Mapping[str, str]], spark: SparkSession
) -> DeadLetters | None:
    """Where the pipeline's dead letters go; None if it has no topic for them. Raises `ConfigurationError`."""
    if pipeline.dead_letters is None:
        return None
    options = {**clusters[pipeline.source_cluster], "topic": pipeline.dead_letters}
    sent: Sent = spark.sparkContext.accumulator(Counter(), _Sums())
    return DeadLetters(pipeline.name, write_options(options), sent)


class _Sums(AccumulatorParam[Counter[int | None]]):
    def zero(self, value: Counter[int | None]) -> Counter[int | None]:  # noqa: ARG002 - as Spark calls it
        return Counter()

    def addInPlace(  # noqa: N802 - Spark's name
        self, value1: Counter[int | None], value2: Counter[int | None]
    ) -> Counter[int | None]:
        value1.update(value2)
        return value1


class _Diversion:
    """What has no letter. Runs on executors. The letters of a batch are acknowledged before the next one is taken."""

    def __init__(self, options: WriteOptions, sent: Sent, slow: Slow | None = None) -> None:
        """`slow`: on the driver, see `packed`."""
        self._options = options
        self._sent = sent
        self._slow = slow

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(self._slow, _Diversion, self._options, self._sent)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            letters = batch.column(batch.num_columns - 1)
            rows = batch.select(range(batch.num_columns - 1))
            dead = pc.is_valid(letters)
            if dead.true_count:
                write_rows(self._options, [pa.RecordBatch.from_struct_array(letters.filter(dead))])
                self._sent.add(Counter({_batch(): dead.true_count}))
                rows = rows.filter(pc.invert(dead))
            yield rows


def _batch() -> int | None:
    """The number of the running task's micro-batch."""
    context = TaskContext.get()
    number = context and context.getLocalProperty("streaming.sql.batchId")
    return int(number) if number else None


def _header(name: str, text: Column) -> Column:
    return sql.struct(sql.lit(f"ingestd.{name}").alias("key"), text.cast("binary").alias("value"))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
