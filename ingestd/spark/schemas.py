"""Schemas: the columns of this source, as Spark has them. `arrow.py` and `raw.py` have the same as Arrow's."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

__all__ = ["HEADERS", "POSITION", "spark_batch_schema", "spark_schema"]

POSITION: Final = StructType(
    [StructField("topic", StringType()), StructField("partition", IntegerType()), StructField("offset", LongType())]
)
"""Where a row comes from: what the column `position` holds that the read option `includePosition` adds."""

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""The headers of a record, in order."""


def spark_schema(*, include_headers: bool, include_position: bool = False) -> StructType:
    """The columns of Spark's Kafka connector, and `position` where it is wanted."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        fields.append(StructField("headers", HEADERS))
    if include_position:
        fields.append(StructField("position", POSITION))
    return StructType(fields)


def spark_batch_schema(*, include_position: bool = False) -> StructType:
    """The columns of rows that are record batches. `batch` has the bytes."""
    fields = [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("baseOffset", LongType()),
        StructField("lastOffset", LongType()),
        StructField("recordCount", IntegerType()),
        StructField("maxTimestamp", TimestampType()),
        StructField("batch", BinaryType()),
    ]
    if include_position:
        fields.append(StructField("position", POSITION))
    return StructType(fields)
