"""Dead letters: rows that have a reason to be refused go to a topic, on the executors, and leave the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql

from ingestd.spark.executors import packed, slow_executors
from ingestd.spark.schemas import HEADERS
from ingestd.spark.write_options import WriteOptions, write_options
from ingestd.spark.writing import write_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame

    from ingestd.daemon.pipelines import PipelineSettings
    from ingestd.spark.executors import Slow

__all__ = ["LETTER", "DeadLetters", "dead_letters"]

LETTER: Final = "__ingestd_letter"
"""The column of letters."""
_PLACE: Final = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where a pipeline's dead letters go. Pickles."""

    pipeline: str
    options: WriteOptions

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
        return rows.mapInArrow(_Diversion(self.options, slow_executors(rows.sparkSession)), kept)


def dead_letters(pipeline: PipelineSettings, clusters: Mapping[str, Mapping[str, str]]) -> DeadLetters | None:
    """Where the pipeline's dead letters go; None if it has no topic for them. Raises `ConfigurationError`."""
    if pipeline.dead_letters is None:
        return None
    options = {**clusters[pipeline.source_cluster], "topic": pipeline.dead_letters}
    return DeadLetters(pipeline.name, write_options(options))


class _Diversion:
    """What has no letter. Runs on executors. The letters of a batch are acknowledged before the next one is taken."""

    def __init__(self, options: WriteOptions, slow: Slow | None = None) -> None:
        """`slow`: on the driver, see `packed`."""
        self._options = options
        self._slow = slow

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(self._slow, _Diversion, self._options)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            letters = batch.column(batch.num_columns - 1)
            rows = batch.select(range(batch.num_columns - 1))
            dead = pc.is_valid(letters)
            if dead.true_count:
                write_rows(self._options, [pa.RecordBatch.from_struct_array(letters.filter(dead))])
                rows = rows.filter(pc.invert(dead))
            yield rows


def _header(name: str, text: Column) -> Column:
    return sql.struct(sql.lit(f"ingestd.{name}").alias("key"), text.cast("binary").alias("value"))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
