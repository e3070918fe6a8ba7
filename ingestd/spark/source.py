"""The PySpark data source `ingestd`: topics as rows with the columns of Spark's Kafka connector, but without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
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

from ingestd.consumer.settings import ConsumerSettings, OutOfRange
from ingestd.consumer.sync import SyncConsumer
from ingestd.errors import ConfigurationError, ErrorCode, KafkaError
from ingestd.spark.arrow import record_batches
from ingestd.spark.options import ReadOptions, parse_options
from ingestd.spark.planning import DataLoss, OffsetRange, plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["BatchReader", "IngestdDataSource", "register", "spark_schema"]


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("ingestd")` known to a session."""
    spark.dataSource.register(IngestdDataSource)


def spark_schema(*, include_headers: bool) -> StructType:
    """The columns of Spark's Kafka connector."""
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
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField("headers", ArrayType(header)))
    return StructType(fields)


class IngestdDataSource(DataSource):
    """`spark.read.format("ingestd")`, for batch queries; options as in `ingestd.spark.options`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "ingestd"

    def schema(self) -> StructType:
        """The columns, `headers` among them where `includeHeaders` says so. Raises `ConfigurationError`."""
        return spark_schema(include_headers=parse_options(self.options).include_headers)

    def reader(self, schema: StructType) -> BatchReader:
        """The reader of a batch query. Raises `ConfigurationError`, also for a schema that is not the source's own."""
        options = parse_options(self.options)
        if schema != spark_schema(include_headers=options.include_headers):
            raise ConfigurationError(
                f"ingestd source: the schema is fixed; expected none to be given, got {schema.simpleString()}"
            )
        return BatchReader(options)


class BatchReader(DataSourceReader):
    """Plans on the driver, reads in Spark's Python workers. Pickles: it holds the options and nothing else."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges of offsets, one for each task. Raises what `planning.plan` raises."""
        with SyncConsumer(self._options.bootstrap, self._settings()) as consumer:
            return plan(self._options, consumer)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, as Arrow record batches.

        Raises `DataLoss`, `CorruptBatch`, `KafkaError`, `DeadlineExceeded`.
        """
        if not isinstance(partition, OffsetRange):  # Spark's own placeholder where the plan has no range
            return
        with SyncConsumer(self._options.bootstrap, self._settings()) as consumer:
            batches = consumer.batches(partition.topic, partition.partition, partition.start, partition.end)
            try:
                yield from record_batches(
                    batches, partition.topic, partition.partition, include_headers=self._options.include_headers
                )
            except KafkaError as error:
                if error.code is not ErrorCode.offset_out_of_range:
                    raise
                raise DataLoss(
                    f"ingestd source: offsets {partition.start} to {partition.end} of {partition.topic}-"
                    f"{partition.partition} were deleted while the query ran "
                    "(failOnDataLoss = false reads what is there)"
                ) from error

    def _settings(self) -> ConsumerSettings:
        options = self._options
        return ConsumerSettings(
            isolation=options.isolation,
            out_of_range=OutOfRange.error if options.fail_on_data_loss else OutOfRange.earliest,
        )
