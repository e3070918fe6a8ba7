"""Parquet: each micro-batch of a stream as files of a directory, once, although the driver is killed, or two run."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from ingestd.spark.pipelines.files import Directory
from ingestd.spark.pipelines.sized import OlderRun, clear_stage, parent, write_sized

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from ingestd.daemon.pipelines import PipelineSink
    from ingestd.spark.pipelines.files import File

__all__ = ["OURS", "ParquetSink", "final_paths", "query_of", "was_written", "write_nothing"]

OURS: Final = "_ingestd"
"""A directory beside the files. Readers of parquet leave out names that begin so."""


class ParquetSink:
    """Takes micro-batches in order, by `foreachBatch`. One that comes again is not written again.

    `_ingestd/QUERY` has what is known of the query's micro-batches. Each run has a directory of its own as its stage.
    When all of a micro-batch is there, the stage becomes `N.….whole`. `N.names` has the files of one, from there to
    their places. `N.done` says that all of them are in their places.

    Invariants
        A file with rows of a micro-batch is in its place only if `N.names` or a `.done` says so.
        `N.names` is never replaced, nor deleted before the micro-batch is done. Who finds it moves those files, whoever
        staged them. So two drivers that run one micro-batch, because one of them was taken for dead, write it once.
        Another run may clear a stage at any time, and what is whole only when the micro-batch is done.
        There is always a `.done` of the newest micro-batch that is done.
    """

    def __init__(self, sink: PipelineSink, wrote: Callable[[int, int], None] = lambda *_: None) -> None:
        """`wrote` is given each micro-batch that is written, and the bytes of its files."""
        assert sink.path is not None, "the settings ask for it"
        self._sink = sink
        self._wrote = wrote
        self._path = sink.path
        self._run = uuid.uuid4().hex
        self._tidy = False

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the rows of a micro-batch. Raises what Spark and the file system raise."""
        directory, query = Directory(rows.sparkSession, self._path), query_of(rows)
        notes = _Notes(directory, f"{OURS}/{query}")
        if not self._tidy:
            notes.clear_stages()
            self._tidy = True
        if notes.is_done(batch) or notes.complete(batch):
            write_nothing(rows)
            return
        stage = f"{notes.path}/{self._run}"
        files = write_sized(rows, directory, stage, self._sink.partition_by, self._sink.file_bytes)
        whole = notes.keep(stage, batch)
        moves = final_paths(files, stage, f"{query}-{batch}-{self._run}")
        notes.publish(batch, {whole + source.removeprefix(stage): target for source, target in moves.items()})
        directory.delete(whole)
        self._wrote(batch, sum(file.size for file in files))


class _Notes:
    """What is noted of a query's micro-batches. Several drivers may note at once."""

    def __init__(self, directory: Directory, path: str) -> None:
        self._directory = directory
        self.path = path

    def is_done(self, batch: int) -> bool:
        """Whether all files of the micro-batch are in their places. Raises `OlderRun`."""
        return was_written(self._directory.path, max(self._numbers(".done"), default=None), batch)

    def complete(self, batch: int) -> bool:
        """Do what a run has begun that was killed, or goes on elsewhere. Returns whether there was such a one."""
        noted = self._noted(batch)
        if noted is None:
            return False
        if self.is_done(batch):  # so the note may be of a run that came too late
            self._directory.delete(f"{self.path}/{batch}.names")
            return True
        moves: dict[str, str] = json.loads(noted)
        try:
            for source, target in moves.items():
                self._directory.move(source, target)
        except FileNotFoundError:
            if self.is_done(batch):  # somebody else was faster, and somebody has deleted its files since
                return True
            raise
        self._finish(batch)
        return True

    def keep(self, stage: str, batch: int) -> str:
        """Say that all of a micro-batch is staged. Returns where it is now. Raises `OlderRun` if it was cleared."""
        whole = f"{self.path}/{batch}.{uuid.uuid4().hex}.whole"
        try:
            self._directory.move(stage, whole)
        except FileNotFoundError as error:
            raise OlderRun.cleared(self._directory.path) from error
        return whole

    def publish(self, batch: int, moves: Mapping[str, str]) -> None:
        """Move files to their places, unless another run has done so for this micro-batch."""
        self._directory.note(f"{self.path}/{batch}.names", json.dumps(moves))
        if not self.complete(batch) and not self.is_done(batch):
            raise OlderRun.cleared(self._directory.path)

    def clear_stages(self) -> None:
        """Delete what runs have staged that were killed."""
        last = max(self._numbers(".done"), default=-1)
        # An earlier version noted files of stages.
        noted = [self._noted(number) or "" for number in self._numbers(".names")]
        for each in self._directory.names(self.path):
            path, number = f"{self.path}/{each}", each.partition(".")[0]
            if "." not in each:
                if not any(each in text for text in noted):
                    clear_stage(self._directory, path)
            elif not number.isdecimal() or (int(number) <= last and not each.endswith(".done")):
                self._directory.delete(path)

    def _noted(self, batch: int) -> str | None:
        """The note of a micro-batch; None if there is none. Another run may delete it once the micro-batch is done."""
        name = f"{self.path}/{batch}.names"
        try:
            return self._directory.read(name)
        except Py4JError:
            if self._directory.exists(name):
                raise
            return None

    def _finish(self, batch: int) -> None:
        self._directory.note(f"{self.path}/{batch}.done", "")
        self._directory.delete(f"{self.path}/{batch}.names")
        for number in self._numbers(".done"):
            if number < batch:
                self._directory.delete(f"{self.path}/{number}.done")

    def _numbers(self, ending: str) -> list[int]:
        found = (name.removesuffix(ending) for name in self._directory.names(self.path) if name.endswith(ending))
        return [int(name) for name in found if name.isdecimal()]


def was_written(path: str, last: int | None, batch: int) -> bool:
    """Whether a micro-batch is written, if `last` is the newest one. Raises `OlderRun` for one before that."""
    if last is not None and last > batch:
        raise OlderRun(
            f"{path} has micro-batch {last} of this query, and this is {batch}; expected that no other run of it goes "
            "on, and that its checkpoint is not an older one"
        )
    return last == batch


def query_of(rows: DataFrame) -> str:
    """The id of the query whose micro-batch this is. It is the same after a restart on the same checkpoint."""
    query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query is not None, "foreachBatch runs in the query's own thread"
    return query


def write_nothing(rows: DataFrame) -> None:
    """Run a micro-batch that was written before: Spark learns the watermark, and keeps states, from its rows."""
    rows.write.format("noop").mode("overwrite").save()


def final_paths(files: list[File], stage: str, written: str) -> dict[str, str]:
    """Where each staged file goes: beside the others, by a name of its query, micro-batch and run."""
    found = {}
    for number, file in enumerate(files):
        # Below the stage are `written` or `sized`, and then directories of partitions.
        inner = parent(file.path.removeprefix(f"{stage}/")).partition("/")[2]
        name = f"part-{written}-{number}.parquet"
        found[file.path] = f"{inner}/{name}" if inner else name
    return found
