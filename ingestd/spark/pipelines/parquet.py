"""Parquet: each micro-batch of a stream as files of a directory, once, although the driver is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.spark.pipelines.files import Directory
from ingestd.spark.pipelines.sized import parent, write_sized

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from ingestd.daemon.pipelines import PipelineSink
    from ingestd.spark.pipelines.files import File

__all__ = ["OURS", "ParquetSink", "final_paths", "query_of", "write_nothing"]

OURS: Final = "_ingestd"
"""A directory beside the files. Readers of parquet leave out names that begin so."""


class ParquetSink:
    """Takes micro-batches in order, by `foreachBatch`. One that comes again is not written again.

    `_ingestd/QUERY` has what is known of the query's micro-batches: `N.names` has the files of one that is being moved
    to its place, `N.done` says that all of them are there.

    Invariant: a file with rows of a micro-batch is in its place only if `N.names` or a `.done` says so.
    """

    def __init__(self, sink: PipelineSink, wrote: Callable[[int, int], None] = lambda *_: None) -> None:
        """`wrote` is given each micro-batch that is written, and the bytes of its files."""
        assert sink.path is not None, "the settings ask for it"
        self._sink = sink
        self._wrote = wrote
        self._path = sink.path

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the rows of a micro-batch. Raises what Spark and the file system raise."""
        query = query_of(rows)
        directory = Directory(rows.sparkSession, self._path)
        ours = f"{OURS}/{query}"
        known = directory.names(ours)
        if f"{batch}.done" in known:
            write_nothing(rows)
            return
        if f"{batch}.names" in known:
            for name in directory.read(f"{ours}/{batch}.names").splitlines():
                directory.delete(name)
        stage = f"{ours}/stage"
        directory.delete(stage)
        files = write_sized(rows, directory, stage, self._sink.partition_by, self._sink.file_bytes)
        moves = final_paths(files, stage, query, batch)
        directory.write(f"{ours}/{batch}.names", "\n".join(moves.values()))
        for source, target in moves.items():
            directory.move(source, target)
        directory.write(f"{ours}/{batch}.done", "")
        self._wrote(batch, sum(file.size for file in files))
        for name in ("stage", f"{batch}.names", *(name for name in known if name.endswith(".done"))):
            directory.delete(f"{ours}/{name}")


def query_of(rows: DataFrame) -> str:
    """The id of the query whose micro-batch this is. It is the same after a restart on the same checkpoint."""
    query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query is not None, "foreachBatch runs in the query's own thread"
    return query


def write_nothing(rows: DataFrame) -> None:
    """Run a micro-batch that was written before: Spark learns the watermark, and keeps states, from its rows."""
    rows.write.format("noop").mode("overwrite").save()


def final_paths(files: list[File], stage: str, query: str, batch: int) -> dict[str, str]:
    """Where each staged file goes: beside the others, by a name of its query and micro-batch."""
    found = {}
    for number, file in enumerate(files):
        # Below the stage are `written` or `sized`, and then directories of partitions.
        inner = parent(file.path.removeprefix(f"{stage}/")).partition("/")[2]
        name = f"part-{query}-{batch}-{number}.parquet"
        found[file.path] = f"{inner}/{name}" if inner else name
    return found
