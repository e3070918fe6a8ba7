"""Passing: which batches may go to the target as they are, and the others made anew, record for record the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.consumer.decoding import records_of
from ingestd.records.batch import HEADER_BYTES
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Compression

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.fetched import FetchedBatch

__all__ = ["LARGEST_BATCH", "made_anew", "passes"]

LARGEST_BATCH: Final = 1024 * 1024 - HEADER_BYTES
"""Bytes of records, before compression, of a batch that is made anew; a larger record has a batch of its own. It is
what topics take by default."""


def passes(batch: FetchedBatch) -> bool:
    """Whether the target takes this batch as it is.

    Kafka refuses a batch with gaps between its offsets, which compaction leaves, and one whose records have the time
    of the broker. A batch of which the reader wants a part only can not pass as a whole.
    """
    header = batch.header
    return batch.whole and header.records == header.last_offset_delta + 1 and not header.log_append_time


def made_anew(batch: FetchedBatch, partition: TopicPartition) -> Iterator[tuple[memoryview, int]]:
    """Batches with the same records, not sealed, each with its number of records. Codec, keys, headers, times stay.

    Raises `CorruptBatch`, `UnsupportedCodec`.
    """
    compression = Compression(batch.header.codec)
    builder = BatchBuilder(LARGEST_BATCH)
    for record in records_of(batch, partition, check_crc=False):
        if builder.append(record.key, record.value, record.headers, record.timestamp_ms) < 0:
            yield _built(builder, compression)
            builder.append(record.key, record.value, record.headers, record.timestamp_ms)
    if builder.records:
        yield _built(builder, compression)


def _built(builder: BatchBuilder, compression: Compression) -> tuple[memoryview, int]:
    records = builder.records
    return memoryview(builder.build(compression)), records
