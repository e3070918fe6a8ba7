"""Results: whether a sink can take the columns that the steps make. Nothing is read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, MapType, StructType

from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ingestd.daemon.pipelines import PipelineSink

__all__ = ["require_columns"]


def require_columns(rows: DataFrame, sink: PipelineSink) -> None:
    """Raise `ConfigurationError`, naming key and column, for what the sink would refuse once it has rows."""
    if sink.format == "console":
        return
    # Spark takes names for equal that differ in case alone, unless it is told otherwise.
    sensitive = rows.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    same = str if sensitive else str.lower
    counts = Counter(map(same, rows.columns))
    for name in rows.columns:
        if counts[same(name)] > 1:
            raise ConfigurationError(
                f"sink.format = {sink.format}: the result has {counts[same(name)]} columns {name}; expected one of "
                "that name. SQL gives another name by AS"
            )
    types = {same(field.name): field.dataType for field in rows.schema.fields}
    for name in sink.partition_by:
        kind = types.get(same(name))
        if kind is None:
            raise ConfigurationError(
                f"sink.partition_by: there is no column {name}; expected one of {', '.join(rows.columns)}"
            )
        if isinstance(kind, (ArrayType, MapType, StructType)):
            raise ConfigurationError(
                f"sink.partition_by: column {name} is {kind.simpleString()}; expected one value, not several"
            )
    named: set[str] = set()
    for name in sink.partition_by:
        if same(name) in named:
            raise ConfigurationError(f"sink.partition_by: column {name} is named twice; expected it once")
        named.add(same(name))
    if set(types) <= set(map(same, sink.partition_by)):
        raise ConfigurationError("sink.partition_by: it has all columns; expected one at least for the files")
