"""Delta: each micro-batch of a stream as one version of a Delta table, once, although the driver is killed.

Spark writes the files, and `deltalake` the table's log. No jar is needed.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from ingestd.errors import ConfigurationError
from ingestd.spark.pipelines.files import Directory, literal
from ingestd.spark.pipelines.parquet import OURS, final_paths, query_of, was_written, write_nothing
from ingestd.spark.pipelines.sized import OlderRun, clear_stage, parent, write_sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from ingestd.daemon.pipelines import PipelineSink

__all__ = ["DeltaSink"]

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Spark calls the directory of rows whose value is null."""


class DeltaSink:
    """Takes micro-batches in order, by `foreachBatch`. One that comes again is not written again.

    A version of the table has the application `ingestd-QUERY` and the number of the micro-batch. Of two drivers that
    run one micro-batch, the table's log refuses the second one. Files that no version names are of a run that was
    killed. Nobody reads them, and a vacuum of the table removes them.
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
        """Write the rows of a micro-batch. Raises what Spark, the file system and `deltalake` raise."""
        query = query_of(rows)
        application = f"ingestd-{query}"
        table = DeltaTable(self._path) if DeltaTable.is_deltatable(self._path) else None
        if table is not None:
            if was_written(self._path, table.transaction_version(application), batch):
                write_nothing(rows)
                return
            self._require_same(table, rows)
        directory = Directory(rows.sparkSession, self._path)
        if not self._tidy:
            for run in directory.names(f"{OURS}/{query}"):  # what runs have staged that were killed
                clear_stage(directory, f"{OURS}/{query}/{run}")
            self._tidy = True
        stage = f"{OURS}/{query}/{self._run}"
        files = write_sized(rows, directory, stage, self._sink.partition_by, self._sink.file_bytes)
        moves = final_paths(files, stage, f"{query}-{batch}-{self._run}")
        sizes = {moves[file.path]: file.size for file in files}
        try:
            for source, target in moves.items():
                directory.move(source, target)
        except FileNotFoundError as error:
            raise OlderRun.cleared(self._path) from error
        directory.delete(stage)
        if sizes:
            self._commit(table, rows, list(_actions(rows.sparkSession, self._path, sizes)), application, batch)
        self._wrote(batch, sum(sizes.values()))

    def _commit(
        self,
        table: DeltaTable | None,
        rows: DataFrame,
        actions: list[AddAction],
        application: str,
        batch: int,
    ) -> None:
        properties = CommitProperties(app_transactions=[Transaction(application, batch)])
        by, schema = list(self._sink.partition_by), _schema(rows)
        try:
            if table is None:
                create_table_with_add_actions(
                    self._path, schema, actions, mode="append", partition_by=by, commit_properties=properties
                )
            else:
                table.create_write_transaction(
                    [*actions], "append", schema, partition_by=by, commit_properties=properties
                )
        except DeltaError:
            # Another run may have written this micro-batch meanwhile.
            if not self._is_in(application, batch):
                raise

    def _is_in(self, application: str, batch: int) -> bool:
        """Whether the table has a micro-batch. Raises `OlderRun` if it has a newer one."""
        return DeltaTable.is_deltatable(self._path) and was_written(
            self._path, DeltaTable(self._path).transaction_version(application), batch
        )

    def _require_same(self, table: DeltaTable, rows: DataFrame) -> None:
        found, wanted = (
            (_names(table.schema()), tuple(table.metadata().partition_columns)),
            (_names(_schema(rows)), self._sink.partition_by),
        )
        if found != wanted:
            raise ConfigurationError(
                f"Delta table {self._path}: it has {_said(*found)}, and the pipeline writes {_said(*wanted)}"
            )


def _schema(rows: DataFrame) -> Schema:
    """The columns as Delta has them. Each may be null."""
    nullable = StructType([StructField(field.name, field.dataType) for field in rows.schema.fields])
    return Schema.from_arrow(to_arrow_schema(nullable, timezone="UTC"))


def _names(schema: Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema.fields}


def _said(columns: Mapping[str, str], by: tuple[str, ...]) -> str:
    text = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    return f"{text} partitioned by {', '.join(by)}" if by else text


def _actions(spark: SparkSession, path: str, sizes: Mapping[str, int]) -> Iterator[AddAction]:
    """What the table's log says of the files, with their numbers of rows."""
    now = time.time_ns() // 1_000_000
    written = spark.read.parquet(*(literal(f"{path}/{file}") for file in sizes))
    named = written.groupBy(sql.col("_metadata.file_name").alias("name")).count().collect()
    counts = {row["name"]: row["count"] for row in named}
    for file, size in sizes.items():
        values = dict(_value(part) for part in parent(file).split("/") if part)
        stats = json.dumps({"numRecords": counts.get(file.rpartition("/")[2], 0)})
        yield AddAction(file, size, values, now, True, stats)  # noqa: FBT003 - deltalake's argument: rows change


def _value(directory: str) -> tuple[str, str | None]:
    """The column and the value that a directory stands for."""
    name, _, value = directory.partition("=")
    return unquote(name), None if value == _NULL else unquote(value)
