"""JDBC: rows into a table of a database, by Spark's own writer and the user's driver. At least once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from ingestd.errors import ConfigurationError
from ingestd.spark.pipelines.files import Directory
from ingestd.wire.secret import Secret

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ingestd.daemon.pipelines import PipelineSink

__all__ = ["JdbcSink", "prepare_driver", "write_table"]


class JdbcSink:
    """Appends micro-batches, by `foreachBatch`. One that comes again is written again."""

    def __init__(self, sink: PipelineSink) -> None:
        self._sink = sink

    def __call__(self, rows: DataFrame, _batch: int) -> None:
        """Write the rows of a micro-batch. Raises what Spark raises."""
        write_table(rows, self._sink, "append")


def write_table(rows: DataFrame, sink: PipelineSink, mode: str) -> None:
    """Write rows to the table, which is created if it is not there. Each task commits its rows by itself.

    mode: Spark's save mode. Raises Spark's errors, and `ConfigurationError` for a secret that can not be read.
    """
    options = {"url": sink.url, "dbtable": sink.table, "driver": sink.driver, "user": sink.user}
    if isinstance(sink.password, Secret):
        options["password"] = sink.password.read()
    given = {name: value for name, value in options.items() if value is not None}
    rows.write.format("jdbc").mode(mode).options(**given).save()


def prepare_driver(spark: SparkSession, sink: PipelineSink) -> None:
    """Have Spark load the driver, here and on executors. Raises `ConfigurationError` if there is none for the URL."""
    for jar in sink.jars:
        # Spark itself says nothing of a file that is not there.
        if not jar.startswith("ivy:") and not Directory(spark, jar).exists():
            raise ConfigurationError(f"sink.jars: {jar}: there is no such file")
        spark.sql(f"ADD JAR {jar}")
    jvm = spark._jvm  # noqa: SLF001 - Spark has no other way
    try:
        if sink.driver is None:
            jvm.java.sql.DriverManager.getDriver(sink.url)  # type: ignore[union-attr]
        else:
            registry = jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry  # type: ignore[union-attr]
            registry.register(sink.driver)
    except Py4JJavaError as error:
        if sink.driver is None:
            what = f"there is no JDBC driver for {sink.url}; expected its class here, and its files as sink.jars"
        else:
            what = f"there is no class {sink.driver}; expected that of a JDBC driver, with its files as sink.jars"
        raise ConfigurationError(f"sink.driver: {what}") from error
