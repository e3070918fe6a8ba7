"""Replacing: parquet files that take the place of all that is in a directory, once every row of them is written."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from ingestd.spark.pipelines.files import Directory
from ingestd.spark.pipelines.parquet import OURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

__all__ = ["replace"]

_SUCCESS: Final = "_SUCCESS"
"""Spark's sign that all files of a directory are there."""
_PARTITIONS_ALONE: Final = "spark.sql.sources.partitionOverwriteMode"


def replace(rows: DataFrame, path: str, partition_by: Sequence[str]) -> None:
    """Write rows as parquet files in the place of those that are in the directory.

    Spark itself would empty the directory first, and leave nothing if a row can not be written. Here all files are
    written to a directory within, and then moved. A run that fails amid the rows leaves the earlier files as they were.
    One that is killed as it moves them leaves some of the new ones, and no `_SUCCESS`; the next run writes all again.
    Raises what Spark and the file system raise.
    """
    writer = rows.write.mode("overwrite").partitionBy(*partition_by)
    if str(rows.sparkSession.conf.get(_PARTITIONS_ALONE)).lower() == "dynamic":  # which Spark stages itself
        writer.parquet(path)
        return
    directory, stage = Directory(rows.sparkSession, path), f"{OURS}/{uuid.uuid4().hex}"
    try:
        writer.parquet(f"{path}/{stage}")
    except (PySparkException, Py4JError):
        directory.delete(stage)
        raise
    directory.delete(_SUCCESS)  # first, and there again last
    for name in directory.names():
        if name != OURS:
            directory.delete(name)
    for name in sorted(directory.names(stage), key=_SUCCESS.__eq__):
        directory.move(f"{stage}/{name}", name)
    if left := directory.names(stage):
        raise FileExistsError(
            f"{path}/{left[0]} was written by another program meanwhile; expected one writer at a time. The new files "
            f"are in {path}/{stage}"
        )
    directory.delete(OURS)
