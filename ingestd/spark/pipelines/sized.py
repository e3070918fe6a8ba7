"""Sized files: rows as parquet files of about one size, written by Spark to a staging directory."""

from __future__ import annotations

import contextlib
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from ingestd.errors import IngestdError
from ingestd.spark.pipelines.files import literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from ingestd.spark.pipelines.files import Directory, File

__all__ = ["OlderRun", "clear_stage", "parent", "write_sized"]

_MARK: Final = "begun"
"""A file in every stage, before all others. A run whose stage was cleared can see that."""


class OlderRun(IngestdError):
    """Another run of the query has begun since, or has already written more than this one is about to write."""

    @classmethod
    def cleared(cls, path: str) -> OlderRun:
        """Of the run whose stage was cleared."""
        return cls(
            f"{path}: another run of this query has begun and deleted what this one was writing; expected one run at a "
            "time on a checkpoint"
        )


def clear_stage(directory: Directory, stage: str) -> None:
    """Delete all that a run has staged. It is gone at once, so that a run that still writes there finds its mark gone.

    If it went file by file, a run that had begun meanwhile would find its mark, and some of its rows gone.
    """
    cleared = f"{stage}.{uuid.uuid4().hex}"
    with contextlib.suppress(FileNotFoundError):
        directory.move(stage, cleared)
        directory.delete(cleared)


def write_sized(
    rows: DataFrame, directory: Directory, stage: str, partition_by: Sequence[str], file_bytes: int
) -> list[File]:
    """Write rows below `stage`, a path in the directory. Of each partition there are ⌈bytes / file_bytes⌉ files.

    Spark writes each task's rows first. Then it writes those partitions anew that have another number of files. Returns
    the files; none if there is no row. Raises `OlderRun` if another run has cleared the stage: Spark would commit the
    files of later tasks alone, and say nothing of those that are gone.
    """
    clear_stage(directory, stage)
    mark = f"{stage}/{_MARK}"
    directory.write(mark, "")
    try:
        files = _files_of(rows, directory, stage, partition_by, file_bytes)
    except (PySparkException, Py4JError) as error:
        if directory.exists(mark):
            raise
        raise OlderRun.cleared(directory.path) from error
    if not directory.exists(mark):
        raise OlderRun.cleared(directory.path)
    return files


def _files_of(
    rows: DataFrame, directory: Directory, stage: str, partition_by: Sequence[str], file_bytes: int
) -> list[File]:
    first, second = f"{stage}/written", f"{stage}/sized"
    rows.write.mode("overwrite").partitionBy(*partition_by).parquet(f"{directory.path}/{first}")
    spark = rows.sparkSession
    if spark.read.schema(rows.schema).parquet(literal(f"{directory.path}/{first}")).isEmpty():
        return []
    found: list[File] = []
    for place, files in sorted(_by_parent(_parquet(directory, first)).items()):
        count = -(-sum(file.size for file in files) // file_bytes)
        if len(files) == count:
            found += files
            continue
        again = f"{second}{place.removeprefix(first)}"
        part = spark.read.parquet(literal(f"{directory.path}/{place}"))
        part = part.coalesce(count) if count < len(files) else part.repartition(count)
        part.write.mode("overwrite").parquet(f"{directory.path}/{again}")
        found += _parquet(directory, again)
    return found


def parent(path: str) -> str:
    """The directory of a path; empty if it has none."""
    return path.rpartition("/")[0]


def _parquet(directory: Directory, path: str) -> list[File]:
    return sorted(
        (file for file in directory.files(path) if file.path.endswith(".parquet")), key=lambda file: file.path
    )


def _by_parent(files: Sequence[File]) -> dict[str, list[File]]:
    found: dict[str, list[File]] = defaultdict(list)
    for file in files:
        found[parent(file.path)].append(file)
    return found
