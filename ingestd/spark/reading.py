"""Reading, in Spark's Python workers: a task's ranges of offsets to Arrow record batches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from ingestd.consumer.sync import SyncConsumer
from ingestd.errors import ErrorCode, IngestdError, KafkaError, TopicRecreated
from ingestd.spark.arrow import record_batches
from ingestd.spark.kept import Kept
from ingestd.spark.planning import READS_THE_REST, DataLoss
from ingestd.spark.raw import raw_rows
from ingestd.spark.read_options import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from ingestd.client.metadata import TopicMetadata
    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.consumer.settings import ConsumerSettings
    from ingestd.consumer.sync import SyncPartition
    from ingestd.spark.cluster import Cluster
    from ingestd.spark.planning import OffsetRange
    from ingestd.spark.read_options import ReadOptions

__all__ = ["read_ranges"]


def read_ranges(options: ReadOptions, wanted: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """The rows of some ranges, of different partitions, one after the other. All of them are fetched from the start.

    Where a topic was made again since it was planned, nothing of it is left: `DataLoss`, or no rows if the query
    accepts that. Raises `DataLoss`, `CorruptBatch`, `KafkaError`, `DeadlineExceeded`.
    """
    with _consumer(options.cluster, options.consumer) as consumer:
        names = {one.topic for one in wanted if one.topic_id is not None}
        now = consumer.describe(names) if names else {}
        readings = [_opened(consumer, one, now.get(one.topic)) for one in wanted]
        for one, reading in zip(wanted, readings, strict=True):
            try:
                if isinstance(reading, IngestdError):
                    raise reading
                with reading:
                    yield from _rows(options, reading.batches(), one)
            except (KafkaError, TopicRecreated) as error:
                if not _is_gone(error):
                    raise
                if options.fail_on_data_loss:
                    raise DataLoss(
                        f"ingestd source: offsets {one.start} to {one.end} of {one.topic}-{one.partition} were deleted "
                        f"before they were read: {error} ({READS_THE_REST})"
                    ) from error


def _opened(
    consumer: SyncConsumer, wanted: OffsetRange, topic: TopicMetadata | None
) -> SyncPartition | KafkaError | TopicRecreated:
    """A range, being fetched; or why it can not be. `topic`: as it is now, where the cluster tells ids."""
    if topic is not None and topic.topic_id is not None and str(topic.topic_id) != wanted.topic_id:
        return TopicRecreated(f"{wanted.topic} was deleted and created again")
    try:
        return consumer.consume_partition(wanted.topic, wanted.partition, wanted.start, wanted.end)
    except KafkaError as error:
        return error


def _is_gone(error: KafkaError | TopicRecreated) -> bool:
    return isinstance(error, TopicRecreated) or error.code in (
        ErrorCode.offset_out_of_range,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
    )


def _rows(options: ReadOptions, batches: Iterator[FetchedBatch], wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    if options.rows is Rows.batches:
        return raw_rows(batches, wanted.topic, wanted.partition, include_position=options.include_position)
    return record_batches(
        batches,
        wanted.topic,
        wanted.partition,
        include_headers=options.include_headers,
        include_position=options.include_position,
    )


_kept: Final = Kept[SyncConsumer]()


def _consumer(cluster: Cluster, settings: ConsumerSettings) -> AbstractContextManager[SyncConsumer]:
    return _kept.lent((cluster, settings), partial(SyncConsumer, cluster.bootstrap, settings, cluster.client))
