"""Reading, in Spark's Python workers: one range of offsets to Arrow record batches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from ingestd.consumer.sync import SyncConsumer
from ingestd.errors import ErrorCode, KafkaError, TopicRecreated
from ingestd.spark.arrow import record_batches
from ingestd.spark.kept import Kept
from ingestd.spark.planning import DataLoss
from ingestd.spark.raw import raw_rows
from ingestd.spark.read_options import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.consumer.settings import ConsumerSettings
    from ingestd.spark.cluster import Cluster
    from ingestd.spark.planning import OffsetRange
    from ingestd.spark.read_options import ReadOptions

__all__ = ["read_range"]


def read_range(options: ReadOptions, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The rows of one range.

    Where the topic was made again since it was planned, nothing of it is left: `DataLoss`, or no rows if the query
    accepts that. Raises `DataLoss`, `CorruptBatch`, `KafkaError`, `DeadlineExceeded`.
    """
    with _consumer(options.cluster, options.consumer) as consumer:
        try:
            if not _is_the_same(consumer, wanted):
                raise TopicRecreated(f"{wanted.topic} was deleted and created again")  # noqa: TRY301 - one way to tell it
            batches = consumer.batches(wanted.topic, wanted.partition, wanted.start, wanted.end)
            yield from _rows(options, batches, wanted)
        except (KafkaError, TopicRecreated) as error:
            gone = isinstance(error, TopicRecreated) or error.code in (
                ErrorCode.offset_out_of_range,
                ErrorCode.unknown_topic_or_partition,
                ErrorCode.unknown_topic_id,
            )
            if not gone:
                raise
            if options.fail_on_data_loss:
                raise DataLoss(
                    f"ingestd source: offsets {wanted.start} to {wanted.end} of {wanted.topic}-{wanted.partition} were "
                    f"deleted while the query ran: {error} (failOnDataLoss = false reads what is there)"
                ) from error


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


def _is_the_same(consumer: SyncConsumer, wanted: OffsetRange) -> bool:
    """Whether the topic is the one that the range was planned for."""
    if wanted.topic_id is None:
        return True
    topic = consumer.describe([wanted.topic]).get(wanted.topic)
    return topic is None or topic.topic_id is None or str(topic.topic_id) == wanted.topic_id


_kept: Final = Kept[SyncConsumer]()


def _consumer(cluster: Cluster, settings: ConsumerSettings) -> AbstractContextManager[SyncConsumer]:
    return _kept.lent((cluster, settings), partial(SyncConsumer, cluster.bootstrap, settings, cluster.client))
