"""Writing, in Spark's Python workers: Arrow record batches to topics, with our own producer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from ingestd.errors import IngestdError
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Compression
from ingestd.records.loops import ColumnScatter, partition_column
from ingestd.spark.kept import Kept
from ingestd.spark.outflow import Outflow
from ingestd.spark.passing import BatchPasser
from ingestd.spark.read_options import Rows
from ingestd.spark.rows import by_topic, columns_of_rows, from_start

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from ingestd.spark.outflow import OpenTransaction
    from ingestd.spark.rows import TopicRows
    from ingestd.spark.write_options import WriteOptions

__all__ = ["RowWriter", "Written", "lent_outflow", "write_rows", "writer_of"]

_OPEN_BYTES: Final = 64 * 1024 * 1024
"""Bytes of all open batches of a topic. With many partitions each gets a smaller batch."""
_SMALLEST_BATCH: Final = 16 * 1024


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote."""

    rows: int
    open: tuple[OpenTransaction, ...] = ()
    """Transactions that the driver has to end."""


def write_rows(options: WriteOptions, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write rows. All of them are acknowledged when this returns. Raises the first error of a row."""
    with lent_outflow(options) as outflow:
        writer = writer_of(options, outflow)
        for batch in batches:
            writer.write(batch)
        return Written(writer.finish())


def lent_outflow(options: WriteOptions) -> AbstractContextManager[Outflow]:
    """What sends batches, kept in this process for the next task. Not kept after an error."""
    return _kept.lent((options.cluster, options.producer), lambda: Outflow(options.cluster, options.producer))


def writer_of(options: WriteOptions, outflow: Outflow) -> RowWriter | BatchPasser:
    """What writes rows of the kind that the options say."""
    return BatchPasser(options, outflow) if options.rows is Rows.batches else RowWriter(options, outflow)


_kept: Final = Kept[Outflow]()


class RowWriter:
    """Rows to record batches of any number of topics. Not to be used after an error.

    Invariant: rows of one partition are in its log in the order of `write`.
    """

    def __init__(self, options: WriteOptions, outflow: Outflow) -> None:
        self._options = options
        self._outflow = outflow
        self._topics: dict[str, _Topic] = {}
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows. Waits while too much is on its way."""
        if not rows.num_rows:
            return
        for part in by_topic(rows, self._options.topic):
            topic = self._topics.get(part.topic)
            if topic is None:
                topic = self._topics[part.topic] = _Topic(part.topic, self._outflow, self._options)
            topic.write(part)
        self._rows += rows.num_rows

    def finish(self) -> int:
        """Send what is open, and wait until everything is acknowledged. Returns how many rows were written."""
        for topic in self._topics.values():
            topic.finish()
        self._outflow.finish()
        return self._rows


class _Topic:
    """Rows of one topic to batches of its partitions."""

    def __init__(self, name: str, outflow: Outflow, options: WriteOptions) -> None:
        self._name = name
        self._outflow = outflow
        self._compression = Compression.of(options.producer.compression)
        count = outflow.partitions(name)
        limit = min(options.producer.batch_bytes, max(_SMALLEST_BATCH, _OPEN_BYTES // count))
        self._open = [BatchBuilder(limit) for _ in range(count)]
        self._keyless = random.randrange(count)  # noqa: S311 - balance

    def write(self, rows: TopicRows) -> None:
        columns = columns_of_rows(rows)
        chosen = partition_column(columns.keys, columns.count, len(self._open), self._keyless)
        self._keyless = (self._keyless + 1) % len(self._open)
        named = rows.column("partition")
        if named is not None and named.null_count < len(named):
            hashed = pa.Array.from_buffers(pa.int32(), columns.count, [None, pa.py_buffer(chosen)])
            chosen = from_start(pc.coalesce(named, hashed)).buffers()[1]
        try:
            scatter = ColumnScatter(columns, chosen)
            while (full := scatter.append_to(self._open)) >= 0:
                self._send(full)
        except ValueError as error:
            raise IngestdError(f"ingestd sink: topic {self._name}: {error}") from error

    def finish(self) -> None:
        for partition, builder in enumerate(self._open):
            if builder.records:
                self._send(partition)

    def _send(self, partition: int) -> None:
        records = self._open[partition].records
        self._outflow.send(self._name, partition, self._open[partition].build(self._compression), records)
