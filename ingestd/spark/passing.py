"""Passing: rows that are record batches, to topics, without decoding them where Kafka takes them as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.consumer.fetched import FetchedBatch
from ingestd.errors import CorruptBatch, IngestdError, UnsupportedCodec
from ingestd.mirror.passing import passage, units
from ingestd.records.batch import read_header
from ingestd.spark.rows import by_topic, values_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from ingestd.spark.outflow import Outflow
    from ingestd.spark.rows import TopicRows
    from ingestd.spark.write_options import WriteOptions

__all__ = ["BatchPasser"]


class BatchPasser:
    """Record batches to the partitions that their rows name. Not to be used after an error.

    As with a mirror, what Kafka does not take as it is is made anew, and so are many small batches in a row.

    Invariant: batches of one partition are in its log in the order of `write`.
    """

    def __init__(self, options: WriteOptions, outflow: Outflow) -> None:
        self._options = options
        self._outflow = outflow
        self._partitions: dict[str, int] = {}
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows. Waits while too much is on its way. Raises `IngestdError` for what is no whole record batch."""
        for part in by_topic(rows, self._options.topic) if rows.num_rows else ():
            for partition, batches in self._by_partition(part).items():
                self._send(part.topic, partition, batches)
        self._rows += rows.num_rows

    def finish(self) -> int:
        """Wait until everything is acknowledged. Returns how many rows were written."""
        self._outflow.finish()
        return self._rows

    def _by_partition(self, rows: TopicRows) -> dict[int, list[FetchedBatch]]:
        batches, partitions = rows.column("batch"), rows.column("partition")
        assert batches is not None, "check_rows asks for it"
        assert partitions is not None, "check_rows asks for it"
        if rows.topic not in self._partitions:
            self._partitions[rows.topic] = self._outflow.partitions(rows.topic)
        count = self._partitions[rows.topic]
        found: dict[int, list[FetchedBatch]] = {}
        for partition, batch in zip(partitions.to_pylist(), values_of(batches), strict=True):
            if partition is None or not 0 <= partition < count:
                raise IngestdError(
                    f"ingestd sink: topic {rows.topic}: a row has partition {partition}; expected 0 to {count - 1}"
                )
            found.setdefault(partition, []).append(_whole(batch, f"{rows.topic}-{partition}"))
        return found

    def _send(self, topic: str, partition: int, batches: Sequence[FetchedBatch]) -> None:
        for unit in units(map(passage, batches)):
            try:
                for part in unit.parts():
                    if part is not None:
                        self._outflow.send(topic, partition, part.data, part.records)
            except (CorruptBatch, UnsupportedCodec) as error:
                raise _wrong(f"{topic}-{partition}", error) from error


def _whole(data: memoryview, where: str) -> FetchedBatch:
    try:
        header = read_header(data)
    except CorruptBatch as error:
        raise _wrong(where, error) from error
    if header.control:
        raise _wrong(where, "the broker's own markers")
    return FetchedBatch(header, data, header.base_offset, None)


def _wrong(where: str, what: object) -> IngestdError:
    return IngestdError(f"ingestd sink: a row for {where}: column batch: {what}; expected one whole record batch")
